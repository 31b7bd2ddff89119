"""The reference back-end: NumPy and deep5's own kernels. Names load lazily."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.frameworks.reference.framework import Reference as Reference
    from deep5.frameworks.reference.framework import from_model as from_model

_HOME = {"Reference": "framework", "from_model": "framework"}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from deep5.core.deep500 import replaced

        there = ", ".join(_HOME)
        raise AttributeError(
            f"module 'deep5.frameworks.reference' has no attribute {name!r}; it has {there}{replaced(name)}"
        )
    return getattr(import_module(f"deep5.frameworks.reference.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
