"""Times every update rule that has a native counterpart against it: `python -m deep5.recipes.overhead.rule_table`.

Runs the recipes `overhead_<framework>_rule` once for each rule (and, on PyTorch, for each number of parameters), in
turn, each in its own process, and prints the rows of the table in `docs/results/overhead.md`. L-BFGS is excluded
because it owns its step.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import deep5 as d5
from deep5.measuring.samples import non_inferiority

__all__ = ["cases", "row"]

FRAMEWORKS = ("pytorch", "tensorflow", "jax")
_TIMEOUT_S = 1800


def cases(framework: str) -> list[dict[str, str]]:
    """The arguments of both sides, one entry per run: `rule`, and on PyTorch `shapes`."""
    rules = [name for name in d5.framework(framework).optimizers() if name != "lbfgs"]
    sizes = ("small", "large") if framework == "pytorch" else (None,)
    return [{"rule": rule, **({"shapes": size} if size else {})} for rule in rules for size in sizes]


def row(framework: str, case: dict[str, str], size: str) -> str:
    """Run the recipe for a case, and return its row of the table.

    Args:
        framework: Name of the framework.
        case: One of `cases`.
        size: Size of the recipe: "full" or "smoke".

    Raises:
        Deep5Error: The run failed.
    """
    settings = [f"{side}_kwargs.{key}={value}" for side in ("candidate", "baseline") for key, value in case.items()]
    with tempfile.TemporaryDirectory() as out:
        words = ["run", f"overhead_{framework}_rule", "--size", size, "--out", out, "--quiet", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "deep5", *words, *(word for setting in settings for word in ("--set", setting))],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if not done.stdout:
            raise d5.Deep5Error(f"{framework}, {case}: the run failed: {done.stderr[-2000:]}")
        document = json.loads(done.stdout)
        with (Path(document["folder"]) / "samples.csv").open(newline="") as file:
            times: dict[str, list[float]] = {}
            for entry in csv.DictReader(file):
                times.setdefault(entry["metric"], []).append(float(entry["value"]))
    candidate, baseline, again = (times[f"{side}_time"] for side in ("candidate", "baseline", "baseline_again"))
    answer = non_inferiority(candidate, baseline, again)
    ours, theirs = (median(side) / document["measurement"]["loops"] * 1e6 for side in (candidate, baseline))
    verdict = {True: "kept", False: "missed", None: "not evaluated"}[document["accepted"]]
    return (
        f"| {' '.join([framework, *case.values()])} | {ours:,.0f} / {theirs:,.0f} us | {answer.ratio:.3f} | "
        f"{answer.interval.low:.3f} … {answer.interval.high:.3f} | {answer.floor_half_width:.3f} | "
        f"{answer.excess:.3f} | {verdict} |"
    )


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description="Update rules against the frameworks' own optimizers.")
    parser.add_argument("frameworks", nargs="*", default=list(FRAMEWORKS), metavar="FRAMEWORK")
    parser.add_argument("--size", default="full", choices=("full", "smoke"))
    given = parser.parse_args()
    print("| rule | deep5 / native, a step | ratio | interval | A/A ± | slowdown | <= 1.05 |")
    print("|---|---|---|---|---|---|---|")
    for framework in given.frameworks:
        for case in cases(framework):
            print(row(framework, case, given.size), flush=True)


if __name__ == "__main__":
    main()
