"""Printed report of operator times: a table, what was left out with its reason, and the machine's peaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.quantities import percent, rate, seconds, seconds_between, size
from deep5.operators.problem import FORWARD

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["operator_table"]

_REASONS, _LETTERS = 12, 240
_WIDE = 110


def operator_table(reported: Mapping[str, Any], console: Console) -> None:
    """Print the content of operators.json.

    Args:
        reported: Its content.
        console: The console to print to.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= _WIDE
    cold = any(row["cold"] for row in reported["rows"])
    names = ["median", "interval", *(["cold"] if cold else []), "GFLOP/s", "GB/s", "of peak"]
    names += ["first call", "memory"] if wide else []
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(name, overflow="fold", justify="right")
    before = ""
    for row in reported["rows"]:
        which = f"{row['title']}, {row['direction']}"
        if which != before:
            table.add_section()
            table.add_row(Text(which), *[""] * len(names))
            before = which
        computed, moved, share, memory = (
            row[key] for key in ("gflop_s", "gbyte_s", "share_of_roofline", "memory_bytes")
        )
        cells = [
            f"  {row['candidate']}",
            seconds(row["median_s"]) + ("!" if row["warnings"] else ""),
            seconds_between(row["low_s"], row["high_s"]),
            *([seconds(row["cold"] and row["cold"]["median_s"])] if cold else []),
            "-" if computed is None else f"{computed:.3g}",
            "-" if moved is None else f"{moved:.3g}",
            "-" if share is None else percent(share),
        ]
        if wide:
            cells += [seconds(row["first_call_s"]), "-" if memory is None else size(memory)]
        table.add_row(*map(Text, cells))
    console.print(table)
    lines = [
        *_legend(reported, wide),
        *(
            f"{label}: {counts['measured']} of {counts['of']} measured"
            for label, counts in reported["coverage"].items()
        ),
    ]
    reasons = Counter((entry["candidate"], entry["reason"]) for entry in reported["left_out"])
    together: dict[tuple[str, int], list[str]] = {}
    for (candidate, reason), count in _grouped(reasons):
        together.setdefault((reason, count), []).append(candidate)
    for (reason, count), labels in list(together.items())[:_REASONS]:
        whose = "every candidate" if 1 < len(labels) == len(reported["coverage"]) else ", ".join(labels)
        lines.append(f"left out, {count} of {whose}{_short(reason)}")
    if len(together) > _REASONS:
        lines.append(f"… and {len(together) - _REASONS} more reasons; operators.json holds all of them")
    unsure = Counter(("", text) for row in reported["rows"] for text in row["warnings"])
    lines += [f"! {count} of {len(reported['rows'])}{text}" for (_, text), count in _grouped(unsure)]
    lines += [f"warning: {text}" for text in reported["warnings"]]
    for line in lines:
        console.print(Text(line))


def _legend(reported: Mapping[str, Any], wide: bool) -> list[str]:
    """The meaning of columns, marks, and empty cells."""
    rows, peak = reported["rows"], reported["roofline"]
    product_of, copy_of = (_fastest(peak["seen"], which) for which in (0, 1))
    copy = f"{rate(peak['byte_s'])} (copy, {copy_of})"
    if peak["flop_s"] is None:
        lines = [f"of peak: - without a matrix product in {peak['dtype']} to compare with; {copy} were measured"]
    else:
        lines = [
            f"of peak: of the roofline of {rate(peak['flop_s'], 'FLOP/s')} (product in {peak['dtype']}, "
            f"{product_of}) and {copy}, the best measured here with threads={peak['threads']}; caches, or a "
            "faster kernel than that product, can exceed it"
        ]
    if any(row["direction"] != FORWARD for row in rows):
        lines.append("backward: the forward pass and the gradients, in time and in operations")
    if any(row["gflop_s"] is None for row in rows):
        lines.append("GFLOP/s: - without a formula for the operations; your own operator can define a method flops")
    if any(row["gbyte_s"] is None for row in rows):
        lines.append("GB/s: - without specs of the outputs: a NativeOperator takes them as specs=")
    if wide and any(row["memory_bytes"] is not None for row in rows):
        lines.append(
            "memory: growth of this process's memory in the first call, including compiled code; memory that was "
            "allocated before and reused is not included"
        )
    if any(row["warnings"] for row in rows):
        lines.append("!: the number may be unstable, for the reasons below; - as interval: too few samples")
    return lines


def _fastest(seen: Mapping[str, Sequence[float | None]], which: int) -> str:
    """The library that set a peak: product 0, copy 1."""
    rates = {name: rates[which] or 0.0 for name, rates in seen.items()}
    return max(rates, key=lambda name: rates[name], default="")


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS].rstrip()} … (the rest is in operators.json)"


def _grouped(reasons: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    """Merge reasons that differ only in their numbers, such as the work of a problem; the most frequent first.

    Returns:
        Candidate and reason, the latter after ": ", or after ", such as: " if it represents several.
    """
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (candidate, reason), count in reasons.items():
        found.setdefault((candidate, re.sub(r"[-+]?\d[\d.e+-]*", "", reason)), []).append((reason, count))
    reported = [
        ((candidate, f"{', such as' * (len(alike) > 1)}: {alike[0][0]}"), sum(count for _, count in alike))
        for (candidate, _), alike in found.items()
    ]
    return sorted(reported, key=lambda item: -item[1])
