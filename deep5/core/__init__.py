"""Shared by all levels: errors, tensors, events, the contracts of back-ends and metrics, names and files."""
