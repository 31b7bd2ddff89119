"""A transformer decoder that predicts the next token, like GPT-2."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deep5.networks.zoo.attention import Blocks, check_positions, fiftieth
from deep5.networks.zoo.parts import check_arguments, dropped, language_model

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.network import Network

__all__ = ["gpt"]


def gpt(
    *,
    vocabulary: int = 50257,
    length: int = 1024,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    positions: int | None = None,
    dropout: float = 0.1,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A decoder with causal attention over token ids; its default sizes are those of the smallest GPT-2.

    Learned positions; blocks as in `transformer`, with the tanh form of GELU; the last layer shares its weights with
    the embedding.

    Args:
        vocabulary: Number of different tokens.
        length: Tokens per sequence.
        width: Features per token.
        heads: Attention heads; they divide the width.
        layers: Blocks.
        positions: Rows of the table of positions, of which the first `length` are used. None: one per token.
        dropout: Dropout probability for the embeddings, the attention weights and every residual.
        dtype: Element type of parameters.
        seed: Seed of the initial weights: normal with standard deviation 0.02, for layers that end in a residual
            divided by the square root of their number; biases zero, layer normalization the identity.

    Returns:
        Inputs `input` (N, length) int64, each in [0, vocabulary), and `label`, the tokens that follow, of the same
        shape; outputs `logits` (N, length, vocabulary) and the scalar `loss`, the mean over all tokens.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, a width that the heads do not divide,
            fewer positions than tokens, or a dropout outside [0, 1).

    References:
        Radford et al., Language models are unsupervised multitask learners, 2019, section 2.3 and table 2.

    >>> import deep5 as d5
    >>> network = d5.networks.gpt(vocabulary=65, length=16, width=32, heads=4, layers=2)
    >>> {name: str(spec) for name, spec in {**network.inputs, **network.outputs}.items()}
    {'input': 'int64[N, 16]', 'label': 'int64[N, 16]', 'logits': 'float32[N, 16, 65]', 'loss': 'float32[]'}
    >>> sum(spec.size for spec in d5.networks.gpt().parameter_specs.values())
    124439808
    """
    from deep5.networks.edit.builder import NetworkBuilder

    sizes = {"length": length, "width": width, "heads": heads}
    check_arguments(
        dtype,
        "cross_entropy",
        dropout,
        vocabulary=vocabulary,
        layers=layers,
        **sizes,
        **({} if positions is None else {"positions": positions}),
    )
    check_positions(positions, length)
    build = NetworkBuilder("gpt", dtype=dtype, seed=seed)

    def residual(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return fiftieth(rng, shape) / math.sqrt(2 * layers)

    blocks = Blocks(build, **sizes, dropout=dropout, causal=True, gelu="tanh", residual=residual)
    tokens = build.input("input", ("N", length), "int64")
    label = build.input("label", ("N", length), "int64")
    embedding = build.parameter("embedding", (vocabulary, width), fiftieth)
    x = build.op("Add", build.op("Gather", embedding, tokens, axis=0), blocks.position(length, positions))
    x = blocks.layers(dropped(build, x, dropout), layers)
    logits = build.op("MatMul", x, build.op("Transpose", embedding, perm=[1, 0]))
    return language_model(build, logits, label, vocabulary)
