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
    """Samples drawn with probabilities that are proportional to their weights.

    With replacement, an epoch is `draws` independent draws: **some samples come several times, others not at all**, and
    one of weight 0 never. Without, each sample comes exactly once, the heavier ones rather earlier: the first is drawn
    by weight among all, the next among those that are left, and so on; those of weight 0 come last. With fewer draws
    than samples the epoch ends early: each sample at most once.

    Args:
        dataset: The samples.
        batch_size: Samples a batch, or a function of the epoch.
        seed: The order is a function of (seed, epoch).
        transforms: See `Sampler`.
        weights: One number of at least 0 for each sample, the name of a part that holds it, or a function that gets
            samples by name and gives one for each.
        replace: Draw with replacement.
        draws: Samples an epoch; None: as many as the data set has.

    Raises:
        UsageError: Weights that are none or all zero, or a number of draws that is no whole number of at least 1, or
            more than the samples without replacement.

    References:
        Efraimidis and Spirakis, Weighted random sampling with a reservoir, Information Processing Letters 97, 2006,
        algorithm A: the keys u ** (1 / w), the largest first.

    >>> from deep5.training.dataset import ArrayDataset
    >>> data = ArrayDataset({"input": np.arange(3)})
    >>> WeightedSampler(data, 2, weights=[0, 1, 0], draws=4).order(0).tolist()
    [1, 1, 1, 1]
    >>> WeightedSampler(data, 2, weights=[0, 1, 1e-9], replace=False).order(0).tolist()
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
            raise UsageError(f"draws: got {draws!r}; allowed: a whole number of at least 1{most}")
        self.replace, self.draws = replace, count if draws is None else draws

    def samples(self, epoch: int) -> int:
        """The number of draws."""
        return self.draws

    def order(self, epoch: int) -> np.ndarray:
        """Indices as they are drawn, a function of (seed, epoch); see the class for how often each comes."""
        draw = generator(self.seed, "weighted", epoch)
        if self.replace:
            # The first sample at which the summed weights pass the draw: one of weight 0 adds nothing and is passed by.
            summed = self.weights.cumsum()
            order = np.searchsorted(summed, draw.random(self.draws) * summed[-1], side="right")
            # A draw next to 1 may be rounded up to the sum itself: the last sample that weighs anything.
            chosen: np.ndarray = np.minimum(order, np.flatnonzero(self.weights)[-1]).astype(np.int64)
            return chosen
        uniform = draw.random(len(self.weights))
        with np.errstate(divide="ignore", over="ignore"):
            # log(u) / w sorts as u ** (1 / w) does, and does not underflow.
            keys = np.where(self.weights > 0, np.log(uniform) / self.weights, -np.inf)
        # Those of weight 0 come last and all have the same key: in random order, by the same draws.
        drawn: np.ndarray = np.lexsort((uniform, -keys, self.weights == 0))[: self.draws].astype(np.int64)
        return drawn
