"""List the long test functions: `python tests/support/longest.py OUT.txt all.xml` (JUnit files).

A line holds the seconds of the function's longest case, those of a case on average, and its name. conftest.py draws
the daily sample from these functions. The lines of functions that did not run stay.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS, TOGETHER = 3, 3
"""A function is listed if one of its cases took that long, or all that ran together."""


class Took(NamedTuple):
    """Seconds of a function: of its longest case, and of a case on average."""

    longest: float
    mean: float


def read(lines: Iterable[str]) -> dict[str, Took]:
    """The functions that lines of the list name."""
    found = (line.split() for line in lines)
    return {name: Took(float(longest), float(mean)) for longest, mean, name in found}


def longest(files: Sequence[Path], before: Sequence[str]) -> list[str]:
    """The lines, such as `3.5 1.25 tests/test_x.py::test_name`, sorted by name."""
    cases: dict[str, list[float]] = defaultdict(list)
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):  # noqa: S314 - pytest wrote them a moment ago
            # The class name of a test in a class follows the file's: tests.test_x.TestY.
            place, _, group = (case.get("classname") or "").partition(".Test")
            inside = f"Test{group}::" if group else ""
            name = f"{place.replace('.', '/')}.py::{inside}{(case.get('name') or '').partition('[')[0]}"
            cases[name].append(float(case.get("time", 0)))
    listed = {name: took for name, took in read(before).items() if name not in cases and is_there(name)}
    listed |= {
        name: Took(max(each), max(sum(each) / len(each), 0.01))
        for name, each in cases.items()
        if max(each) >= SECONDS or sum(each) >= TOGETHER
    }
    return [f"{took.longest:.1f} {took.mean:.2f} {name}" for name, took in sorted(listed.items())]


def is_there(name: str) -> bool:
    """Whether there is such a function."""
    file, *_, function = name.split("::")
    path = Path(__file__).parents[2] / file
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    lines = longest([Path(name) for name in sys.argv[2:]], out.read_text().splitlines() if out.is_file() else [])
    out.write_text("".join(f"{line}\n" for line in lines))
