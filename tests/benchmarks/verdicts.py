"""What the samples show for each benchmark, by deep5's own statistics; and the files and lines that report it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from measure import Samples
from registry import Benchmark

from deep5.measuring.scheme import CURRENT
from deep5.measuring.statistics import Verdict, floor_of, judge

_PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one benchmark.

    Attributes:
        name: The benchmark's name.
        unit: What the seconds count.
        base_s: Seconds per unit, median over the rounds of each round's median; None where it was not measured.
        head_s: The same of the other side.
        verdict: Verdict on the head relative to the base; None where a side was not measured.
        error: Why a side was not measured.
    """

    name: str
    unit: str
    base_s: float | None = None
    head_s: float | None = None
    verdict: Verdict | None = None
    error: str = ""


def outcome(benchmark: Benchmark, samples: Samples) -> Outcome:
    """The outcome of one benchmark.

    The noise floor is that of the measured processes: a round's ratio minus the median ratio is the difference of two
    processes with the same code.
    """
    if samples.error or not samples.head:
        return Outcome(name=benchmark.name, unit=benchmark.unit, error=samples.error or "no samples")
    base, head = ([median(each) for each in rounds] for rounds in (samples.base, samples.head))
    middle = median(head) / median(base)
    alike = [time for pair in zip(base, (value / middle for value in head), strict=True) for time in pair]
    floor = floor_of(alike, len(base)) if len(base) >= CURRENT.looks[0] else 1.0
    return Outcome(
        name=benchmark.name,
        unit=benchmark.unit,
        base_s=median(base),
        head_s=median(head),
        verdict=judge(head, base, floor, samples.first) if len(base) > 1 else None,
    )


def write(path: Path, outcomes: Sequence[Outcome], samples: Mapping[str, Samples], about: Mapping[str, object]) -> None:
    """Write a run as JSON: what was compared, the outcomes, and every sample."""
    document = {
        **about,
        "outcomes": [asdict(each) for each in outcomes],
        "samples": {name: asdict(each) for name, each in samples.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def line(found: Outcome) -> str:
    """One line for a reader: both times, the ratio with its interval, and the verdict."""
    if found.base_s is None or found.head_s is None:
        return f"{found.name:44} not measured: {found.error}"
    times = f"{amount(found.base_s)} -> {amount(found.head_s)} a {found.unit}"
    if found.verdict is None:
        return f"{found.name:44} {times}"
    verdict = found.verdict
    interval = f" ({verdict.interval.low:.3f} … {verdict.interval.high:.3f})" if verdict.interval else ""
    return f"{found.name:44} {times:34} {verdict.ratio:.3f}{interval}  {verdict.word}"


def amount(seconds: float) -> str:
    """Seconds in the unit that fits: `1.23 ms`.

    >>> amount(0.00123)
    '1.23 ms'
    """
    size, unit = next((each for each in _PREFIXES if seconds >= each[0]), _PREFIXES[-1])
    return f"{seconds / size:.3g} {unit}"
