"""The ONNX Runtime back-end. Names are imported on first use: importing this module does not import the framework."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.frameworks.onnxruntime.framework import ONNXRuntime as ONNXRuntime
    from deep5.frameworks.onnxruntime.framework import from_model as from_model

_HOME = {"ONNXRuntime": "framework", "from_model": "framework"}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from deep5.core.deep500 import replaced

        there = ", ".join(_HOME)
        raise AttributeError(
            f"module 'deep5.frameworks.onnxruntime' has no attribute {name!r}; it has {there}{replaced(name)}"
        )
    return getattr(import_module(f"deep5.frameworks.onnxruntime.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
