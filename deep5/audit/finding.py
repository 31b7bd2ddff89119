"""The findings of an audit, and the ledger that collects them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from deep5.core.errors import Deep5Error
from deep5.core.terminal import plain

__all__ = ["RULES", "Finding", "Ledger"]

RULES: Mapping[int, str] = {
    1: "proof before timing",
    2: "numerics declared and read back",
    3: "threads and placement declared and read back",
    4: "one clock for all",
    5: "what the clock covers is stated",
    6: "first call, warm-up and steady state apart",
    7: "several fresh processes, in alternation",
    8: "every raw sample, and no impossible one",
    9: "summaries that follow from the samples",
    10: "a measured noise floor",
    11: "every declared run, and no shared seed",
    12: "the declared split and the declared epoch",
    13: "warnings where numbers are unstable",
    14: "hashes of recipe, source and environment",
}
"""The rules of measurement by number; docs/explanation/measurement.md explains each under the same title."""

# Another NumPy sums medians and intervals in another order; a manual edit would differ more.
_CLOSE = 1e-9
# Maximum characters of a value shown; characters of a truncated string before its first difference; maximum characters
# of the path to a place.
_SHOWN, _BEFORE, _PLACE = 60, 12, 200
# Maximum findings of one rule in one folder: a dropped column yields one finding per line, and the first ones suffice.
_MOST = 20


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A violation of a rule of measurement by a result.

    Attributes:
        rule: Its number in `RULES`.
        folder: The folder.
        what: The violation, in words, with the stored value and the derived one.
    """

    rule: int
    folder: str
    what: str

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.folder}: {self.what}"


class Ledger:
    """The checks of one folder.

    Args:
        folder: Name used in findings.

    Attributes:
        findings: In the order of the checks.
        checks: Number of checks made.
        skipped: Checks that could not be made, with the reason, and how often.
    """

    def __init__(self, folder: str) -> None:
        # A name may contain a line break, and the text after it would look like a finding.
        self.folder = plain(" ".join(folder.splitlines()))
        self.findings: list[Finding] = []
        self.checks = 0
        self.skipped: Counter[str] = Counter()
        self._reported: Counter[int] = Counter()

    def find(self, rule: int, what: str) -> None:
        """Add a finding, on one line without terminal control characters, because documents are untrusted."""
        what = plain(" ".join(what.split()))
        self._reported[rule] += 1
        if self._reported[rule] < _MOST:
            self.findings.append(Finding(rule=rule, folder=self.folder, what=what))
        elif self._reported[rule] == _MOST:
            self.findings.append(Finding(rule=rule, folder=self.folder, what="and more of this rule, not listed"))

    def hold(self, rule: int, right: bool, what: str) -> bool:
        """Make a check; if it fails, `what` becomes a finding."""
        self.checks += 1
        if not right:
            self.find(rule, what)
        return right

    def same(self, rule: int, what: str, stored: Any, follows: Any) -> bool:
        """Check that the stored value equals the derived one; numbers up to the rounding of a sum."""
        return self.hold(rule, _alike(stored, follows), f"{what}{_difference(stored, follows)}")

    def skip(self, what: str) -> None:
        """Record a check that cannot be made, and why."""
        self.skipped[plain(" ".join(what.split()))] += 1

    @contextmanager
    def part(self, rule: int, what: str) -> Iterator[None]:
        """Checks of one part of the documents; a part that is not in deep5's format is itself a finding."""
        try:
            yield
        except Deep5Error as error:
            self.hold(rule, False, f"{what} cannot be checked: {str(error)[:300]}")
        except (
            LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError
        ) as error:  # fmt: skip
            said = str(error)[:200]
            self.hold(rule, False, f"{what} is not as deep5 writes it ({type(error).__name__}: {said})")


def _alike(stored: Any, follows: Any) -> bool:
    if isinstance(stored, dict) and isinstance(follows, dict):
        return stored.keys() == follows.keys() and all(_alike(stored[key], follows[key]) for key in stored)
    if isinstance(stored, (list, tuple)) and isinstance(follows, (list, tuple)):
        return len(stored) == len(follows) and all(map(_alike, stored, follows))
    if isinstance(follows, bool) or isinstance(stored, bool) or follows is None or stored is None:
        return stored is follows
    if isinstance(follows, float) or isinstance(stored, float):
        try:
            one, other = float(stored), float(follows)  # "inf" and "nan" represent values that JSON lacks
        except (TypeError, ValueError, OverflowError):
            return False
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-300)
    return bool(stored == follows)


def _difference(stored: Any, follows: Any) -> str:
    """Both values if they are short, otherwise the first place within them that differs."""
    place = ""
    while max(len(repr(stored)), len(repr(follows))) > _SHOWN:
        if isinstance(stored, dict) and isinstance(follows, dict):
            keys = sorted({*stored, *follows}, key=str)
            found = ((f".{key}", stored.get(key, _NOTHING), follows.get(key, _NOTHING)) for key in keys)
        elif isinstance(stored, (list, tuple)) and isinstance(follows, (list, tuple)):
            pairs = zip_longest(stored, follows, fillvalue=_NOTHING)
            found = ((f"[{number}]", one, other) for number, (one, other) in enumerate(pairs))
        else:
            break
        inner = next(((step, one, other) for step, one, other in found if not _alike(one, other)), None)
        if inner is None:
            break
        place += inner[0]
        stored, follows = inner[1:]
    at = f", at {place.removeprefix('.')[:_PLACE]}" if place else ""
    return f"{at}; stored {_shown(stored, follows)}, recomputed {_shown(follows, stored)}"


class _Nothing:
    """Placeholder for a missing part."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _shown(value: Any, other: Any) -> str:
    """A value on one line, truncated if it is long, so that its first difference is visible."""
    quote = "'" if isinstance(value, str) else ""
    text, beside = (str(one) if isinstance(one, str) else repr(one) for one in (value, other))
    if len(text) <= _SHOWN:
        return repr(value)
    same = next((place for place, pair in enumerate(zip(text, beside, strict=False)) if pair[0] != pair[1]), 0)
    begin = same - _BEFORE if same >= _SHOWN - _BEFORE else 0
    end = begin + _SHOWN
    return f"{quote}{'…' * (begin > 0)}{text[begin:end]}{'…' * (end < len(text))}{quote}"
