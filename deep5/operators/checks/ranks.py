"""Inputs of other ranks, for operators whose `specs` accept them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from deep5.operators.checks.inputs import floating

__all__ = ["ranked"]

_RANKS = (1, 2, 3, 4)
_MOST = 1 << 16  # elements of an input


def ranked(inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """The inputs with the highest rank in ranks 1 to 4: leading axes are merged, or some of size 2 are added.

    Integers may be indices into an axis: if there are any, ranks stay unchanged.

    Yields:
        A description, and the inputs.
    """
    highest = max((value.ndim for value in inputs), default=0)
    if not all(floating(inputs)):
        return
    for rank in _RANKS:
        if rank != highest and max(value.size for value in inputs) << max(rank - highest, 0) <= _MOST:
            yield (
                f"rank {rank} (specs accepts it)",
                tuple(_of_rank(value, rank) if value.ndim == highest else value for value in inputs),
            )


def _of_rank(value: np.ndarray, rank: int) -> np.ndarray:
    if rank < value.ndim:
        rest = value.shape[value.ndim - rank + 1 :]
        return value.reshape(value.size // max(1, int(np.prod(rest))), *rest)
    shape = (2,) * (rank - value.ndim) + value.shape
    # The same values, each slightly smaller, so that no two are equal.
    made = value * np.random.default_rng(0).uniform(0.98, 1.0, shape)
    return np.asarray(made).astype(value.dtype)
