"""The decoder of `gpt` for generation: it computes new tokens only, and keeps keys and values of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.attention import FORBIDDEN, Blocks, check_positions, fiftieth
from deep5.networks.zoo.parts import check_arguments

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["gpt_cached"]


def gpt_cached(
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
    """`gpt` for generation, with a cache of keys and values that goes in and comes out; parameters are those of `gpt`.

    One network does both phases: prefill reads all tokens of the prompts, and a decoding step one token per row. The
    number of tokens T of a call and the capacity C of the cache are dimensions of the inputs, so a caller chooses few
    shapes, and compiled back-ends compile once for each. The rows of a batch may hold different numbers of tokens: new
    tokens are padded at their end, and nothing attends to the padding. A decoding step overwrites it.

    Args:
        vocabulary: Number of different tokens.
        length: Tokens of the longest sequence.
        width: Features per token.
        heads: Attention heads; they divide the width.
        layers: Blocks.
        positions: Rows of the table of positions; None: `length`.
        dropout: Not used, since inference drops nothing; the arguments of `gpt` fit.
        dtype: Element type of parameters and cache.
        seed: Seed of the initial weights, which are those of `gpt` with the same arguments.

    Returns:
        Inputs `input` (N, T) int64, the new tokens; `past` (N,) int64, the number of tokens that each row's cache
        holds; `count` (N,) int64, the number of new tokens of each row that are no padding, at least 1; and for each
        block i `past_keys{i}` and `past_values{i}` (N, heads, C, width / heads), with past + T <= C in each row and at
        most as many tokens as positions. Outputs `logits` (N, vocabulary), the scores of the token after each row's
        last one, and the new caches `keys{i}` and `values{i}` in the shape of the old ones.

    Raises:
        UsageError: As for `gpt`.

    References:
        Pope et al., Efficiently scaling transformer inference, MLSys 2023, section 2.1, names the two phases; Shazeer,
        Fast transformer decoding: one write-head is all you need, arXiv:1911.02150, section 2.3.2, gives the step.

    >>> import deep5 as d5
    >>> network = d5.networks.gpt_cached(vocabulary=65, length=16, width=32, heads=4, layers=1)
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'int64[N, T]', 'past': 'int64[N]', 'count': 'int64[N]', 'past_keys0': 'float32[N, 4, C, 8]', \
'past_values0': 'float32[N, 4, C, 8]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'logits': 'float32[N, 65]', 'keys0': 'float32[N, 4, C, 8]', 'values0': 'float32[N, 4, C, 8]'}
    >>> trained = d5.networks.gpt(vocabulary=65, length=16, width=32, heads=4, layers=1, seed=1)
    >>> network = network.with_values(trained.parameters())  # the weights of the decoder that was trained
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
    build = NetworkBuilder("gpt_cached", dtype=dtype, seed=seed)
    blocks = _CachedBlocks(build, **sizes, layers=layers)
    embedding = build.parameter("embedding", (vocabulary, width), fiftieth)
    table = build.parameter("position", (positions or length, width), fiftieth)
    x = build.op("Gather", embedding, blocks.tokens, axis=0)
    x = build.op("Add", x, build.op("Gather", table, blocks.places, axis=0))
    x = blocks.last(blocks.layers(x, layers))
    logits = build.op("MatMul", x, build.op("Transpose", embedding, perm=[1, 0]))
    caches = {
        f"{name}{layer}": value
        for layer, pair in enumerate(blocks.written)
        for name, value in zip(_CACHES, pair, strict=True)
    }
    return build.network({"logits": logits, **caches})


_CACHES = ("keys", "values")
# The first head and feature of a cache.
_CORNER = {"starts": (0, 0), "ends": (1, 1), "sliced": (1, 3)}


class _CachedBlocks(Blocks):
    """Layers of a causal transformer that read and write a cache; all values have shape (N, T, width).

    Args:
        build: Receives the inputs and the layers.
        length: Tokens of the longest sequence.
        width: Features per token.
        heads: Attention heads; they divide the width.
        layers: Blocks.

    Attributes:
        tokens: The input of new tokens, (N, T).
        places: The position of each new token, (N, T).
        written: By block, the new keys and values.
    """

    def __init__(self, build: NetworkBuilder, *, length: int, width: int, heads: int, layers: int) -> None:
        def residual(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return fiftieth(rng, shape) / math.sqrt(2 * layers)

        super().__init__(
            build, length=length, width=width, heads=heads, dropout=0.0, causal=False, gelu="tanh", residual=residual
        )
        self.tokens = build.input("input", ("N", "T"), "int64")
        self._past, self._count = (build.input(name, ("N",), "int64") for name in ("past", "count"))
        shape = ("N", heads, "C", width // heads)
        self._caches = [[build.input(f"past_{name}{layer}", shape) for name in _CACHES] for layer in range(layers)]
        self.written: list[Sequence[Any]] = []
        # All are computed once for all layers.
        columns = self._numbers(self.tokens, 1)
        self.places = build.op("Add", build.op("Unsqueeze", self._past, self.ints("cache.columns", 1)), columns)
        at = build.op("Unsqueeze", self.places, self.ints("cache.axes", 1, 3))  # (N, 1, T, 1)
        self._indices = self._scattered(at, heads)
        # Compared as floating-point numbers, which are exact up to 2^24: OpenVINO compares no other ones.
        queries, keys = (build.op("Cast", each, to=1) for each in (at, self._keys()))
        self._seen = build.op("GreaterOrEqual", queries, keys)  # (N, 1, T, C)

    def attended(self, q: Any, k: Any, v: Any) -> Any:
        """As `Blocks.attended`, over the cache with the new keys and values."""
        build, cache = self.build, self._caches[len(self.written)]
        q, k, v = (build.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, k, v))
        keys, values = (build.op("ScatterND", old, self._indices, new) for old, new in zip(cache, (k, v), strict=True))
        self.written.append((keys, values))
        q = build.op("Mul", q, build.scalar(self.scale))
        scores = build.op("MatMul", q, build.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = build.op("Where", self._seen, scores, build.scalar(FORBIDDEN))
        return build.op("MatMul", build.op("Softmax", scores, axis=-1), values)

    def last(self, x: Any) -> Any:
        """The features of each row's last new token, (N, width)."""
        build = self.build
        index = build.op("Sub", self._count, self.ints("cache.one", 1))
        index = build.op("Unsqueeze", index, self.ints("cache.last", 1))
        return build.op("GatherND", x, index, batch_dims=1)

    def _numbers(self, like: Any, axis: int) -> Any:
        """0, 1, 2, … along an axis of a value, in its shape: unlike Range, this keeps the sizes' names."""
        import numpy as np

        build = self.build
        one = build.constant(f"cache.one{axis}", np.array(1))
        ones = build.op("Expand", one, build.op("Shape", like))
        return build.op("CumSum", ones, build.constant(f"cache.axis{axis}", np.array(axis)), exclusive=1)

    def _keys(self) -> Any:
        """The position of each key, (N, 1, 1, C)."""
        bounds = [self.ints(f"cache.{name}", *values) for name, values in _CORNER.items()]
        corner = self.build.op("Slice", self._caches[0][0], *bounds)  # (N, 1, C, 1)
        return self.build.op("Transpose", self._numbers(corner, 2), perm=[0, 1, 3, 2])

    def _scattered(self, at: Any, heads: int) -> Any:
        """Row, head and position of each new token in a cache, (N, heads, T, 3), from positions (N, 1, T, 1)."""
        import numpy as np

        build = self.build
        zero = build.op("Mul", at, self.ints("cache.zero", 0))
        head = build.op("Add", zero, build.constant("cache.heads", np.arange(heads).reshape(1, heads, 1, 1)))
        row = build.op("Unsqueeze", self._numbers(self._past, 0), self.ints("cache.rows", 1, 2, 3))
        zero = build.op("Mul", head, self.ints("cache.none", 0))
        return build.op("Concat", build.op("Add", zero, row), head, build.op("Add", zero, at), axis=-1)
