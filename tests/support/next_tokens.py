"""A network that predicts each next token from the one before it by a given table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import deep5 as d5
from deep5.networks import Network

__all__ = ["chain"]


def chain(following: Mapping[int, int], *, length: int, tokens: int = 6, nan: Sequence[int] = ()) -> Network:
    """Inputs `target` and `label` (N, length), outputs `logits` and `loss`, which ignores -1.

    Args:
        following: The most probable token after each; 0 after others.
        length: Tokens per sequence.
        tokens: Number of different tokens.
        nan: Tokens whose logits are NaN.
    """

    def table(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        rows = np.zeros(shape)
        for token in range(tokens):
            rows[token, following.get(token, 0)] = 5.0
        rows[list(nan)] = np.nan
        return rows

    build = d5.NetworkBuilder("chain")
    target = build.input("target", ("N", length), "int64")
    label = build.input("label", ("N", length), "int64")
    logits = build.op("Gather", build.parameter("table", (tokens, tokens), table), target, axis=0)
    rows = build.op("Reshape", logits, build.constant("rows", np.array([-1, tokens])))
    labels = build.op("Reshape", label, build.constant("labels", np.array([-1])))
    loss = build.op("SoftmaxCrossEntropyLoss", rows, labels, reduction="mean", ignore_index=-1)
    return build.network({"logits": logits, "loss": loss})
