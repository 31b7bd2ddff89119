"""Quantities have one spelling of their unit: in the output, the sources and the documents."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("deep5", "frameworks", "metrics", "recipes", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
KINDS = {".py", ".md", ".js", ".json", ".txt", ".toml", ".h", ".cpp"}

# What is not allowed, and what to write.
SPELLINGS = {
    re.compile(r"\b(?:\d+ ?)?(?:KB|[kMGT]B(?!/s))\b"): "KiB, MiB, GiB; rates have kB/s, MB/s, GB/s",
    re.compile(r"[µμ]s\b"): "us",
    re.compile(r"\b[mun]?secs?\b|\bmillis\b|\bhrs?\b"): "s, ms, us, h",
    re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?:ms|us|ns|B/s)\b"): "a space before the unit",
    re.compile(r"\d%(?![\w(])"): "a space before %",
    re.compile(
        r"\{[^{}]*(?:2 ?\*\* ?[1-4]0|<< [1-4]0|>> [1-4]0|\b1e-?[369])[^{}]*\} ?(?:[KMGT]i?B|[mun]?s\b|GFLOP|G?B/s)"
    ): ("a function of deep5.core.quantities"),
}
# Sizes that deep5 reads, and a title as published.
EXCEPTIONS = {
    ("deep5/cli/compare.py", "800MB"),
    ("docs/how_to/results.md", "`800MB`"),
    ("deep5/core/units.py", '("kB", "MB", "GB", "TB")'),  # units that a goal may have
    ("docs/how_to/recording.md", "kB, MB, GB, TB"),
    ("deep5/networks/zoo/compact.py", "0.5 MB model size"),
}


def wrong_spellings(text: str) -> Iterator[tuple[int, str, str]]:
    """Number and content of each line with a spelling that is not allowed, and what to write."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, write in SPELLINGS.items():
            if pattern.search(line):
                yield number, line.strip(), write


def test_sources_and_documents_spell_units_in_one_way() -> None:
    command = ["git", "ls-files", "-z", *PLACES]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [path for path in listed.stdout.split("\0") if Path(path).suffix in KINDS and (ROOT / path).is_file()]
    assert len(paths) > 500
    found, used = [], set()
    for path in paths:
        for number, line, write in wrong_spellings((ROOT / path).read_text(encoding="utf-8")):
            if excepted := {own for own in EXCEPTIONS if own[0] == path and own[1] in line}:
                used |= excepted
            else:
                found.append(f"{path}:{number}: {line[:100]!r} -> {write}")
    assert not found, "\n".join(found)
    assert used == EXCEPTIONS, "an exception without a use"


@pytest.mark.parametrize(
    "line",
    [
        "downloads 170 MB",
        "of 170.1MB",
        "a file of some MB",
        "12 KB",
        "8 kB of strings",
        "it takes 60 µs",
        "it takes 60 μs",
        "12 secs",
        "within 20ms",
        "50% of the processors",
        'f"{share:.1%}"',
        'f"{needed / 2**30:.3g} GiB are free"',
        'f"{count >> 20} MiB"',
        'f"{seconds * 1e3:.3g} ms"',
        'f"{1e6 * seconds:.1f} us"',
    ],
)
def test_other_spellings_are_found(line: str) -> None:
    assert list(wrong_spellings(line))


@pytest.mark.parametrize(
    "line",
    ["a copy with 38 GB/s", "8.11 kB/s", "162 MiB in 20 ms or 3 us", "50 % of 4 KiB", "remedy: --memory-limit 4GiB"],
)
def test_the_spellings_of_the_rule_are_not(line: str) -> None:
    assert not list(wrong_spellings(line))
