"""The smallest recipe that trains, for tests of what carries runs out."""

from __future__ import annotations

__all__ = ["RECIPE"]

RECIPE = '''
"""A small network on synthetic data."""

import deep5 as d5

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 16, "hidden": 16, "classes": 4},
    "dataset": "synthetic", "dataset_kwargs": {"shape": (16,), "classes": 4, "train": 400, "test": 100},
}
MUTABLE = {"framework": "reference", "batch_size": 50, "optimizer": "adam", "epochs": 2}
METRICS = [(d5.TestLoss(), None)]
'''
