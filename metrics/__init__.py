"""What can be measured, one idea a file."""
