"""Scaling of a study's throughput with the number of ranks: speedup and parallel efficiency, strong and weak."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from deep5.core.errors import TooFewSamples
from deep5.core.quantities import ratio
from deep5.core.terminal import counted
from deep5.measuring.samples import Interval, paired_ratios, ratio_interval
from deep5.results.result import Result

__all__ = ["Scaling", "ScalingRow", "scaling_cells", "scaling_of"]

# Settings that do not change the work of a step; learning rates are often chosen by the number of ranks.
_NO_WORK = frozenset(("ranks", "launcher", "batch_size", "accumulate", "seed"))
_RATES = frozenset(("optimizer_kwargs", "schedules"))


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One number of ranks.

    Attributes:
        candidate: Candidate of these runs.
        ranks: N.
        batch_size: Samples per step of all ranks together.
        throughput: Samples per second, the median over the seeds.
        step_s: Seconds per batch at that throughput.
        speedup: Relative to the row of fewest ranks, the median over the seeds; see `Scaling`.
        efficiency: The speedup divided by the ratio of the numbers of ranks.
        interval: Interval of the efficiency; None with fewer than six seeds.
        ends: Smallest and largest efficiency of a seed.
        serial_fraction: e of `Scaling`; None in weak scaling, and if the fewest ranks are not one.
        seeds: The seeds that finished, here and with the fewest ranks.
        threads: Threads of each rank within an operator; None if the framework does not report them.
        processors: Number of processors to which all ranks together were pinned; None if the system does not report it.
    """

    candidate: str
    ranks: int
    batch_size: int
    throughput: float
    step_s: float
    speedup: float
    efficiency: float
    interval: Interval | None
    ends: tuple[float, float]
    serial_fraction: float | None
    seeds: tuple[int, ...]
    threads: int | None
    processors: int | None

    @property
    def shared(self) -> bool:
        """Whether there were fewer processors than threads of all ranks: then they waited for each other."""
        return self.processors is not None and self.ranks * (self.threads or 1) > self.processors

    def document(self) -> dict[str, Any]:
        """The row in JSON types."""
        ends = None
        if self.interval is not None:
            ends = {"low": self.interval.low, "high": self.interval.high, "confidence": self.interval.confidence}
        return {
            "candidate": self.candidate,
            "ranks": self.ranks,
            "batch_size": self.batch_size,
            "throughput": self.throughput,
            "step_s": self.step_s,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "interval": ends,
            "ends": list(self.ends),
            "serial_fraction": self.serial_fraction,
            "seeds": list(self.seeds),
            "threads": self.threads,
            "processors": self.processors,
            "shared": self.shared,
        }


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Candidates that differ only in the number of ranks, and in the batch according to the kind.

    With T(N) the seconds per step with N ranks, without evaluations and first steps (`Throughput`), and one rank as the
    fewest:

    - strong scaling, the same batch for all ranks together: speedup S(N) = T(1) / T(N), efficiency E(N) = S(N) / N.
      By Amdahl's law S(N) = 1 / (f + (1 − f) / N) for a serial fraction f of the work; solved for f, a measured
      S(N) gives the experimentally determined serial fraction e = (1 / S − 1 / N) / (1 − 1 / N), which grows with N
      if communication causes the loss.
    - weak scaling, the same batch for each rank: scaled speedup S(N) = N T(1) / T(N), efficiency E(N) = T(1) / T(N).

    In both, S(N) is the ratio of throughputs. If the fewest ranks are R, S(N) is relative to R, and E(N) = S(N) R / N.

    Attributes:
        kind: What is held constant.
        rows: By number of ranks; the first is the reference of the others.

    References:
        Amdahl, Validity of the single processor approach to achieving large scale computing capabilities, AFIPS 1967.
        Gustafson, Reevaluating Amdahl's law, CACM 31(5), 1988.
        Karp and Flatt, Measuring parallel processor performance, CACM 33(5), 1990, equation 2.
    """

    kind: Literal["strong", "weak"]
    rows: tuple[ScalingRow, ...]

    @property
    def title(self) -> str:
        """What is scaled, in words."""
        first = self.rows[0]
        of = "all ranks" if self.kind == "strong" else "each rank"
        size = first.batch_size if self.kind == "strong" else first.batch_size // first.ranks
        return f"{self.kind} scaling, {size} samples a step for {of}, against {first.candidate}"

    def notes(self) -> list[str]:
        """Notes, one sentence each."""
        shared = [row for row in self.rows if row.shared]
        found = []
        if shared:
            names, here = ", ".join(row.candidate for row in shared), counted(shared[0].processors or 0, "processor")
            found.append(f"{names}: ranks shared {here}, so their efficiency says nothing about the scheme")
        if any(row.interval is None for row in self.rows[1:]):
            found.append("fewer than six seeds: the smallest and largest values are shown instead of an interval")
        return found

    def document(self) -> dict[str, Any]:
        """Kind, rows and notes, in JSON types."""
        return {"kind": self.kind, "rows": [row.document() for row in self.rows], "notes": self.notes()}


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A candidate's runs."""

    name: str
    ranks: int
    batch_size: int
    by_seed: Mapping[int, float]
    threads: int | None
    processors: int | None
    work: str
    rates: str


def scaling_of(runs: Mapping[str, Sequence[Result]]) -> list[Scaling]:
    """Scaling from runs with different numbers of ranks.

    Seeds are paired: a study runs all candidates of one seed before the next, so that each ratio is of two runs close
    in time. Its interval is that of the median over the seeds (`deep5.measuring.samples.ratio_interval`).

    Args:
        runs: The finished runs, by candidate; runs without the metric `throughput` are ignored.

    Returns:
        One for each set of candidates that do the same work with at least two numbers of ranks.
    """
    measured = [found for name, own in runs.items() if (found := _measured(name, own)) is not None]
    series: list[Scaling | None] = []
    for group in _groups(measured):
        fewest = min(own.ranks for own in group)
        for base in (own for own in group if own.ranks == fewest):
            same = [own for own in group if own.batch_size == base.batch_size]
            same_each = [own for own in group if own.batch_size * base.ranks == base.batch_size * own.ranks]
            series += [_scaling("strong", base, same), _scaling("weak", base, same_each)]
    return [made for made in series if made is not None]


def _measured(name: str, runs: Sequence[Result]) -> _Measured | None:
    by_seed = {}
    for result in runs:
        values = [verdict.value for verdict in result.verdicts if verdict.name == "throughput"]
        if len(values) == 1 and values[0]:
            by_seed[int(result.document["seeds"]["run"])] = values[0]
    if not by_seed:
        return None
    document = runs[0].document
    parts = {**document["recipe"]["fixed"], **document["recipe"]["mutable"]}
    size, times = parts.get("batch_size"), parts.get("accumulate", 1)
    if isinstance(size, bool) or not isinstance(size, int):
        return None  # a growing batch differs in every epoch
    affinity = ((document["system"] or {}).get("before") or {}).get("affinity")
    work = {key: value for key, value in parts.items() if key not in _NO_WORK}
    return _Measured(
        name=name,
        ranks=int(document["ranks"]),
        batch_size=size * times,
        by_seed=by_seed,
        threads=(document["threads"] or {}).get("framework"),
        processors=None if affinity is None else len(affinity),
        work=json.dumps({key: value for key, value in work.items() if key not in _RATES}, sort_keys=True),
        rates=json.dumps({key: value for key, value in work.items() if key in _RATES}, sort_keys=True),
    )


def _groups(measured: Sequence[_Measured]) -> list[list[_Measured]]:
    """Groups of the same work; if a group has a number of ranks twice, also of the same learning rates."""
    by_work: dict[str, list[_Measured]] = {}
    for own in measured:
        by_work.setdefault(own.work, []).append(own)
    found = []
    for group in by_work.values():
        if len({(own.ranks, own.batch_size) for own in group}) == len(group):
            found.append(group)
            continue
        by_rates: dict[str, list[_Measured]] = {}
        for own in group:
            by_rates.setdefault(own.rates, []).append(own)
        found += by_rates.values()
    return found


def _scaling(kind: Literal["strong", "weak"], base: _Measured, group: Sequence[_Measured]) -> Scaling | None:
    rows = [row for own in sorted(group, key=lambda own: own.ranks) if (row := _row(kind, base, own)) is not None]
    counts = [row.ranks for row in rows]
    return Scaling(kind=kind, rows=tuple(rows)) if 2 <= len(set(counts)) == len(counts) else None


def _row(kind: Literal["strong", "weak"], base: _Measured, own: _Measured) -> ScalingRow | None:
    seeds = [seed for seed in base.by_seed if seed in own.by_seed]
    if not seeds:
        return None
    # Seconds per sample: their ratio is that of throughputs.
    ours, theirs = ([1.0 / of.by_seed[seed] for seed in seeds] for of in (own, base))
    ratios = paired_ratios(theirs, ours).tolist()
    more = own.ranks / base.ranks
    try:
        found = ratio_interval(theirs, ours)
        interval = Interval(low=found.low / more, high=found.high / more, confidence=found.confidence)
    except TooFewSamples:
        interval = None
    speedup, throughput = median(ratios), median(own.by_seed[seed] for seed in seeds)
    serial = None
    if kind == "strong" and base.ranks == 1 and own.ranks > 1:
        serial = (1 / speedup - 1 / own.ranks) / (1 - 1 / own.ranks)
    return ScalingRow(
        candidate=own.name,
        ranks=own.ranks,
        batch_size=own.batch_size,
        throughput=throughput,
        step_s=own.batch_size / throughput,
        speedup=speedup,
        efficiency=speedup / more,
        interval=None if own is base else interval,
        ends=(min(ratios) / more, max(ratios) / more),
        serial_fraction=serial,
        seeds=tuple(seeds),
        threads=own.threads,
        processors=own.processors,
    )


def scaling_cells(scaling: Scaling) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of a table."""
    heads = ["candidate", "ranks", "step [ms]", "throughput [samples/s]", "speed-up", "efficiency [%]"]
    serial = any(row.serial_fraction is not None for row in scaling.rows)
    rows = []
    for row in scaling.rows:
        low, high = row.ends if row.interval is None else (row.interval.low, row.interval.high)
        own, least, most = (ratio(100 * share, decimals=1, one=100) for share in (row.efficiency, low, high))
        ends = f" ({least} … {most})" if row is not scaling.rows[0] and len(row.seeds) > 1 else ""
        cells = [row.candidate, str(row.ranks), f"{1e3 * row.step_s:.4g}", f"{row.throughput:.4g}"]
        cells += [ratio(row.speedup), f"{own}{ends}"]
        shown = "-" if row.serial_fraction is None else f"{row.serial_fraction:.3f}"
        rows.append([*cells, *([shown] if serial else [])])
    return [*heads, *(["serial fraction"] if serial else [])], rows
