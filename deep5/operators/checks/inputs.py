"""Inputs that operators are tried with: other element types, other layouts, empty, without axes, NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.operators.contract import is_floating
from deep5.tensors import numpy_dtype

__all__ = ["LAYOUTS", "cast", "contiguous", "floating", "variations", "without_axes", "without_elements"]


def floating(values: Sequence[np.ndarray]) -> tuple[bool, ...]:
    """Which arrays hold floating-point numbers."""
    return tuple(is_floating(str(value.dtype)) for value in values)


def cast(inputs: Sequence[np.ndarray], dtype: str) -> tuple[np.ndarray, ...]:
    """The floating-point inputs in another element type; whole numbers as they are."""
    with np.errstate(over="ignore"):
        return tuple(
            value.astype(numpy_dtype(dtype)) if is_floating(str(value.dtype)) else value.copy() for value in inputs
        )


def contiguous(inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Copies, C-contiguous, so that nothing that is checked touches what the user gave."""
    return tuple(np.array(value, order="C", copy=True) for value in inputs)


def _first_axis_last(value: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(value, 0, -1)), -1, 0)


def _every_second(value: np.ndarray) -> np.ndarray:
    # What lies between would be read by whoever takes no notice of strides: it is no number that could pass.
    between = np.nan if is_floating(str(value.dtype)) else 0
    wide = np.full((*value.shape[:-1], 2 * value.shape[-1]), between, value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]


def _backwards(value: np.ndarray) -> np.ndarray:
    turn = (slice(None, None, -1),) * value.ndim
    return np.ascontiguousarray(value[turn])[turn]


LAYOUTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran order": np.asfortranarray,
    "first axis last": _first_axis_last,
    "every second element": _every_second,
    "negative strides": _backwards,
}
"""The same values in other memory, by what they are; for arrays of at least one axis."""


def without_elements(inputs: Sequence[np.ndarray]) -> Iterator[tuple[int, bool, tuple[np.ndarray, ...]]]:
    """The inputs with every axis of one extent cut to nothing, an extent at a time: which axes belong together is
    known of their extents alone.

    Yields:
        The extent, whether only leading axes have it (as a batch's), and the inputs.
    """
    extents = dict.fromkeys(extent for value in inputs for extent in value.shape if extent > 0)
    for extent in extents:
        axes = [axis for value in inputs for axis, own in enumerate(value.shape) if own == extent]
        cut = tuple(value[tuple(slice(0 if own == extent else None) for own in value.shape)].copy() for value in inputs)
        yield extent, not any(axes), cut


def without_axes(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """The first element of every input as an array of no axes; None where one has none."""
    if not all(value.size for value in inputs):
        return None
    return tuple(np.array(value.reshape(-1)[0], value.dtype) for value in inputs)


def variations(inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Every kind of input that checks use, once, with what it is; see `child`."""
    for dtype in dtypes:
        yield f"{dtype} inputs", cast(inputs, dtype)
    if any(value.ndim and value.size for value in inputs):
        for layout, lay in LAYOUTS.items():
            yield f"inputs in other memory ({layout})", tuple(lay(value) if value.ndim else value for value in inputs)
    for extent, _, cut in without_elements(inputs):
        yield f"inputs with the extent {extent} cut to 0", cut
    scalars = without_axes(inputs)
    if scalars is not None:
        yield "inputs without axes", scalars
    for special in (np.nan, np.inf, -np.inf):
        values = contiguous(inputs)
        for value in values:
            if is_floating(str(value.dtype)) and value.size:
                value.reshape(-1)[value.size // 2] = special
        yield f"inputs that hold {special}", values
