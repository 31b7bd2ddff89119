"""Recipes of recommendation: predict what users choose."""
