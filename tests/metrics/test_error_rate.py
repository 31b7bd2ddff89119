"""Edit errors: counted by hand, and as jiwer counts them."""

from __future__ import annotations

import sys

import jiwer
import numpy as np
import pytest

from deep5.core.errors import MissingDependency, ShapeError
from deep5.metrics.error_rate import ErrorCounts, count_errors


def test_errors_by_hand() -> None:
    found = count_errors([["a", "b", "c"], ["a"], ["x", "y"], []], [["a", "c"], ["a"], ["x", "z", "y", "y"], ["q"]])
    # Deleted: b; inserted: z, y, and q into an empty reference.
    assert found == ErrorCounts(
        insertions=3, deletions=1, reference_tokens=6, wrong_sequences=3, sequences=4, substitutions=0
    )
    assert (found.errors, found.sequence_error_rate) == (4, 75.0)
    assert found.error_rate == pytest.approx(100 * 4 / 6, rel=1e-15)


def test_a_rate_may_exceed_100_percent_and_needs_a_reference() -> None:
    assert count_errors(["a"], ["bcd"]).error_rate == 300.0
    empty = count_errors([""], ["abc"])
    assert (empty.insertions, empty.error_rate, empty.sequence_error_rate) == (3, None, 100.0)
    nothing = count_errors([], [])
    assert nothing == ErrorCounts()
    assert (nothing.error_rate, nothing.sequence_error_rate) == (None, None)


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_jiwers(seed: int) -> None:
    """jiwer aligns words, too; joined characters are its cer."""
    draw = np.random.default_rng(seed)
    pairs = [["".join(draw.choice(list("abcd"), draw.integers(1, 13))) for _ in range(2)] for _ in range(40)]
    references, hypotheses = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = count_errors(references, hypotheses)
    words = jiwer.process_words([" ".join(each) for each in references], [" ".join(each) for each in hypotheses])
    assert (found.substitutions, found.insertions, found.deletions) == (
        words.substitutions,
        words.insertions,
        words.deletions,
    )
    # Both are one quotient of the same integers, times 100 here.
    assert found.error_rate == pytest.approx(100 * words.wer, rel=1e-14)
    assert found.error_rate == pytest.approx(100 * jiwer.cer(references, hypotheses), rel=1e-14)
    # Whole words as tokens: each wrong one is a substitution.
    whole = count_errors([[each] for each in references], [[each] for each in hypotheses])
    assert whole.error_rate == found.sequence_error_rate


def test_tokens_of_one_hash_differ() -> None:
    assert hash(-1) == hash(-2)
    assert count_errors([[-1, 97]], [[-2, "a"]]).substitutions == 2


def test_counts_add_up() -> None:
    parts = [count_errors([one], [other]) for one, other in (("kitten", "sitting"), ("abc", "abc"), ("", "x"))]
    assert parts[0] + parts[1] + parts[2] == count_errors(["kitten", "abc", ""], ["sitting", "abc", "x"])


def test_numbers_of_sequences_that_differ() -> None:
    with pytest.raises(ShapeError, match="got 1 references and 2 hypotheses; allowed: equal numbers"):
        count_errors(["a"], ["a", "b"])


def test_without_rapidfuzz(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rapidfuzz", "rapidfuzz.distance"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=r"an error rate needs .*rapidfuzz.*pip install 'deep5\[text\]'"):
        count_errors(["a"], ["b"])
