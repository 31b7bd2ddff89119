"""Operators timed: what is measured, how, and what is said of it."""
