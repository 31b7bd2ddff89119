"""`slice_of`: ONNX's Slice along one axis, as a Python slice."""

from __future__ import annotations

__all__ = ["slice_of"]

# Larger than every dimension, and far from the limits of int64, where frameworks fail.
_FAR = 2**62


def slice_of(start: int, end: int, step: int, extent: int | None) -> slice:
    """The Python slice that selects the same elements as ONNX's Slice.

    The two differ if a slice with a negative step starts before the first element: ONNX moves the start to the first
    element and selects it, Python selects nothing.

    Args:
        start: First index; negative: from the end.
        end: Last index, exclusive; any int64 value.
        step: Not 0.
        extent: Size of the axis; None if unknown, which is allowed only for a positive step: then the bounds are None
            where they are at the ends of every axis.

    References:
        ONNX, Slice-13: starts are clamped to `[0, extent]`, and to `[0, extent - 1]` if the step is negative.
    """
    step = max(-_FAR, min(step, _FAR))  # libraries add it to bounds
    low, high = (-_FAR, _FAR) if extent is None else (-extent - 1, extent)
    first, behind = (max(low, min(bound, high)) for bound in (start, end))
    if step < 0 and extent is not None:
        first = max(first, -extent)
    if extent is None:
        return slice(None if first in (0, -_FAR) else first, None if behind == _FAR else behind, step)
    return slice(first, behind, step)
