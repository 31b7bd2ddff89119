"""Selection of samples: stratified splits and balanced subsets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator

__all__ = ["Selection", "check_limit", "check_share", "drawn", "evenly", "selected", "split_hash", "stratified"]


def stratified(
    labels: np.ndarray, share: float, seed: int, classes: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """A seeded split that keeps the class proportions.

    Args:
        labels: The labels of all samples, shape (N,).
        share: Fraction of each class in the test part; at least one sample, and not all of them.
        seed: The seed of the draw.
        classes: Names of the classes, for messages; none: their numbers.

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
            name = repr(classes[label])[:60] if len(classes) else label
            raise UsageError(
                f"class {name} has only one sample, which cannot be split; allowed: at least two of each class; "
                "remedy: more samples of it, none of it, or test samples that are given apart"
            )
        own = own[generator(seed, "split", int(label)).permutation(len(own))]
        cut = min(max(1, round(share * len(own))), len(own) - 1)
        test.append(own[:cut])
        train.append(own[cut:])
    longest = max(map(len, train))
    rounds = [part[position] for position in range(longest) for part in train if position < len(part)]
    return np.array(rounds, dtype=np.int64), np.sort(np.concatenate(test)).astype(np.int64)


def drawn(what: str, length: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A seeded split that ignores labels: sorted indices of the training part and of the test part.

    Args:
        what: The data set, for messages.
        length: The number of samples.
        share: Fraction of the samples in the test part; at least one sample, and not all of them.
        seed: The seed of the draw.

    Raises:
        UsageError: There is only one sample, or `share` is not a number between 0 and 1.
    """
    check_share(what, share)
    if length < 2:
        raise UsageError(f"{what} of {length} sample cannot be split; remedy: test= the file of the test samples")
    order = generator(seed, "split").permutation(length)
    cut = min(max(1, round(share * length)), length - 1)
    # Sorted: memory-mapped files are read front to back.
    return np.sort(order[cut:]), np.sort(order[:cut])


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The samples of the two parts.

    Attributes:
        train: Indices of the training samples, int64.
        test: Indices of the test samples, int64; among the test samples if these are given separately.
        text: How the split is made, for a description.
    """

    train: np.ndarray
    test: np.ndarray
    text: str

    @property
    def hash(self) -> str:
        """SHA-256 of the assignment."""
        return split_hash(self.train, self.test)


def selected(
    what: str,
    length: int,
    labels: np.ndarray | None,
    *,
    test_length: int | None = None,
    test_labels: np.ndarray | None = None,
    given: str = "the files given",
    classes: Sequence[str] = (),
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Selection:
    """The samples of both parts: as given, or drawn, stratified by class where labels are known.

    Args:
        what: The data set, for messages.
        length: The number of training samples, or of all samples if the split is drawn.
        labels: Their classes, int64; None: unknown.
        test_length: The number of separate test samples; None: the split is drawn.
        test_labels: Their classes.
        given: Describes a split that is given.
        classes: Names of the classes, for messages; none: their numbers.
        test_share: Fraction of the samples in the test part, if it is drawn.
        split_seed: The seed of the draw.
        limit: The number of training samples to keep, balanced by class where labels are known; None: all.
        test_limit: The same for the test samples.

    Raises:
        UsageError: An argument is out of its range, or a class has only one sample.
    """
    if test_length is not None:
        parts, text = (np.arange(length), np.arange(test_length)), given
        own = (labels, test_labels)
    else:
        if labels is None:
            parts = drawn(what, length, test_share, split_seed)
            text = f"{test_share:g} of the samples to the test set, seed {split_seed}"
        else:
            parts = stratified(labels, check_share(what, test_share), split_seed, classes)
            text = f"stratified by class, {test_share:g} of each to the test set, seed {split_seed}"
        own = (labels, labels)
    kept = []
    for ids, of, name, most in zip(parts, own, ("limit", "test_limit"), (limit, test_limit), strict=True):
        check_limit(what, name, most, len(ids))
        kept.append(ids[:most] if of is None else ids[evenly(of[ids], most)])
    return Selection(train=kept[0], test=kept[1], text=text)


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
