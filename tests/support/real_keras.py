"""Keras models for the run of real files, written by Keras's own export and by tf2onnx."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["KINDS", "by_keras", "by_tf2onnx"]

KINDS = ("dense", "convolutions", "recurrent", "attention", "embedding")
"""The models; tf2onnx also writes `bag`, `branch`, `loop` and `half`."""


def by_keras(kind: str, backend: str, *, fixed: bool) -> bytes:
    """A model as `Model.export(format="onnx")` writes it.

    Args:
        kind: One of `KINDS`.
        backend: Keras's back-end: "torch" or "tensorflow".
        fixed: With sizes that are all known. On PyTorch, Keras then uses the newer exporter.
    """
    os.environ["KERAS_BACKEND"] = backend
    import keras

    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.onnx")
        model = _model(kind)
        (x,) = model.inputs
        model(keras.ops.zeros((1, *x.shape[1:]), x.dtype))  # its export requires a model that has been called
        signature = [keras.InputSpec(shape=(2, *x.shape[1:]), dtype=x.dtype)] if fixed else None
        model.export(str(path), format="onnx", verbose=False, input_signature=signature)
        return path.read_bytes()


def by_tf2onnx(kind: str) -> bytes:
    """A function of TensorFlow as tf2onnx writes it."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf
    import tf2onnx

    if kind in ("bag", "branch", "loop", "half"):
        keras.utils.set_random_seed(0)
        function, signature = _function(kind)
    else:
        model = _model(kind)
        (x,) = model.inputs
        function = tf.function(lambda x: model(x, training=False))
        signature = tf.TensorSpec([None, *x.shape[1:]], x.dtype, name="x")
    proto, _ = tf2onnx.convert.from_function(function, input_signature=[signature], opset=17)
    written: bytes = proto.SerializeToString()
    return written


def _model(kind: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    if kind == "convolutions":
        start, parts = keras.Input((8, 8, 3)), [layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization()]
        parts += [layers.ReLU(), layers.MaxPooling2D(2), layers.DepthwiseConv2D(3, strides=2, padding="same")]
        parts += [layers.GlobalAveragePooling2D(), layers.Dense(5, activation="softmax")]
    elif kind == "recurrent":
        start, parts = keras.Input((6, 5)), [layers.LSTM(4, return_sequences=True), layers.GRU(3)]
        parts += [layers.Dense(2, activation="sigmoid")]
    elif kind == "attention":
        start = keras.Input((6, 8))
        mixed = layers.MultiHeadAttention(2, 4)(start, start)
        return keras.Model(start, layers.Dense(3)(layers.LayerNormalization()(layers.Add()([start, mixed]))))
    elif kind == "embedding":
        start = keras.Input((7,), dtype="int32")
        parts = [layers.Embedding(11, 6), layers.Conv1D(4, 3), layers.GlobalMaxPooling1D(), layers.Dense(3)]
    else:
        # tf2onnx writes gelu with an operator, Erfc, that ONNX does not have.
        start, parts = keras.Input((5,)), [layers.Dense(8, activation="tanh"), layers.LayerNormalization()]
        parts += [layers.Dropout(0.2), layers.Dense(3)]
    return keras.Sequential([start, *parts])


def _function(kind: str) -> tuple[Any, Any]:
    """A function of TensorFlow that is no Keras model, and the signature of its input."""
    import tensorflow as tf

    draw = tf.random.Generator.from_seed(0)
    dtype = tf.float16 if kind == "half" else tf.float32
    one, other = (tf.Variable(tf.cast(draw.normal((4, 4)), dtype)) for _ in range(2))

    @tf.function
    def bag(x: Any) -> Any:
        return tf.tanh(tf.math.segment_sum(tf.gather(one, x), [0, 0, 1, 1, 1, 2])) @ other

    @tf.function
    def branch(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(x @ one), lambda: x @ other)

    @tf.function
    def loop(x: Any) -> Any:
        return tf.while_loop(lambda n, _: n < tf.shape(x)[0], lambda n, y: (n + 1, tf.tanh(y @ one)), [0, x])[1] @ other

    @tf.function
    def half(x: Any) -> Any:
        return tf.nn.softmax(tf.nn.relu(x @ one) @ other)

    chosen = {"bag": bag, "branch": branch, "loop": loop, "half": half}[kind]
    spec = tf.TensorSpec([6], tf.int32, name="x") if kind == "bag" else tf.TensorSpec([None, 4], dtype, name="x")
    return chosen, spec
