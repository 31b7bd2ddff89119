"""Training in micro-batches under a workspace limit, compared with the same network undivided."""
