"""Transformations from network to network, each verified to preserve the function."""
