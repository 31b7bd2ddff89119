"""Sum up JUnit files in one Markdown page: `python tests/support/counts.py tests/counts.md networks.xml`.

The row of a test file stays until that file runs again, with the commit it ran at: the whole suite takes hours, and
runs a part at a time. A test that a later JUnit file holds again (`again.xml`, of those that failed) counts with its
last outcome, and the page names it.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OUTCOMES = ("passed", "failed", "skipped", "xfailed")
FRAMEWORKS = ("numpy", "torch", "tensorflow", "onnxruntime", "jax")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcomes of the tests of one file."""

    counts: Counter[str]
    seconds: float
    commit: str
    notes: list[str] = field(default_factory=list)


def outcome(case: ET.Element) -> tuple[str, str]:
    """The outcome of a test, and the reason of a skipped one."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed", ""
    skipped = case.find("skipped")
    if skipped is None:
        return "passed", ""
    left_out = "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
    return left_out, re.sub(r"^Skipped: ", "", skipped.get("message") or "no reason given")


def ran(files: Iterable[Path], commit: str) -> dict[str, Row]:
    """A row per test file, from these JUnit files."""
    last: dict[tuple[str, str], tuple[str, str]] = {}
    notes: dict[str, list[str]] = {}
    seconds: Counter[str] = Counter()
    for file in files:
        here: Counter[tuple[str, str]] = Counter()
        for case in ET.parse(file).getroot().iter("testcase"):  # noqa: S314 - pytest wrote them a moment ago
            # A test in a class has the file's name and the class: tests.test_x.TestY.
            place = (case.get("classname") or case.get("name") or "").removeprefix("tests.")
            module, _, rest = place.partition(".Test")
            name = f"{module.replace('.', '/')}.py"
            key = name, (f"Test{rest}." if rest else "") + str(case.get("name"))
            found = outcome(case)
            if key in last and not here[key]:
                notes.setdefault(name, []).append(f"`{key[1]}`: {last[key][0]}, run again by itself: {found[0]}")
            here[key] += 1
            seconds[name] += float(case.get("time", 0))
            last[key] = found
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for (name, _), (what, why) in last.items():
        counts.setdefault(name, Counter())[what] += 1
        if why:
            reasons.setdefault(name, Counter())[why] += 1
    for name, whys in reasons.items():
        notes.setdefault(name, []).extend(f"left out {number} × {why}" for why, number in sorted(whys.items()))
    return {
        name: Row(counts=count, seconds=seconds[name], commit=commit, notes=notes.get(name, []))
        for name, count in counts.items()
    }


def read(page: str, folder: Path) -> dict[str, Row]:
    """The rows of an earlier page, without those of files that no longer exist."""
    found: dict[str, Row] = {}
    for line in re.findall(r"^\| ([\w/]*test_\w+\.py \|.*) \|$", page, flags=re.MULTILINE):
        name, *numbers, seconds, commit = line.split(" | ")
        counts = Counter({what: int(number) for what, number in zip(OUTCOMES, numbers, strict=True)})
        if (folder / name).is_file():
            found[name] = Row(counts=counts, seconds=float(seconds), commit=commit)
    for name, note in re.findall(r"^- ([\w/]*test_\w+\.py): (.*)$", page, flags=re.MULTILINE):
        if name in found:
            found[name].notes.append(note)
    return found


def page(rows: Mapping[str, Row]) -> str:
    """The page, as Markdown."""
    total: Counter[str] = sum((row.counts for row in rows.values()), Counter())
    lines = [
        "# Test counts",
        "",
        f"`make test-all`, last on Python {platform.python_version()}, {platform.machine()}, {_versions()}: "
        f"{total.total()} tests, of which {', '.join(f'{total[what]} {what}' for what in OUTCOMES)}. Seconds are the "
        "sum over the tests; the commit is the one that they ran at.",
        "",
        f"| file | {' | '.join(OUTCOMES)} | seconds | commit |",
        f"|---|{'---:|' * (len(OUTCOMES) + 1)}---|",
    ]
    for name, row in sorted(rows.items()):
        numbers = " | ".join(str(row.counts[what]) for what in OUTCOMES)
        lines += [f"| {name} | {numbers} | {row.seconds:.0f} | {row.commit} |"]
    numbers = " | ".join(f"**{total[what]}**" for what in OUTCOMES)
    lines += [f"| **all** | {numbers} | **{sum(row.seconds for row in rows.values()):.0f}** | |"]
    notes = [f"- {name}: {note}" for name, row in sorted(rows.items()) for note in row.notes]
    lines += ["", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _versions() -> str:
    found = []
    for name in FRAMEWORKS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main() -> None:
    """Read the page, add the results, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("junit", type=Path, nargs="+")
    given = parser.parse_args()
    tests = Path(__file__).parents[1]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the developer's git
        cwd=tests,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    rows = read(given.out.read_text(encoding="utf-8") if given.out.is_file() else "", tests)
    given.out.write_text(page({**rows, **ran(given.junit, commit)}), encoding="utf-8")


if __name__ == "__main__":
    main()
