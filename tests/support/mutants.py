"""Runs the planted faults of `tests/mutants.txt`: each must make the tests that it names fail.

    python tests/support/mutants.py                      # all of them
    python tests/support/mutants.py jax pytorch          # those of two suites, or with these words in their description
    python tests/support/mutants.py --sample 3 --seed 7  # three, drawn

A fault is one exact edit of product code. It is applied to a temporary copy of the packages and tests, never to the
work tree. First the named tests run on the unchanged copy, where they must pass.

`mutants.txt` holds one block a fault, separated by empty lines; lines that begin with `#` are comments:

    fault: what is wrong
    suite: the suite that has to catch it
    file: path of the file to edit
    test: a test that catches it; may be repeated
    -a line before the edit; these lines occur in the file exactly once
    +a line after the edit; may be missing
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["LIST", "ROOT", "Mutant", "Workplace", "chosen", "parse", "run"]

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "mutants.txt"
# Where an import from the copy finds the packages next to `deep5`.
_BESIDE = ("frameworks", "metrics", "recipes")
_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A planted fault.

    Attributes:
        fault: What is wrong, in words.
        suite: The suite that has to catch it.
        file: The file to edit, from the root of the repository.
        tests: The tests that catch it, by node id.
        before: The text to replace.
        after: The text to put in its place.
    """

    fault: str
    suite: str
    file: str
    tests: tuple[str, ...]
    before: str
    after: str

    def applied(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            ValueError: The text to replace does not occur exactly once.
        """
        if (count := text.count(self.before)) != 1:
            raise ValueError(
                f"{self.fault!r}: the text before the edit occurs {count} times in {self.file}; allowed: once; "
                "remedy: write the edit for the code as it is today, in tests/mutants.txt"
            )
        return text.replace(self.before, self.after)


def parse(text: str) -> list[Mutant]:
    """The faults of a list.

    Raises:
        ValueError: A line or a block that the format does not have.
    """
    return [_block(block.splitlines()) for block in text.split("\n\n") if _lines(block.splitlines())]


def _lines(block: Sequence[str]) -> list[str]:
    return [line for line in block if line and not line.startswith("#")]


def _block(block: Sequence[str]) -> Mutant:
    fields: dict[str, list[str]] = {key: [] for key in ("fault", "suite", "file", "test", "-", "+")}
    for line in _lines(block):
        key, value = (line[0], line[1:]) if line[0] in "+-" else (part.strip() for part in line.split(":", 1))
        if key not in fields:
            raise ValueError(f"tests/mutants.txt: got the line {line!r}; allowed: {', '.join(fields)}")
        fields[key].append(value)
    single = [fields[key] for key in ("fault", "suite", "file")]
    if any(len(found) != 1 for found in single) or not fields["test"] or not fields["-"]:
        raise ValueError(f"tests/mutants.txt: got {fields}; allowed: one fault, suite and file, tests, lines before")
    return Mutant(
        fault=single[0][0],
        suite=single[1][0],
        file=single[2][0],
        tests=tuple(fields["test"]),
        before="".join(f"{line}\n" for line in fields["-"]),
        after="".join(f"{line}\n" for line in fields["+"]),
    )


class Workplace:
    """A copy of the packages and the tests, from which a process imports `deep5`.

    Entry points keep working: the installed metadata names modules, which are found in the copy.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "deep5", folder / "deep5")
        for name in _BESIDE:
            shutil.copytree(ROOT / name, folder / "deep5" / name)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("docs", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)

    def place(self, file: str) -> Path:
        """Where the copy has a file of the repository."""
        return self.folder / "deep5" / file if file.partition("/")[0] in _BESIDE else self.folder / file

    def run(self, tests: Iterable[str]) -> int:
        """The exit status of pytest; 0: all passed, 1: some failed, else they could not run."""
        program = (
            "import sys, deep5, deep5.frameworks, pytest\n"
            f"assert deep5.__file__.startswith({str(self.folder)!r}), deep5.__file__\n"
            f"assert deep5.frameworks.__file__.startswith({str(self.folder)!r}), deep5.frameworks.__file__\n"
            # deep5 is also a plug-in of pytest, which would rewrite the assertions of what it loads.
            "sys.exit(pytest.main(['-W', 'ignore::pytest.PytestAssertRewriteWarning', *sys.argv[1:]]))"
        )
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        call = [sys.executable, "-c", program, "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
        log = self.folder / "log.txt"
        with log.open("w", encoding="utf-8") as written:
            done = subprocess.run(
                call, cwd=self.folder, env=environment, stdout=written, stderr=written, timeout=_TIMEOUT_S, check=False
            )
        return done.returncode

    def failed(self) -> list[str]:
        """What the last run printed of tests that failed."""
        said = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        return [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))] or said.splitlines()[-5:]

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the fault inside the block."""
        place = self.place(mutant.file)
        text = place.read_text(encoding="utf-8")
        try:
            self._write(place, mutant.applied(text))
            yield
        finally:
            self._write(place, text)

    def caught(self, mutant: Mutant) -> str:
        """The test that catches a fault; empty where none does.

        Raises:
            RuntimeError: The tests do not run with the fault: an edit must leave a program that imports.
        """
        with self.with_fault(mutant):
            status = self.run(mutant.tests)
        if status not in (0, 1):
            raise RuntimeError(f"{mutant.fault!r}: pytest exits with {status}: " + "\n".join(self.failed()))
        return self.failed()[0] if status else ""

    def _write(self, place: Path, text: str) -> None:
        place.write_text(text, encoding="utf-8")
        for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc"):
            compiled.unlink()  # with the same second and size it would pass for that of the new text


def chosen(mutants: Sequence[Mutant], words: Sequence[str], sample: int | None = None, seed: int = 0) -> list[Mutant]:
    """The faults of these suites, or with one of the words in their description; `sample` of them, drawn."""
    found = [each for each in mutants if not words or each.suite in words or any(word in each.fault for word in words)]
    if sample is None or sample >= len(found):
        return found
    return [found[place] for place in sorted(np.random.default_rng(seed).choice(len(found), sample, replace=False))]


def run(mutants: Sequence[Mutant], folder: Path, say: Callable[[str], object]) -> list[Mutant]:
    """Run faults in a copy in an empty folder; those that nothing catches.

    Raises:
        RuntimeError: The named tests fail without any fault, or do not run with one.
    """
    work, missed = Workplace(folder.resolve()), []
    for file in sorted({test.partition("::")[0] for mutant in mutants for test in mutant.tests}):
        named = {test for mutant in mutants for test in mutant.tests if test.partition("::")[0] == file}
        if work.run(sorted(named)):
            raise RuntimeError("\n".join([f"without any fault, in {file}:", *work.failed()]))
    for mutant in mutants:
        by = work.caught(mutant)
        missed += [] if by else [mutant]
        say(f"{'caught' if by else 'NOT CAUGHT'}: {mutant.suite}: {mutant.fault}\n  {by}\n")
    return missed


def main() -> int:
    """Run the chosen faults and report which are caught; returns 0 if all are."""
    parser = argparse.ArgumentParser(description="Run the planted faults of tests/mutants.txt.")
    parser.add_argument("words", nargs="*", help="suites, or words of a fault's description; all faults by default")
    parser.add_argument("--sample", type=int, help="run this many, drawn")
    parser.add_argument("--seed", type=int, default=0, help="what draws them")
    given = parser.parse_args()
    mutants = chosen(parse(LIST.read_text(encoding="utf-8")), given.words, given.sample, given.seed)

    def say(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="deep5-mutants-") as folder:
        missed = run(mutants, Path(folder), say)
    say(f"{len(mutants) - len(missed)} of {len(mutants)} faults are caught\n")
    return 1 if missed or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
