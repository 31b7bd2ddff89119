"""Tests what TensorFlow's kernels support: that depends on the CPU, on oneDNN and on the dtype."""

from __future__ import annotations

import functools

import tensorflow as tf

__all__ = ["runs"]


@functools.cache
def runs(dtype: str, axes: int, device: str) -> bool:
    """Whether grouped and dilated convolutions have gradients.

    Args:
        dtype: The dtype.
        axes: Number of spatial axes.
        device: The device, as TensorFlow names it.
    """
    if axes == 3:
        return False  # dilation has no float64 gradient, groups have no kernel
    # Runs the kernels eagerly even during a trace: a graph would not show the error.
    with tf.init_scope(), tf.device(device):
        x, w = tf.ones((1, 5, 5, 4), dtype), tf.ones((2, 2, 2, 4), dtype)
        how = {"strides": [1, 1, 1, 1], "padding": "VALID", "dilations": [1, 2, 2, 1]}
        try:
            y = tf.raw_ops.Conv2D(input=x, filter=w, **how)
            tf.raw_ops.Conv2DBackpropInput(input_sizes=x.shape, filter=w, out_backprop=y, **how)
            tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=w.shape, out_backprop=y, **how)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
            return False
    return True
