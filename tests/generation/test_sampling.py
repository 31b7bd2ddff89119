"""Draws of tokens: their probabilities are those of the formulas and of transformers, and so are their frequencies."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from deep5.generation.sampling import draw, probabilities, uniforms

LOGITS = np.random.default_rng(1).standard_normal((20, 50)) * 3


@pytest.mark.filterwarnings("ignore")  # of transformers' own imports
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.9},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_k": 60},
        {"temperature": 1.7, "top_k": 12, "top_p": 0.8},
    ],
    ids=str,
)
def test_probabilities_are_those_of_transformers(settings: dict[str, Any]) -> None:
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    classes = {"temperature": TemperatureLogitsWarper, "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper}
    scores = torch.from_numpy(LOGITS)
    for name, value in settings.items():
        scores = classes[name](value)(None, scores)
    wanted = torch.softmax(scores, dim=-1).numpy()
    found = np.array([probabilities(row, **settings) for row in LOGITS])
    assert np.array_equal(found > 0, wanted > 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_set_of_top_p_is_the_smallest_in_exact_arithmetic() -> None:
    """Of sixteenths, which float64 holds exactly, ties included: the lowest ids are kept."""
    shares = [Fraction(number, 16) for number in (1, 4, 2, 4, 1, 2, 1, 1)]
    logits = np.log([float(share) for share in shares])
    order = sorted(range(8), key=lambda token: (-shares[token], token))
    for sixteenths in range(1, 16):
        kept, mass = set[int](), Fraction(0)
        for token in order:
            if mass >= Fraction(sixteenths, 16):
                break
            kept, mass = kept | {token}, mass + shares[token]
        # Half of a sixteenth less, since the softmax of a logarithm rounds.
        found = probabilities(logits, top_p=(sixteenths - 0.5) / 16)
        assert set(np.flatnonzero(found).tolist()) == kept
        assert found.sum() == pytest.approx(1.0, rel=1e-15)


def test_equal_tokens_are_kept_from_the_lowest_id() -> None:
    assert np.flatnonzero(probabilities(np.zeros(6), top_k=2)).tolist() == [0, 1]
    assert np.flatnonzero(probabilities(np.array([0.0, 1.0, 0.0, 0.0]), top_k=3)).tolist() == [0, 1, 2]


def test_large_logits_do_not_overflow() -> None:
    found = probabilities(np.array([1e30, 1e30, -1e30], np.float32), temperature=1e-3)
    assert found.tolist() == [0.5, 0.5, 0.0]


def test_the_draw_is_the_inverse_of_the_sums() -> None:
    shares = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    below = np.nextafter(0.25, 0)
    assert [draw(shares, each) for each in (0.0, below, 0.25, 0.7499, 0.75, 1 - 2.0**-53)] == [1, 1, 3, 3, 4, 4]
    assert draw(shares * 0.1, 0.75) == 4  # the sum need not be 1


def test_frequencies_of_draws_are_their_probabilities() -> None:
    """Chi-square over 20,000 draws of fixed seeds; a draw that ignores the temperature fails by far."""
    logits = np.log([0.4, 0.3, 0.15, 0.1, 0.05])
    shares = probabilities(logits, temperature=1.3)
    numbers = np.concatenate([uniforms(7, number, 3, 40) for number in range(500)])
    counts = np.bincount([draw(shares, each) for each in numbers], minlength=5)
    assert stats.chisquare(counts, shares * len(numbers)).pvalue > 0.01
    assert stats.chisquare(counts, np.exp(logits) * len(numbers)).pvalue < 1e-6


def test_uniform_numbers_are_uniform_and_independent_of_the_batch() -> None:
    many = np.array([uniforms(11, number, 0, 100) for number in range(200)])
    assert stats.kstest(many.reshape(-1), "uniform").pvalue > 0.01
    # Neighbors: tokens of a request, and requests at a position.
    assert abs(np.corrcoef(many[:, :-1].reshape(-1), many[:, 1:].reshape(-1))[0, 1]) < 0.03
    assert abs(np.corrcoef(many[:-1].reshape(-1), many[1:].reshape(-1))[0, 1]) < 0.03
    assert len(np.unique(many)) == many.size
    assert many.min() >= 0
    assert many.max() < 1
    assert not np.isin(uniforms(12, 0, 0, 100), many).any()
    assert np.array_equal(uniforms(11, 5, 90, 10), many[5, 90:])


def test_uniform_numbers_never_change() -> None:
    """The first tokens that seed 0 draws, so that stored results stay reproducible."""
    assert uniforms(0, 0, 0, 3).tolist() == UNIFORMS


UNIFORMS = [0.4625383724009623, 0.38162118566273406, 0.0852948037014345]
