"""Training in micro-batches under a limit for workspace, against the same network undivided."""
