"""Decoding of connectionist temporal classification: the labels of the best path, or of the best prefix."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from deep5.core.errors import ShapeError, UsageError, brief

__all__ = ["best_path", "prefix_beam_search"]


def best_path(log_probabilities: np.ndarray, lengths: np.ndarray, *, blank: int = 0) -> list[list[int]]:
    """The labels of each sample's most probable path: repeated classes count once, then blanks are left out.

    Args:
        log_probabilities: Logarithms of the classes' probabilities at each step, shape (N, steps, classes). A NaN makes
            the step a blank.
        lengths: The steps of each sample that count, integers of shape (N,).
        blank: The class that means no label.

    Returns:
        The labels of each sample.

    Raises:
        ShapeError: The shapes are others, or a length is not between 0 and the steps.
        UsageError: The blank is not a class.

    References:
        Graves, Fernandez, Gomez and Schmidhuber, Connectionist temporal classification, ICML 2006, section 3.2 (best
        path decoding).

    >>> steps = np.log([[[0.2, 0.8], [0.3, 0.7], [0.9, 0.1], [0.4, 0.6], [0.1, 0.9]]])
    >>> best_path(steps, np.array([5])), best_path(steps, np.array([3]))
    ([[1, 1]], [[1]])
    """
    scores, steps = _checked("best_path", log_probabilities, lengths, blank)
    found = []
    for rows, count in zip(scores, steps, strict=True):
        classes = np.where(np.isnan(rows[:count]).any(axis=1), blank, rows[:count].argmax(axis=1)).tolist()
        before = [blank, *classes]
        found.append([own for own, last in zip(classes, before, strict=False) if own not in (last, blank)])
    return found


def prefix_beam_search(
    log_probabilities: np.ndarray, lengths: np.ndarray, *, beam: int, blank: int = 0
) -> list[list[int]]:
    """The labels that are most probable, summed over all paths to them that a search with a beam has visited.

    Each step extends the `beam` most probable prefixes. A prefix has two probabilities, of the paths to it that end
    with a blank and of those that end with its last label: a repeated label extends only the former. Prefixes that are
    equally probable rank in the order of their labels.

    Args:
        log_probabilities: As for `best_path`.
        lengths: As for `best_path`.
        beam: Prefixes that are kept at each step. With as many as there are, the result is exact.
        blank: The class that means no label.

    Returns:
        The labels of each sample.

    Raises:
        ShapeError: As for `best_path`.
        UsageError: The beam is not an integer of at least 1, or the blank is not a class.

    References:
        Hannun, Maas, Jurafsky and Ng, First-pass large vocabulary continuous speech recognition using bi-directional
        recurrent DNNs, arXiv:1408.2873, algorithm 1, without its language model.

    >>> steps = np.log([[[0.6, 0.4], [0.6, 0.4]]])  # no label has 0.36, the label 1 has 0.64
    >>> best_path(steps, np.array([2])), prefix_beam_search(steps, np.array([2]), beam=2)
    ([[]], [[1]])
    """
    check_beam("prefix_beam_search", beam)
    scores, steps = _checked("prefix_beam_search", log_probabilities, lengths, blank)
    return [_searched(rows[:count].tolist(), beam, blank) for rows, count in zip(scores, steps, strict=True)]


def check_beam(what: str, beam: int) -> None:
    """Check that a beam is an integer of at least 1.

    Raises:
        UsageError: It is not.
    """
    if isinstance(beam, bool) or not isinstance(beam, int) or beam < 1:
        raise UsageError(f"{what} with beam={brief(beam)}; allowed: an integer of at least 1")


def _searched(rows: list[list[float]], beam: int, blank: int) -> list[int]:
    # By prefix: the logarithms of the probabilities of the paths that end with a blank, and with its last label.
    kept: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    nothing = [0.0 if number == blank else -math.inf for number in range(len(rows[0]))] if rows else []
    for given in rows:
        row = nothing if any(map(math.isnan, given)) else given
        grown: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        for prefix, (blanks, labels) in kept.items():
            both = _log_sum(blanks, labels)
            own = grown[prefix]
            own[0] = _log_sum(own[0], both + row[blank])
            if prefix:
                own[1] = _log_sum(own[1], labels + row[prefix[-1]])
            for label, score in enumerate(row):
                if label != blank:
                    longer = grown[(*prefix, label)]
                    longer[1] = _log_sum(longer[1], score + (blanks if prefix and label == prefix[-1] else both))
        best = sorted(grown, key=lambda prefix: (-_log_sum(*grown[prefix]), prefix))
        kept = {prefix: (grown[prefix][0], grown[prefix][1]) for prefix in best[:beam]}
    return list(next(iter(kept)))


def _log_sum(one: float, other: float) -> float:
    """ln(exp(one) + exp(other))."""
    low, high = sorted((one, other))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _checked(what: str, log_probabilities: np.ndarray, lengths: np.ndarray, blank: int) -> tuple[np.ndarray, list[int]]:
    scores, counts = np.asarray(log_probabilities), np.asarray(lengths)
    if scores.ndim != 3 or counts.shape != scores.shape[:1] or counts.dtype.kind not in "iu":
        raise ShapeError(
            f"{what}: got {scores.dtype} of shape {scores.shape} and the lengths {brief(counts)}; allowed: shape (N, "
            "steps, classes), and one integer for each of N samples"
        )
    if ((counts < 0) | (counts > scores.shape[1])).any():
        raise ShapeError(f"{what}: got the lengths {brief(counts)}; allowed: 0 to {scores.shape[1]} steps")
    if isinstance(blank, bool) or not isinstance(blank, int) or not 0 <= blank < scores.shape[2]:
        raise UsageError(f"{what} with blank={brief(blank)}; allowed: a class, 0 to {scores.shape[2] - 1}")
    return scores, counts.tolist()
