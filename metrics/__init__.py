"""Metrics, one idea per file."""
