"""Pruners: whether a trial ends early, as a function of its curve and of the trials before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deep5.core.errors import UnknownName, UsageError
from deep5.results.sweep.trial import Direction, Trial
from deep5.search.optuna_study import Watched, filled_study, optuna
from deep5.search.space import Space

__all__ = ["NONE", "PRUNERS", "Watch", "check_pruner"]

NONE = "none"
PRUNERS = (NONE, "median", "hyperband", "asha")
"""Names on the command line."""

_MEDIAN_AFTER = 5
_HYPERBAND_FACTOR, _ASHA_FACTOR = 3, 4


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a pruner says about a curve.

    Attributes:
        curve: The part of the curve that counts: up to the epoch at which the trial is pruned.
        pruned: Whether it is pruned.
        rungs: Values at the rungs of successive halving.
    """

    curve: tuple[tuple[int, float], ...]
    pruned: bool
    rungs: tuple[float, ...]


class Watch:
    """A pruner on one trial. It considers each epoch once and in order, whenever the epoch is seen.

    So the epoch at which a trial is pruned does not depend on how fast its run is, or on how often it is looked at:
    what a run did after that epoch does not count.

    Args:
        name: One of `PRUNERS`.
        space: The space.
        direction: Whether higher or lower values are better.
        trials: All trials before this one, in order.
        known: How many of them count with their outcome.
        epochs: Most epochs of a trial.

    Attributes:
        verdict: What it says so far.
    """

    def __init__(
        self, name: str, space: Space, direction: Direction, trials: Sequence[Trial], known: int, epochs: int
    ) -> None:
        self.verdict = Verdict(curve=(), pruned=False, rungs=())
        self._watched: Watched | None = None
        if name != NONE:
            study = filled_study(space, trials, known, direction, pruner=_pruner(name, epochs))
            self._watched = Watched(study, direction)

    def hear(self, curve: Iterable[tuple[int, float]]) -> Verdict:
        """Consider what is new in a curve.

        Args:
            curve: All epochs so far, with their values.
        """
        for epoch, value in curve:
            counted = self.verdict.curve
            if self.verdict.pruned:
                break
            if counted and epoch <= counted[-1][0]:
                continue
            pruned, rungs = False, self.verdict.rungs
            if self._watched is not None:
                # What diverged does not come back.
                pruned = not math.isfinite(value) or self._watched.prunes(epoch, value)
                rungs = tuple(self._watched.rungs)
            self.verdict = Verdict(curve=(*counted, (epoch, value)), pruned=pruned, rungs=rungs)
        return self.verdict


def check_pruner(name: str, epochs: int, timed: bool, metric: str) -> None:
    """Reject a pruner that has nothing to prune.

    Args:
        name: The pruner.
        epochs: Most epochs of a trial.
        timed: Whether the metric is one of time.
        metric: Its name.

    Raises:
        UnknownName: There is no such pruner.
        UsageError: The metric has no curve.
        MissingDependency: Optuna is not installed.
    """
    if name not in PRUNERS:
        raise UnknownName("pruner", name, PRUNERS)
    if name == NONE:
        return
    if timed:
        raise UsageError(
            f"the pruner {name} on {metric}, which has no value after each epoch; allowed: a metric with a curve, such "
            "as test_loss; remedy: --pruner none"
        )
    if epochs < 2:
        raise UsageError(
            f"the pruner {name} on trials of {epochs} epoch; allowed: at least 2 epochs, so that one can end early; "
            "remedy: --pruner none, or --set epochs=…"
        )
    optuna()


def _pruner(name: str, epochs: int) -> Any:
    kinds: Mapping[str, Any] = vars(optuna().pruners)
    if name == "median":
        return kinds["MedianPruner"](n_startup_trials=_MEDIAN_AFTER)
    if name == "hyperband":
        return kinds["HyperbandPruner"](min_resource=1, max_resource=epochs, reduction_factor=_HYPERBAND_FACTOR)
    return kinds["SuccessiveHalvingPruner"](min_resource=1, reduction_factor=_ASHA_FACTOR)
