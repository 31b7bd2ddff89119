"""What the recipes of DeepBench's sizes have in common: every framework, through deep5 and bare."""

from __future__ import annotations

from typing import Any

from deep5.metrics.operator_time import BareRatio, OperatorCost, OperatorCoverage, OperatorTime

__all__ = ["METRICS", "MUTABLE"]

MUTABLE: dict[str, Any] = {
    "frameworks": ("pytorch", "tensorflow", "jax", "onnxruntime", "openvino", "reference"),
    # What is more work than this in one direction is left out, and listed; None: nothing is.
    "limit_gflop": 10,
    "take": None,
    "rigorous": False,
    "rounds": 30,
    "cold": False,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(OperatorTime(), None), (BareRatio(), None), (OperatorCost(), None), (OperatorCoverage(), None)]
