"""Which functions the daily suite lost: `python tests/support/daily.py BEFORE AFTER`, two lists of its tests.

A list is what `pytest --collect-only -q -m "not slow and not gpu"` prints. A function that moved to another file is
found by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def functions(lines: Iterable[str]) -> dict[str, str]:
    """Names of functions, with their classes, and a file of each."""
    found = {}
    for line in lines:
        file, _, name = line.strip().partition("::")
        if file.startswith("tests/") and name:
            found[name.partition("[")[0]] = file
    return found


def lost(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The functions that have a case before and none after, sorted."""
    earlier, later = functions(before), functions(after)
    return sorted(f"{file}::{name}" for name, file in earlier.items() if name not in later)


if __name__ == "__main__":
    missing = lost(*(Path(name).read_text(encoding="utf-8").splitlines() for name in sys.argv[1:3]))
    sys.stdout.writelines(f"{name}\n" for name in missing)
    sys.exit(bool(missing))
