"""Recipes of object detection."""
