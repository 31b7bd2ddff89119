"""A transformer encoder that classifies sequences of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.errors import UsageError
from deep5.networks.zoo.parts import check_arguments, check_ratio, choice, dropped, finished, label_of, linear

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.network import Network

__all__ = ["transformer"]

# Added to no score, but in place of one that causality forbids: its softmax is zero in either dtype.
_FORBIDDEN = -1e9


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
    """A transformer encoder over token ids, its mean over the positions classified.

    Learned positions; blocks of multi-head attention and a feed-forward layer of four times the width with the exact
    GELU, each a residual behind a layer normalisation (pre-norm, which trains without a warm-up), and a last layer
    normalisation.

    Args:
        vocabulary: Number of different tokens.
        length: Tokens a sequence.
        width: Features a token.
        heads: Attention heads; they divide the width.
        layers: Blocks.
        classes: Number of classes.
        causal: Whether a position sees only itself and earlier ones.
        positions: Rows of the table of positions, of which the first `length` are used: weights then fit every shorter
            or longer sequence, up to this many tokens. None: one a token.
        gelu: `"operator"` is ONNX's Gelu, which came with opset 20; `"erf"` writes it out, as older files have it.
        dropout: Share that training drops of the embeddings, of the attention's weights and of every residual.
        loss: As for `lenet`.
        dtype: Element type of parameters.
        seed: Of the initial weights: normal with standard deviation 0.02, biases zero, layer normalisation the
            identity.

    Returns:
        Inputs `input` (N, length) int64, each in [0, vocabulary), and `label`; outputs `logits` (N, classes) and the
        scalar `loss`.

    Raises:
        UsageError: An unknown loss, dtype or gelu, a size that is no whole number of at least 1, a width that the
            heads do not divide, fewer positions than tokens, or a share outside [0, 1).

    References:
        Vaswani et al., Attention is all you need, NeurIPS 2017, section 3; pre-norm: Xiong et al., ICML 2020, figure
        1b; learned positions, GELU and initial weights: Devlin et al., BERT, NAACL 2019, section 3 and appendix A.2.
    """
    from deep5.networks.builder import NetworkBuilder

    check_arguments(
        dtype,
        loss,
        vocabulary=vocabulary,
        length=length,
        width=width,
        heads=heads,
        layers=layers,
        classes=classes,
        **({} if positions is None else {"positions": positions}),
    )
    check_ratio(dropout)
    activation = choice("gelu", gelu, {"operator": "Gelu", "erf": "Erf"})
    if positions is not None and positions < length:
        raise UsageError(f"got {positions} positions for {length} tokens; allowed: positions of at least the length")
    if width % heads:
        raise UsageError(f"{heads} heads do not divide a width of {width}; allowed: heads that do")
    build = NetworkBuilder("transformer", dtype=dtype, seed=seed)
    encoder = _Encoder(build, length, width, heads, dropout, causal, activation)
    tokens, label = build.input("input", ("N", length), "int64"), label_of(build, loss, classes)
    x = build.op("Gather", build.parameter("embedding", (vocabulary, width), _normal), tokens, axis=0)
    x = build.op("Add", x, encoder.position(length, positions))
    x = dropped(build, x, dropout)
    for layer in range(layers):
        for part in (encoder.attention, encoder.feed_forward):
            x = part(x, f"block{layer}")
    x = encoder.normalised(x, "norm")
    x = build.op("ReduceMean", x, encoder.ints("pooled", 1), keepdims=0)
    return finished(build, linear(build, x, "classifier", (classes, width), _normal), label, loss)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) * 0.02


class _Encoder:
    """The blocks; a value is (N, length, width) throughout."""

    def __init__(
        self, build: Any, length: int, width: int, heads: int, dropout: float, causal: bool, activation: str
    ) -> None:
        import numpy as np

        self.build, self.width, self.dropout, self.activation = build, width, dropout, activation
        self.scale = 1.0 / math.sqrt(width // heads)
        self.split = self.ints("attention.split", 0, 0, heads, width // heads)
        self.joined = self.ints("attention.joined", 0, 0, width)
        seen = np.tril(np.ones((length, length), dtype=bool))
        self.seen = build.constant("attention.seen", seen) if causal else None

    def position(self, length: int, positions: int | None) -> Any:
        """One row a token: the whole table, or its first rows."""
        table = self.build.parameter("position", (positions or length, self.width), _normal)
        if positions is None:
            return table
        bounds = [
            self.ints(f"position.{name}", value) for name, value in (("starts", 0), ("ends", length), ("axes", 0))
        ]
        return self.build.op("Slice", table, *bounds)

    def attention(self, x: Any, block: str) -> Any:
        """x + concat(softmax(q k^T / sqrt(d)) v) W; Vaswani et al., equation 1."""
        build, name = self.build, f"{block}.attention"
        y = self.dense(self.normalised(x, f"{name}.norm"), f"{name}.qkv", self.width, 3 * self.width)
        q, k, v = (
            build.op("Reshape", part, self.split) for part in build.op("Split", y, outputs=3, axis=2, num_outputs=3)
        )
        q = build.op("Mul", build.op("Transpose", q, perm=[0, 2, 1, 3]), build.scalar(self.scale))
        scores = build.op("MatMul", q, build.op("Transpose", k, perm=[0, 2, 3, 1]))
        if self.seen is not None:
            scores = build.op("Where", self.seen, scores, build.scalar(_FORBIDDEN))
        weights = dropped(build, build.op("Softmax", scores, axis=-1), self.dropout)
        y = build.op("MatMul", weights, build.op("Transpose", v, perm=[0, 2, 1, 3]))
        y = build.op("Reshape", build.op("Transpose", y, perm=[0, 2, 1, 3]), self.joined)
        return self.residual(x, self.dense(y, f"{name}.out", self.width, self.width))

    def feed_forward(self, x: Any, block: str) -> Any:
        """x + gelu(x V + b) W + c; Vaswani et al., equation 2."""
        name = f"{block}.feed_forward"
        y = self.dense(self.normalised(x, f"{name}.norm"), f"{name}.in", self.width, 4 * self.width)
        return self.residual(x, self.dense(self.gelu(y), f"{name}.out", 4 * self.width, self.width))

    def gelu(self, x: Any) -> Any:
        """x (1 + erf(x / sqrt(2))) / 2; Hendrycks and Gimpel, arXiv:1606.08415, section 2."""
        build = self.build
        if self.activation == "Gelu":
            return build.op("Gelu", x)
        error = build.op("Erf", build.op("Div", x, build.scalar(math.sqrt(2.0))))
        return build.op("Mul", build.op("Mul", x, build.op("Add", error, build.scalar(1.0))), build.scalar(0.5))

    def residual(self, x: Any, y: Any) -> Any:
        return self.build.op("Add", x, dropped(self.build, y, self.dropout))

    def normalised(self, x: Any, name: str) -> Any:
        from deep5.networks.builder import ones, zeros

        scale = self.build.parameter(f"{name}.scale", (self.width,), ones)
        bias = self.build.parameter(f"{name}.bias", (self.width,), zeros)
        return self.build.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def dense(self, x: Any, name: str, into: int, out: int) -> Any:
        from deep5.networks.builder import zeros

        y = self.build.op("MatMul", x, self.build.parameter(f"{name}.weight", (into, out), _normal))
        return self.build.op("Add", y, self.build.parameter(f"{name}.bias", (out,), zeros))

    def ints(self, name: str, *values: int) -> Any:
        import numpy as np

        return self.build.constant(name, np.array(values, dtype=np.int64))
