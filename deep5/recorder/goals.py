"""Metrics and goals of a recorded loop, by the names and definitions of deep5's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deep5.core.canonical import canonical, canonical_hash
from deep5.core.errors import UsageError, brief
from deep5.core.metric import Goal, Metric
from deep5.core.plugins import registered
from deep5.recipe.experiment import Experiment
from deep5.recipe.keys import Kind
from deep5.recipe.lines import RecipeLines
from deep5.recipe.metrics import read_metrics

__all__ = ["MEASURED", "recorded_experiment"]

MEASURED = (
    "wall_clock_time", "throughput", "step_latency", "training_loss", "test_loss", "test_accuracy",
    "time_to_accuracy", "epochs_to_accuracy", "peak_memory", "cost",
)  # fmt: skip
"""The metrics that follow from what a loop reports; others read the network, the data set or the device."""

_DEFAULT = ("wall_clock_time", "throughput", "training_loss", "peak_memory")
_MOST_LETTERS = 100


def recorded_experiment(name: str, goals: Any) -> Experiment:
    """A loop with its metrics and goals, as a result describes it.

    Args:
        name: Name of the loop; it names the result folder.
        goals: A dict from a metric's name to its goal, a recipe's METRICS, or None: the usual metrics, without goals.

    Raises:
        UsageError: The name cannot name a result, or a goal cannot be evaluated for a loop.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _MOST_LETTERS:
        raise UsageError(
            f"got the name {brief(name)}; allowed: a printable string of 1 to {_MOST_LETTERS} characters, such as "
            "'my_loop'"
        )
    metrics = _metrics(goals)
    fixed = {"recorded": name}
    document = {
        "name": name,
        "hash": canonical_hash(fixed),
        "hash_version": 1,
        "content": None,
        "fixed": fixed,
        "mutable": {},
        "metrics": [
            {**canonical(metric.describe(), "goals", strict=False), "goal": None if goal is None else str(goal)}
            for metric, goal in metrics
        ],
        "size": None,
        "division": "open",
    }
    return Experiment(
        name=name,
        kind=Kind(name="recorded", keys={}),
        size="full",
        ranks=None,
        values={},
        parts={},
        metrics=metrics,
        metrics_at="",
        document=document,
        first_rule={},
        defaults={},
        source=lambda: None,
        source_hash=None,
        in_place=None,
        origin=None,
    )


def _metrics(goals: Any) -> tuple[tuple[Metric, Goal | None], ...]:
    if goals is None:
        goals = dict.fromkeys(_DEFAULT)
    if not isinstance(goals, (Mapping, list, tuple)):
        raise UsageError(
            f"got goals={brief(goals)}; allowed: a dict such as {{'throughput': '>= 1000'}}, or a recipe's METRICS"
        )
    pairs = list(goals.items()) if isinstance(goals, Mapping) else list(goals)
    metrics = read_metrics(pairs, RecipeLines(None, None))
    known = registered("metrics")
    for metric, _ in metrics:
        own = metric.name in known and known[metric.name].value.startswith("deep5.")
        if metric.name not in MEASURED or not own:
            raise UsageError(
                f"a recorder cannot measure {metric.name!r}: it sees the times and numbers of a loop, not its network "
                f"or data; allowed: {', '.join(MEASURED)}"
            )
    return metrics
