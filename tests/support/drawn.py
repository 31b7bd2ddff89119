"""Validate ONNX's operators by drawn cases: `make validate`, or `python tests/support/drawn.py --operator Resize`.

Each case is a file of one node, which its name determines: operator, opset, number. Plain ONNX Runtime and ONNX's
reference run the original file at its own opset; where they disagree, a rule of drawn_rules.py says why, and a third
implementation decides. deep5 imports the file and runs it on each back-end. Results, one line for each operator and
opset, go to a folder; drawn_page.py writes docs/validation.md from it.

A run resumes where it ended: what is in the folder is not repeated, unless something was open or wrong, or the files
that draw the cases have changed since. A case that ends the process of an implementation is noted, and the run resumes
with the next case.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main"]

SECONDS = 30
"""A case that takes longer has failed."""
PLAN = (
    ("openvino", 0, 6),
    ("onnxruntime", 0, 6),
    ("pytorch", 0, 6),
    ("reference", 0, 60),
    ("gradients", 0, 8),
    ("jax", 1, 4),
    ("tensorflow", 1, 4),
    ("reference", 60, 120),
    ("reference", 180, 120),
)
"""The long run, `--all`: a back-end, the number of the first case, and the cases of each operator and opset."""
BACKENDS = ("reference", "pytorch", "onnxruntime", "jax", "tensorflow", "openvino")


class TooLong(Exception):
    """The case exceeded its time limit."""


def _stop(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} s")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


STRICTNESS = 2
"""Increase it when a bound or a rule becomes tighter: what was right before may not be."""


def revision() -> str:
    """What results depend on: a hash of the files that draw the cases, and STRICTNESS."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for path in [*sorted(folder.glob("opset_*.py")), folder / "drawn_answers.py"]:
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()[:8]}-{STRICTNESS}"


def settled(line: Mapping[str, Any], cases: int) -> bool:
    """Whether a result needs no other run: it is of this revision, complete, and nothing is open or wrong in it."""
    return line["revision"] == revision() and line["cases"] >= cases and not line["open"] and not line["wrong"]


def counted(operator: str, opset: int, numbers: Sequence[int], backends: Sequence[str], out: Path) -> dict[str, Any]:
    """Run cases of an operator in an opset; returns the counts and what is wrong."""
    from drawn_answers import Case
    from drawn_gradients import gradient_outcome
    from drawn_runs import Outcome, outcome, truth

    who, rules, kinds = Counter[str](), Counter[str](), {name: Counter[str]() for name in backends}
    reasons: dict[str, Counter[str]] = {name: Counter() for name in backends}
    skipped: dict[str, Counter[str]] = {name: Counter() for name in backends}
    excused: dict[str, Counter[str]] = {name: Counter() for name in backends}
    opened, wrong, begin = list[str](), list[tuple[str, str, str]](), time.perf_counter()
    for number in numbers:
        case = Case(operator=operator, opset=opset, number=number)
        (out / "current").write_text(case.name)
        signal.alarm(SECONDS)
        try:
            right = truth(case)
            who[right.who] += 1
            if right.rule is not None:
                rules[right.rule.name] += 1
            if right.open:
                opened.append(f"{case.name}: {right.open}")
                _say(f"open {case.name} {dict(case.drawn.attributes)}: {right.open}")
            for backend in backends:
                found = gradient_outcome(case) if backend == "gradients" else outcome(case, backend, right)
                kinds[backend][found.kind] += 1
                if found.kind in ("wrong", "failed"):
                    wrong.append((backend, case.name, found.reason))
                    _say(f"{found.kind} {backend} {case.name}: {found.reason} ({right.who})")
                elif found.kind == "refused":
                    reasons[backend][found.reason] += 1
                elif found.kind == "explained":
                    excused[backend][found.reason] += 1
                elif found.kind == "unanswered":
                    skipped[backend][found.reason.partition(":")[0]] += 1
        except TooLong as error:
            found = Outcome(kind="failed", reason=str(error))
            wrong.append(("any", case.name, found.reason))
            _say(f"failed any {case.name}: {found.reason}")
        finally:
            signal.alarm(0)
    return {
        "revision": revision(), "operator": operator, "opset": opset, "first": min(numbers), "cases": len(numbers),
        "who": who,
        "rules": rules, "open": opened, "backends": kinds, "wrong": wrong,
        "refused": {name: dict(found.most_common(9)) for name, found in reasons.items() if found},
        "unanswered": {name: found for name, found in skipped.items() if found},
        "explained": {name: found for name, found in excused.items() if found},
        "seconds": round(time.perf_counter() - begin, 3),
    }  # fmt: skip


def _work(chosen: argparse.Namespace) -> None:
    """Run what is not in the results yet."""
    from drawn_answers import OPERATORS, opsets

    signal.signal(signal.SIGALRM, _stop)
    out = Path(chosen.out)
    results = out / f"{'-'.join(chosen.backends)}-{chosen.first}.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    kept = [line for line in lines if settled(line, chosen.cases)]
    done = {(line["operator"], line["opset"]) for line in kept}
    if len(kept) < len(lines):
        results.write_text("".join(json.dumps(line) + "\n" for line in kept))
    fatal = (out / "fatal").read_text().split() if (out / "fatal").exists() else []
    for operator in chosen.operator or OPERATORS:
        for opset in opsets(operator):
            if (operator, opset) in done or (chosen.opset and opset not in chosen.opset):
                continue
            numbers = range(chosen.first, chosen.first + chosen.cases)
            left = [number for number in numbers if f"{operator}-{opset}-{number}" not in fatal]
            line = counted(operator, opset, left, chosen.backends, out) | {"cases": len(numbers)}
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _supervise(arguments: Sequence[str], out: Path) -> int:
    """Run workers until one finishes; note each case at which one ended."""
    while True:
        ended = subprocess.run([sys.executable, __file__, "--worker", *arguments], check=False).returncode
        if ended in (0, 1, 2, 130):
            return ended
        case = (out / "current").read_text()
        _say(f"fatal {case}: the process ended with {ended}")
        with (out / "fatal").open("a") as file:
            file.write(f"{case}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", action="append", help="only this one; may be repeated")
    parser.add_argument("--opset", action="append", type=int, help="only this one; may be repeated")
    parser.add_argument("--cases", type=int, default=300, help="cases of each operator and opset (300)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first (0)")
    parser.add_argument("--case", help="run one case by its name, and print it")
    names = ", ".join((*BACKENDS, "gradients"))
    parser.add_argument("--backends", default="reference", type=lambda text: text.split(","), help=f"of {names}")
    parser.add_argument("--out", default="results/validation", help="the folder of the results")
    parser.add_argument("--all", action="store_true", help="the long run: every back-end, 300 cases on the reference")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = parser.parse_args(given)
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    if chosen.case:
        shown(chosen.case, chosen.backends)
    elif chosen.worker:
        warnings.simplefilter("ignore")
        _work(chosen)
    elif chosen.all:
        operators = [part for name in chosen.operator or () for part in ("--operator", name)]
        for backend, first, cases in PLAN:
            numbers = ["--first", str(first), "--cases", str(cases)]
            _supervise(["--backends", backend, *numbers, "--out", chosen.out, *operators], out)
    else:
        raise SystemExit(_supervise(given, out))


def shown(name: str, backends: Sequence[str]) -> None:
    """Print a case, what each implementation computes, and how the back-ends did."""
    from drawn_answers import case_named, evaluated, plainly
    from drawn_gradients import gradient_outcome
    from drawn_runs import outcome, truth

    case = case_named(name)
    for index, value in enumerate(case.drawn.inputs):
        kept = " (stored)" if index in case.drawn.stored else ""
        _say(f"input {index}{kept}: {getattr(value, 'dtype', '')} {getattr(value, 'shape', '')} {value}")
    attributes = {
        key: value for key, value in case.drawn.attributes.items() if isinstance(value, int | float | str | list)
    }
    _say(f"attributes: {attributes}")
    for who, answer in (("onnxruntime", plainly(case)), ("onnx.reference", evaluated(case.model, case.fed))):
        _say(f"{who}: {answer.outputs if answer.outputs is not None else answer.reason}")
    right = truth(case)
    _say(f"right: {right}")
    for backend in backends:
        _say(f"{backend}: {gradient_outcome(case) if backend == 'gradients' else outcome(case, backend, right)}")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(Path(__file__).parent))
    main()
