"""Communication schemes, one a file."""
