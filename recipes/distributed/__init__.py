"""Recipes of level 3: each trains by one communication scheme."""
