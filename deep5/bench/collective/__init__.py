"""Timing of all-reduce: plans, measurement by ranks, and summaries."""
