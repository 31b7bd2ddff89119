"""What every level shares: errors, tensors, events, the contracts of back-ends and metrics, names and files."""
