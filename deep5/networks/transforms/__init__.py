"""Transformations: network to network, each proved to keep the function."""
