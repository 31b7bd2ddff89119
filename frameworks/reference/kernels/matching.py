"""Regular expressions on strings, within a time limit: Python's search may take exponentially long."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deep5.core.errors import RunFailed, brief
from deep5.core.python_child import ask
from deep5.core.time_limit import current_limit

__all__ = ["matches"]

# A search of at most so many steps is done at once; a longer one in a process that can be ended.
_FEW_STEPS = 1 << 22
# Strings up to this length are searched in few steps, whatever the pattern.
_SHORT = 12
_LIMIT_S = 5.0
_REPETITIONS = re.compile(r"(?<!\\)[*+?{]")
_NESTED = re.compile(r"(?<!\\)\)[*+?{]")


def matches(pattern: re.Pattern[str], texts: Sequence[str]) -> list[bool]:
    """Whether a pattern matches each of some strings as a whole.

    Args:
        pattern: The pattern.
        texts: The strings.

    Raises:
        RunFailed: The search does not end within the caller's time limit, or 5 s.
    """
    if _most_steps(pattern.pattern, texts) <= _FEW_STEPS:
        return _search(pattern, texts)
    limit = current_limit()
    seconds = _LIMIT_S if limit is None else max(limit.remaining_s(), 0.1)
    answer = ask(_search_anew, pattern.pattern, pattern.flags, list(texts), time_limit_s=seconds)
    if answer.fault is None:
        return [bool(found) for found in answer.value]
    raise RunFailed(
        f"RegexFullMatch: the search for {brief(pattern.pattern)} in strings of up to {max(map(len, texts)):,} "
        f"characters {answer.fault}; allowed: a search that ends within {seconds:g} s; remedy: a pattern without "
        "repetitions inside repetitions, or the framework 'onnxruntime'"
    )


def _most_steps(pattern: str, texts: Sequence[str]) -> float:
    """A bound on the steps of the search: each repetition may try each length."""
    longest = max(map(len, texts), default=0)
    if longest <= _SHORT:
        return 0.0
    if _NESTED.search(pattern):
        return float("inf")
    degree = min(max(len(_REPETITIONS.findall(pattern)), 1), 40)
    return float(len(texts)) * float(longest) ** degree


def _search(pattern: re.Pattern[str], texts: Sequence[str]) -> list[bool]:
    return [pattern.fullmatch(text) is not None for text in texts]


def _search_anew(pattern: str, flags: int, texts: Sequence[str]) -> list[bool]:
    return _search(re.compile(pattern, flags), texts)
