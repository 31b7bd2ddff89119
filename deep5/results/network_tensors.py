"""What the tensors of a network's file are: a table with a row for each reason, and a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.terminal import plain
from deep5.networks.analysis.picture import shortened
from deep5.networks.onnx.parameters import Decision
from deep5.results.name_lines import name_lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_tensors", "tensor_document"]

_ORDER = ("trained", "statistic", "constant", "unused")
# Lines for the names of a row; --json lists all.
_LINES = 4
# The narrowest column for reasons, and the width that they leave to names if they can.
_REASON = 20
_NAMES = 24


def tensor_document(decision: Decision) -> dict[str, Any]:
    """A decision in JSON types."""
    return {
        "name": decision.name,
        "shape": list(decision.spec.shape),
        "dtype": decision.spec.dtype,
        "outcome": decision.outcome,
        "rule": decision.rule,
        "guess": decision.guessed,
        "reason": decision.reason,
        "operators": list(decision.operators),
    }


def print_tensors(decisions: Sequence[Decision], console: Console) -> None:
    """Print a row for each outcome and reason, with the names of its tensors as far as they fit into a few lines.

    Args:
        decisions: The decisions.
        console: The console to print on.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    groups: dict[tuple[str, int, str], list[Decision]] = {}
    for decision in sorted(decisions, key=lambda each: (_ORDER.index(each.outcome), each.rule)):
        groups.setdefault((decision.outcome, decision.rule, decision.reason), []).append(decision)
    rows = [
        (
            outcome,
            f"{len(own):,}",
            f"{sum(decision.spec.size for decision in own):,}",
            f"{rule}, guess" if own[0].guessed else str(rule),
            plain(reason),
        )
        for (outcome, rule, reason), own in groups.items()
    ]
    titles = ("outcome", "count", "numbers", "rule", "reason")
    *fixed, longest = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    room = console.width - 2 * (len(titles) + 1) - sum(fixed)  # a space after every cell, between columns and at edges
    reason_width = min(longest, max(_REASON, room - _NAMES))
    width = max(8, room - reason_width)
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title, needed in zip(titles[:4], fixed, strict=True):
        right = title in ("count", "numbers")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, min_width=needed)
    table.add_column("reason", overflow="fold", min_width=reason_width, max_width=reason_width)
    table.add_column("names", no_wrap=True, overflow="ellipsis", max_width=width)
    names = [_names([decision.name for decision in own], width) for own in groups.values()]
    for row, shown in zip(rows, names, strict=True):
        table.add_row(*map(Text, (*row, shown)))
    cut = " (--json lists the names that are cut here)" if any("…" in shown for shown in names) else ""
    console.print(Text(f"Tensors of the file{cut}:"))
    console.print(table)
    guesses = sum(decision.guessed for decision in decisions)
    if guesses:
        console.print(
            Text(
                f"{guesses} of {len(decisions)} decisions {'is a guess' if guesses == 1 else 'are guesses'} (rules 4 "
                "and 5); d5.Network.from_onnx(FILE, parameters={NAME: True or False}) overrides them.",
                style="bold",
            )
        )


def _names(names: Sequence[str], width: int) -> str:
    """As many names as fit into a few lines, and the number of the others."""
    kept = [shortened(name, width - 1) for name in names]
    lines = name_lines(kept, width)
    if len(lines) <= _LINES:
        return "\n".join(lines)
    kept = kept[: _LINES * width]
    while len(lines) >= _LINES:
        kept.pop()
        lines = name_lines(kept, width)
    return "\n".join([*lines, f"… {len(names) - len(kept):,} more"])
