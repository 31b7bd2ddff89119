"""The sides of the sampling recipes: the batches of an epoch from deep5's sampler, and by plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice

import numpy as np

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.core.seeds import generator

__all__ = ["by_hand", "by_sampler"]

Work = Callable[[], object]

# Images like those of CIFAR-10 and MNIST, float32, as many as fit in memory with the frameworks on a small machine.
_IMAGES = {"cifar10": ((3, 32, 32), 10_000), "mnist": ((1, 28, 28), 30_000)}


def _arrays(like: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if like not in _IMAGES:
        raise UsageError(f"images like {like!r:.60}; allowed: {', '.join(map(repr, _IMAGES))}")
    shape, number = _IMAGES[like]
    rng = generator(seed, "overhead", "feeding")
    return rng.standard_normal((number, *shape), dtype=np.float32), rng.integers(0, 10, number)


def by_sampler(*, steps: int, seed: int, like: str, batch_size: int) -> Work:
    """`steps` batches of indices, images and labels from a `ShuffleSampler`; a new epoch for each call.

    Args:
        steps: Batches per call; a call stops at the end of an epoch.
        seed: Seed of images and order.
        like: "cifar10" or "mnist": sets shape and number of the images, which are noise.
        batch_size: Samples per batch.
    """
    images, labels = _arrays(like, seed)
    sampler = d5.ShuffleSampler(d5.ArrayDataset({"input": images, "label": labels}), batch_size, seed=seed)
    epochs = count()

    def work() -> None:
        for _ in islice(sampler.batches(next(epochs)), steps):
            pass

    return work


def by_hand(*, steps: int, seed: int, like: str, batch_size: int) -> Work:
    """The same with NumPy's `permutation` and `take`; arguments as in `by_sampler`."""
    images, labels = _arrays(like, seed)
    rng = np.random.default_rng(seed)

    def work() -> None:
        order = rng.permutation(len(labels))
        for first in range(0, min(len(order), steps * batch_size), batch_size):
            ids = order[first : first + batch_size]
            _ = ids, {"input": images.take(ids, axis=0), "label": labels.take(ids, axis=0)}

    return work
