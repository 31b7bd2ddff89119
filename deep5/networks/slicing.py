"""`slice_of`: what ONNX's Slice takes along one axis, as a slice of Python."""

from __future__ import annotations

__all__ = ["slice_of"]

# Beyond every extent, and far from the ends of int64, where frameworks complain.
_FAR = 2**62


def slice_of(start: int, end: int, step: int, extent: int | None) -> slice:
    """The slice of Python that takes the elements which ONNX's Slice takes.

    The two differ where a slice that runs backwards starts before the first element: ONNX puts its start onto the
    first element and takes it, Python takes nothing.

    Args:
        start: Where it starts; negative: from the end.
        end: Where it ends, not included; it may be as large or as small as int64 is.
        step: Not 0.
        extent: Of the axis; None where it is not known, which a positive step alone allows.

    References:
        ONNX, Slice-13: starts are clamped to [0, extent], and to [0, extent - 1] where the step is negative.
    """
    low, high = (-_FAR, _FAR) if extent is None else (-extent - 1, extent)
    first, behind = (max(low, min(bound, high)) for bound in (start, end))
    if step < 0 and extent is not None:
        first = max(first, -extent)
    return slice(first, behind, step)
