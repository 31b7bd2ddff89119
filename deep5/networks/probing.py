"""The outputs of a network in native code, found by running it on zeros of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from deep5.errors import Deep5Error, UsageError
from deep5.tensors import TensorSpec

__all__ = ["output_specs"]

# Extents for each symbol, in two runs: where both appear, the extent is the symbol's.
_TRIED = ((2, 3, 5, 7), (11, 13, 17, 19))


def output_specs(
    what: str, inputs: Mapping[str, TensorSpec], run: Callable[[list[np.ndarray]], Sequence[tuple[Sequence[int], str]]]
) -> list[TensorSpec]:
    """Specifications of what a function gives, its symbolic extents those of the inputs.

    Args:
        what: What messages call the function.
        inputs: Of the function, by name.
        run: Calls the function on arrays, in this order; gives shape and dtype of each output.

    Raises:
        UsageError: The function does not run on such inputs, or more than four extents are symbolic.

    >>> inputs = {"x": TensorSpec(shape=("N", 3)), "y": TensorSpec(shape=("T", 3))}
    >>> print(*output_specs("x y^T", inputs, lambda feed: [((feed[0] @ feed[1].T).shape, "float32")]))
    float32[N, T]
    """
    symbols = list(
        dict.fromkeys(extent for spec in inputs.values() for extent in spec.shape if isinstance(extent, str))
    )
    if len(symbols) > len(_TRIED[0]):
        raise UsageError(f"the inputs of {what} have the symbolic extents {symbols}; allowed: up to {len(_TRIED[0])}")
    runs = []
    for extents in _TRIED:
        known: dict[int | str, int] = dict(zip(symbols, extents, strict=False))
        feed = [
            np.zeros([extent if isinstance(extent, int) else known[extent] for extent in spec.shape], spec.dtype)
            for spec in inputs.values()
        ]
        try:
            runs.append(run(feed))
        except Deep5Error:
            raise
        except Exception as error:
            told = ", ".join(
                f"{name} {array.dtype}{list(array.shape)}" for name, array in zip(inputs, feed, strict=True)
            )
            raise UsageError(
                f"{what} does not run on zeros for {told} ({type(error).__name__}: {error}); remedy: look at the "
                "shapes and element types of the inputs"
            ) from error
    pairs = {(first, second): symbol for symbol, first, second in zip(symbols, *_TRIED, strict=False)}
    specs = []
    for (one, dtype), (other, _) in zip(*runs, strict=True):
        shape = tuple(
            pairs.get((first, second), first if first == second else f"?{axis}")
            for axis, (first, second) in enumerate(zip(one, other, strict=True))
        )
        specs.append(TensorSpec(shape=shape, dtype=dtype))
    return specs
