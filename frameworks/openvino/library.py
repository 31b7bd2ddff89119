"""openvino, imported without the package that reports its use over the network."""

from __future__ import annotations

import sys

__all__ = ["openvino"]

_REPORTER = "openvino_telemetry"

if "openvino" not in sys.modules and _REPORTER not in sys.modules:
    sys.modules[_REPORTER] = None  # type: ignore[assignment]  # marks a module that cannot be imported
    try:
        import openvino
    finally:
        del sys.modules[_REPORTER]
else:
    import openvino
