"""`WeightedSampler`: samples chosen by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.dataset import Dataset
from deep5.training.part_values import part_values
from deep5.training.sampler import Sampler

__all__ = ["WeightedSampler"]


class WeightedSampler(Sampler):
    """Samples drawn with probabilities proportional to their weights.

    With replacement, an epoch is `draws` independent draws: **some samples come several times, others not at all**, and
    one of weight 0 never. Without replacement, each sample comes exactly once, heavier ones tend to come earlier: each
    draw selects by weight among the remaining samples; those of weight 0 come last. With fewer draws than samples the
    epoch ends early: each sample at most once.

    Args:
        dataset: The samples.
        batch_size: Samples per batch, or a function of the epoch.
        seed: The order is a function of (seed, epoch).
        transforms: See `Sampler`.
        weights: One number of at least 0 per sample, the name of the part that holds it, or a function that maps
            samples by name to one number per sample.
        replace: Draw with replacement.
        draws: Samples per epoch; None: as many as the data set has.

    Raises:
        UsageError: The weights are invalid or all zero, or the number of draws is not an integer of at least 1 or
            exceeds the number of samples without replacement.

    References:
        Efraimidis and Spirakis, Weighted random sampling with a reservoir, Information Processing Letters 97, 2006,
        algorithm A: the keys u ** (1 / w), the largest first.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.ArrayDataset({"input": np.arange(3)})
    >>> d5.WeightedSampler(data, 2, weights=[0, 1, 0], draws=4).order(0).tolist()
    [1, 1, 1, 1]
    >>> d5.WeightedSampler(data, 2, weights=[0, 1, 1e-9], replace=False).order(0).tolist()
    [1, 2, 0]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | Callable[[int], int],
        *,
        seed: int = 0,
        transforms: Sequence[Callable[..., Any]] = (),
        weights: str | Sequence[float] | np.ndarray | Callable[[Mapping[str, np.ndarray]], Any],
        replace: bool = True,
        draws: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, seed=seed, transforms=transforms)
        given = np.asarray(weights) if isinstance(weights, (list, tuple)) else weights
        self.weights = part_values(dataset, given, "weight")  # type: ignore[arg-type]
        total = self.weights.sum()
        if not 0 < total < np.inf:
            raise UsageError(f"weight: got a sum of {total} over all samples; allowed: a finite sum above 0")
        count, most = len(dataset), "" if replace else f" and at most {len(dataset)} (without replacement)"
        whole = isinstance(draws, int) and not isinstance(draws, bool) and draws >= 1
        if draws is not None and (not whole or (not replace and draws > count)):
            raise UsageError(f"draws: got {draws!r}; allowed: an integer of at least 1{most}")
        self.replace, self.draws = replace, count if draws is None else draws

    def samples(self, epoch: int) -> int:
        """The number of draws."""
        return self.draws

    def order(self, epoch: int) -> np.ndarray:
        """Indices in the order of the draws, a function of (seed, epoch); see the class for how often each occurs."""
        draw = generator(self.seed, "weighted", epoch)
        if self.replace:
            # The first sample at which the cumulative weight exceeds the draw: weight 0 adds nothing and is skipped.
            summed = self.weights.cumsum()
            order = np.searchsorted(summed, draw.random(self.draws) * summed[-1], side="right")
            # A draw close to 1 may be rounded up to the sum itself: use the last sample with nonzero weight.
            chosen: np.ndarray = np.minimum(order, np.flatnonzero(self.weights)[-1]).astype(np.int64)
            return chosen
        uniform = draw.random(len(self.weights))
        with np.errstate(divide="ignore", over="ignore"):
            # log(u) / w has the same order as u ** (1 / w), and does not underflow.
            keys = np.where(self.weights > 0, np.log(uniform) / self.weights, -np.inf)
        # Samples of weight 0 come last with equal keys: in random order, by the same draws.
        drawn: np.ndarray = np.lexsort((uniform, -keys, self.weights == 0))[: self.draws].astype(np.int64)
        return drawn
