"""Printed report of all-reduce times: a table, the machine's constants, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.bench.collective.summary import CollectiveRow, CollectiveSummary
from deep5.core.quantities import rate, seconds, seconds_between, size

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["collective_table"]

_WIDE = 92


def collective_table(summary: CollectiveSummary, console: Console, warnings: Sequence[str] = ()) -> None:
    """Print a summary.

    Args:
        summary: Result of `summarise_collectives`.
        console: The console to print to.
        warnings: Further warnings.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    names = ["median", "interval", "algbw", "busbw", "model", "ratio"]
    names += ["sent", "all sent"] if console.width >= _WIDE else []
    for name in names:
        table.add_column(name, no_wrap=True, justify="right")
    before = None
    for row in summary.rows:
        if row.size_bytes != before:
            table.add_section()
            table.add_row(Text(size(row.size_bytes)), *[""] * len(names))
            before = row.size_bytes
        table.add_row(*map(Text, _cells(row)[: len(names) + 1]))
    console.print(table)
    machine = summary.machine
    lines = [
        f"{summary.ranks} ranks; time: of the slowest rank, after a barrier; algbw: size / time; "
        "busbw: algbw * 2(n - 1)/n",
        f"model: L = {seconds(machine.latency_s)} per message, 1/G = {_rate(machine.gap_s_byte)}, 1/γ = "
        f"{_rate(machine.reduction_s_byte)}, from messages and additions measured here; ratio: measured / model",
        *(
            ["sent: bytes sent by the rank that sends most, as counted by its communicator; for the library, its input"]
            * (len(names) > 6)
        ),
        *(f"warning: {sentence}" for sentence in warnings),
        *(f"wrong: {sentence}" for sentence in summary.wrong),
    ]
    for line in lines:
        console.print(Text(line))


def _cells(row: CollectiveRow) -> list[str]:
    return [
        row.algorithm,
        seconds(row.median_s) + ("" if row.right else " WRONG"),
        seconds_between(row.low_s, row.high_s, 2),
        rate(1e9 * row.algorithm_gbyte_s),
        rate(1e9 * row.bus_gbyte_s),
        seconds(row.modelled_s),
        "-" if row.measured_over_modelled is None else f"{row.measured_over_modelled:.2f}x",
        size(row.sent_bytes),
        size(row.all_sent_bytes),
    ]


def _rate(seconds_byte: float) -> str:
    return rate(1 / seconds_byte) if seconds_byte else "too fast to measure"
