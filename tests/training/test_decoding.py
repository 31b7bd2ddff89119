"""Greedy decoding, of a network whose next token is known, and of an encoder-decoder step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError
from deep5.training.datasets.spoken_words import synthetic_pronunciations
from deep5.training.decoding import greedy_tokens, until
from next_tokens import chain


def test_a_chain_is_followed_to_its_end() -> None:
    # 0 to 2 to 3 to the end 1; from 4 to 4.
    executor = d5.framework("reference").executor(chain({0: 2, 2: 3, 3: 1, 4: 4, 1: 5}, length=5))
    # Of the target, only the first column is read.
    target = np.array([[0, 5, 5, 5, 5], [4, 1, 1, 1, 1], [3, 0, 0, 0, 0]])
    inputs = {"target": target, "label": np.zeros((3, 5), np.int64)}
    found = greedy_tokens(executor, inputs, end=1)
    assert found.tolist() == [[2, 3, 1, 1, 1], [4, 4, 4, 4, 4], [1, 1, 1, 1, 1]]
    assert found.dtype == np.int64
    assert until(1, found) == [[2, 3], [4, 4, 4, 4, 4], []]
    assert target[0].tolist() == [0, 5, 5, 5, 5], "the batch is not changed"


def test_it_ends_as_soon_as_all_sequences_have() -> None:
    executor = d5.framework("reference").executor(chain({0: 2, 2: 1}, length=9))
    shapes = []
    inference = executor.inference

    def counted(inputs: Any) -> Any:
        shapes.append(inputs["target"].shape)
        return inference(inputs)

    executor.inference = counted  # type: ignore[method-assign, assignment]
    inputs = {"target": np.zeros((2, 9), np.int64), "label": np.zeros((2, 9), np.int64)}
    greedy_tokens(executor, inputs, end=1)
    assert shapes == [(2, 9)] * 2, "one call a token, of one shape"


def test_a_position_with_nan_ends_its_sequence() -> None:
    executor = d5.framework("reference").executor(chain({0: 2, 2: 3, 3: 3, 4: 4}, length=4, nan=(3,)))
    inputs = {"target": np.array([[0, 0, 0, 0], [4, 0, 0, 0]]), "label": np.zeros((2, 4), np.int64)}
    assert greedy_tokens(executor, inputs, end=1).tolist() == [[2, 3, 1, 1], [4, 4, 4, 4]]


@pytest.mark.parametrize("framework", ["jax", "onnxruntime", "pytorch", "reference", "tensorflow"])
def test_tokens_are_those_of_one_sequence_at_a_time(framework: str) -> None:
    """One by one, with targets that end where they are known, so that nothing can follow from later tokens."""
    data = synthetic_pronunciations(train=8, test=4, length=4)
    sizes = {"source_length": 4, "width": 8, "seed": 3, "dtype": "float64"}
    network = d5.networks.attention_seq2seq(target_length=5, **sizes)
    batch = data.test.batch(np.arange(4))
    single = framework == "onnxruntime"  # whose recurrent layers exist only in float32
    if single:
        network = d5.networks.attention_seq2seq(target_length=5, **{**sizes, "dtype": "float32"})
    found = greedy_tokens(d5.framework(framework).executor(network), batch, end=1)
    for row in range(4):
        known = [0]
        while len(known) < 6 and known[-1] != 1:
            executor = _truncated(len(known))
            inputs = {
                "source": batch["source"][row : row + 1],
                "target": np.array([known]),
                "label": np.zeros((1, len(known)), np.int64),
            }
            known.append(int(executor.inference(inputs)["logits"][0, -1].argmax()))
        expected = [*known[1:], *[1] * 5][:5]
        assert found[row].tolist() == expected


def _truncated(length: int) -> Any:
    network = d5.networks.attention_seq2seq(source_length=4, target_length=length, width=8, seed=3, dtype="float64")
    return d5.framework("reference").executor(network)


def test_shapes_that_are_refused() -> None:
    executor = d5.framework("reference").executor(chain({0: 2}, length=3))
    label = np.zeros((2, 3), np.int64)
    for target in (np.zeros(3, np.int64), np.zeros((2, 0), np.int64), np.zeros((2, 3))):
        with pytest.raises(ShapeError, match=r"'target' is .* of shape .*; allowed: integers of shape \(N, length\)"):
            greedy_tokens(executor, {"target": target, "label": label}, end=1)
    with pytest.raises(ShapeError, match=r"'loss' has the shape \(\) for 'target' of \(2, 3\); allowed: one row"):
        greedy_tokens(executor, {"target": label, "label": label}, end=1, logits="loss")


def test_tokens_before_the_end_without_ignored_ones() -> None:
    rows = np.array([[1, 5, -1], [5, -1, 6], [-1, -1, -1]])
    assert until(1, rows, ignored=-1) == [[], [5, 6], []]
    assert until(1, rows) == [[], [5, -1, 6], [-1, -1, -1]]
