"""Convert a serving recipe to a plan, and check it without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deep5.core.errors import RecipeError, UsageError

if TYPE_CHECKING:
    from deep5.bench.serving.plan import ServingPlan

__all__ = ["described_load", "serving_plan"]


def serving_plan(value: Callable[[str], Any], where: Callable[[str], str] = lambda key: "") -> ServingPlan:
    """The load that a serving recipe requests.

    Args:
        value: Returns the value of a key, or its default.
        where: Returns the file and line of a key, ending in `": "`, or an empty string.

    Raises:
        RecipeError: The values do not fit each other.
    """
    from deep5.bench.serving.plan import ServingPlan

    rate = value("rate")
    rates = () if rate is None else tuple(map(float, rate if isinstance(rate, (list, tuple)) else (rate,)))
    same = ("scenario", "queries", "bound_s", "max_batch", "deadline_s", "timeout_s", "transport", "seed")
    try:
        return ServingPlan(
            rates=rates,
            samples_per_query=value("samples_per_query") or 0,
            percentile=float(value("percentile") or 0),
            **{key: value(key) for key in same},
        )
    except UsageError as error:
        raise RecipeError(f"{where('scenario')}{error}") from error


def described_load(plan: ServingPlan) -> str:
    """A sentence that describes the load of a plan.

    >>> from deep5.bench.serving.plan import ServingPlan
    >>> described_load(ServingPlan(scenario="server", queries=300, rates=(50.0, 100.0), max_batch=8))
    '600 requests would be made in the scenario server, at 50, 100 queries/s, in about 9 s, in batches of up to 8'
    """
    rates = f", at {', '.join(f'{rate:g}' for rate in plan.rates)} queries/s" if plan.rates else ""
    seconds = f", in about {sum(plan.queries / rate for rate in plan.rates):.3g} s" if plan.rates else ""
    return (
        f"{plan.requests} requests would be made in the scenario {plan.scenario}{rates}{seconds}, in batches of up to "
        f"{plan.max_batch}"
    )
