"""How long a run took to its target: seconds, epochs and steps; infinite if it did not reach it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from deep5.core.errors import TooFewSamples, UsageError, brief, suggestion
from deep5.results.result import Result
from deep5.results.samples_file import SampleRow
from deep5.results.schema import metric_labels

__all__ = [
    "MEASURES",
    "TO_ACCURACY",
    "Reached",
    "Target",
    "diverged",
    "median_to_target",
    "parse_target",
    "stated_goals",
    "summary",
    "time_to_target",
]

MEASURES = {"seconds": "s", "epochs": "epochs", "steps": "steps"}
"""Measures counted until the target, with their units."""

TO_ACCURACY = ("time_to_accuracy", "epochs_to_accuracy")
"""Metrics whose parameter `target` is an accuracy in percent: a recipe's own target."""

_METRICS = {"test_accuracy": (">=", "%"), "test_loss": ("<=", "nat")}
_SHORT = {"accuracy": "test_accuracy", "loss": "test_loss"}
# The wording of `deep5.training.divergence`, in a warning of the run or in the reason for its stop.
_DIVERGED = re.compile(r"the (?:training loss|loss of the evaluation after epoch \d+) is (?:nan|-?inf)\b[^;]*")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The value that a run has to reach on the test samples, checked at the evaluations that the recipe makes.

    Attributes:
        metric: "test_accuracy" or "test_loss".
        goal: In percent, or in nat.
        origin: "recipe", or "asked" if the user specified it.
    """

    metric: str
    goal: float
    origin: str = "recipe"

    def __post_init__(self) -> None:
        known = isinstance(self.metric, str) and self.metric in _METRICS and self.origin in ("recipe", "asked")
        number = isinstance(self.goal, (int, float)) and not isinstance(self.goal, bool) and 0 < self.goal < math.inf
        if not known or not number or (self.metric == "test_accuracy" and self.goal > 100):
            raise UsageError(
                f"the target {brief(self.metric)} {brief(self.goal)}; allowed: accuracy=97 (above 0, up to 100 %) or "
                "loss=0.3 (above 0)"
            )

    def __str__(self) -> str:
        relation, unit = _METRICS[self.metric]
        bound = "at least" if relation == ">=" else "at most"
        return f"{self.metric.replace('_', ' ')} of {bound} {self.goal:g} {unit}"

    def met(self, value: float) -> bool:
        """Whether an evaluation reached it; NaN does not."""
        return value >= self.goal if self.metric == "test_accuracy" else value <= self.goal

    def document(self) -> dict[str, Any]:
        """The target in JSON types."""
        relation, unit = _METRICS[self.metric]
        return {
            "metric": self.metric,
            "relation": relation,
            "goal": self.goal,
            "unit": unit,
            "origin": self.origin,
            "judged": "at the recipe's evaluations, on its test samples",
        }


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The cost of a run until its target.

    Attributes:
        seconds: On the run's own clock, as for the metric `time_to_accuracy`; infinite if it did not reach the target.
        epochs: Epochs trained.
        steps: Steps trained.
        reason: Why it did not reach the target, or None.
    """

    seconds: float
    epochs: float
    steps: float
    reason: str | None = None

    @classmethod
    def never(cls, reason: str) -> Reached:
        """A run that did not reach the target."""
        return cls(seconds=math.inf, epochs=math.inf, steps=math.inf, reason=reason)


def parse_target(text: str) -> Target:
    """Parse `accuracy=97` or `loss=0.3`.

    Raises:
        UsageError: The string has neither form.

    >>> print(parse_target("accuracy=97"))
    test accuracy of at least 97 %
    """
    name, _, number = text.partition("=")
    try:
        goal = float(number)
    except ValueError:
        goal = math.nan
    if name.strip() not in _SHORT or math.isnan(goal):
        near = "" if name.strip() in _SHORT else suggestion(name.strip(), _SHORT)
        raise UsageError(
            f"cannot read the target {text!r}; allowed: accuracy=97 (in percent) or loss=0.3 (in nat){near}"
        )
    return Target(metric=_SHORT[name.strip()], goal=goal, origin="asked")


def time_to_target(result: Result, target: Target) -> Reached:
    """The cost of a run until an evaluation first reached the target.

    A run that failed, was interrupted or diverged (a non-finite training or evaluation loss, at any time) took
    infinitely long, whatever it had reached before: runs are declared in advance, and failures count.

    Args:
        result: Result of a training run.
        target: The target.

    Raises:
        UsageError: The run has no evaluations of this metric, or a damaged sample.
    """
    if result.status != "success":
        return Reached.never(f"{result.status}: {'; '.join(result.reasons) or 'no reason given'}")
    samples = result.samples()
    row = _first(result, samples, target)
    why = diverged(result, samples)
    if why is not None:
        return Reached.never(f"diverged: {why}" + ("; it had reached the target before" if row else ""))
    if row is None:
        return Reached.never(f"did not reach a {target}")
    found = Reached(seconds=_number(row.time_s), epochs=_number(row.epoch), steps=_number(row.step))
    if not all(0 < getattr(found, measure) < math.inf for measure in MEASURES):
        raise UsageError(
            f"{result.folder} reached its target after {row.time_s} s, {brief(row.epoch)} epochs and {brief(row.step)} "
            "steps; allowed: numbers above zero; the samples are damaged: restore them from a copy"
        )
    return found


def stated_goals(results: Iterable[Result]) -> set[float]:
    """The accuracies, in percent, that the recipes of runs state as their own target.

    Args:
        results: Results of training runs.
    """
    return {
        float(row["parameters"]["target"])
        for result in results
        for row in result.document["metrics"]
        if row["name"] in TO_ACCURACY and isinstance(row["parameters"].get("target"), (int, float))
    }


def _number(value: float | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # an integer beyond the range of floats
        return math.inf


def _first(result: Result, samples: Mapping[str, Sequence[SampleRow]], target: Target) -> SampleRow | None:
    """The evaluation that first reached the target."""
    rows = result.document["metrics"]
    judged = [(row, samples.get(label, ())) for row, label in zip(rows, metric_labels(rows), strict=True)]
    # Both metrics have the accuracy after every evaluation as samples.
    names = ("test_accuracy", "epochs_to_accuracy") if target.metric == "test_accuracy" else ("test_loss",)
    found = sorted((names.index(row["name"]), place) for place, (row, _) in enumerate(judged) if row["name"] in names)
    chosen = [judged[place] for _, place in found]
    if target.metric == "test_accuracy":
        # The metric's own clock first, so that the two agree exactly.
        own = [(row, of) for row, of in judged if row["name"] == "time_to_accuracy"]
        chosen = [(row, of) for row, of in own if row["parameters"].get("target") == target.goal] + chosen
    chosen = [(row, of) for row, of in chosen if row["missing"] is None]
    if not chosen:
        remedy = "d5.TestAccuracy()" if target.metric == "test_accuracy" else "d5.TestLoss()"
        raise UsageError(
            f"{result.folder} has no evaluations of {target.metric}; allowed: a run whose METRICS hold {remedy}"
        )
    row, own_samples = chosen[0]
    value = math.inf if row["value"] is None else float(row["value"])
    if not own_samples and row["value"] is not None and math.isfinite(value):
        raise UsageError(
            f"{result.folder} states {row['name']} {value:g} and has no samples of it; allowed: a complete folder; "
            "remedy: restore it from a copy"
        )
    if row["name"] == "time_to_accuracy":
        return own_samples[-1] if math.isfinite(value) else None
    # A run stopped before its first evaluation has none.
    return next((sample for sample in own_samples if target.met(sample.value)), None)


def diverged(result: Result, samples: Mapping[str, Sequence[SampleRow]]) -> str | None:
    """The first non-finite training or evaluation loss of a run, at any time; None if all are finite.

    Args:
        result: Result of a training run.
        samples: Its samples.
    """
    for sentence in (*result.reasons, *result.document["warnings"]):
        found = _DIVERGED.search(str(sentence))
        if found:
            return found[0]
    for verdict in result.verdicts:
        if verdict.name in ("training_loss", "test_loss"):
            for sample in samples.get(verdict.label, ()):
                if not math.isfinite(sample.value):
                    return f"{verdict.name} is {sample.value} at step {sample.step}"
    return None


def median_to_target(values: Sequence[float]) -> float:
    """Median over the seeds; infinite if half of them or more did not reach the target.

    Each seed counts as one of AlgoPerf's studies, whose median is the time of a submission on a workload.

    >>> median_to_target([2.0, math.inf, 1.0]), median_to_target([2.0, math.inf])
    (2.0, inf)
    """
    return median(values)


def summary(reached: Mapping[int, Reached], *, timed: bool = True) -> dict[str, Any]:
    """The summary of a candidate in study.json: values by seed, median and its interval, reasons; in JSON types.

    Args:
        reached: The cost by seed.
        timed: Whether the times compare; otherwise there are no seconds.
    """
    from deep5.measuring.samples import median_interval

    found: dict[str, Any] = {}
    for measure in MEASURES if timed else [name for name in MEASURES if name != "seconds"]:
        values = {seed: getattr(own, measure) for seed, own in reached.items()}
        try:
            interval = median_interval(list(values.values()))
            ends = {
                "low": _plain(interval.low),
                "high": _plain(interval.high),
                "confidence": interval.confidence,
            }
        except TooFewSamples:
            ends = None
        found[measure] = {
            "values": {str(seed): _plain(value) for seed, value in values.items()},
            "median": _plain(median_to_target(list(values.values()))) if values else None,
            "interval": ends,
        }
    found["reasons"] = {str(seed): own.reason for seed, own in reached.items() if own.reason is not None}
    return found


def _plain(value: float) -> float | str:
    """The value, with infinity as a string, because JSON has none."""
    return value if math.isfinite(value) else str(value)
