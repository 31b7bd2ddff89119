"""Recipes of generation and reconstruction."""
