"""Recipes that time deep5 itself against hand-written code."""
