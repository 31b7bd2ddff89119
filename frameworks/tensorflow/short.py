"""Short floating-point types in which TensorFlow's kernels accumulate."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from deep5.core.processor import adds_bfloat16_in_float32

__all__ = ["in_float32", "through_float32", "with_bias", "xla_kernels"]


def through_float32(dtype: str, device: str, *, xla: bool) -> bool:
    """Whether products of this dtype are computed in float32, from unrounded operands, and rounded at the end.

    On the host, TensorFlow's float16 kernels take seven times as long as float32's, and sum the gradients of a
    convolution in float16. Its bfloat16 kernels sum in bfloat16 on CPUs without instructions for it. XLA's kernels do
    neither.

    Args:
        dtype: The dtype of the product.
        device: The device, as TensorFlow names it.
        xla: Whether XLA compiles the product.
    """
    if "CPU" not in device.upper() or xla:
        return False
    return dtype == "float16" or (dtype == "bfloat16" and not adds_bfloat16_in_float32())


@functools.cache
def xla_kernels(dtype: str, device: str) -> str:
    """The dtype of XLA's kernels for products of the given dtype, read from the compiled program of a small product."""
    with tf.init_scope(), tf.device(device):
        x = tf.ones((64, 64), dtype)
        product = tf.function(lambda a: tf.matmul(a, a), jit_compile=True)
        made = product.experimental_get_compiler_ir(x)(stage="optimized_hlo")
    found = re.search(r" = (\w+)\[[^=]*? dot\(", made)
    return {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}.get(found[1], dtype) if found else dtype


@functools.cache
def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A product of a short type, computed in float32 and rounded once; the same for its gradients."""

    @functools.wraps(function)
    def product(*operands: Any, **options: Any) -> Any:
        wide = [tf.cast(value, tf.float32) if tf.is_tensor(value) else value for value in operands]
        return tf.cast(function(*wide, **options), operands[0].dtype)

    return product


def with_bias(y: Any, bias: Any) -> Any:
    """`tf.nn.bias_add`: adds a vector along the last axis.

    The kernel of its gradient sums the batch in bfloat16, in which the sum of equal terms stops growing at 256 terms;
    this function sums in float32 and rounds once.
    """
    return _with_bias(y, bias) if bias.dtype == tf.bfloat16 else tf.nn.bias_add(y, bias)


@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
def _with_bias(y: Any, bias: Any) -> Any:
    def gradient(dy: Any) -> tuple[Any, Any]:
        total = tf.reduce_sum(tf.cast(dy, tf.float32), list(range(dy.shape.rank - 1)))
        return dy, tf.cast(total, tf.bfloat16)

    return tf.nn.bias_add(y, bias), gradient
