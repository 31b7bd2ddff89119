"""Operators that create values: ranges, triangular masks, random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, number, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _steps(start: Any, limit: Any, delta: Any) -> Any:
    """Values from start, exclusive of limit, in steps of delta."""
    if start.dtype in (tf.int32, tf.int64):
        return tf.range(start, limit, delta)
    if start.dtype.is_integer:
        return tf.cast(tf.range(*(tf.cast(value, tf.int32) for value in (start, limit, delta))), start.dtype)
    count = tf.cast(tf.maximum(tf.math.ceil((limit - start) / delta), 0), tf.int64)
    return start + tf.cast(tf.range(count), start.dtype) * delta


@operator("Range")
def _range(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.function(_steps)}({', '.join(map(emitter.name, node.inputs))})")


def _size_of(x: Any) -> Any:
    return tf.size(x, tf.int64)


@operator("Size", rankless=True)
def _size(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.function(_size_of)}({emitter.name(node.inputs[0])})")


# Random numbers. With a seed, a stateless function gives the same numbers at every call; without one, they differ from
# call to call.


def _seeded(seed: float | None) -> Any:
    if seed is None:
        return tf.random.uniform([2], maxval=1 << 30, dtype=tf.int32)
    bits = tf.bitcast(tf.constant(seed, tf.float32), tf.int32)
    return tf.stack([bits, tf.constant(0)])


def _normal(shape: Any, dtype: Any, seed: float | None, mean: float, scale: float) -> Any:
    return tf.random.stateless_normal(shape, _seeded(seed), mean, scale, dtype)


def _uniform(shape: Any, dtype: Any, seed: float | None, low: float, high: float) -> Any:
    return tf.random.stateless_uniform(shape, _seeded(seed), tf.cast(low, dtype), tf.cast(high, dtype), dtype)


_DRAWN = {
    "RandomNormal": (_normal, ("mean", 0.0), ("scale", 1.0)),
    "RandomUniform": (_uniform, ("low", 0.0), ("high", 1.0)),
}


def _emit_random(emitter: Emitter, node: ir.Node) -> None:
    function, *numbers = _DRAWN[node.op_type.removesuffix("Like")]
    shape = f"{list(attribute(node, 'shape', ()))}"
    if node.inputs:
        shape = f"{emitter.function(tf.shape)}({emitter.name(node.inputs[0])})"
    how = ", ".join(number(attribute(node, name, default)) for name, default in numbers)
    seed, dtype = attribute(node, "seed", None), emitter.dtype(node.outputs[0])
    emitter.assign(node, f"{emitter.function(function)}({shape}, {dtype}, {seed}, {how})")


def _check_drawn(node: ir.Node) -> str | None:
    kind = node.outputs[0].dtype
    return None if kind is not None and kind.is_floating_point() else f"random numbers of {kind}"


for _name in _DRAWN:
    operator(_name, _check_drawn)(_emit_random)
    operator(f"{_name}Like", _check_drawn)(_emit_random)


def _coins(x: Any, dtype: Any, seed: float | None) -> Any:
    return tf.cast(tf.random.stateless_uniform(tf.shape(x), _seeded(seed), dtype=x.dtype) < x, dtype)


@operator("Bernoulli")
def _bernoulli(emitter: Emitter, node: ir.Node) -> None:
    x, dtype = emitter.name(node.inputs[0]), emitter.dtype(node.outputs[0])
    emitter.assign(node, f"{emitter.function(_coins)}({x}, {dtype}, {attribute(node, 'seed', None)})")


def _draws(logits: Any, count: int, dtype: Any, seed: float | None) -> Any:
    return tf.random.stateless_categorical(logits, count, _seeded(seed), dtype)


@operator("Multinomial")
def _multinomial(emitter: Emitter, node: ir.Node) -> None:
    x, dtype = emitter.name(node.inputs[0]), emitter.dtype(node.outputs[0])
    how = f"{attribute(node, 'sample_size', 1)}, {dtype}, {attribute(node, 'seed', None)}"
    emitter.assign(node, f"{emitter.function(_draws)}({x}, {how})")
