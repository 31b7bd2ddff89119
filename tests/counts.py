"""Sum up pytest's JUnit files in one Markdown table: `python tests/counts.py OUT.md all.xml timing.xml`."""

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
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    seconds = 0.0
    for file in files:
        for suite in ET.parse(file).getroot().iter("testsuite"):  # noqa: S314 - pytest wrote them a moment ago
            seconds += float(suite.get("time", 0))
            for case in suite.iter("testcase"):
                # The class name of a test in a class goes on after the file's: tests.test_x.TestY.
                place = (case.get("classname") or case.get("name") or "").removeprefix("tests.")
                name = place.partition(".Test")[0].replace(".", "/") + ".py"
                what, why = outcome(case)
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
