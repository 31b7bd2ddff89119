"""Recipes on speech."""
