"""Communication schemes, one per file."""
