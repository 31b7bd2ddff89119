"""Selection of samples: stratified splits and balanced subsets."""

from __future__ import annotations

import hashlib

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator

__all__ = ["check_limit", "check_share", "evenly", "split_hash", "stratified"]


def stratified(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A seeded split that keeps the class proportions.

    Args:
        labels: The labels of all samples, shape (N,).
        share: Fraction of each class in the test part; at least one sample, and not all of them.
        seed: The seed of the draw.

    Returns:
        Indices of the training part, in rounds of one sample per class, so that every prefix is balanced; and sorted
        indices of the test part.

    Raises:
        UsageError: A class has only one sample.
    """
    train, test = [], []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if len(own) < 2:
            raise UsageError(
                f"class {label} has only one sample, which cannot be split; allowed: at least two of each class; "
                "remedy: say which samples are for the test"
            )
        own = own[generator(seed, "split", int(label)).permutation(len(own))]
        cut = min(max(1, round(share * len(own))), len(own) - 1)
        test.append(own[:cut])
        train.append(own[cut:])
    longest = max(map(len, train))
    rounds = [part[position] for position in range(longest) for part in train if position < len(part)]
    return np.array(rounds, dtype=np.int64), np.sort(np.concatenate(test)).astype(np.int64)


def evenly(labels: np.ndarray, limit: int | None) -> np.ndarray:
    """Sorted indices of the first `limit` samples, balanced by class; all if it is None.

    >>> evenly(np.array([0, 0, 0, 0, 1, 1, 2]), 4).tolist()
    [0, 1, 4, 6]
    """
    if limit is None:
        return np.arange(len(labels), dtype=np.int64)
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    position = np.arange(len(labels)) - np.repeat(begins, np.diff(np.r_[begins, len(labels)]))
    chosen = order[np.lexsort((ordered, position))[:limit]]
    return np.sort(chosen).astype(np.int64)


def split_hash(*parts: np.ndarray) -> str:
    """SHA-256 of the indices of the parts."""
    return hashlib.sha256(b"|".join(np.asarray(part, dtype=np.int64).tobytes() for part in parts)).hexdigest()


def check_limit(what: str, name: str, limit: int | None, available: int) -> int | None:
    """Check a number of samples to keep; None: all.

    Raises:
        UsageError: `limit` is not an integer from 1 to `available`.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= available):
        raise UsageError(f"{what} with {name} {limit!r}; allowed: None or an integer from 1 to {available}")
    return limit


def check_share(what: str, share: float) -> float:
    """Check a fraction of the samples.

    Raises:
        UsageError: `share` is not a number between 0 and 1.
    """
    if isinstance(share, bool) or not (isinstance(share, (int, float)) and 0.0 < share < 1.0):
        raise UsageError(f"{what} with test_share {share!r}; allowed: a number between 0 and 1")
    return share
