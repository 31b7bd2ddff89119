"""Times of operators for the eye: a table, what was left out with its reason, the machine's peaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["operator_table", "seconds"]

_REASONS = 12
_WIDE = 110


def seconds(value: float | None) -> str:
    """A time in three digits and the unit that fits.

    >>> seconds(1.234e-5), seconds(2.0), seconds(None)
    ('12.3 us', '2 s', '-')
    """
    if value is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            return f"{value * factor:.3g} {unit}"
    return "-"


def operator_table(told: Mapping[str, Any], console: Console) -> None:
    """Print what operators.json holds.

    Args:
        told: Its content.
        console: Where to print.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= _WIDE
    cold = any(row["cold"] for row in told["rows"])
    names = ["median", "interval", *(["cold"] if cold else []), "GFLOP/s", "GB/s", "of peak"]
    names += ["first call", "memory"] if wide else []
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(name, overflow="fold", justify="right")
    before = ""
    for row in told["rows"]:
        size = f"{row['title']}, {row['direction']}"
        if size != before:
            table.add_section()
            table.add_row(Text(size), *[""] * len(names))
            before = size
        rate, moved, share, memory = (row[key] for key in ("gflop_s", "gbyte_s", "share_of_roofline", "memory_bytes"))
        cells = [
            f"  {row['candidate']}",
            seconds(row["median_s"]) + ("!" if row["warnings"] else ""),
            "-" if row["low_s"] is None else f"{seconds(row['low_s'])}-{seconds(row['high_s'])}",
            *([seconds(row["cold"] and row["cold"]["median_s"])] if cold else []),
            "-" if rate is None else f"{rate:.3g}",
            "-" if moved is None else f"{moved:.3g}",
            "-" if share is None else f"{share:.0%}",
        ]
        if wide:
            cells += [seconds(row["first_call_s"]), "-" if memory is None else f"{memory / 2**20:.1f} MiB"]
        table.add_row(*map(Text, cells))
    console.print(table)
    peak = told["roofline"]
    lines = [
        f"of peak: of the roofline of {peak['flop_s'] / 1e9:.4g} GFLOP/s (product) and {peak['byte_s'] / 1e9:.4g} GB/s "
        f"(copy), the best measured here with {peak['threads']} threads; above it is what caches served, or what beats "
        "that product",
        *(f"{label}: {counts['measured']} of {counts['of']} measured" for label, counts in told["coverage"].items()),
    ]
    reasons = Counter((entry["candidate"], entry["reason"]) for entry in told["left_out"])
    together: dict[tuple[str, int], list[str]] = {}
    for (candidate, reason), count in _grouped(reasons):
        together.setdefault((reason, count), []).append(candidate)
    for (reason, count), labels in list(together.items())[:_REASONS]:
        lines.append(f"left out, {count} of {', '.join(labels)}: {reason}")
    if len(together) > _REASONS:
        lines.append(f"… and {len(together) - _REASONS} more reasons; operators.json holds all of them")
    unsure = Counter(("", text) for row in told["rows"] for text in row["warnings"])
    lines += [f"! {count}: {text}" for (_, text), count in _grouped(unsure)]
    lines += [f"warning: {text}" for text in told["warnings"]]
    for line in lines:
        console.print(Text(line))


def _grouped(reasons: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    """Reasons that differ in their numbers alone, such as the work of a problem, are one; the most frequent first."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for (candidate, reason), count in reasons.items():
        key = (candidate, re.sub(r"[-+]?\d[\d.e+-]*", "", reason))
        shown, before = found.get(key, (reason, 0))
        found[key] = (shown, before + count)
    ordered = sorted(found.items(), key=lambda item: -item[1][1])
    return [((candidate, shown), count) for (candidate, _), (shown, count) in ordered]
