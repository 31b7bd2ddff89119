"""Graphs edited and built."""
