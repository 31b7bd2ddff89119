"""Convert random words to integers and uniform numbers."""

from __future__ import annotations

import numpy as np

__all__ = ["uniform", "whole_numbers"]


def whole_numbers(words: np.ndarray, count: np.ndarray | int) -> np.ndarray:
    """Integers in [0, `count`), int64: the upper half of word times count.

    Probabilities differ by at most `count` * 2^-32.

    Args:
        words: uint32.
        count: The exclusive upper bound, one number or one per word.

    References:
        Lemire, Fast random integer generation in an interval, ACM TOMACS 29, 2019, section 4, without its rejection.

    >>> whole_numbers(np.array([0, 2**31, 2**32 - 1], np.uint32), 9).tolist()
    [0, 4, 8]
    """
    return ((words.astype(np.uint64) * np.asarray(count).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def uniform(words: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64, a multiple of 2^-32.

    >>> uniform(np.array([0, 2**31], np.uint32)).tolist()
    [0.0, 0.5]
    """
    return words * 2.0**-32
