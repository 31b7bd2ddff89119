"""Printed report of all-reduce times: a table, the machine's constants, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.bench.collective.summary import CollectiveRow, CollectiveSummary
from deep5.bench.report import seconds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["collective_table", "interval_text", "rate_text", "size_text"]

_WIDE = 92


def interval_text(low_s: float | None, high_s: float | None) -> str:
    """Both ends with at least two digits, in the unit that fits the upper one.

    >>> interval_text(4.73e-4, 1.284e-3), interval_text(2.04e-4, 8.1e-4), interval_text(None, None)
    ('0.47-1.3 ms', '204-810 us', '-')
    """
    if low_s is None or high_s is None:
        return "-"
    unit = seconds(high_s).split()[1]
    factor = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
    low, high = (f"{end * factor:.0f}" if end * factor >= 10 else f"{end * factor:.2g}" for end in (low_s, high_s))
    return f"{low}-{high} {unit}"


def size_text(size_bytes: int) -> str:
    """A size in the largest unit that gives an integer.

    >>> size_text(4), size_text(1 << 20), size_text(400000)
    ('4 B', '1 MiB', '400000 B')
    """
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def rate_text(gbyte_s: float) -> str:
    """A rate with three digits in the decimal unit that fits.

    >>> rate_text(8.114e-6), rate_text(0.5014), rate_text(12.0)
    ('8.11 kB/s', '501 MB/s', '12 GB/s')
    """
    for unit, factor in (("GB/s", 1.0), ("MB/s", 1e3), ("kB/s", 1e6)):
        if gbyte_s * factor >= 1 or unit == "kB/s":
            return f"{gbyte_s * factor:.3g} {unit}"
    return "-"


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
            table.add_row(Text(size_text(row.size_bytes)), *[""] * len(names))
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
        interval_text(row.low_s, row.high_s),
        rate_text(row.algorithm_gbyte_s),
        rate_text(row.bus_gbyte_s),
        seconds(row.modelled_s),
        "-" if row.measured_over_modelled is None else f"{row.measured_over_modelled:.2f}x",
        size_text(row.sent_bytes),
        size_text(row.all_sent_bytes),
    ]


def _rate(seconds_byte: float) -> str:
    return rate_text(1e-9 / seconds_byte) if seconds_byte else "too fast to measure"
