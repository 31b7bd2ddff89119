"""List the long test functions: `python tests/support/longest.py OUT.txt all.xml` (JUnit files).

A line holds the seconds of the function's longest case, and its name. conftest.py draws the daily sample from these
functions. The lines of functions that did not run stay.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

SECONDS = 3
"""A function is listed if one of its cases took that long."""


def longest(files: Sequence[Path], before: Sequence[str]) -> list[str]:
    """The lines, such as `3.5 tests/test_x.py::test_name`, sorted by name."""
    took: dict[str, float] = defaultdict(float)
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):  # noqa: S314 - pytest wrote them a moment ago
            # The class name of a test in a class follows the file's: tests.test_x.TestY.
            place, _, group = (case.get("classname") or "").partition(".Test")
            inside = f"Test{group}::" if group else ""
            name = f"{place.replace('.', '/')}.py::{inside}{(case.get('name') or '').partition('[')[0]}"
            took[name] = max(took[name], float(case.get("time", 0)))
    earlier = {name: float(seconds) for seconds, name in (line.split() for line in before)}
    listed = {name: seconds for name, seconds in earlier.items() if name not in took and _is_there(name)}
    listed |= {name: seconds for name, seconds in took.items() if seconds >= SECONDS}
    return [f"{seconds:.1f} {name}" for name, seconds in sorted(listed.items())]


def _is_there(name: str) -> bool:
    file, *_, function = name.split("::")
    path = Path(__file__).parents[2] / file
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    lines = longest([Path(name) for name in sys.argv[2:]], out.read_text().splitlines() if out.is_file() else [])
    out.write_text("".join(f"{line}\n" for line in lines))
