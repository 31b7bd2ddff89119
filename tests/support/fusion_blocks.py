"""Patterns of whole blocks: sums around convolutions and norms, embeddings before attention, strided slices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from fusion_layers import activation
from fusion_sketch import Sketch

__all__ = ["BLOCKS"]

BLOCKS: dict[str, Callable[[Sketch], onnx.ModelProto]] = {}
_MICROSOFT = "com.microsoft"


def block(function: Callable[[Sketch], onnx.ModelProto]) -> Callable[[Sketch], onnx.ModelProto]:
    BLOCKS[function.__name__] = function
    return function


@block
def conv_then_sum(s: Sketch) -> onnx.ModelProto:
    """Conv with a bias, a sum with an image of its size, and an activation."""
    if not s.rare(0.3):
        s.opset = min(s.opset, 21)  # the fusion does not look for Conv of opset 22
    batch, channels, out = s.one(1, 2), s.one(1, 2, 3), s.one(1, 3, 3, 5, 8)
    height, width, kernel = s.one(3, 4, 5, 7), s.one(3, 4, 5), s.one(1, 1, 2, 3)
    x = s.x((batch, channels, height, width), special=s.chance(0.1), declared=[batch, channels, height, width])
    # Convolutions with constant weights become ONNX Runtime's own in blocks of channels first.
    weights = (out, channels, kernel, kernel)
    inputs = [x, s.x(weights) if s.chance(0.6) else s.c(s.numbers(weights))]
    if not s.rare(0.3):
        inputs.append(s.c(s.numbers((out,)), fixed=s.chance(0.9)))
    stride = s.one(1, 1, 2)
    y = s.op("Conv", *inputs, strides=[stride, stride])
    shape = [batch, out, (height - kernel) // stride + 1, (width - kernel) // stride + 1]
    other = [1 if s.rare(0.2) else extent for extent in shape]
    z = s.x(other, special=s.chance(0.1), declared=other)
    y = s.either("Add", y, z)
    if s.rare(0.2):
        y = s.op("Add", y, y)
    return s.model(activation(s, y) if s.chance(0.7) else s.op("Neg", y))


@block
def product_and_skip(s: Sketch) -> onnx.ModelProto:
    """A product, its bias, a sum with what skipped it, and a LayerNormalization."""
    batch, length, hidden, terms = s.size(), s.size(), s.one(1, 4, 5, 8), s.size()
    kind = s.one("float32", "float32", "float32", "float16", "float64")
    w = s.x((batch, terms, hidden), kind) if s.chance(0.5) else s.c(s.numbers((terms, hidden), kind))
    y = s.op("MatMul", s.x((batch, length, terms), kind), w)
    if s.rare(0.2):
        y = s.op("Cast", y, to=s.one(1, 10))
    bias = s.c(s.numbers((1,) if s.rare(0.2) else (hidden,), kind))
    y = s.op("Add", bias, y) if s.chance(0.7) else s.op("Add", y, bias)
    y = s.either("Add", y, s.x((batch, length, hidden), kind))
    norm = [s.c(s.numbers((hidden,), kind)) for _ in range(1 if s.rare(0.2) else 2)]
    y = s.op("LayerNormalization", y, *norm, **s.one({}, {"epsilon": 0.1}))
    return s.model(s.op("Neg", y))


@block
def strided_slices(s: Sketch) -> onnx.ModelProto:
    """The four halves of an image, one Slice for each, along its channels."""
    kind = s.one("float32", "float32", "float64", "int32")
    shape = [s.one(1, 2), s.one(1, 2, 3), s.one(2, 4, 6, 5), s.one(2, 4, 6)]
    x = s.x(shape, kind, special=kind != "int32")
    if s.chance(0.3):
        x = s.op("Neg", x)
    parts = [(0, 0), (0, 1), (1, 0), (1, 1)]
    if s.chance(0.6):
        s.draw.shuffle(parts)
    if s.rare(0.2):
        parts[3] = parts[0]
    many = s.one(2**63 - 1, 2**63 - 1, 2**31 - 1)
    last = [s.one(many, extent) for extent in shape]
    if s.rare(0.2):
        # Of two rows, all or none: ONNX Runtime does not refuse to join empty halves with others.
        last[2] = shape[2] - (2 if shape[2] == 2 else s.one(1, 2))
    more, begun = s.one(0, 1) if s.rare(0.2) else None, s.one(0, 0, 1)
    made = []
    for begin in parts:
        axes = [2, 3] if s.chance(0.7) else [3, -2]
        starts = [begin[axis % 4 - 2] for axis in axes]
        ends, steps = [last[axis] for axis in axes], [2, 2]
        if more is not None:
            axes, starts, ends, steps = [*axes, more], [*starts, begun], [*ends, last[more]], [*steps, 1]
        made.append(s.op("Slice", x, *[s.c(each, "int64", fixed=True) for each in (starts, ends, axes, steps)]))
    y = s.op("Concat", *made, axis=s.one(1, 1, 1, -3, 0))
    return s.model(s.op("Abs", y))


@block
def quantized_choice(s: Sketch) -> onnx.ModelProto:
    """Quantized values or a number."""
    kind, shape = s.one("uint8", "int8"), s.sizes(2)
    given = [s.c(0.1, "float32", fixed=True), s.c(3, kind, fixed=True)]
    x = s.op("DequantizeLinear", s.op("QuantizeLinear", s.x(shape), *given), *given)
    number = s.c(np.full(s.one((), (), (1,)), s.one(0.0, 1.5, -2.0, 0.07)), "float32", fixed=True)
    mask = s.x((), array=s.draw.integers(0, 2, shape).astype(bool))
    y = s.op("Where", mask, *((x, number) if s.chance(0.5) else (number, x)))
    return s.model(s.op("DequantizeLinear", s.op("QuantizeLinear", y, *given), *given))


@block
def product_of_bits(s: Sketch) -> onnx.ModelProto:
    """A product with a matrix of few bits, and a bias."""
    bits, size, n, blocks = s.one(4, 4, 8), s.one(16, 32), s.one(1, 2, 5, 8), s.one(1, 2, 3)
    k = size * blocks - (s.one(1, 3) if s.chance(0.2) else 0)
    x = s.x((*s.one((), (), (2,)), s.size(0), k))
    weights = [
        s.c(s.draw.integers(0, 256, (n, blocks, size * bits // 8)), "uint8", fixed=True),
        s.c(np.abs(s.numbers((n, blocks))) + 0.01, "float32", fixed=True),
    ]
    if s.chance(0.5):
        weights.append(s.c(s.draw.integers(0, 256, (n, (blocks * bits + 7) // 8)), "uint8", fixed=True))
    y = s.op("MatMulNBits", x, *weights, domain=_MICROSOFT, K=k, N=n, bits=bits, block_size=size)
    if s.rare(0.2):
        y = s.op("Neg", y)
    shape = s.one((1,), (1, n), ()) if s.rare(0.3) else (n,)
    y = s.either("Add", y, s.c(s.numbers(shape)) if s.chance(0.7) else s.x(shape))
    return s.model(s.op("Neg", y))


@block
def embeddings_before_attention(s: Sketch) -> onnx.ModelProto:
    """Sums of embeddings, a LayerNormalization, and ONNX Runtime's own attention."""
    batch, length, heads, words = s.size(), s.size(4), s.one(1, 2), 6
    hidden, kind = 4 * heads, s.one("int64", "int32")

    def drawn(count: int) -> str:
        return s.x((), array=s.draw.integers(0, count, (batch, length)).astype(kind), declared=[batch, length])

    y = s.op("Gather", s.c(s.numbers((words, hidden)), fixed=True), drawn(words))
    places = np.tile(np.arange(length), (batch, 1))
    if s.rare(0.3):
        places = s.one(places[:, ::-1], places[:1], s.draw.integers(0, length, places.shape))
    table = s.c(s.numbers((length + 2, hidden)), fixed=True)
    place = s.op("Gather", table, s.c(places, "int64", fixed=True))
    if s.chance(0.3):
        place = s.c(s.numbers((batch, length, hidden)), fixed=True)
    y = s.op("Add", y, place) if s.chance(0.8) else s.op("Add", place, y)
    if s.chance(0.7):
        y = s.op("Add", y, s.op("Gather", s.c(s.numbers((2, hidden)), fixed=True), drawn(2)))
    axis, shape = (1, (length, hidden)) if s.rare(0.2) else (-1, (hidden,))
    norm = [s.c(s.numbers(shape), fixed=True) for _ in range(2)]
    y, *others = s.ops("LayerNormalization", s.one(1, 1, 1, 3), y, *norm, axis=axis, **s.one({}, {"epsilon": 0.1}))
    weights = [s.c(s.numbers((hidden, 3 * hidden)), fixed=True), s.c(s.numbers((3 * hidden,)), fixed=True)]
    if s.chance(0.4):
        weights.append(s.x((), array=s.draw.integers(0, 2, (batch, length)).astype(np.int32)))
    z = s.op("Attention", y, *weights, domain=_MICROSOFT, num_heads=heads)
    return s.model(s.op("Add", z, y), *others)
