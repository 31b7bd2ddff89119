"""Asks TensorFlow's kernels what they can do: that depends on the processor, on oneDNN and on the element type."""

from __future__ import annotations

import functools

import tensorflow as tf

__all__ = ["runs"]


@functools.cache
def runs(dtype: str, axes: int, device: str) -> bool:
    """Whether convolutions in groups and with dilation have gradients.

    Args:
        dtype: Element type.
        axes: Spatial axes.
        device: Where, as TensorFlow names it.
    """
    if axes == 3:
        return False  # dilation has no gradient in float64, groups have no kernel
    with tf.device(device):
        x, w = tf.ones((1, 5, 5, 4), dtype), tf.ones((2, 2, 2, 4), dtype)
        try:
            with tf.GradientTape() as tape:
                tape.watch((x, w))
                y = tf.nn.conv2d(x, w, 1, "VALID", dilations=2)
            tape.gradient(y, (x, w))
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
            return False
    return True
