"""openvino, loaded without the package that reports its use over the network: a measurement tells nobody of itself."""

from __future__ import annotations

import sys

__all__ = ["openvino"]

_REPORTER = "openvino_telemetry"

if "openvino" not in sys.modules and _REPORTER not in sys.modules:
    sys.modules[_REPORTER] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
    try:
        import openvino
    finally:
        del sys.modules[_REPORTER]
else:
    import openvino
