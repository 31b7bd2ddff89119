"""Sequences of tensors and optional values, as Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deep5.core.errors import NetworkError

__all__ = ["concatenated", "copied", "detached", "element", "erased", "held", "inserted", "split"]


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


def element(values: Sequence[Any], position: Any) -> Any:
    """SequenceAt."""
    return values[_place(position, len(values), 0)]


def erased(values: Sequence[Any], position: Any = None) -> list[Any]:
    """SequenceErase; by default, it removes the last element."""
    place = _place(-1 if position is None else position, len(values), 0)
    return [*values[:place], *values[place + 1 :]]


def inserted(values: Sequence[Any], tensor: Any, position: Any = None) -> list[Any]:
    """SequenceInsert; by default, it appends."""
    place = len(values) if position is None else _place(position, len(values), 1)
    return [*values[:place], tensor, *values[place:]]


def concatenated(values: Sequence[Any], *, axis: int = 0, new_axis: int = 0) -> Any:
    """ConcatFromSequence."""
    if not values:
        raise NetworkError("ConcatFromSequence of an empty sequence; allowed: at least one tensor")
    return torch.stack(tuple(values), axis) if new_axis else torch.cat(tuple(values), axis)


def split(x: Any, sizes: Any = None, *, axis: int = 0, keepdims: int = 1) -> list[Any]:
    """SplitToSequence: into parts of one size, of given sizes, or single elements."""
    extent = x.shape[axis]
    if sizes is None:
        parts = x.split(1, axis)
        return list(parts) if keepdims else [part.squeeze(axis) for part in parts]
    if isinstance(sizes, list):
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise NetworkError(f"SplitToSequence into {sizes} of an axis of {extent}; allowed: sizes that add up")
    elif sizes < 1:
        raise NetworkError(f"SplitToSequence into parts of {sizes}; allowed: at least 1")
    return list(x.split(sizes, axis)) if extent or isinstance(sizes, list) else []


def held(value: Any) -> Any:
    """OptionalGetElement.

    Raises:
        NetworkError: The optional is empty.
    """
    if value is None:
        raise NetworkError(
            "OptionalGetElement of an optional value that holds nothing; allowed: one that holds a value"
        )
    return value


def _place(position: Any, count: int, beyond: int) -> int:
    place: int = position[0] if isinstance(position, list) else position
    if not -count <= place < count + beyond:
        raise NetworkError(f"the position {place} in a sequence of {count}; allowed: {-count} to {count - 1 + beyond}")
    return place + count if place < 0 else place
