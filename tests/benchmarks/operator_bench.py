"""`make operator-bench`: the time and peak memory of each operator at HEAD against another commit.

Every operator that is written once, and every other one whose code differs, runs on PyTorch, TensorFlow and JAX,
forward and with its gradient, at two sizes. A first round times all of them; what is not within 1.1 of the base is
measured again in ten rounds of new processes, whose median ratio counts. `python tests/benchmarks/operator_bench.py
--help` lists the options.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from bench import HOME, QUICK
from measure import Samples, measure
from operator_runs import FRAMEWORKS, MEMORY, names_of
from operator_shapes import CASES, operator_of
from registry import Benchmark, benchmarks
from sides import ROOT, Side, base_commit, base_side, head_side
from verdicts import Outcome, amount, outcome, write

from deep5.core.quantities import size

ALLOWED = 1.2
"""Above this ratio of time or memory an operator is listed."""
CLOSE = 1.1
"""Up to this ratio the first round decides."""
TURNS = 7
NOISE_BYTES = 1 << 20
"""Added to both peaks: a process also grows by pages that belong to no array."""

MODULES = ("operator_runs",)


@dataclass(frozen=True, kw_only=True)
class Left:
    """A case that is not measured, and why."""

    name: str
    why: str


def main(words: list[str] | None = None) -> int:
    """Measure and report; returns 1 where an operator is above `ALLOWED`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="", help="the commit to compare with; the merge base with origin/main")
    parser.add_argument("--only", default="", help="operators, or cases as Resize:cubic, separated by commas")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="separated by commas")
    parser.add_argument("--all", action="store_true", help="also operators whose code is the same")
    parser.add_argument("--rounds", type=int, default=QUICK, help=f"rounds of what is measured again; {QUICK}")
    parser.add_argument("--out", type=Path, default=Path("results", "benchmarks"), help="folder of the results")
    given = parser.parse_args(words)
    try:
        cases, frameworks = _cases(given.only), _frameworks(given.frameworks)
    except ValueError as error:
        parser.error(str(error))
    begin, clock = datetime.now(UTC), time.monotonic()
    sides = [base_side(base_commit(given.base), ROOT / HOME), head_side(ROOT / HOME)]
    every = benchmarks(MODULES)
    chosen, left = _chosen(sides, cases, frameworks, same=given.all or bool(given.only))
    _say(f"{sides[1].commit} against {sides[0].commit}: {len(chosen)} measurements")
    samples = measure(sides, [every[name] for name in chosen], rounds=1, turns=TURNS, modules=MODULES, report=_say)
    again = [name for name in chosen if _ratio(every[name], samples[name]) > CLOSE]
    _say(f"{len(again)} of {len(chosen)} are measured again in {given.rounds} rounds")
    samples |= measure(
        sides, [every[name] for name in again], rounds=given.rounds, turns=3, modules=MODULES, report=_say
    )
    left += [Left(name=name, why=each.error) for name, each in samples.items() if each.error]
    found = [outcome(every[name], each) for name, each in samples.items() if not each.error]
    about = {
        "base": sides[0].commit,
        "head": sides[1].commit,
        "begin": begin.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "left": {each.name: each.why for each in left},
    }
    path = ROOT / given.out / f"operators-{begin:%Y%m%d-%H%M%S}-{sides[1].commit}.json"
    write(path, found, samples, about)
    above = [each for each in found if _ratio(every[each.name], samples[each.name]) > ALLOWED]
    _report(found, samples, left, above)
    sys.stdout.write(f"{path}, {about['seconds']} s\n")
    return int(bool(above))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _cases(only: str) -> list[str]:
    words = [word.strip() for word in only.split(",") if word.strip()]
    if unknown := [word for word in words if not any(word in (name, operator_of(name)) for name in CASES)]:
        raise ValueError(f"no case is called {', '.join(unknown)}; allowed: {', '.join(CASES)}")
    return [name for name in CASES if not words or name in words or operator_of(name) in words]


def _frameworks(words: str) -> list[str]:
    names = [word.strip() for word in words.split(",")]
    if unknown := set(names) - set(FRAMEWORKS):
        raise ValueError(f"no back-end is called {', '.join(unknown)}; allowed: {', '.join(FRAMEWORKS)}")
    return names


def _code(side: Side, framework: str) -> dict[str, tuple[str, str]]:
    """What `operator_code.py` reports of one side."""
    command = [sys.executable, str(Path(__file__).with_name("operator_code.py")), framework]
    done = subprocess.run(
        command, env=side.environment(), cwd=side.layout, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise SystemExit(f"{side.label} ({side.commit}), {framework}: {done.stderr[-2000:]}")
    return {name: (how, code) for name, (how, code) in json.loads(done.stdout).items()}


def _chosen(
    sides: Sequence[Side], cases: Sequence[str], frameworks: Sequence[str], *, same: bool
) -> tuple[list[str], list[Left]]:
    """The benchmarks to run, and the cases that do not."""
    chosen, left = list[str](), list[Left]()
    for framework in frameworks:
        before, after = (_code(side, framework) for side in sides)
        for case in cases:
            operator, name = operator_of(case), f"{framework}.{case}"
            was, now = before.get(operator), after.get(operator)
            if not was and not now:
                # The body of the operator, or a form of it: its nodes are measured themselves.
                left.append(Left(name=name, why="in no table"))
            elif now and was == now and now[0] == "native" and not same:
                left.append(Left(name=name, why="the same code, not written once"))
            else:
                chosen += names_of(framework, case)
    return chosen, left


def _ratio(benchmark: Benchmark, samples: Samples) -> float:
    """The median over the rounds of the ratio of the rounds' medians; 1 where there is none."""
    extra = NOISE_BYTES if benchmark.peak else 0
    pairs = zip(samples.base, samples.head, strict=True)
    ratios = [(median(head) + extra) / (median(base) + extra) for base, head in pairs]
    return median(ratios) if ratios else 1.0


def _interval(samples: Samples, found: Outcome) -> tuple[float, float]:
    """The interval of the ratio; after a single round, the range of the ratios of its turns without the outermost."""
    if found.verdict is not None and found.verdict.interval is not None:
        return found.verdict.interval.low, found.verdict.interval.high
    pairs = zip(samples.base[0], samples.head[0], strict=True)
    ratios = sorted(head / base for base, head in pairs)
    inner = ratios[1:-1] or ratios
    return inner[0], inner[-1]


def _lines(found: Sequence[Outcome], samples: dict[str, Samples]) -> Iterator[str]:
    every = benchmarks(MODULES)
    for each in found:
        assert each.base_s is not None
        assert each.head_s is not None
        one = samples[each.name]
        ratio, (low, high) = _ratio(every[each.name], one), _interval(one, each)
        shown = size if each.name.endswith(MEMORY) else amount
        values = f"{shown(each.base_s)} -> {shown(each.head_s)}"
        rounds = f"{len(one.head)} rounds" if len(one.head) > 1 else "1 round"
        yield f"{each.name:52} {values:24} {ratio:.2f} ({low:.2f} … {high:.2f})  {rounds}\n"


def _report(
    found: Sequence[Outcome], samples: dict[str, Samples], left: Sequence[Left], above: Sequence[Outcome]
) -> None:
    sys.stdout.writelines(_lines(found, samples))
    reasons: dict[str, list[str]] = {}
    for each in left:
        reasons.setdefault(each.why, []).append(each.name)
    sys.stdout.writelines(f"not measured: {why}: {', '.join(names)}\n" for why, names in sorted(reasons.items()))
    sys.stdout.write(f"\n{len(above)} of {len(found)} above {ALLOWED}\n")
    sys.stdout.writelines(_lines(above, samples))


if __name__ == "__main__":
    sys.exit(main())
