"""Level 0: operators."""
