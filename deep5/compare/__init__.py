"""Comparison of candidates: proved equivalent, timed in turn in fresh processes, and evaluated."""
