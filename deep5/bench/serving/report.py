"""Printed report of a served load: a table with one row per rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.bench.serving.plan import ServingPlan
from deep5.bench.serving.summary import PhaseSummary
from deep5.core.quantities import digits, seconds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["serving_table"]


def serving_table(plan: ServingPlan, phases: Sequence[PhaseSummary], console: Console) -> None:
    """Print a summary.

    Args:
        plan: The load.
        phases: Result of `summarise_load`.
        console: The console to print to.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    names = ["rate", "requests/s", "p50", "p90", "p99", "goodput", "batch", "failed"]
    for name in names:
        table.add_column(name, no_wrap=True, justify="right")
    for row in phases:
        table.add_row(*map(Text, _cells(row)))
    console.print(table)
    bound = "no bound" if plan.bound_s is None else f"bound: p{plan.percentile:g} within {seconds(plan.bound_s)}"
    lines = (
        f"scenario {plan.scenario}, {plan.queries} queries{' at each rate' * (plan.phases > 1)}; {bound}",
        "latencies: from the scheduled time to the end of the answer; percentiles by the nearest rank",
    )
    for line in lines:
        console.print(Text(line))


def _cells(row: PhaseSummary) -> list[str]:
    return [
        "-" if row.rate is None else f"{row.rate:g}",
        digits(row.throughput),
        *(seconds(row.percentiles[name]) for name in ("50", "90", "99")),
        "-" if row.goodput is None else digits(row.goodput),
        "-" if row.mean_batch is None else digits(row.mean_batch, 2),
        str(row.failures),
    ]
