"""What the tensors of a network's file are: a table with a row for each reason, and a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.terminal import plain
from deep5.networks.onnx.parameters import Decision

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_tensors", "tensor_document"]

_ORDER = ("trained", "statistic", "constant", "unused")


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
    """Print a row for each outcome and reason, with the names of its tensors as far as they fit.

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
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tensors of the file", no_wrap=True)
    for title in ("count", "numbers"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("reason", overflow="fold", ratio=3)
    table.add_column("names", no_wrap=True, overflow="ellipsis", ratio=4)
    for (outcome, rule, reason), own in groups.items():
        names = ", ".join(plain(decision.name) for decision in own)
        rule_text = f"{rule}, guess" if own[0].guessed else str(rule)
        numbers = sum(decision.spec.size for decision in own)
        row = (outcome, f"{len(own):,}", f"{numbers:,}", rule_text, plain(reason), names)
        table.add_row(*map(Text, row))
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
