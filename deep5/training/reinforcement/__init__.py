"""Reinforcement learning: batches that an agent plays while it learns."""
