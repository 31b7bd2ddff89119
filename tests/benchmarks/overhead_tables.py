"""Write the tables of docs/overhead.md from stored results.

`python tests/benchmarks/overhead_tables.py docs/overhead.md results` replaces the figures of every row whose recipe has
a result there with those of the latest one, and leaves the other rows. With `--run` it runs the recipes of the page
first; `--only` selects recipes by parts of their names.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from deep5.measuring.samples import Interval, ratio_interval
from deep5.results.result import Result, load
from deep5.results.store import result_folders

BEGIN, END = "<!-- figures: overhead recipes -->", "<!-- end of figures -->"
"""What a table stands between."""
_RECIPE = re.compile(r"`(overhead_\w+)`")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run of an overhead recipe shows.

    Attributes:
        ours: Seconds a step, of the candidate; median.
        theirs: The same of the baseline.
        ratio: The interval of the ratio, and its middle.
        middle: Median ratio.
        alike: Half-width of the interval of the ratio of two instances of the baseline.
        value: The metric's.
        interval: The metric's.
        unit: Of the metric: "us" or "ratio".
    """

    ours: float
    theirs: float
    middle: float
    ratio: Interval
    alike: float
    value: float
    interval: tuple[float, float]
    unit: str


def figures(result: Result) -> Figures:
    """The figures of a result that timed two sides."""
    samples = result.samples()
    sides = [
        [float(row.value) for row in samples[f"{side}_time"]] for side in ("candidate", "baseline", "baseline_again")
    ]
    (verdict,) = result.verdicts
    recipe = result.document["recipe"]
    steps = int({**recipe.get("fixed", {}), **recipe.get("mutable", {})}["steps"])
    interval = verdict.interval
    if verdict.value is None or interval is None:
        raise ValueError(f"{result.folder} has no value; remedy: run its recipe again")
    return Figures(
        ours=median(sides[0]) / steps,
        theirs=median(sides[1]) / steps,
        middle=median(ours / theirs for ours, theirs in zip(sides[0], sides[1], strict=True)),
        ratio=ratio_interval(sides[0], sides[1]),
        alike=ratio_interval(sides[2], sides[1]).half_width,
        value=verdict.value,
        interval=(interval[0], interval[1]),
        unit=verdict.unit,
    )


def cells(found: Figures) -> dict[str, str]:
    """The cells of a row by the beginning of their column's heading."""
    low, high = found.interval
    times = f"{found.ours * 1e6:,.0f} / {found.theirs * 1e6:,.0f} µs"
    return {
        "deep5 /": times,
        "ratio": f"{found.middle:.3f}",
        "interval": f"{low:.2f} … {high:.2f} µs"
        if found.unit == "us"
        else f"{found.ratio.low:.3f} … {found.ratio.high:.3f}",
        "A/A": f"{found.alike:.3f}",
        "slowdown": f"{found.value:.3f}",
        "overhead": f"{found.value:.1f} µs",
    }


def write_tables(page: str, results: Mapping[str, Figures]) -> str:
    """The page with the figures of these recipes, by their names, in its tables."""
    lines, heads, inside = page.split("\n"), list[str](), False
    for number, line in enumerate(lines):
        if line.strip() in (BEGIN, END):
            inside, heads = line.strip() == BEGIN, []
        elif inside and line.startswith("|"):
            row = [cell.strip() for cell in line.strip("|").split("|")]
            named = _RECIPE.search(row[0])
            if not heads:
                heads = row
            elif named and named[1] in results:
                made = cells(results[named[1]])
                row = [
                    next((text for key, text in made.items() if head.startswith(key)), cell)
                    for head, cell in zip(heads, row, strict=True)
                ]
                lines[number] = f"| {' | '.join(row)} |"
    return "\n".join(lines)


def recipes(page: str) -> list[str]:
    """The recipes of the page's tables."""
    tables = re.findall(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", page, flags=re.DOTALL)
    return [match[1] for table in tables for match in re.finditer(r"^\| `(overhead_\w+)`", table, flags=re.MULTILINE)]


def stored(folder: Path, names: list[str]) -> dict[str, Figures]:
    """The figures of the latest successful result of each recipe below a folder."""
    found: dict[str, Figures] = {}
    for place in sorted(result_folders(folder), key=lambda path: path.name.split("-", 1)[-1]):
        result = load(place)
        name = str(result.document["recipe"]["name"])
        if name in names and result.status == "success":
            found[name] = figures(result)
    return found


def main() -> int:
    """Run the recipes where asked to, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--run", action="store_true", help="run the recipes of the page first")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    given = parser.parse_args()
    page = given.page.read_text(encoding="utf-8")
    words = [word for word in given.only.split(",") if word]
    names = [name for name in recipes(page) if not words or any(word in name for word in words)]
    for name in names if given.run else ():
        command = [sys.executable, "-m", "deep5", "run", name, "--out", str(given.results), "--quiet"]
        # A missed goal is a result, too.
        if subprocess.run(command, check=False).returncode not in (0, 1):
            sys.stderr.write(f"{name} failed; its row stays\n")
    found = stored(given.results, names)
    given.page.write_text(write_tables(page, found), encoding="utf-8")
    sys.stdout.write(f"{len(found)} of {len(names)} rows written to {given.page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
