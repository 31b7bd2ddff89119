"""Recipes on graphs: classify nodes."""
