"""The baselines on TensorFlow: idiomatic variables, `tf.function` and Keras's Adam.

Each function takes the arguments of its counterpart in `by_deep5`, and does the same steps on the same batches; from
the same weights it computes the same numbers, as the tests check. Images and weights are channels-last, which suits
TensorFlow's kernels best, and are tensors before the timing starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.recipes.overhead.by_deep5 import HORIZON, JUDGED, RATE, batches, labelled_digits
from deep5.recipes.overhead.rules import DECAY, PENALTY, twin_of

__all__ = ["inference", "training_run", "training_step"]

Work = Callable[[], object]


class _Layers:
    """Variables in the order in which a network creates them, and the layers that use them."""

    def __init__(self, seed: int) -> None:
        import tensorflow as tf

        self.tf, self.draw = tf, np.random.default_rng(seed)
        self.trained: list[Any] = []
        self.statistics: list[Any] = []

    def weight(self, *shape: int) -> Any:
        deviation = (2.0 / float(np.prod(shape[:-1]))) ** 0.5
        self.trained.append(self.tf.Variable((self.draw.standard_normal(shape) * deviation).astype(np.float32)))
        return self.trained[-1]

    def vector(self, size: int, value: float = 0.0) -> Any:
        self.trained.append(self.tf.Variable(np.full(size, value, np.float32)))
        return self.trained[-1]

    def dense(self, into: int, out: int) -> Callable[[Any], Any]:
        weight, bias = self.weight(into, out), self.vector(out)
        return lambda x: self.tf.nn.bias_add(self.tf.matmul(x, weight), bias)

    def convolution(self, into: int, out: int, kernel: int, stride: int, pad: int, bias: bool) -> Callable[[Any], Any]:
        weight, added = self.weight(kernel, kernel, into, out), self.vector(out) if bias else None
        same = pad == kernel // 2 and stride == 1
        padding = "SAME" if same else [[0, 0], [pad, pad], [pad, pad], [0, 0]]

        def call(x: Any) -> Any:
            x = self.tf.nn.conv2d(x, weight, stride, padding if pad else "VALID")
            return x if added is None else self.tf.nn.bias_add(x, added)

        return call

    def normalisation(self, channels: int) -> Callable[[Any, bool], Any]:
        tf = self.tf
        scale, offset = self.vector(channels, 1.0), self.vector(channels)
        mean = tf.Variable(np.zeros(channels, np.float32), trainable=False)
        variance = tf.Variable(np.ones(channels, np.float32), trainable=False)

        def call(x: Any, training: bool) -> Any:
            if not training:
                return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, mean, variance, 1e-5, is_training=False)[0]
            y, now, spread = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-5)
            mean.assign_sub((mean - now) * 0.1)
            variance.assign_sub((variance - spread) * 0.1)
            return y

        return call


def _lenet(layers: _Layers) -> Callable[[Any, bool], Any]:
    tf = layers.tf
    convolutions = layers.convolution(1, 6, 5, 1, 2, True), layers.convolution(6, 16, 5, 1, 0, True)
    dense = layers.dense(400, 120), layers.dense(120, 84), layers.dense(84, 10)

    def call(x: Any, training: bool) -> Any:
        for layer in convolutions:
            x = tf.nn.avg_pool2d(tf.tanh(layer(x)), 2, 2, "VALID")
        x = tf.reshape(x, (-1, 400))
        return dense[2](tf.tanh(dense[1](tf.tanh(dense[0](x)))))

    return call


def _resnet18(layers: _Layers) -> Callable[[Any, bool], Any]:
    tf = layers.tf

    def unit(into: int, out: int, kernel: int, stride: int) -> Callable[[Any, bool], Any]:
        convolution = layers.convolution(into, out, kernel, stride, kernel // 2, False)
        normalisation = layers.normalisation(out)
        return lambda x, training: normalisation(convolution(x), training)

    first, blocks, into = unit(3, 64, 3, 1), [], 64
    for stage, out in enumerate((64, 128, 256, 512)):
        for index in range(2):
            stride = 2 if stage and index == 0 else 1
            shortcut = unit(into, out, 1, stride) if stride == 2 else None
            blocks.append((unit(into, out, 3, stride), unit(out, out, 3, 1), shortcut))
            into = out
    last = layers.dense(512, 10)

    def call(x: Any, training: bool) -> Any:
        x = tf.nn.relu(first(x, training))
        for one, two, shortcut in blocks:
            y = two(tf.nn.relu(one(x, training)), training)
            x = tf.nn.relu(y + (x if shortcut is None else shortcut(x, training)))
        return last(tf.reduce_mean(x, (1, 2)))

    return call


def _transformer(layers: _Layers) -> Callable[[Any, bool], Any]:
    """Two pre-norm blocks of width 128 with four heads over 32 tokens, as in `d5.networks.transformer`."""
    tf, width, heads, length = layers.tf, 128, 4, 32
    words, places = layers.weight(1000, width), layers.weight(length, width)

    def normalisation() -> Callable[[Any], Any]:
        scale, offset = layers.vector(width, 1.0), layers.vector(width)

        def call(x: Any) -> Any:
            mean, variance = tf.nn.moments(x, (-1,), keepdims=True)
            return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-5)

        return call

    def dense(into: int, out: int) -> Callable[[Any], Any]:
        layer = layers.dense(into, out)
        # One matrix product instead of a batch of them.
        return lambda x: tf.reshape(layer(tf.reshape(x, (-1, into))), (-1, length, out))

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, (-1, length, heads, width // heads)), (0, 2, 1, 3))

    blocks = [
        (
            *(normalisation(), dense(width, 3 * width), dense(width, width)),
            *(normalisation(), dense(width, 4 * width), dense(4 * width, width)),
        )
        for _ in range(2)
    ]
    last, head = normalisation(), layers.dense(width, 10)

    def call(x: Any, training: bool) -> Any:
        x = tf.gather(words, x) + places
        for norm, qkv, out, norm_two, into, back in blocks:
            q, k, v = (split(part) for part in tf.split(qkv(norm(x)), 3, axis=-1))
            weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
            y = tf.reshape(tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3)), (-1, length, width))
            x = x + out(y)
            x = x + back(tf.nn.gelu(into(norm_two(x))))
        return head(tf.reduce_mean(last(x), 1))

    return call


_NETWORKS = {"lenet": _lenet, "resnet18_small": _resnet18, "transformer": _transformer}


def _prepared(
    network: Callable[..., Any], network_kwargs: Mapping[str, Any] | None, batch_size: int, threads: int, seed: int
) -> tuple[_Layers, Callable[[Any, bool], Any], list[tuple[Any, Any]]]:
    d5.framework("tensorflow").set_threads(threads)
    import tensorflow as tf

    specification = network(**(network_kwargs or {}), seed=seed)
    feeds = []
    for batch in batches(specification, batch_size, seed):
        images = batch["input"]
        images = images.transpose(0, 2, 3, 1) if images.ndim == 4 else images
        feeds.append((tf.constant(images), tf.constant(batch["label"])))
    layers = _Layers(seed)
    return layers, _NETWORKS[network.__name__](layers), feeds


def _signature(feeds: list[tuple[Any, Any]]) -> list[Any]:
    import tensorflow as tf

    return [tf.TensorSpec([None, *value.shape[1:]], value.dtype) for value in feeds[0]]


def training_step(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
    rule: str | None = None,
    variant: str = "plain",
) -> Work:
    """Whole training steps with Keras's Adam inside one `tf.function`; a call returns the last loss and logits.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of TensorFlow.
        network: The network of `deep5.networks` to match, at its default sizes.
        batch_size: Samples per batch.
        network_kwargs: Arguments of `network`.
        rule: deep5's name of another optimizer of Keras.
        variant: As in `rules.step`: biases without weight decay, or gradients plus a multiple of their parameters.
    """
    layers, forward, feeds = _prepared(network, network_kwargs, batch_size, threads, seed)
    tf = layers.tf
    import keras

    # Keras's default epsilon is ten times the published one, which deep5 and the other baselines use.
    optimizer = keras.optimizers.Adam(learning_rate=0.001, epsilon=1e-8)
    if rule is not None:
        twin = twin_of("tensorflow", rule)
        twin.hyper |= {"weight_decay": DECAY} if variant == "groups" else {}
        optimizer = twin.native(keras.optimizers)
    if variant == "groups":
        optimizer.exclude_from_weight_decay(var_list=[value for value in layers.trained if len(value.shape) == 1])
    optimizer.build(layers.trained)

    @tf.function(input_signature=_signature(feeds))  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = forward(images, True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        # Dense gradients: for a word that occurs twice, Keras's Adam sums the squares of two gradients instead of
        # squaring their sum.
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, layers.trained)]
        if variant == "modifier":
            pairs = zip(gradients, layers.trained, strict=True)
            gradients = [gradient + PENALTY * value for gradient, value in pairs]
        optimizer.apply_gradients(zip(gradients, layers.trained, strict=True))
        return loss, logits

    def work() -> Any:
        for index in range(steps):
            results = step(*feeds[index % len(feeds)])
        return results

    return work


def inference(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Loss and logits in evaluation mode; arguments as in `training_step`."""
    layers, forward, feeds = _prepared(network, network_kwargs, batch_size, threads, seed)
    tf = layers.tf

    @tf.function(input_signature=_signature(feeds))  # type: ignore[untyped-decorator]
    def evaluate(images: Any, labels: Any) -> Any:
        logits = forward(images, False)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)), logits

    def work() -> Any:
        for index in range(steps):
            results = evaluate(*feeds[index % len(feeds)])
        return results

    return work


def training_run(*, steps: int, seed: int, threads: int, batch_size: int) -> Work:
    """An epoch of LeNet on the digits: one `tf.function` per step, Keras's Adam and `CosineDecay`, an evaluation.

    Batches are gathered by index inside the step, without `tf.data`. Arguments and results are those of
    `by_deep5.training_run`.
    """
    d5.framework("tensorflow").set_threads(threads)
    import keras
    import tensorflow as tf

    layers = _Layers(seed)
    forward = _lenet(layers)
    (images, labels), (judged, truth) = (
        (tf.constant(part["input"].transpose(0, 2, 3, 1)), tf.constant(part["label"]))
        for part in labelled_digits(steps, batch_size)
    )
    decay = keras.optimizers.schedules.CosineDecay(RATE, HORIZON)
    optimizer = keras.optimizers.Adam(learning_rate=decay, epsilon=1e-8)
    optimizer.build(layers.trained)
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
    def step(indices: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = forward(tf.gather(images, indices), True)
            loss = tf.reduce_mean(cross_entropy(labels=tf.gather(labels, indices), logits=logits))
        gradients = tape.gradient(loss, layers.trained)
        optimizer.apply_gradients(zip(gradients, layers.trained, strict=True))
        return loss

    @tf.function(input_signature=[tf.TensorSpec([None, 28, 28, 1]), tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
    def evaluate(x: Any, y: Any) -> Any:
        logits = forward(x, False)
        right = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == y, tf.float32))
        return right, tf.reduce_sum(cross_entropy(labels=y, logits=logits))

    draw = np.random.default_rng(seed)

    def work() -> tuple[float, float]:
        order = draw.permutation(len(labels))
        for first in range(0, len(order), batch_size):
            step(order[first : first + batch_size])
        right = total = 0.0
        for first in range(0, len(truth), JUDGED):
            hits, loss = evaluate(judged[first : first + JUDGED], truth[first : first + JUDGED])
            right, total = right + float(hits), total + float(loss)
        return 100.0 * right / len(truth), total / len(truth)

    return work
