"""Rules 8 and 9 for a recipe of collectives: names of its sample series, and the values that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from deep5.audit.collective_summary import bus_bandwidth
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.audit.order_statistics import median_ends
from deep5.results.samples_file import SampleRow

if TYPE_CHECKING:
    from deep5.bench.collective.plan import CollectivePlan

__all__ = ["OF_ONE_SIZE", "check_of_one_size", "is_call", "is_series", "plan_requested", "requested"]

OF_ONE_SIZE = ("bus_bandwidth", "collective_latency")
"""Metrics derived from the times of one algorithm at one size."""

# Series other than calls of the algorithms: the measurements to which the model was fitted.
_MACHINE = ("message", "addition")

Samples = Mapping[str, Sequence[SampleRow]]


def is_call(label: str) -> bool:
    """Whether a series contains calls of an algorithm, such as `ring/1024`: every rank has its own."""
    from deep5.bench.collective.plan import LIBRARY
    from deep5.distributed.collectives.algorithms import ALGORITHMS

    return _is_of(label, (*ALGORITHMS, LIBRARY))


def is_series(label: str) -> bool:
    """Whether a series contains calls or the model's measurements, and so belongs to no metric."""
    return is_call(label) or _is_of(label, _MACHINE)


def _is_of(label: str, names: Sequence[str]) -> bool:
    name, slash, size = label.partition("/")
    return bool(slash) and name in names and size.isascii() and size.isdigit()


def requested(document: Mapping[str, Any], key: str) -> Any:
    """The value of a recipe key, or its default.

    Args:
        document: result.json of a run of collectives.
        key: Key of its recipe.
    """
    from deep5.recipe.keys import kind_of

    parts = parts_of(document)
    return parts.get(key, kind_of(parts).keys[key].default)


def plan_requested(document: Mapping[str, Any]) -> CollectivePlan:
    """The plan that the recipe of a run of collectives requests.

    Raises:
        RecipeError: A value is invalid.
    """
    from deep5.bench.collective.recipe import collective_plan

    return collective_plan(lambda key: requested(document, key))


def check_of_one_size(
    ledger: Ledger, label: str, row: Mapping[str, Any], own: Sequence[SampleRow], document: Mapping[str, Any],
    samples: Samples,
) -> None:  # fmt: skip
    """Compare samples, value and interval of a metric with the times of its algorithm.

    Args:
        ledger: Receives the findings.
        label: Label of the metric.
        row: Its row in result.json, with a value.
        own: Its samples.
        document: result.json.
        samples: All series; for calls, those of the slowest rank.
    """
    sizes, ranks = plan_requested(document).sizes_bytes, int(document["ranks"])
    number: Callable[[float], float]
    if row["name"] == "bus_bandwidth":
        size = max(sizes)
        number = lambda seconds: bus_bandwidth(size, seconds, ranks)  # noqa: E731 - one of two
    else:
        size = min(sizes)
        number = lambda seconds: seconds * 1e6  # noqa: E731
    times = [sample.value for sample in samples.get(f"{row['parameters']['algorithm']}/{size}", ())]
    if not ledger.hold(8, bool(times), f"{label} has a value, and the times from which it follows are missing"):
        return
    ledger.same(9, f"the samples of {label}", [sample.value for sample in own], [number(each) for each in times])
    ledger.same(9, f"the value of {label}", float(row["value"]), number(median(times)))
    found = median_ends(times)
    if found is None:
        ledger.same(9, f"the interval of {label}", row["interval"], None)
        return
    stored = row["interval"] or {"low": None, "high": None}
    follows = sorted(map(number, found))
    ledger.same(9, f"the interval of {label}", [stored["low"], stored["high"]], follows)
