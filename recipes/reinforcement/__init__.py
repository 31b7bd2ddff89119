"""Recipes of agents that learn by acting."""
