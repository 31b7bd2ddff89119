"""List the slow test functions: `python tests/support/longest.py OUT.txt all.xml timing.xml` (JUnit files).

conftest.py draws from them for every day's suite. What the list says of functions that did not run stays.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

SECONDS = 3
"""A function is listed if one of its cases took that long."""


def longest(files: list[Path], before: list[str]) -> list[str]:
    """The functions as `tests/test_x.py::test_name`, sorted."""
    took: dict[str, float] = defaultdict(float)
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):  # noqa: S314 - pytest wrote them a moment ago
            # The class name of a test in a class goes on after the file's: tests.test_x.TestY.
            place, _, group = (case.get("classname") or "").partition(".Test")
            inside = f"Test{group}::" if group else ""
            name = f"{place.replace('.', '/')}.py::{inside}{(case.get('name') or '').partition('[')[0]}"
            took[name] = max(took[name], float(case.get("time", 0)))
    kept = [name for name in before if name not in took and _is_there(name)]
    return sorted([*kept, *(name for name, seconds in took.items() if seconds >= SECONDS)])


def _is_there(name: str) -> bool:
    file, *_, function = name.split("::")
    path = Path(__file__).parents[2] / file
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    names = longest([Path(name) for name in sys.argv[2:]], out.read_text().split() if out.is_file() else [])
    out.write_text("".join(f"{name}\n" for name in names))
