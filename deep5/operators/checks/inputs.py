"""Inputs for the checks: other element types, other layouts, empty, rank 0, NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.tensors import numpy_dtype
from deep5.operators.contract import is_floating

__all__ = [
    "BLOCK",
    "LARGE",
    "LARGER",
    "LAYOUTS",
    "SIZES",
    "cast",
    "contiguous",
    "extreme",
    "far",
    "floating",
    "larger",
    "pointing_nowhere",
    "resized",
    "sized",
    "variations",
    "widened",
    "without_axes",
    "without_elements",
]

LARGER = "larger inputs"
LARGE = "large,"
"""Begins the description of inputs with many elements."""
SIZES = (1, 2, 3, 13, 17, 64)
"""One, an even and an odd number, a prime, one above the length of the longest vectors, and a multiple of all of these
lengths, where kernels skip their loops for the remainder.
"""
_FEW_SIZES = (1, 17, 64)  # of dimensions other than the first
# What all dimensions are multiples of when the largest inputs have 2 or 3 of them; with more it would be too much.
_UNITS = {2: 64, 3: 16}
BLOCK = 16_385
"""One above 16,384, where kernels are cut into blocks."""
_MOST_ELEMENTS = 1 << 18  # of an input whose first dimension is BLOCK
_MOST_EXTENTS = 4  # of the sizes that occur: each is changed several times
_MOST_INPUTS = 4  # of those that have extreme values while the others have none
_LARGE = 4096  # elements: enough for several threads to interact, and fast even for cubic work


def floating(values: Sequence[np.ndarray]) -> tuple[bool, ...]:
    """Which arrays are floating-point."""
    return tuple(is_floating(str(value.dtype)) for value in values)


def cast(inputs: Sequence[np.ndarray], dtype: str) -> tuple[np.ndarray, ...]:
    """Cast the inputs of the first floating-point element type to another one; others stay unchanged.

    Inputs of several floating-point types are intentional, such as statistics in float32 with values in float16.
    """
    own = next((value.dtype for value, yes in zip(inputs, floating(inputs), strict=True) if yes), None)
    with np.errstate(over="ignore"):
        return tuple(
            value.astype(numpy_dtype(dtype)) if own is not None and value.dtype == own else value.copy()
            for value in inputs
        )


def widened(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """All floating-point inputs in float64; integers unchanged."""
    return tuple(
        value.astype(np.float64) if yes else value.copy() for value, yes in zip(inputs, floating(inputs), strict=True)
    )


def contiguous(inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """C-contiguous copies, so that no check changes the user's arrays."""
    return tuple(np.array(value, order="C", copy=True) for value in inputs)


def _first_axis_last(value: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(value, 0, -1)), -1, 0)


def _every_second(value: np.ndarray) -> np.ndarray:
    # Code that ignores strides would read the elements between: they hold values that make the check fail.
    between = np.nan if is_floating(str(value.dtype)) else 0
    wide = np.full((*value.shape[:-1], 2 * value.shape[-1]), between, value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]


def _wider(value: np.ndarray) -> np.ndarray:
    # A part of a larger array, as a slice of columns: rows are contiguous, but not next to each other.
    beside = np.nan if is_floating(str(value.dtype)) else 0
    wide = np.full((*value.shape[:-1], value.shape[-1] + 3), beside, value.dtype)
    wide[..., 1:-2] = value
    return wide[..., 1:-2]


def _read_only(value: np.ndarray) -> np.ndarray:
    laid = value.copy()
    laid.flags.writeable = False
    return laid


def _backwards(value: np.ndarray) -> np.ndarray:
    turn = (slice(None, None, -1),) * value.ndim
    return np.ascontiguousarray(value[turn])[turn]


def _misaligned(value: np.ndarray) -> np.ndarray:
    # Like fields of a packed record, or parts of a file.
    memory = np.zeros(value.nbytes + 1, np.uint8)
    laid = np.ndarray(value.shape, value.dtype, memory.data, offset=1)
    laid[...] = value
    return laid


def repeated(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The first row of each repeated with stride 0, like a broadcast bias.

    Integers stay unchanged: lengths and indices may be related.
    """
    return [
        np.broadcast_to(value[:1], value.shape) if yes and value.ndim and value.size else value
        for value, yes in zip(inputs, floating(inputs), strict=True)
    ]


LAYOUTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran order": np.asfortranarray,
    "first axis last": _first_axis_last,
    "strides of 2": _every_second,
    "negative strides": _backwards,
    "misaligned memory": _misaligned,
    "longer rows": _wider,
    "read-only memory": _read_only,
}
"""Name to a function that gives the same values in another memory layout; for arrays of rank 1 or more."""


def without_elements(inputs: Sequence[np.ndarray]) -> Iterator[tuple[int, bool, tuple[np.ndarray, ...]]]:
    """The inputs with all axes of one size cut to 0, one size at a time: only equal sizes show which axes belong
    together.

    Integers may be indices: if some would be left while other inputs become empty, nothing is cut, since they would be
    out of range, and an operator may rely on valid indices.

    Yields:
        The size, whether only leading axes have it (as a batch size), and the inputs.
    """
    extents = dict.fromkeys(extent for value in inputs for extent in value.shape if extent > 0)
    for extent in extents:
        axes = [axis for value in inputs for axis, own in enumerate(value.shape) if own == extent]
        cut = tuple(value[tuple(slice(0 if own == extent else None) for own in value.shape)].copy() for value in inputs)
        if not pointing_nowhere(inputs, cut):
            yield extent, not any(axes), cut


def pointing_nowhere(inputs: Sequence[np.ndarray], cut: Sequence[np.ndarray]) -> bool:
    """Whether integers that may be indices are left while inputs have become empty.

    >>> rows, places = np.zeros((4, 3)), np.array([0, 2])
    >>> pointing_nowhere([rows, places], [rows[:0], places]), pointing_nowhere([rows, places], [rows, places[:0]])
    (True, False)
    """
    left = any(value.size and value.dtype.kind in "iu" for value in cut)
    return left and any(not now.size and before.size for before, now in zip(inputs, cut, strict=True))


def without_axes(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """The first element of every input as a rank-0 array; None if an input is empty."""
    if not all(value.size for value in inputs):
        return None
    return tuple(np.array(value.reshape(-1)[0], value.dtype) for value in inputs)


def resized(inputs: Sequence[np.ndarray]) -> Iterator[tuple[int, tuple[int, ...], tuple[np.ndarray, ...]]]:
    """The inputs with dimensions one smaller and one larger: all sizes above 1, then each separately.

    Integers may be indices or lengths: if there are any, no dimension is reduced, and their own dimensions stay
    unchanged.

    Yields:
        -1 or 1, which sizes are changed, and the inputs.
    """
    whole = [value for value, yes in zip(inputs, floating(inputs), strict=True) if not yes]
    kept = {extent for value in whole for extent in value.shape}
    extents = tuple(dict.fromkeys(own for value in inputs for own in value.shape if own > 1 and own not in kept))
    for step in (1,) if whole else (-1, 1):
        for changed in dict.fromkeys((extents, *((extent,) for extent in extents))):
            if changed:
                yield step, changed, _stretched(inputs, {extent: extent + step for extent in changed})


def sized(inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """The inputs with dimensions of other sizes: each size that occurs becomes 1, 2, 3, a prime, and one above a
    vector's length, one size at a time; then all become 1; then all grow until the largest input has as many elements
    as `BLOCK`; and at last the first dimension, to `BLOCK` itself if that is not too much.

    Integers may be indices: those that would point outside wrap around.

    Yields:
        A description, and the inputs.
    """
    first = next((value.shape[0] for value in inputs if value.ndim), 0)
    extents = tuple(dict.fromkeys(own for value in inputs for own in value.shape if own > 0))
    for extent in sorted(extents[:_MOST_EXTENTS], key=lambda extent: extent != first):
        for size in SIZES if extent == first else _FEW_SIZES:
            if size != extent:
                yield f"dimension {extent} = {size}", _resized(inputs, {extent: size})
    if len(extents) > 1:
        yield "all dimensions = 1", _resized(inputs, dict.fromkeys(extents, 1))
    most = max(inputs, key=np.size, default=np.zeros(0))
    if not 0 < most.size < BLOCK or not most.ndim:
        return
    grown = sum(extent > 1 for extent in most.shape)
    if grown > 1:
        factor, unit = (BLOCK / most.size) ** (1 / grown), _UNITS.get(grown, 1)
        yield (
            f"{LARGE} all dimensions",
            _resized(inputs, {own: int(np.ceil(own * factor / unit)) * unit for own in extents if own > 1}),
        )
    count = int(np.sum(np.array(most.shape) == first))
    if count:
        rest = most.size // first**count
        whole = count == 1 and rest * BLOCK <= _MOST_ELEMENTS
        size = BLOCK if whole else int(np.ceil((BLOCK / rest) ** (1 / count)))
        yield f"{LARGE} dimension {first} = {size}", _resized(inputs, {first: size})


def _resized(inputs: Sequence[np.ndarray], extents: Mapping[int, int]) -> tuple[np.ndarray, ...]:
    return tuple(
        np.asarray(_wrapped(value, extents) if value.dtype.kind in "iu" and value.size else value)
        for value in _stretched(inputs, extents)
    )


def _wrapped(places: np.ndarray, extents: Mapping[int, int]) -> np.ndarray:
    """Integers that are no less than a new size, modulo that size."""
    exceeded = [size for size in extents.values() if size <= int(places.max())]
    return places % np.asarray(min(exceeded), places.dtype) if exceeded else places


def extreme(inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Values at which code often differs, of the same shapes and types: zeros, ties, one sign, order, large and
    small numbers.

    In all inputs at once, and zeros, large and small numbers in one input at a time, too.

    Yields:
        A description, and the inputs; integers are unchanged.
    """
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "zeros": np.zeros_like,
        "some zeros": lambda value: np.where(np.arange(value.size).reshape(value.shape) % 3 == 1, 0, value),
        "ties": np.round,
        "equal values": lambda value: np.full_like(value, value.reshape(-1)[0]),
        "positive values": np.abs,
        "negative values": lambda value: -np.abs(value),
        "sorted values": lambda value: np.sort(value, axis=None).reshape(value.shape),
        "values in descending order": lambda value: np.sort(value, axis=None)[::-1].reshape(value.shape),
        "large values": lambda value: value * 1e4,
        "small values": lambda value: value * 1e-4,
    }
    numbers = [number for number, yes in enumerate(floating(inputs)) if yes and inputs[number].size]
    cases = [(what, change, numbers) for what, change in changes.items()]
    if len(numbers) > 1:  # one input at a time: in a product of zeros, an error by a factor is not seen
        cases += [
            (f"{what} in input {number}", changes[what], [number])
            for what in ("zeros", "large values", "small values")
            for number in numbers[:_MOST_INPUTS]
        ]
    for what, change, chosen in cases:
        with np.errstate(all="ignore"):
            yield (
                what,
                tuple(
                    np.asarray(change(value)).astype(value.dtype) if number in chosen else value.copy()
                    for number, value in enumerate(inputs)
                ),
            )


def far(inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Very small and very large numbers in float64, whose fourth powers are numbers, too.

    Yields:
        A description, and the inputs.
    """
    for what, factor in (("tiny values in float64", 1e-35), ("huge values in float64", 1e35)):
        yield (
            what,
            tuple(
                value * factor if yes else value for value, yes in zip(widened(inputs), floating(inputs), strict=True)
            ),
        )


def larger(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """Inputs with several thousand elements, all sizes above 1 multiplied by one factor; None if they are already that
    large, or if some hold integers.
    """
    most = max(inputs, key=np.size, default=np.zeros(0))
    axes = sum(extent > 1 for extent in most.shape)
    if not all(floating(inputs)) or not axes or not 0 < most.size < _LARGE:
        return None
    factor = int(np.ceil((_LARGE / most.size) ** (1 / axes)))
    return _stretched(inputs, {own: own * factor for value in inputs for own in value.shape if own > 1})


def _listed(extents: Sequence[int]) -> str:
    return ", ".join(map(str, extents))


def _stretched(inputs: Sequence[np.ndarray], extents: Mapping[int, int]) -> tuple[np.ndarray, ...]:
    """The same values repeated, each time slightly smaller, so that no two are equal."""
    rng, found = np.random.default_rng(0), []
    for value, yes in zip(inputs, floating(inputs), strict=True):
        made = value
        for axis, own in enumerate(value.shape):
            if own in extents:
                made = np.take(made, np.arange(extents[own]) % own, axis=axis)
        found.append(np.asarray(made * rng.uniform(0.98, 1.0, made.shape)).astype(value.dtype) if yes else made)
    return tuple(found)


def variations(inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Every kind of input that checks use, once, with its description; see `child`."""
    for dtype in dtypes:
        yield f"{dtype} inputs", cast(inputs, dtype)
    kinds = {value.dtype for value, yes in zip(inputs, floating(inputs), strict=True) if yes}
    if len(kinds) > 1:
        yield "float64 inputs only", widened(inputs)
    for step, changed, values in resized(inputs):
        yield f"inputs with the dimensions {_listed(changed)} {'one more' if step > 0 else 'one less'}", values
    for what, values in sized(inputs):
        yield f"inputs with {what}", values
    if (values_of := larger(inputs)) is not None:
        yield LARGER, values_of
    if any(value.ndim and value.size for value in inputs):
        for layout, lay in LAYOUTS.items():
            yield f"inputs in other memory ({layout})", tuple(lay(value) if value.ndim else value for value in inputs)
        yield "inputs in other memory (strides of 0)", tuple(repeated(inputs))
    for extent, _, cut in without_elements(inputs):
        yield f"inputs with the dimension {extent} cut to 0", cut
    scalars = without_axes(inputs)
    if scalars is not None:
        yield "inputs of rank 0", scalars
    for special in (np.nan, np.inf, -np.inf):
        values = contiguous(inputs)
        for value in values:
            if is_floating(str(value.dtype)) and value.size:
                value.reshape(-1)[value.size // 2] = special
        yield f"inputs that hold {special}", values
