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
    # Even while something is traced the kernels run here: a graph alone does not tell.
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
