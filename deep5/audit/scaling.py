"""Strong and weak scaling of a study, derived from its runs independently of `deep5.results.study.scaling`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from deep5.audit.numerics import parts_of
from deep5.audit.order_statistics import CONFIDENCE, median_ends
from deep5.results.result import Result

__all__ = ["scaling_again"]

# Keys of a recipe that leave the work of a sample as it is; the second ones do so too, unless candidates differ only
# in them.
_SAME_WORK = ("ranks", "launcher", "batch_size", "accumulate", "seed")
_RATES = ("optimizer_kwargs", "schedules")


@dataclass(frozen=True, kw_only=True)
class _Side:
    """The runs of a candidate: samples per second by seed, and what the runs were made with."""

    name: str
    ranks: int
    batch: int
    rates: Mapping[int, float]
    threads: int | None
    processors: int | None
    parts: Mapping[str, Any]

    def key(self, *ignored: str) -> str:
        return json.dumps({key: value for key, value in self.parts.items() if key not in ignored}, sort_keys=True)


def scaling_again(runs: Mapping[str, Sequence[Result]]) -> list[dict[str, Any]]:
    """What study.json states about scaling; for each of its notes, the parts that it has to contain.

    The candidates of a group do the same work. Those with the fewest ranks are the references: of the candidates with
    the same batch for all ranks together (strong scaling), and of those with the same batch for each rank (weak
    scaling).

    Args:
        runs: All runs, by candidate.
    """
    sides = [side for name, own in runs.items() if (side := _side(name, own)) is not None]
    found = []
    for group in _same_work(sides):
        fewest = min(side.ranks for side in group)
        for base in group:
            if base.ranks != fewest:
                continue
            strong = [side for side in group if side.batch == base.batch]
            weak = [side for side in group if side.batch * base.ranks == base.batch * side.ranks]
            found += [_scaling("strong", base, strong), _scaling("weak", base, weak)]
    return [scaling for scaling in found if scaling is not None]


def _side(name: str, runs: Sequence[Result]) -> _Side | None:
    """A candidate; None without a throughput, or without a constant batch size."""
    rates = {}
    for run in runs:
        values = [verdict.value for verdict in run.verdicts if verdict.name == "throughput"]
        if len(values) == 1 and values[0]:
            rates[int(run.document["seeds"]["run"])] = values[0]
    if not rates:
        return None
    document = runs[0].document
    parts = parts_of(document)
    each = parts.get("batch_size")
    if type(each) is not int:
        return None
    before = (document["system"] or {}).get("before") or {}
    return _Side(
        name=name,
        ranks=int(document["ranks"]),
        batch=each * parts.get("accumulate", 1),
        rates=rates,
        threads=(document["threads"] or {}).get("framework"),
        processors=len(before["affinity"]) if before.get("affinity") is not None else None,
        parts=parts,
    )


def _same_work(sides: Sequence[_Side]) -> list[list[_Side]]:
    groups = _grouped(sides, *_SAME_WORK, *_RATES)
    return [part for group in groups for part in ([group] if _once(group) else _grouped(group, *_SAME_WORK))]


def _grouped(sides: Sequence[_Side], *ignored: str) -> list[list[_Side]]:
    found: dict[str, list[_Side]] = {}
    for side in sides:
        found.setdefault(side.key(*ignored), []).append(side)
    return list(found.values())


def _once(group: Sequence[_Side]) -> bool:
    return max(Counter((side.ranks, side.batch) for side in group).values()) == 1


def _scaling(kind: str, base: _Side, group: Sequence[_Side]) -> dict[str, Any] | None:
    """One entry; None unless there are several numbers of ranks, each once."""
    rows = [
        _row(kind, base, side) for side in sorted(group, key=lambda side: side.ranks) if base.rates.keys() & side.rates
    ]
    counts = Counter(row["ranks"] for row in rows)
    if len(counts) < 2 or max(counts.values()) > 1:
        return None
    notes: list[tuple[str, ...]] = []
    if shared := [row for row in rows if row["shared"]]:
        number = shared[0]["processors"]
        here = f" {number} processor{'' if number == 1 else 's'}"
        notes.append((", ".join(row["candidate"] for row in shared), "ranks shared", f"{here},"))
    if not all(row["interval"] for row in rows[1:]):
        notes.append(("fewer than six seeds",))
    return {"kind": kind, "rows": rows, "notes": notes}


def _row(kind: str, base: _Side, side: _Side) -> dict[str, Any]:
    """A row: the speedup is the median ratio of throughputs by seed, and the efficiency that of each rank."""
    seeds = [seed for seed in base.rates if seed in side.rates]
    speedups = [side.rates[seed] / base.rates[seed] for seed in seeds]
    efficiencies = [speedup * base.ranks / side.ranks for speedup in speedups]
    ends = median_ends(efficiencies) if side is not base else None
    middle, speedup = median(side.rates[seed] for seed in seeds), median(speedups)
    serial = None
    if kind == "strong" and base.ranks == 1 < side.ranks:
        # Karp and Flatt, CACM 33(5), 1990, equation 2, multiplied by N S.
        serial = (side.ranks - speedup) / (speedup * (side.ranks - 1))
    workers = side.ranks * (side.threads or 1)
    return {
        "candidate": side.name,
        "ranks": side.ranks,
        "batch_size": side.batch,
        "throughput": middle,
        "step_s": side.batch / middle,
        "speedup": speedup,
        "efficiency": median(efficiencies),
        "interval": None if ends is None else {"low": ends[0], "high": ends[1], "confidence": CONFIDENCE},
        "ends": [min(efficiencies), max(efficiencies)],
        "serial_fraction": serial,
        "seeds": seeds,
        "threads": side.threads,
        "processors": side.processors,
        "shared": side.processors is not None and workers > side.processors,
    }
