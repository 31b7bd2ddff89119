"""The tables of docs/results/overhead.md that are not of overhead recipes: DeepBench's, and times of commands."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import commands
from registry import benchmarks

from deep5.measuring.samples import Interval, median_interval

END = "<!-- end of figures -->"
COMMANDS = "commands"
"""The table of commands is after the line `<!-- figures: commands -->`; DeepBench's name a recipe instead."""
_ROUNDS = 15
_TIMED = {
    "`deep5 --help`": "commands.help",
    "`deep5 check digits_lenet`": "commands.check_digits_lenet",
    "`import deep5`, beside Python's own start": "commands.import_deep5",
}
_FRAMEWORKS = {
    "PyTorch": "pytorch",
    "TensorFlow": "tensorflow",
    "JAX": "jax",
    "ONNX Runtime": "onnxruntime",
    "OpenVINO": "openvino",
    "NumPy": "reference",
}
_DIRECTIONS = {"forward": "forward", "by data": "backward by data", "by weights": "backward by weights"}


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Time through deep5 against time on the bare framework, over all measured sizes of one direction.

    Attributes:
        sizes: Their number.
        ratio: Median of the sizes' ratios.
        interval: Of that median.
        difference_s: Median of the sizes' differences, in seconds.
    """

    sizes: int
    ratio: float
    interval: Interval
    difference_s: float


def table_names(page: str) -> list[str]:
    """The recipes of DeepBench's tables of a page."""
    return re.findall(r"<!-- figures: (deepbench_\w+) -->", page)


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Ratios]:
    """The ratios of the rows of `operators.json`, by framework and direction; without bare times there is none."""
    bare = {(row["problem"], row["direction"], row["framework"]): row["median_s"] for row in rows if row["bare"]}
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        opponent = bare.get((row["problem"], row["direction"], row["framework"]))
        if not row["bare"] and opponent is not None:
            pairs.setdefault((row["framework"], row["direction"]), []).append((row["median_s"], opponent))
    return {key: _ratios(found) for key, found in pairs.items()}


def _ratios(times: Sequence[tuple[float, float]]) -> Ratios:
    each = [ours / theirs for ours, theirs in times]
    return Ratios(
        sizes=len(each),
        ratio=median(each),
        interval=median_interval(each),
        difference_s=median(ours - theirs for ours, theirs in times),
    )


def write_ratios(page: str, recipe: str, found: Mapping[tuple[str, str], Ratios]) -> str:
    """The page with these figures in the table of a recipe; a cell without a figure stays empty."""

    def cells(heads: Sequence[str], row: Sequence[str]) -> list[str]:
        if row[0] not in _FRAMEWORKS:
            raise ValueError(f"the table of {recipe} has a row {row[0]!r}; allowed: {', '.join(_FRAMEWORKS)}")
        direction, made = "forward", [row[0]]
        for head in heads[1:]:
            direction = _DIRECTIONS.get(head, direction)
            own = found.get((_FRAMEWORKS[row[0]], direction))
            made.append("" if own is None else _cell(head, own))
        return made

    return _replaced(page, recipe, cells)


def _cell(head: str, own: Ratios) -> str:
    if head == "interval":
        return f"{own.interval.low:.3f} … {own.interval.high:.3f}"
    if head == "median difference":
        return f"{own.difference_s * 1e6:.0f} us"
    return str(own.sizes) if head == "sizes" else f"{own.ratio:.3f}"


def time_commands() -> dict[str, float]:
    """Median seconds of fresh processes, in turn, by the name of their row."""
    with tempfile.TemporaryDirectory(prefix="deep5-bench-") as folder:
        every = benchmarks()
        calls = {row: every[name].setup(Path(folder)) for row, name in _TIMED.items()}
        python = commands.fresh(Path(folder), "-c", "pass")
        rounds = [
            {"": _seconds(python), **{row: _seconds(call) for row, call in calls.items()}} for _ in range(_ROUNDS)
        ]
    return {row: median(times[row] - (times[""] if "beside" in row else 0.0) for times in rounds) for row in _TIMED}


def _seconds(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


def write_commands(page: str, found: Mapping[str, float]) -> str:
    """The page with these seconds in the column "measured" of the table of commands."""

    def cells(heads: Sequence[str], row: Sequence[str]) -> list[str]:
        made = f"{found[row[0]]:.3f} s"
        return [made if head == "measured" else cell for head, cell in zip(heads, row, strict=True)]

    return _replaced(page, COMMANDS, cells)


def _replaced(page: str, name: str, cells: Callable[[Sequence[str], Sequence[str]], Sequence[str]]) -> str:
    """The page with other rows in its table of this name; its heading, and all that is around it, stay."""
    mark = f"<!-- figures: {name} -->"
    before, found, rest = page.partition(mark)
    table, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no table between {mark!r} and {END!r}")
    lines = table.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    heads = _split(lines[first])
    for number in range(first + 2, len(lines)):
        if lines[number].startswith("|"):
            lines[number] = f"| {' | '.join(cells(heads, _split(lines[number])))} |"
    return f"{before}{mark}{chr(10).join(lines)}{END}{after}"


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
