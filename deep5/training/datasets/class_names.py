"""Classes of labels: numbers from 0 for whatever values the labels have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["class_numbers", "mapping_sentence"]

# Maximum number of classes that a sentence lists.
_SHOWN = 5


def class_numbers(values: Sequence[Any] | np.ndarray, what: str) -> tuple[np.ndarray, list[str]]:
    """The class of each label: the position of its value among all values, sorted.

    Args:
        values: Labels, all integers or all strings.
        what: The labels, for messages.

    Returns:
        Classes, int64, shape (N,); and the values by class, as strings.

    Raises:
        UsageError: All labels are equal, so there is nothing to learn.

    >>> class_numbers([3, 1, 3, 2], "labels")
    (array([2, 0, 2, 1]), ['1', '2', '3'])
    """
    known, numbers = np.unique(np.asarray(values), return_inverse=True)
    if len(known) < 2:
        raise UsageError(f"{what} are all {str(known[0])!r:.60}; allowed: at least two classes")
    return numbers.reshape(-1).astype(np.int64), [str(value) for value in known]


def mapping_sentence(names: Sequence[str]) -> str | None:
    """The statement that labels are mapped to classes; None for labels that count from 0 already.

    >>> mapping_sentence(["1", "2"])
    "the labels '1', '2' are mapped to the classes 0, 1"
    """
    if list(names) == [str(number) for number in range(len(names))]:
        return None
    more = ", …" if len(names) > _SHOWN else ""
    shown = ", ".join(f"{name!r:.40}" for name in names[:_SHOWN])
    return f"the labels {shown}{more} are mapped to the classes {', '.join(map(str, range(len(names[:_SHOWN]))))}{more}"
