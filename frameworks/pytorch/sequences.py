"""Sequences of tensors and optional values, as Python objects."""

from __future__ import annotations

from typing import Any

__all__ = ["copied", "detached"]


def copied(value: Any) -> Any:
    """A list of copies, or None for an empty optional."""
    return _each(value, lambda tensor: tensor.clone())


def detached(value: Any) -> Any:
    """A tensor or a list of tensors, detached from the graph; None for an empty optional."""
    return _each(value, lambda tensor: tensor.detach())


def _each(value: Any, function: Any) -> Any:
    if value is None:
        return None
    return [function(tensor) for tensor in value] if isinstance(value, list) else function(value)
