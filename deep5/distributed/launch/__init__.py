"""Starts, supervises and connects ranks."""
