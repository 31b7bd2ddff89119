"""Recipes on text."""
