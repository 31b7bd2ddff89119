"""Sum up pytest's JUnit files in one Markdown table: `python tests/counts.py OUT.md all.xml timing.xml`.

A test that a later file has again (`again.xml`, of those that failed) counts as it ended there, and is named.
So is a test of time that failed and was tried again: pytest writes a case for each try.
"""

from __future__ import annotations

import platform
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OUTCOMES = ("passed", "failed", "skipped", "xfailed")
FRAMEWORKS = ("numpy", "torch", "tensorflow", "onnxruntime", "jax")


def outcome(case: ET.Element) -> tuple[str, str]:
    """What became of a test, and for one that was left out, why."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed", ""
    skipped = case.find("skipped")
    if skipped is None:
        return "passed", ""
    left_out = "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
    return left_out, re.sub(r"^Skipped: ", "", skipped.get("message") or "no reason given")


def table(files: list[Path]) -> str:
    """The counts a test file, their sum, and the reasons of what was left out."""
    last: dict[tuple[str, str], tuple[str, str]] = {}
    again: dict[str, str] = {}
    tries: Counter[str] = Counter()
    seconds = 0.0
    for file in files:
        here: set[str] = set()
        for suite in ET.parse(file).getroot().iter("testsuite"):  # noqa: S314 - pytest wrote them a moment ago
            seconds += float(suite.get("time", 0))
            for case in suite.iter("testcase"):
                # The class name of a test in a class goes on after the file's: tests.test_x.TestY.
                place = (case.get("classname") or case.get("name") or "").removeprefix("tests.")
                key = place.partition(".Test")[0].replace(".", "/") + ".py", f"{place}.{case.get('name')}"
                found = outcome(case)
                if key[1] in here:
                    tries[key[1]] += 1
                elif key in last:
                    again[key[1]] = f"{last[key][0]}, then {found[0]}"
                here.add(key[1])
                last[key] = found
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for (name, _), (what, why) in last.items():
        counts.setdefault(name, Counter())[what] += 1
        if why:
            reasons[why] += 1
    total: Counter[str] = sum(counts.values(), Counter())
    rows = [(name, [str(count[what]) for what in OUTCOMES]) for name, count in sorted(counts.items())]
    lines = [
        "# Test counts",
        "",
        f"`make test-all` on Python {platform.python_version()}, {platform.machine()}, {_versions()}: "
        f"{total.total()} tests in {seconds:.0f} s.",
        "",
        f"| file | {' | '.join(OUTCOMES)} |",
        f"|---|{'---:|' * len(OUTCOMES)}",
        *(f"| {name} | {' | '.join(numbers)} |" for name, numbers in rows),
        f"| **all** | {' | '.join(f'**{total[what]}**' for what in OUTCOMES)} |",
        *(["", "Run again by themselves:", ""] if again else []),
        *(f"- `{test}`: {ends}" for test, ends in sorted(again.items())),
        *(["", "Tests of time that failed before they ended so:", ""] if tries else []),
        *(f"- `{test}`: {count} of its tries" for test, count in sorted(tries.items())),
        *(["", "Left out, and why:", ""] if reasons else []),
        *(f"- {number} × {why}" for why, number in sorted(reasons.items())),
    ]
    return "\n".join(lines) + "\n"


def _versions() -> str:
    found = []
    for name in FRAMEWORKS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table([Path(name) for name in sys.argv[2:]]), encoding="utf-8")
