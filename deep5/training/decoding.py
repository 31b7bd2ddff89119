"""Greedy decoding: the tokens that a network predicts when each is fed back as the next one's input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.core.tensors import to_numpy

__all__ = ["greedy_tokens", "until"]


def greedy_tokens(
    executor: Any, inputs: Mapping[str, Any], *, end: int, target: str = "target", logits: str = "logits"
) -> np.ndarray:
    """The most probable token at each position, given those that were predicted before it.

    The network runs in evaluation mode, once for each position until all sequences have ended, always on inputs of the
    same shape, so nothing is compiled again. Its logits at a position may depend only on the target's tokens up to
    that position, as in a recurrent decoder or one with causal attention. A position with NaN logits ends its sequence.

    Args:
        executor: The network on a framework.
        inputs: A batch, of which the target's first tokens start the sequences; its other tokens are not read.
        end: The token that ends a sequence.
        target: Name of the input with the tokens before each position, integers of shape (N, length).
        logits: Name of the output with a value per token, shape (N, length, tokens).

    Returns:
        int64 of shape (N, length); all tokens after the first `end` of a row are `end`.

    Raises:
        ShapeError: The target is not integers of shape (N, length) with at least one position, or the logits do not
            have its shape with one more axis.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic_pronunciations(train=4, test=4, length=3)
    >>> network = d5.networks.attention_seq2seq(source_length=3, target_length=4, width=4)
    >>> executor = d5.framework("reference").executor(network)
    >>> greedy_tokens(executor, data.test.batch(np.arange(4)), end=1).shape
    (4, 4)
    """
    known = to_numpy(inputs[target])
    if known.ndim != 2 or not known.shape[1] or known.dtype.kind not in "iu":
        raise ShapeError(
            f"greedy_tokens: {target!r} is {known.dtype} of shape {known.shape}; allowed: integers of shape (N, "
            "length), of which the first of each row starts the sequence"
        )
    fed = np.full_like(known, end)
    fed[:, :1] = known[:, :1]
    tokens = np.full(known.shape, end, np.int64)
    ended = np.zeros(len(known), dtype=bool)
    for position in range(known.shape[1]):
        scores = to_numpy(executor.inference({**inputs, target: fed.copy()})[logits])
        if scores.shape[:-1] != known.shape:
            raise ShapeError(
                f"greedy_tokens: {logits!r} has the shape {scores.shape} for {target!r} of {known.shape}; allowed: one "
                "row of logits for each token"
            )
        row = scores[:, position]
        ended |= np.isnan(row).any(axis=-1)
        tokens[~ended, position] = row[~ended].argmax(axis=-1)
        ended |= tokens[:, position] == end
        if ended.all() or position + 1 == known.shape[1]:
            break
        fed[:, position + 1] = tokens[:, position]
    return tokens


def until(end: int, rows: np.ndarray, ignored: int | None = None) -> list[list[int]]:
    """The tokens of each row before the first `end`, without those that are ignored.

    Args:
        end: The token that ends a sequence.
        rows: Tokens, integers of shape (N, length).
        ignored: A token to leave out, such as the padding of labels; None: none.

    >>> until(1, np.array([[5, 6, 1, 1], [7, 1, -1, -1], [2, 3, 4, 5]]), ignored=-1)
    [[5, 6], [7], [2, 3, 4, 5]]
    """
    found = []
    for row in rows.tolist():
        kept = [token for token in row if token != ignored]
        found.append(kept[: kept.index(end)] if end in kept else kept)
    return found
