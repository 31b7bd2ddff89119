"""Recipes of vision beside those of convolutional networks."""
