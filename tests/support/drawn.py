"""Validate ONNX's operators by drawn cases: `make validate`, or `python tests/support/drawn.py --operator Resize`.

Each case is a file of one node, which its name determines: operator, opset, number. Plain ONNX Runtime and ONNX's
reference run the original file at its own opset; where they disagree, a rule of drawn_rules.py says why, and a third
implementation decides. deep5 imports the file and runs it on each back-end. Results, one line for each operator and
opset, go to a folder; drawn_page.py writes docs/results/validation.md from it.

A run resumes where it ended: what is in the folder is not repeated, unless something was open or wrong, or the files
that draw the cases have changed since. A case that ends the process of an implementation has failed, and the run
resumes with the next case. Several processes (`--jobs`) share the work: each claims one operator and opset after the
other.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["claimed", "main"]

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
    ("onnxruntime", 6, 30),
    ("pytorch", 6, 30),
    ("jax", 5, 10),
)
"""The long run, `--all`: a back-end, the number of the first case, and the cases of each operator and opset."""
BACKENDS = ("reference", "pytorch", "onnxruntime", "jax", "tensorflow", "openvino")
PACKAGES = ("onnx", "onnxruntime", "numpy", "scipy", "torch", "jax", "tensorflow", "openvino")
"""Their versions are recorded with each result."""


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


def versions() -> dict[str, str]:
    """The versions of the installed packages that compute."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def counted(operator: str, opset: int, numbers: Sequence[int], backends: Sequence[str], now: Path) -> dict[str, Any]:
    """Run cases of an operator in an opset, writing each one's name to `now`; returns the counts and what is wrong."""
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
        now.write_text(case.name)
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
        "revision": revision(), "versions": versions(), "operator": operator, "opset": opset,
        "first": min(numbers, default=0), "cases": len(numbers), "who": who,
        "rules": rules, "open": opened, "backends": kinds, "wrong": wrong,
        "refused": {name: dict(found.most_common(9)) for name, found in reasons.items() if found},
        "unanswered": {name: found for name, found in skipped.items() if found},
        "explained": {name: found for name, found in excused.items() if found},
        "seconds": round(time.perf_counter() - begin, 3),
    }  # fmt: skip


def _planned(chosen: argparse.Namespace) -> list[tuple[list[str], int, int]]:
    """What to run of each operator and opset: back-ends, the number of the first case, and the number of cases."""
    if chosen.all:
        return [([backend], first, cases) for backend, first, cases in PLAN if backend in chosen.backends]
    return [(chosen.backends, chosen.first, chosen.cases)]


def _file(out: Path, backends: Sequence[str], first: int) -> Path:
    return out / f"{'-'.join(backends)}-{first}.jsonl"


def _kept(results: Path, cases: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return [line for line in lines if settled(line, cases)]


def _drop_unsettled(chosen: argparse.Namespace, out: Path) -> None:
    """Remove results that have to be computed again."""
    for backends, first, cases in _planned(chosen):
        results = _file(out, backends, first)
        if results.exists():
            results.write_text("".join(json.dumps(line) + "\n" for line in _kept(results, cases)))


def _left(chosen: argparse.Namespace, out: Path) -> Iterator[tuple[list[str], int, int, str, int]]:
    """What is not in the results yet, and no other job has claimed."""
    from drawn_answers import OPERATORS, opsets

    for backends, first, cases in _planned(chosen):
        results = _file(out, backends, first)
        done = {(line["operator"], line["opset"]) for line in _kept(results, cases)}
        for operator in chosen.operator or OPERATORS:
            for opset in opsets(operator):
                if (operator, opset) in done or (chosen.opset and opset not in chosen.opset):
                    continue
                if claimed(out / "claims" / f"{results.stem}-{operator}-{opset}", chosen.job):
                    yield backends, first, cases, operator, opset


def claimed(claim: Path, job: int) -> bool:
    """Whether this job has the work, now or from before the end of its last process."""
    try:
        with claim.open("x") as file:
            file.write(str(job))
    except FileExistsError:
        return claim.read_text() == str(job)
    return True


def _work(chosen: argparse.Namespace) -> None:
    """Run what is not in the results yet, as one of several jobs."""
    signal.signal(signal.SIGALRM, _stop)
    out = Path(chosen.out)
    fatal = (out / "fatal").read_text().split() if (out / "fatal").exists() else []
    for backends, first, cases, operator, opset in _left(chosen, out):
        numbers = range(first, first + cases)
        left = [number for number in numbers if f"{operator}-{opset}-{number}" not in fatal]
        line = counted(operator, opset, left, backends, _now(out, chosen.job)) | {"first": first, "cases": cases}
        ended = [f"{operator}-{opset}-{number}" for number in numbers if number not in left]
        line["wrong"] += [("any", name, "the process ended") for name in ended]
        for backend in backends:
            line["backends"][backend].update({"failed": len(ended)} if ended else {})
        with _file(out, backends, first).open("a") as file:
            file.write(json.dumps(line) + "\n")


def _now(out: Path, job: int) -> Path:
    """Where a job writes the name of its present case."""
    return out / "claims" / f"now-{job}"


def _supervise(arguments: Sequence[str], out: Path, job: int) -> int:
    """Run workers of one job until one finishes; note each case at which one ended."""
    while True:
        command = [sys.executable, __file__, "--job", str(job), *arguments]
        ended = subprocess.run(command, check=False).returncode
        if ended in (0, 1, 2, 130):
            return ended
        case = _now(out, job).read_text()
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
    parser.add_argument("--backends", type=lambda text: text.split(","), help=f"of {names}")
    parser.add_argument("--out", default="results/validation", help="the folder of the results")
    parser.add_argument("--all", action="store_true", help="the long run: every back-end, 300 cases on the reference")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work (1)")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = parser.parse_args(given)
    chosen.backends = chosen.backends or ([*BACKENDS, "gradients"] if chosen.all else ["reference"])
    if chosen.case:
        shown(chosen.case, chosen.backends)
        return
    if chosen.job is not None:
        warnings.simplefilter("ignore")
        _work(chosen)
        return
    out = Path(chosen.out)
    shutil.rmtree(out / "claims", ignore_errors=True)
    (out / "claims").mkdir(parents=True)
    (out / "fatal").unlink(missing_ok=True)
    _drop_unsettled(chosen, out)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        ended = list(pool.map(lambda job: _supervise(given, out, job), range(chosen.jobs)))
    shutil.rmtree(out / "claims")
    raise SystemExit(max(ended))


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
