"""Normal numbers of samples, by counters: no state, and the same numbers in any batch."""

from __future__ import annotations

import math

import numpy as np

from deep5.training.transforms.transform import RandomTransform

__all__ = ["normal_numbers"]


def normal_numbers(
    transform: RandomTransform, ids: np.ndarray | None, epoch: int, shape: tuple[int, ...], first: int = 0
) -> np.ndarray:
    """Standard normal numbers for each sample, a function of (seed of the transform, epoch, sample).

    Pairs of words u, v of 32 bits give sqrt(-2 ln u) cos(2 pi v) and sqrt(-2 ln u) sin(2 pi v), with u in (0, 1); the
    largest possible number is 6.8.

    Args:
        transform: Gives the words.
        ids: Identities of the samples, int64, shape (batch,).
        epoch: Counted from 0.
        shape: Shape of a sample's numbers.
        first: Number of the first block of words.

    Returns:
        float64, shape (batch, *shape).

    Raises:
        UsageError: The samples have no identities.

    References:
        Box and Muller, A note on the generation of random normal deviates, Annals of Mathematical Statistics 29, 1958.
    """
    size = math.prod(shape)
    blocks = [transform.words(ids, epoch, first + block) for block in range(-(-size // 4))]
    u = (np.stack(blocks, axis=1).reshape(2, 2, len(blocks), -1) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2 * np.log(u[0])), 2 * np.pi * u[1]
    drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).reshape(4 * len(blocks), -1)
    found: np.ndarray = drawn[:size].T.reshape(-1, *shape)
    return found
