"""Modules of Flax: recognized without importing it, and the values that they hold."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["flax_values", "is_flax", "is_nnx"]


def is_nnx(value: object) -> bool:
    """Whether an object is a `flax.nnx.Module`, which holds its parameters."""
    kind = getattr(getattr(sys.modules.get("flax"), "nnx", None), "Module", None)
    return kind is not None and isinstance(value, kind)


def is_flax(value: object) -> bool:
    """Whether an object is a module of Flax: of `flax.nnx`, or of `flax.linen`, which holds only settings."""
    kind = getattr(getattr(sys.modules.get("flax"), "linen", None), "Module", None)
    return is_nnx(value) or (kind is not None and isinstance(value, kind))


def flax_values(module: Any) -> Any:
    """The arrays of a module by name, without the states of its random streams; empty for `flax.linen`."""
    if not is_nnx(module):
        return {}
    nnx = sys.modules["flax"].nnx
    return nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.RngState)))
