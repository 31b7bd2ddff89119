"""`make bench`: whether HEAD is slower or faster than the merge base. `python tests/benchmarks/bench.py --help`."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from measure import Samples, measure
from registry import Benchmark, selected
from sides import ROOT, base_commit, base_side, head_side
from verdicts import Outcome, line, outcome, write

HOME = Path(".venv", "benchmarks")
QUICK, FULL = 10, 24
"""Rounds; both are numbers of rounds at which deep5's statistics decide."""


def main(words: list[str] | None = None) -> int:
    """Compare, or run each benchmark once with `--smoke`; returns 1 where a benchmark cannot run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="every benchmark, in more rounds")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--base", default="", help="the commit to compare with; the merge base with origin/main")
    parser.add_argument("--rounds", type=int, help=f"{QUICK}, with --full {FULL}; fewer than {QUICK} decide nothing")
    parser.add_argument("--smoke", action="store_true", help="does each benchmark run? One round, without a comparison")
    parser.add_argument("--list", action="store_true", help="the names of the benchmarks")
    parser.add_argument("--out", type=Path, default=Path("results", "benchmarks"), help="folder of the results")
    given = parser.parse_args(words)
    try:
        chosen = selected(full=given.full or given.list, only=given.only)
    except ValueError as error:
        parser.error(str(error))
    if given.list:
        sys.stdout.writelines(f"{each.name}{'' if each.quick else '  (full)'}\n" for each in chosen)
        return 0
    if given.smoke:
        return _smoke(chosen)
    rounds = given.rounds or (FULL if given.full else QUICK)
    return _compare(chosen, rounds=rounds, base=given.base, out=ROOT / given.out)


def _smoke(chosen: list[Benchmark]) -> int:
    begin = time.monotonic()
    found = measure([head_side(ROOT / HOME)], chosen, rounds=1, turns=1)
    failed = [f"{name}: {samples.error}\n" for name, samples in found.items() if samples.error]
    sys.stderr.writelines(failed)
    took = time.monotonic() - begin
    sys.stdout.write(
        f"{len(found) - len(failed)} of {len(found)} benchmarks ran in {took:.0f} s; no time was compared\n"
    )
    return int(bool(failed))


def _compare(chosen: list[Benchmark], *, rounds: int, base: str, out: Path) -> int:
    sides = [base_side(base_commit(base), ROOT / HOME), head_side(ROOT / HOME)]
    before, after = (side.commit for side in sides)
    sys.stdout.write(f"{after} against {before}: {len(chosen)} benchmarks, {rounds} rounds\n")
    begin = datetime.now(UTC)
    samples = measure(sides, chosen, rounds=rounds, report=_progress)
    outcomes = [outcome(each, samples[each.name]) for each in chosen]
    about = {
        "base": before,
        "head": after,
        "begin": begin.isoformat(timespec="seconds"),
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    path = out / f"{begin:%Y%m%d-%H%M%S}-{after}.json"
    write(path, outcomes, samples, about)
    _report(outcomes, samples)
    sys.stdout.write(f"{path}\n")
    return 0


def _progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _report(outcomes: list[Outcome], samples: dict[str, Samples]) -> None:
    sys.stdout.writelines(f"{line(each)}\n" for each in outcomes)
    words = [each.verdict.word for each in outcomes if each.verdict]
    parts = [f"{words.count(word)} {word}" for word in ("slower", "faster", "no difference shown")]
    missing = sum(bool(each.error) for each in samples.values())
    sys.stdout.write(", ".join([*parts, *([f"{missing} not measured"] if missing else [])]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
