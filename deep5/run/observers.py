"""The observers of a recipe's metrics, and whether its network has what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, RecipeError, contained, described
from deep5.core.metric import Metric, Observer

if TYPE_CHECKING:
    from deep5.recipe.experiment import Experiment

__all__ = ["check_metrics", "observers_of"]


def observers_of(experiment: Experiment) -> list[Observer]:
    """A fresh observer of each metric, in their order.

    Raises:
        RecipeError: A metric returns none.
    """
    return [_observer(metric, experiment.metrics_at) for metric, _ in experiment.metrics]


def check_metrics(experiment: Experiment, network: Any) -> None:
    """Check that the network of a training recipe has what its metrics read.

    Raises:
        RecipeError: Of several metrics, it names the one that does not fit.
    """
    for (metric, _), observer in zip(experiment.metrics, observers_of(experiment), strict=True):
        try:
            with contained():
                observer.check_network(network)
        except Deep5Error as error:
            raise RecipeError(f"{experiment.metrics_at}the metric {metric.name!r}: {error}") from error


def _observer(metric: Metric, where: str) -> Observer:
    try:
        with contained():
            observer: Any = metric.observer()
    except Exception as error:
        raise RecipeError(
            f"{where}the metric {metric.name!r} created no observer: {described(error)}; allowed: a method that "
            "returns one; remedy: --debug shows where"
        ) from error
    if not isinstance(observer, Observer):
        got = type(observer).__name__
        raise RecipeError(
            f"{where}the metric {metric.name!r} returned a {got} as its observer; allowed: an object of "
            "a class that extends deep5.core.metric.Observer"
        )
    return observer
