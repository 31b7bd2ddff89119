"""Timing of operators: candidates, measurement, and summaries."""
