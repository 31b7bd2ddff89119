"""Recipes that ship; each has a smoke size."""
