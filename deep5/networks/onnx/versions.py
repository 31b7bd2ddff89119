"""The versions of ONNX that networks are written in."""

from __future__ import annotations

__all__ = ["IR_VERSION", "OPSET"]

# What every network is raised to: the newest that all back-ends take. Newer ones stay as they are.
OPSET, IR_VERSION = 20, 10
