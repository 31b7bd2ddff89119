"""A transformer encoder that classifies sequences of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deep5.networks.zoo.attention import Blocks, check_positions, fiftieth
from deep5.networks.zoo.parts import check_arguments, choice, dropped, finished, label_of, linear

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["transformer"]


def transformer(
    *,
    vocabulary: int = 1000,
    length: int = 32,
    width: int = 128,
    heads: int = 4,
    layers: int = 2,
    classes: int = 10,
    causal: bool = False,
    positions: int | None = None,
    gelu: str = "operator",
    dropout: float = 0.0,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A transformer encoder over token ids that classifies the mean over the positions.

    Learned positions; blocks of multi-head attention and a feed-forward layer of four times the width with the exact
    GELU, each a residual with a layer normalization first (pre-norm, which trains without a warm-up), and a final layer
    normalization.

    Args:
        vocabulary: Number of different tokens.
        length: Tokens per sequence.
        width: Features per token.
        heads: Attention heads; they divide the width.
        layers: Blocks.
        classes: Number of classes.
        causal: Whether a position attends only to itself and earlier ones.
        positions: Rows of the table of positions, of which the first `length` are used: the weights then fit sequences
            of any length up to this number. None: one per token.
        gelu: `"operator"` is ONNX's Gelu, which came with opset 20; `"erf"` composes it from Erf, as in older files.
        dropout: Dropout probability for the embeddings, the attention weights and every residual.
        loss: As for `lenet`.
        dtype: Element type of parameters.
        seed: Seed of the initial weights: normal with standard deviation 0.02, biases zero, layer normalization the
            identity.

    Returns:
        Inputs `input` (N, length) int64, each in [0, vocabulary), and `label`; outputs `logits` (N, classes) and the
        scalar `loss`.

    Raises:
        UsageError: An unknown loss, dtype or gelu, a size that is not an integer of at least 1, a width that the heads
            do not divide, fewer positions than tokens, or a dropout outside [0, 1).

    References:
        Vaswani et al., Attention is all you need, NeurIPS 2017, section 3; pre-norm: Xiong et al., ICML 2020, figure
        1b; learned positions, GELU and initial weights: Devlin et al., BERT, NAACL 2019, section 3 and appendix A.2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> network = d5.networks.transformer(vocabulary=20, length=6, width=8, heads=2, layers=1, classes=3)
    >>> tokens = np.array([[1, 4, 9, 16, 5, 16], [0, 0, 0, 0, 0, 0]])
    >>> executor = d5.framework("reference").executor(network)
    >>> executor.inference({"input": tokens, "label": np.array([0, 2])})["logits"].shape
    (2, 3)
    """
    from deep5.networks.edit.builder import NetworkBuilder

    check_arguments(
        dtype,
        loss,
        dropout,
        vocabulary=vocabulary,
        length=length,
        width=width,
        heads=heads,
        layers=layers,
        classes=classes,
        **({} if positions is None else {"positions": positions}),
    )
    choice("gelu", gelu, {"operator": "Gelu", "erf": "Erf"})
    check_positions(positions, length)
    build = NetworkBuilder("transformer", dtype=dtype, seed=seed)
    sizes = {"length": length, "width": width, "heads": heads}
    blocks = Blocks(build, **sizes, dropout=dropout, causal=causal, gelu=gelu, residual=fiftieth)
    tokens, label = build.input("input", ("N", length), "int64"), label_of(build, loss, classes)
    x = build.op("Gather", build.parameter("embedding", (vocabulary, width), fiftieth), tokens, axis=0)
    x = blocks.layers(dropped(build, build.op("Add", x, blocks.position(length, positions)), dropout), layers)
    x = build.op("ReduceMean", x, blocks.ints("pooled", 1), keepdims=0)
    return finished(build, linear(build, x, "classifier", (classes, width), fiftieth), label, loss)
