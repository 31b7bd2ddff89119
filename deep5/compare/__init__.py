"""Candidates compared: proved to compute the same, timed in turn in fresh processes, judged."""
