"""Level 2: data, optimizers, the trainer."""
