"""Recipes that serve networks under a load."""
