"""The ONNX versions that networks are converted to."""

from __future__ import annotations

__all__ = ["IR_VERSION", "OPSET"]

# Older networks are upgraded to these, the newest that all back-ends support. Newer networks keep their version.
OPSET, IR_VERSION = 20, 10
