"""Write the tables of docs/results/overhead.md from stored results.

`python tests/benchmarks/overhead_tables.py docs/results/overhead.md results` replaces the figures of every row that
has a result there, and leaves the other rows. A row begins with the name of its recipe or, for a recipe of rules, with
framework, rule and number of parameters. It shows the latest result; in a table marked "every run", all of them. A
table marked by a recipe of DeepBench has that recipe's latest result. With `--run` the recipes of the rows run first,
and the tables of memory and commands are measured; `--only` selects rows by parts of their beginnings, and tables by
parts of "memory", "commands" or the name of their recipe.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import other_tables

from deep5.measuring.samples import Interval, ratio_interval
from deep5.results.result import Result, load
from deep5.results.store import result_folders

BEGIN, END = "<!-- figures: overhead recipes -->", "<!-- end of figures -->"
"""A table is between these two lines."""
EVERY_RUN = "<!-- figures: overhead recipes, every run -->"
"""Begins a table whose rows list all results."""
MEMORY = "<!-- figures: memory -->"
"""Begins the table that `deep5.recipes.overhead.memory` prints."""
_ROW = re.compile(r"^\| (?:`(overhead_\w+)`|((?:pytorch|tensorflow|jax) \w+(?: small| large)?)) \|")
_RULE = re.compile(r"overhead_(\w+)_rule")


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
        passed: Whether the goal was met; None without a verdict.
    """

    ours: float
    theirs: float
    middle: float
    ratio: Interval
    alike: float
    value: float
    interval: tuple[float, float]
    unit: str
    passed: bool | None


def figures(result: Result) -> Figures:
    """The figures of a result that timed two sides; of several ranks, each round takes as long as its slowest rank."""
    ranks = [result.samples(rank=rank) for rank in range(result.rank_count)]
    sides = [
        [
            max(float(row.value) for row in rows)
            for rows in zip(*(samples[f"{side}_time"] for samples in ranks), strict=True)
        ]
        for side in ("candidate", "baseline", "baseline_again")
    ]
    (verdict,) = result.verdicts
    steps = int(_arguments(result)["steps"])
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
        passed=verdict.passed,
    )


def _arguments(result: Result) -> dict[str, Any]:
    """The fixed and mutable parts of a result's recipe."""
    recipe = result.document["recipe"]
    return {**recipe.get("fixed", {}), **recipe.get("mutable", {})}


def row_name(result: Result) -> str:
    """How the row of a result begins: `overhead_trainer`, or "pytorch adam small" for a recipe of update rules."""
    name = str(result.document["recipe"]["name"])
    rules = _RULE.fullmatch(name)
    if not rules:
        return name
    given = _arguments(result)["candidate_kwargs"]
    return " ".join([rules[1], *(str(given[key]) for key in ("rule", "shapes") if key in given)])


def cells(runs: Sequence[Figures]) -> dict[str, str]:
    """The cells of a row by the beginning of their column's heading; several runs are listed."""
    made = [_cells(found) for found in runs]
    return {heading: ", ".join(each[heading] for each in made) for heading in made[0]}


def _cells(found: Figures) -> dict[str, str]:
    low, high = found.interval
    in_us = found.unit == "us"
    overhead, slowdown = f"{found.value:.1f} us", f"{found.value:.3f}"
    return {
        "deep5 /": f"{found.ours * 1e6:,.0f} / {found.theirs * 1e6:,.0f} us",
        "ratio": f"{found.middle:.3f}",
        "interval": f"{low:.2f} … {high:.2f} us" if in_us else f"{found.ratio.low:.3f} … {found.ratio.high:.3f}",
        "A/A": f"{found.alike:.3f}",
        "overhead or slowdown": overhead if in_us else slowdown,
        "slowdown": slowdown,
        "overhead": overhead,
        "<=": {True: "kept", False: "missed", None: "no verdict"}[found.passed],
    }


def write_tables(page: str, results: Mapping[str, Sequence[Figures]]) -> str:
    """The page with the figures of these rows, by their names and from the oldest run to the latest, in its tables."""
    lines, heads, begin = page.split("\n"), list[str](), ""
    for number, line in enumerate(lines):
        if line.strip() in (BEGIN, EVERY_RUN, END):
            begin, heads = line.strip(), []
        elif begin in (BEGIN, EVERY_RUN) and line.startswith("|"):
            row = [cell.strip() for cell in line.strip("|").split("|")]
            name = _named(line)
            if not heads:
                heads = row
            elif name in results:
                made = cells(results[name] if begin == EVERY_RUN else results[name][-1:])
                row = [
                    next((text for key, text in made.items() if head.startswith(key)), cell)
                    for head, cell in zip(heads, row, strict=True)
                ]
                lines[number] = f"| {' | '.join(row)} |"
    return "\n".join(lines)


def write_memory(page: str, table: str) -> str:
    """The page with this table of memory."""
    before, found, rest = page.partition(f"{MEMORY}\n")
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no table between {MEMORY!r} and {END!r}")
    return f"{before}{MEMORY}\n\n{table.strip()}\n\n{END}{after}"


def _named(line: str) -> str:
    """How a row begins; empty for another line."""
    found = _ROW.match(line)
    return (found[1] or found[2]) if found else ""


def rows(page: str) -> list[str]:
    """The names of the rows of the page's tables, in their order."""
    tables = re.findall(f"(?:{re.escape(BEGIN)}|{re.escape(EVERY_RUN)})(.*?){re.escape(END)}", page, flags=re.DOTALL)
    return [name for table in tables for line in table.split("\n") if (name := _named(line))]


def command(name: str) -> list[str]:
    """What `deep5 run` needs for a row."""
    if name.startswith("overhead_"):
        return [name]
    if name.startswith("deepbench_"):
        return [name, "--set", "rounds=12"]
    framework, rule, *shapes = name.split(" ")
    given = {"rule": rule, **({"shapes": shapes[0]} if shapes else {})}
    settings = [f"{side}_kwargs.{key}={value}" for side in ("candidate", "baseline") for key, value in given.items()]
    return [f"overhead_{framework}_rule", *(word for setting in settings for word in ("--set", setting))]


def stored(folder: Path, names: Collection[str]) -> dict[str, list[Figures]]:
    """The figures of the successful results of these rows below a folder, from the oldest to the latest."""
    found: dict[str, list[Figures]] = {}
    for place in sorted(result_folders(folder), key=_moment):
        result = load(place)
        if result.status == "success" and (name := row_name(result)) in names:
            found.setdefault(name, []).append(figures(result))
    return found


def _is(folder: Path, recipe: str) -> bool:
    """Whether a folder has a successful result of this recipe at its full size."""
    result = load(folder)
    own = result.document["recipe"]
    return result.status == "success" and own["name"] == recipe and own["size"] == "full"


def _moment(folder: Path) -> str:
    """A folder's date and time; its name is `recipe-date-time-token`."""
    return folder.name.split("-", 1)[-1]


def main() -> int:
    """Run what is requested, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--run", action="store_true", help="run the recipes of the rows, and measure memory, first")
    parser.add_argument("--only", default="", help="parts of the beginnings of rows, separated by commas")
    given = parser.parse_args()
    page = given.page.read_text(encoding="utf-8")
    words = [word for word in given.only.split(",") if word]

    def wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    names = [name for name in rows(page) if wanted(name)]
    python = [sys.executable, "-m"]
    for name in [*names, *filter(wanted, other_tables.table_names(page))] if given.run else ():
        # A missed goal is a result, too.
        done = subprocess.run([*python, "deep5", "run", *command(name), "--out", given.results, "--quiet"], check=False)
        if done.returncode not in (0, 1):
            sys.stderr.write(f"{name} failed; its row stays\n")
    found = stored(given.results, names)
    page = write_tables(page, found)
    for recipe in filter(wanted, other_tables.table_names(page)):
        latest = [place for place in sorted(result_folders(given.results), key=_moment) if _is(place, recipe)]
        if latest:
            rows_of_file = json.loads((latest[-1] / "operators.json").read_text(encoding="utf-8"))["rows"]
            page = other_tables.write_ratios(page, recipe, other_tables.ratios(rows_of_file))
    if given.run and wanted(other_tables.COMMANDS):
        page = other_tables.write_commands(page, other_tables.time_commands())
    if given.run and wanted("memory"):
        measured = subprocess.run(
            [*python, "deep5.recipes.overhead.memory"], stdout=subprocess.PIPE, text=True, check=True
        )
        page = write_memory(page, measured.stdout)
    given.page.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{len(found)} of {len(names)} rows written to {given.page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
