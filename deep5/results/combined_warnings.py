"""A comparison's warnings for a reader: those of one kind about several candidates or workloads as one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["combined"]

# How `comparison_warnings` words what it says of one candidate, or of one candidate on one workload.
_ABOUT_ONE = re.compile(
    r"(?P<who>.+?): (?P<what>(?:not measured in|\d+ of \d+ processes reached|the times drift by|\d+ of \d+ samples lie|"
    r"processes differ by|other programs took) .*)"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")
_SHOWN = 4


def combined(warnings: Iterable[str]) -> list[str]:
    """The warnings, with those that differ only in their subject and their numbers as one, in the place of the first.

    Args:
        warnings: The warnings of comparison.json, which keeps each of them.

    >>> for warning in combined(
    ...     ["a, x: processes differ by up to 12 %; remedy: a quiet machine", "this machine is noisy"]
    ...     + ["b, x: processes differ by up to 30 %; remedy: a quiet machine"]
    ... ):
    ...     print(warning)
    a, x and b, x: processes differ by up to 12 to 30 %; remedy: a quiet machine
    this machine is noisy
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for warning in warnings:
        found = _ABOUT_ONE.fullmatch(warning)
        who, what = ("", warning) if found is None else (found["who"], found["what"])
        kinds.setdefault(what if found is None else _NUMBER.sub("#", what), []).append((who, what))
    return [_one(group) for group in kinds.values()]


def _one(group: Sequence[tuple[str, str]]) -> str:
    who, what = group[0]
    if not who:
        return what
    if len(group) == 1:
        return f"{who}: {what}"
    names = list(dict.fromkeys(who for who, _ in group))
    shown = names[:_SHOWN] if len(names) > _SHOWN + 1 else names
    more = [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
    *first, last = [*shown, *more]
    columns = zip(*(_NUMBER.findall(what) for _, what in group), strict=True)
    ranges = iter([_between(sorted(set(column), key=float)) for column in columns])
    return f"{'; '.join(first)} and {last}: {_NUMBER.sub(lambda _: next(ranges), what)}"


def _between(numbers: Sequence[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
