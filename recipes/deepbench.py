"""Common parts of the DeepBench recipes: every framework, through deep5 and bare."""

from __future__ import annotations

from typing import Any

from deep5.metrics.operator_time import BareRatio, OperatorCost, OperatorCoverage, OperatorTime

__all__ = ["LIMIT_GFLOP", "METRICS", "MUTABLE", "WHOLE"]

LIMIT_GFLOP = 10
"""Problems with more work than this in one direction are skipped, and listed."""
WHOLE: dict[str, Any] = {"limit_gflop": None}
"""The settings without a limit of work."""

MUTABLE: dict[str, Any] = {
    "frameworks": ("pytorch", "tensorflow", "jax", "onnxruntime", "openvino", "reference"),
    "rigorous": False,
    "rounds": 30,
    "cold": False,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(OperatorTime(), None), (BareRatio(), None), (OperatorCost(), None), (OperatorCoverage(), None)]
