"""Sum up JUnit files in one Markdown page: `python tests/support/counts.py OUT.md --tests all.xml --times times.xml`.

What a file of tests counted before stays until that file runs again, with the commit it ran at: the whole suite takes
hours, and may be run a part at a time. A test that a later JUnit file has again (`again.xml`, of those that failed)
counts as it ended there, and is named. So is a test of time that failed and was tried again: pytest writes a case for
each try.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OUTCOMES = ("passed", "failed", "skipped", "xfailed")
FRAMEWORKS = ("numpy", "torch", "tensorflow", "onnxruntime", "jax")
SECTIONS = {"tests": "Tests", "times": "Tests that judge times"}
"""What the page has a table of, and its heading."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of the tests of one file."""

    counts: Counter[str]
    seconds: float
    commit: str
    notes: list[str] = field(default_factory=list)


def outcome(case: ET.Element) -> tuple[str, str]:
    """What became of a test, and for one that was left out, why."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed", ""
    skipped = case.find("skipped")
    if skipped is None:
        return "passed", ""
    left_out = "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
    return left_out, re.sub(r"^Skipped: ", "", skipped.get("message") or "no reason given")


def ran(files: Iterable[Path], commit: str) -> dict[str, Row]:
    """A row a file of tests, of these JUnit files."""
    last: dict[tuple[str, str], tuple[str, str]] = {}
    notes: dict[str, list[str]] = {}
    seconds: Counter[str] = Counter()
    for file in files:
        here: Counter[tuple[str, str]] = Counter()
        for case in ET.parse(file).getroot().iter("testcase"):  # noqa: S314 - pytest wrote them a moment ago
            # The class name of a test in a class goes on after the file's: tests.test_x.TestY.
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
        for (name, test), tries in here.items():
            if tries > 1:
                notes.setdefault(name, []).append(f"`{test}`: failed {tries - 1} of its tries before it ended so")
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


def read(page: str, folder: Path) -> dict[str, dict[str, Row]]:
    """The rows of an earlier page, a dict a section; those of files that are no more are left out."""
    found: dict[str, dict[str, Row]] = {name: {} for name in SECTIONS}
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        rows = found[next(name for name, title in SECTIONS.items() if title == heading)]
        for line in re.findall(r"^\| ([\w/]*test_\w+\.py \|.*) \|$", text, flags=re.MULTILINE):
            name, *numbers, seconds, commit = line.split(" | ")
            counts = Counter({what: int(number) for what, number in zip(OUTCOMES, numbers, strict=True)})
            if (folder / name).is_file():
                rows[name] = Row(counts=counts, seconds=float(seconds), commit=commit)
        for name, note in re.findall(r"^- ([\w/]*test_\w+\.py): (.*)$", text, flags=re.MULTILINE):
            if name in rows:
                rows[name].notes.append(note)
    return found


def page(sections: dict[str, dict[str, Row]]) -> str:
    """The page, as Markdown."""
    every = [row for rows in sections.values() for row in rows.values()]
    total: Counter[str] = sum((row.counts for row in every), Counter())
    lines = [
        "# Test counts",
        "",
        f"`make test-all`, last on Python {platform.python_version()}, {platform.machine()}, {_versions()}: "
        f"{total.total()} tests, of which {', '.join(f'{total[what]} {what}' for what in OUTCOMES)}. Seconds are those "
        "that the tests themselves took; the commit is the one that they ran at.",
    ]
    for section, title in SECTIONS.items():
        rows = sorted(sections[section].items())
        lines += ["", f"## {title}", "", f"| file | {' | '.join(OUTCOMES)} | seconds | commit |"]
        lines += [f"|---|{'---:|' * (len(OUTCOMES) + 1)}---|"]
        for name, row in rows:
            numbers = " | ".join(str(row.counts[what]) for what in OUTCOMES)
            lines += [f"| {name} | {numbers} | {row.seconds:.0f} | {row.commit} |"]
        summed = sum((row.counts for _, row in rows), Counter())
        numbers = " | ".join(f"**{summed[what]}**" for what in OUTCOMES)
        lines += [f"| **all** | {numbers} | **{sum(row.seconds for _, row in rows):.0f}** | |"]
        notes = [f"- {name}: {note}" for name, row in rows for note in row.notes]
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
    """Read the page, put in what ran, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    for section in SECTIONS:
        parser.add_argument(f"--{section}", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    here = Path(__file__).parents[1]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the git of whoever develops
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    sections = read(given.out.read_text(encoding="utf-8") if given.out.is_file() else "", here)
    for section in SECTIONS:
        sections[section] |= ran(getattr(given, section), commit)
    given.out.write_text(page(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
