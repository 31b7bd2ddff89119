"""Decoding of CTC: compared with the probabilities of all labelings, summed over all paths."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deep5.core.errors import ShapeError, UsageError
from deep5.training.ctc_decoding import best_path, prefix_beam_search


def collapsed(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return tuple(label for label, _ in itertools.groupby(path) if label != blank)


def all_labelings(rows: np.ndarray, blank: int) -> dict[tuple[int, ...], float]:
    """The probability of each labeling."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(rows.shape[1]), repeat=len(rows)):
        found[collapsed(path, blank)] += float(np.exp(sum(rows[step, label] for step, label in enumerate(path))))
    return found


def drawn(seed: int, samples: int, steps: int, classes: int) -> np.ndarray:
    scores = 2 * np.random.default_rng(seed).standard_normal((samples, steps, classes))
    logs: np.ndarray = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    return logs


@pytest.mark.parametrize("blank", [0, 2])
def test_with_a_wide_beam_the_search_is_exact(blank: int) -> None:
    scores, lengths = drawn(3, 40, 5, 3), np.array([5, 4, 3, 1] * 10)
    found = prefix_beam_search(scores, lengths, beam=1000, blank=blank)
    differ = 0
    for rows, length, labels in zip(scores, lengths, found, strict=True):
        probabilities = all_labelings(rows[:length], blank)
        best = max(probabilities, key=lambda labeling: probabilities[labeling])
        assert tuple(labels) == best
        differ += [best] != [tuple(each) for each in best_path(rows[None, :length], np.array([length]), blank=blank)]
    assert differ > 0, "the best path is another one for some samples: the test tells the two apart"


@pytest.mark.parametrize("blank", [0, 1])
def test_the_best_path_is_the_most_probable_one(blank: int) -> None:
    scores, lengths = drawn(4, 20, 4, 3), np.array([4, 3, 2, 0] * 5)
    for rows, length, labels in zip(scores, lengths, best_path(scores, lengths, blank=blank), strict=True):
        paths = itertools.product(range(3), repeat=int(length))
        best = max(paths, key=lambda path: sum(rows[step, label] for step, label in enumerate(path)))
        assert tuple(labels) == collapsed(best, blank)


def test_a_wider_beam_finds_more_probable_labels() -> None:
    scores = drawn(5, 30, 6, 3)
    lengths = np.full(30, 6)
    tables = [all_labelings(rows, 0) for rows in scores]
    means = [
        np.mean([table[tuple(labels)] for table, labels in zip(tables, found, strict=True)])
        for found in (prefix_beam_search(scores, lengths, beam=beam) for beam in (1, 3, 100))
    ]
    assert means[0] < means[1] <= means[2]


def test_repeated_labels_need_a_blank() -> None:
    rows = np.log(np.array([[[0.02, 0.98], [0.02, 0.98], [0.98, 0.02], [0.02, 0.98]]]))
    for found in (best_path(rows, np.array([4])), prefix_beam_search(rows, np.array([4]), beam=3)):
        assert found == [[1, 1]]
    assert best_path(rows, np.array([2])) == prefix_beam_search(rows, np.array([2]), beam=3) == [[1]]
    assert best_path(rows, np.array([0])) == prefix_beam_search(rows, np.array([0]), beam=3) == [[]]


def test_equal_probabilities_and_certain_classes_have_one_result() -> None:
    even = np.full((1, 1, 3), np.log(1 / 3))
    assert prefix_beam_search(even, np.array([1]), beam=1) == [[]]
    with np.errstate(divide="ignore"):
        certain = np.log(np.eye(3)[[[1, 1, 0, 1, 2]]])
    assert prefix_beam_search(certain, np.array([5]), beam=2) == best_path(certain, np.array([5])) == [[1, 1, 2]]


def test_a_step_of_nan_is_a_blank() -> None:
    rows = np.log(np.array([[[0.02, 0.98], [np.nan, 0.5], [0.02, 0.98]]]))
    assert best_path(rows, np.array([3])) == prefix_beam_search(rows, np.array([3]), beam=4) == [[1, 1]]


@pytest.mark.parametrize("decode", [best_path, lambda *given, **more: prefix_beam_search(*given, beam=2, **more)])
@pytest.mark.parametrize(
    ("scores", "lengths", "blank", "kind", "message"),
    [
        (np.zeros((2, 3)), np.array([1, 1]), 0, ShapeError, r"float64 of shape \(2, 3\)"),
        (np.zeros((2, 3, 4)), np.array([1]), 0, ShapeError, r"one integer for each of N samples"),
        (np.zeros((1, 3, 4)), np.array([1.0]), 0, ShapeError, r"one integer for each"),
        (np.zeros((1, 3, 4)), np.array([4]), 0, ShapeError, r"allowed: 0 to 3 steps"),
        (np.zeros((1, 3, 4)), np.array([-1]), 0, ShapeError, r"allowed: 0 to 3 steps"),
        (np.zeros((1, 3, 4)), np.array([3]), 4, UsageError, r"blank=4; allowed: a class, 0 to 3"),
        (np.zeros((1, 3, 4)), np.array([3]), True, UsageError, r"blank=True"),
    ],
)
def test_bad_input_is_refused(
    decode: Callable[..., Any], scores: np.ndarray, lengths: np.ndarray, blank: int, kind: type, message: str
) -> None:
    with pytest.raises(kind, match=message):
        decode(scores, lengths, blank=blank)


@pytest.mark.parametrize("beam", [0, 1.5, True])
def test_a_bad_beam_is_refused(beam: Any) -> None:
    with pytest.raises(UsageError, match=rf"beam={beam}; allowed: an integer of at least 1"):
        prefix_beam_search(np.zeros((1, 2, 2)), np.array([1]), beam=beam)
