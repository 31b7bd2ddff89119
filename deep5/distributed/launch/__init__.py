"""Ranks started, supervised and joined."""
