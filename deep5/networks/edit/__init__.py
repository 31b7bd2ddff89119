"""Edit and build graphs."""
