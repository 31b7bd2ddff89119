"""Rounds of code or collectives timed by several ranks: a round's time is that of the slowest rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deep5.audit.collective_values import is_call
from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.audit.measured import ranks_of
from deep5.results.ranks_file import rank_samples
from deep5.results.samples_file import SampleRow, read_samples

__all__ = ["SIDES", "slowest"]

SIDES = ("candidate_time", "baseline_time", "baseline_again_time")
"""Series of the times measured in a round."""

All = Mapping[str, Sequence[SampleRow]]


def slowest(ledger: Ledger, root: Path, document: Mapping[str, Any], samples: All) -> All:
    """The samples from which the metrics of timed code or collectives are derived.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json of a run that timed code or collectives.
        samples: Rows of samples.csv, by metric: those of the first rank.

    Returns:
        The same, with each round's times replaced by those of the slowest rank.
    """
    found = {label: list(rows) for label, rows in samples.items()}
    sides = [label for label in found if label in SIDES or is_call(label)]
    for rank in range(1, ranks_of(document)):
        name = rank_samples(rank)
        if plain(root, name) is None:
            continue  # another check reports the missing file
        own = read_samples(root / name)
        for side in sides:
            count = len(own.get(side, ()))
            wanted = f"rank {rank} has {count} samples of {side}; allowed: {len(found[side])}, one per round"
            if ledger.hold(8, count == len(found[side]), wanted):
                pairs = zip(found[side], own[side], strict=True)
                found[side] = [replace(first, value=max(first.value, other.value)) for first, other in pairs]
    return found
