"""The blocks of transformers: attention and feed-forward layers, each a pre-norm residual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import dropped

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import Initializer, NetworkBuilder

__all__ = ["FORBIDDEN", "Blocks", "check_positions", "fiftieth"]

FORBIDDEN = -1e9
"""Replaces scores masked by causality, instead of being added to them; its softmax is zero in either dtype."""


def check_positions(positions: int | None, length: int) -> None:
    """Check that the table of positions has a row for every token.

    Raises:
        UsageError: It has too few rows.
    """
    if positions is not None and positions < length:
        raise UsageError(f"got {positions} positions for {length} tokens; allowed: positions of at least the length")


def fiftieth(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal with standard deviation 0.02."""
    return rng.standard_normal(shape) * 0.02


class Blocks:
    """Layers of a transformer; all values have shape (N, length, width).

    Args:
        build: Receives the layers.
        length: Tokens per sequence.
        width: Features per token.
        heads: Attention heads; they divide the width.
        dropout: Dropout probability for the attention weights and every residual.
        causal: Whether a position attends only to itself and earlier ones.
        gelu: `"operator"`, `"erf"` (written out) or `"tanh"` (the operator with its approximation).
        residual: Initializer for the weights of layers that end in a residual.

    Raises:
        UsageError: The heads do not divide the width.
    """

    def __init__(
        self,
        build: NetworkBuilder,
        *,
        length: int,
        width: int,
        heads: int,
        dropout: float,
        causal: bool,
        gelu: str,
        residual: Initializer,
    ) -> None:
        import numpy as np

        if width % heads:
            raise UsageError(f"{heads} heads do not divide a width of {width}; allowed: a divisor of the width")
        self.build, self.width, self.dropout, self._gelu, self._residual = build, width, dropout, gelu, residual
        self.scale = 1.0 / math.sqrt(width // heads)
        self.split = self.ints("attention.split", 0, 0, heads, width // heads)
        self.joined = self.ints("attention.joined", 0, 0, width)
        seen = np.tril(np.ones((length, length), dtype=bool))
        self.seen = build.constant("attention.seen", seen) if causal else None

    def position(self, length: int, positions: int | None) -> Any:
        """One row per token: the whole table, or its first rows."""
        table = self.build.parameter("position", (positions or length, self.width), fiftieth)
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
        y = self.attended(q, k, v)
        y = build.op("Reshape", build.op("Transpose", y, perm=[0, 2, 1, 3]), self.joined)
        return self.residual(x, self.dense(y, f"{name}.out", self.width, self.width, self._residual))

    def attended(self, q: Any, k: Any, v: Any) -> Any:
        """softmax(q k^T / sqrt(d)) v of each head, (N, heads, length, d), from (N, length, heads, d)."""
        build = self.build
        q = build.op("Mul", build.op("Transpose", q, perm=[0, 2, 1, 3]), build.scalar(self.scale))
        scores = build.op("MatMul", q, build.op("Transpose", k, perm=[0, 2, 3, 1]))
        if self.seen is not None:
            scores = build.op("Where", self.seen, scores, build.scalar(FORBIDDEN))
        weights = dropped(build, build.op("Softmax", scores, axis=-1), self.dropout)
        return build.op("MatMul", weights, build.op("Transpose", v, perm=[0, 2, 1, 3]))

    def feed_forward(self, x: Any, block: str) -> Any:
        """x + gelu(x V + b) W + c; Vaswani et al., equation 2."""
        name = f"{block}.feed_forward"
        y = self.dense(self.normalised(x, f"{name}.norm"), f"{name}.in", self.width, 4 * self.width)
        return self.residual(x, self.dense(self.gelu(y), f"{name}.out", 4 * self.width, self.width, self._residual))

    def gelu(self, x: Any) -> Any:
        """x (1 + erf(x / sqrt(2))) / 2, or its approximation; Hendrycks and Gimpel, arXiv:1606.08415, section 2."""
        build = self.build
        if self._gelu != "erf":
            return build.op("Gelu", x, approximate="tanh") if self._gelu == "tanh" else build.op("Gelu", x)
        error = build.op("Erf", build.op("Div", x, build.scalar(math.sqrt(2.0))))
        return build.op("Mul", build.op("Mul", x, build.op("Add", error, build.scalar(1.0))), build.scalar(0.5))

    def layers(self, x: Any, count: int) -> Any:
        """Blocks of attention and feed-forward layer, with a final normalization."""
        for layer in range(count):
            for part in (self.attention, self.feed_forward):
                x = part(x, f"block{layer}")
        return self.normalised(x, "norm")

    def residual(self, x: Any, y: Any) -> Any:
        """x + y, with dropout on y."""
        return self.build.op("Add", x, dropped(self.build, y, self.dropout))

    def normalised(self, x: Any, name: str) -> Any:
        """Layer normalization over the features of each token."""
        from deep5.networks.edit.builder import ones, zeros

        scale = self.build.parameter(f"{name}.scale", (self.width,), ones)
        bias = self.build.parameter(f"{name}.bias", (self.width,), zeros)
        return self.build.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def dense(self, x: Any, name: str, into: int, out: int, initializer: Initializer | None = None) -> Any:
        """x W + b; b is initially zero."""
        from deep5.networks.edit.builder import zeros

        y = self.build.op("MatMul", x, self.build.parameter(f"{name}.weight", (into, out), initializer or fiftieth))
        return self.build.op("Add", y, self.build.parameter(f"{name}.bias", (out,), zeros))

    def ints(self, name: str, *values: int) -> Any:
        """A constant of integers."""
        import numpy as np

        return self.build.constant(name, np.array(values, dtype=np.int64))
