"""Random inputs of operators for checks and timings: integers that are valid indices, or values within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from deep5.core.errors import UsageError
from deep5.core.tensors import numpy_dtype
from deep5.operators.contract import is_floating

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["below_extents", "check_bounds", "check_held", "each_input", "whole_numbers"]

T = TypeVar("T")


def below_extents(shapes: Sequence[Sequence[Any]]) -> int:
    """An exclusive bound for integers that makes them valid indices of every axis: the smallest dimension, at least 1.

    >>> below_extents([(4, 3), (5,)]), below_extents([()]), below_extents([(0, 3)])
    (3, 2, 1)
    """
    return max(1, min((int(extent) for shape in shapes for extent in shape), default=2))


def whole_numbers(
    draw: np.random.Generator,
    shape: Sequence[int],
    dtype: str,
    below: int,
    bounds: tuple[float, float] | None = None,
) -> NDArray[Any]:
    """Uniformly distributed integers from 0; booleans are 0 and 1.

    Args:
        draw: The random generator.
        shape: Shape of the array.
        dtype: Element type, not floating-point.
        below: Exclusive upper bound from `below_extents`, limited by the range of the element type.
        bounds: Inclusive bounds to use instead.
    """
    import numpy as np

    kind = numpy_dtype(dtype)
    if bounds is not None:
        drawn = draw.integers(int(bounds[0]), int(bounds[1]), tuple(shape), endpoint=True)
    elif dtype == "bool":
        drawn = draw.integers(0, 2, tuple(shape))
    else:
        most = int(np.iinfo(kind).max) if kind.kind in "iu" else below
        drawn = draw.integers(0, min(below, most), tuple(shape))
    return np.asarray(drawn).astype(kind)


def check_bounds(bounds: tuple[float, float]) -> None:
    """Check that bounds are a valid interval.

    Raises:
        UsageError: The first is not below the second, or their difference is not finite.
    """
    if not (bounds[0] < bounds[1] and math.isfinite(bounds[1] - bounds[0])):
        raise UsageError(
            f"got --range {bounds[0]:g} {bounds[1]:g}; allowed: two numbers, the lower one first, neither they nor "
            "their difference infinite"
        )


def check_held(bounds: tuple[float, float], dtype: str) -> None:
    """Check that bounds are in the range of an element type.

    Raises:
        UsageError: One of them is out of range.
    """
    if dtype == "bool":
        return
    least: float
    most: float  # an int for integer types: in float64, the maximum of int64 would be one too large
    if is_floating(dtype):
        import ml_dtypes

        most = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)  # type: ignore[no-untyped-call]
        least = -most
    else:
        import numpy as np

        known = np.iinfo(dtype)
        least, most = int(known.min), min(int(known.max), int(np.iinfo(np.int64).max))  # values are drawn as int64
    if bounds[0] < least or bounds[1] > most:
        raise UsageError(
            f"got --range {bounds[0]:g} {bounds[1]:g} for inputs of {dtype}; allowed: from {least:g} to {most:g}"
        )


def each_input(option: str, given: Sequence[T], count: int, names: Sequence[str] = ()) -> list[T]:
    """Expand values given once for all inputs, or once per input, to one per input.

    Args:
        option: Name of the option, for the message.
        given: The values; not empty.
        count: Number of inputs.
        names: Names of the inputs, for the message.

    Raises:
        UsageError: The number of values is neither 1 nor `count`.

    >>> each_input("--dtype", ["float32"], 2)
    ['float32', 'float32']
    """
    if len(given) not in (1, count):
        reported = f" ({', '.join(names)})" if names else ""
        raise UsageError(f"got {len(given)} times {option}; allowed: once, or once per input, {count} times{reported}")
    return list(given) if len(given) == count else list(given) * count
