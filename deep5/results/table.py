"""A result as a table of verdicts, and as JSON for other programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deep5.core.quantities import ratio
from deep5.core.terminal import UNWRAPPED, plain, styled_where_fit

if TYPE_CHECKING:
    from rich.console import Console

    from deep5.results.result import Result, Verdict

__all__ = ["NATIVE", "to_json", "verdict_table"]

NATIVE = "the network is native code: the result holds its weights and no network.onnx"
"""What a result states of such a network among its warnings; no number is less certain by it."""

_REST = 10 + 8
"""Columns for the shortest piece of a name, and for the space between and around the cells."""

_STYLE = {"passed": "green", "FAILED": "bold red", "reported": "", "not evaluated": "yellow"}


def verdict_table(result: Result, console: Console) -> None:
    """Print every metric with value, interval, goal and verdict, then the overall verdict and the folder.

    Readable from 80 columns up and without colors; nothing is truncated: long values wrap.

    Args:
        result: As returned by `load`.
        console: The console to print on; if it is not a terminal, it gets plain text.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console, verdicts = styled_where_fit(console), result.verdicts
    apart = ", " if console.width >= UNWRAPPED else "\n"
    rows = [(_value(verdict, apart), str(verdict.goal or ""), verdict.word) for verdict in verdicts]
    # Names are broken before numbers, which could be misread; `no_wrap` truncates, so only if there is room.
    lengths = (
        max((len(line) for cell in column for line in cell.split("\n")), default=0)
        for column in zip(*rows, strict=True)
    )
    keep = sum(lengths) + _REST <= console.width
    # Without the empty lines above and below; the one below is printed separately.
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    table.add_column("metric", overflow="fold")
    table.add_column("value", overflow="fold", no_wrap=keep, justify="right")
    table.add_column("goal", overflow="fold", no_wrap=keep)
    table.add_column("verdict", overflow="fold", no_wrap=keep)
    for verdict, (value, goal, word) in zip(verdicts, rows, strict=True):
        table.add_row(Text(verdict.label), Text(value), Text(goal), Text(word, style=_STYLE[word]))
    if verdicts:
        console.print(table)
        console.print()
    overall = "accepted" if result.accepted else "not accepted" if result.accepted is False else "not evaluated"
    style = _STYLE[{"accepted": "passed", "not accepted": "FAILED"}.get(overall, "not evaluated")]
    line = Text.assemble((overall, style), f" ({result.division}; {result.status})")
    console.print(line)
    if result.rank_count > 1:
        console.print(Text(_ranks(result)), overflow="fold")
    for reason in result.reasons:
        console.print(Text(f"  reason: {reason}"), overflow="fold")
    for warning in result.document["warnings"]:
        word = "note" if warning == NATIVE else "warning"
        console.print(Text(f"  {word}: {warning}"), overflow="fold")
    # soft_wrap: a path broken into lines cannot be copied.
    console.print(Text(str(result.folder)), soft_wrap=True)


def to_json(result: Result) -> str:
    """The fields of result.json and `folder`, the path of the result folder, as one JSON object."""
    return json.dumps({**result.document, "folder": str(result.folder)}, indent=2, allow_nan=False)


def _ranks(result: Result) -> str:
    """For example: 2 ranks by mpiexec, AllReduce; parts that the folder does not state are omitted."""
    from deep5.core.errors import UsageError

    try:
        rows = result.ranks()
    except UsageError:  # the verdict is shown despite damage; reading the ranks reports it
        rows = ()
    launchers = list(dict.fromkeys(row.launcher or "threads" for row in rows))
    optimizer = (result.document["components"] or {}).get("optimizer")
    scheme = optimizer.get("scheme") if isinstance(optimizer, dict) else None
    by = f" by {', '.join(launchers)}" if launchers else ""
    return plain(f"{result.rank_count} ranks{by}" + (f", {scheme}" if scheme else ""))


def _value(verdict: Verdict, apart: str) -> str:
    if verdict.value is None:
        return "no value" if verdict.missing is None else f"no value: {verdict.missing}"
    text = f"{_digits(verdict, verdict.value, 6)} {verdict.unit}".rstrip()
    if verdict.interval is None:
        return text
    low, high = (_digits(verdict, end, 5) for end in verdict.interval)
    confidence = "" if verdict.confidence is None else f" ({100 * verdict.confidence:g} %)"
    return f"{text}{apart}{low} … {high}{confidence}"


def _digits(verdict: Verdict, value: float, most: int) -> str:
    return ratio(value, most) if verdict.is_ratio else f"{value:.{most}g}"
