"""Whether one sampler found better settings than another with the same budget, over sweeps with several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError, brief
from deep5.core.quantities import percent
from deep5.core.terminal import counted
from deep5.measuring.order_test import holm, signed_rank_p
from deep5.measuring.samples import median_ends
from deep5.results.screen_table import print_table
from deep5.results.sweep.record import Sweep, shown_goal
from deep5.results.sweep.trial import rank_value

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["BASELINE", "Versus", "print_versus", "versus"]

BASELINE = "random"
"""The sampler that the others are compared with."""

# What sweeps that are compared have in common; the sampler and the seed are what differs.
_SAME = ("recipe", "hash", "size", "space", "settings", "goal", "pruner", "trials", "parallel")


@dataclass(frozen=True, kw_only=True)
class Versus:
    """A sampler against random search.

    Attributes:
        sampler: Its name.
        best: By seed, the best value that it found.
        baseline: By seed, the best value of random search.
        better: Number of seeds for which it found a better value; equal ones do not count.
        difference: Median over the seeds of the difference of the best values, positive if it was better.
        interval: The ends of the median's interval, at least 95 %; None: there are too few seeds.
        p: Of the exact two-sided signed-rank test that neither is better.
        holds: Whether the difference holds, together with those of the other samplers.
    """

    sampler: str
    best: Sequence[float]
    baseline: Sequence[float]
    better: int
    difference: float
    interval: tuple[float, float] | None
    p: float
    holds: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.holds:
            return f"no difference shown (p = {self.p:.2g})"
        return f"{'better' if self.difference > 0 else 'worse'} (p = {self.p:.2g})"

    def document(self) -> dict[str, Any]:
        """In JSON types."""
        return {
            "sampler": self.sampler,
            "baseline": BASELINE,
            "seeds": len(self.best),
            "best": list(self.best),
            "best_of_baseline": list(self.baseline),
            "better": self.better,
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "p": self.p,
            "holds": self.holds,
            "verdict": self.verdict,
        }


def versus(sweeps: Sequence[Sweep]) -> list[Versus]:
    """Compare samplers with random search by the best values of sweeps with the same seeds.

    Args:
        sweeps: Finished ones with the same declaration but for sampler and seed.

    Raises:
        UsageError: They differ in something else, a seed is missing or there twice, one is not finished or has no
            value, or there is no random search.

    References:
        Wilcoxon, 1945; Holm, 1979: see `deep5.measuring.order_test`.
    """
    found: dict[str, dict[int, float]] = {}
    first = sweeps[0]
    for sweep in sweeps:
        document = sweep.document
        for key in _SAME:
            if document.get(key) != first.document.get(key):
                raise UsageError(
                    f"{sweep.folder} has {key}: {brief(document.get(key))}, and {first.folder}: "
                    f"{brief(first.document.get(key))}; allowed: sweeps that differ in sampler and seed"
                )
        if not document["finished"] or sweep.best is None:
            what = "is not finished" if sweep.best is not None else "has no value"
            raise UsageError(f"{sweep.folder} {what}; allowed: finished sweeps; remedy: --attach {sweep.folder}")
        own = found.setdefault(document["sampler"], {})
        if document["seed"] in own:
            raise UsageError(
                f"two sweeps by {document['sampler']} have the seed {document['seed']}; allowed: each seed once"
            )
        own[document["seed"]] = -rank_value(sweep.best, document["goal"]["direction"])
    if BASELINE not in found or len(found) < 2:
        raise UsageError(
            f"sweeps by {', '.join(found)}; allowed: {BASELINE} and at least one other sampler; remedy: --versus"
        )
    seeds = sorted(found[BASELINE])
    for sampler, values in found.items():
        if sorted(values) != seeds:
            raise UsageError(
                f"sweeps by {sampler} have the seeds {sorted(values)}, and those by {BASELINE} {seeds}; allowed: the "
                "same ones"
            )
    baseline = [found[BASELINE][seed] for seed in seeds]
    others = {name: [values[seed] for seed in seeds] for name, values in found.items() if name != BASELINE}
    differences = {
        name: [own - other for own, other in zip(values, baseline, strict=True)] for name, values in others.items()
    }
    tests = {name: signed_rank_p(own) for name, own in differences.items()}
    holds = dict(zip(tests, holm(list(tests.values())), strict=True))
    sign = 1.0 if first.document["goal"]["direction"] == "higher" else -1.0
    return [
        Versus(
            sampler=name,
            best=[sign * value for value in others[name]],
            baseline=[sign * value for value in baseline],
            better=sum(value > 0 for value in own),
            difference=median(own),
            interval=median_ends(own),
            p=tests[name],
            holds=holds[name],
        )
        for name, own in differences.items()
    ]


def print_versus(sweeps: Sequence[Sweep], found: Sequence[Versus], console: Console) -> None:
    """Print a row per sampler.

    Args:
        sweeps: The sweeps.
        found: What `versus` returned.
        console: The console to print on.
    """
    from rich.text import Text

    document = sweeps[0].document
    console.print(
        Text(
            f"{document['recipe']}, size {document['size']}: best {shown_goal(document)} of "
            f"{counted(document['trials'], 'trial')}, {counted(len(found[0].best), 'seed')}"
        ),
        overflow="fold",
    )
    unit = document["goal"]["unit"]
    rows = [[BASELINE, f"{median(found[0].baseline):.6g}", "-", "-", "-"]]
    for own in found:
        ends = "" if own.interval is None else f" ({own.interval[0]:.3g} … {own.interval[1]:.3g})"
        rows.append(
            [
                own.sampler,
                f"{median(own.best):.6g}",
                f"{own.difference:+.3g}{ends}",
                f"{own.better} of {len(own.best)}",
                own.verdict,
            ]
        )
    print_table(console, ["sampler", f"median of the best [{unit}]", "better by", "better in", "verdict"], rows)
    least = math.ceil(math.log2(2 / 0.05))
    if len(found[0].best) < least:
        console.print(
            Text(
                f"note: {counted(len(found[0].best), 'seed')}: a difference can be shown from {least} seeds on, at "
                f"{percent(0.05)}; remedy: --repeat {least}"
            ),
            overflow="fold",
        )
