"""Element-wise operators and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.short import with_bias
from deep5.frameworks.tensorflow.table import (
    attribute,
    elementwise,
    is_whole,
    number,
    operator,
)

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


_LEAKY = "0.8 and 1.0 times at (32, 64), 3.4 and 2.5 at (16, 64, 56, 56), with alpha 0.3"
_SOFTSIGN = "1.8 and 2.5 times at (8, 64, 56, 56)"


def _as_it_is(op_type: str, function: Callable[..., Any], override: str = "", **defaults: float) -> None:
    """Register a function with the same inputs as ONNX's operator; attributes follow the inputs, in this order."""

    def emit(emitter: Emitter, node: ir.Node) -> None:
        elementwise(emitter, node, function, *(number(attribute(node, key, value)) for key, value in defaults.items()))

    operator(op_type, rankless=True, override=override)(emit)


def _abs(x: Any) -> Any:
    return x if x.dtype.is_unsigned else tf.abs(x)


def _sign(x: Any) -> Any:
    return tf.minimum(x, tf.ones((), x.dtype)) if x.dtype.is_unsigned else tf.sign(x)


def _negative(x: Any) -> Any:
    return tf.cast(tf.negative(tf.cast(x, tf.int32)), x.dtype) if x.dtype.is_unsigned else tf.negative(x)


def _added(a: Any, b: Any) -> Any:
    """`tf.add`, with a bias row as a vector.

    On CPUs with AVX-512, TensorFlow fuses a product of a transposed matrix and a sum into one oneDNN kernel, which
    rejects a row of rank 2.
    """
    if a.shape.rank == b.shape.rank == 2 and (a.shape[0] == 1) != (b.shape[0] == 1):
        return tf.add(a[0], b) if a.shape[0] == 1 else tf.add(a, b[0])
    return tf.add(a, b)


for _name, _function in {
    "Abs": _abs,
    "Add": _added,
    "Mul": tf.multiply,
    "Neg": _negative,
    "Sign": _sign,
    "Sub": tf.subtract,
}.items():
    _as_it_is(_name, _function)


@operator("Div", rankless=True)
def _div(emitter: Emitter, node: ir.Node) -> None:
    elementwise(emitter, node, tf.truncatediv if is_whole(node.inputs[0]) else tf.divide)


def _in_32_bits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Extends an integer function with kernels for int32 and int64 only: other types use their lowest bits."""

    @wraps(function)
    def longer(x: Any, y: Any) -> Any:
        if x.dtype.is_floating or x.dtype in (tf.int32, tf.int64):
            return function(x, y)
        wide = tf.int32 if x.dtype.size < 4 else tf.int64
        return tf.cast(function(tf.cast(x, wide), tf.cast(y, wide)), x.dtype)

    return longer


def _cast_pow(x: Any, y: Any) -> Any:
    """The result has the base's dtype, whatever the exponent's; integers with float exponents go through float64."""
    if x.dtype == y.dtype:
        return _in_32_bits(tf.pow)(x, y)
    if x.dtype.is_integer and y.dtype.is_floating:
        return tf.cast(tf.pow(tf.cast(x, tf.float64), tf.cast(y, tf.float64)), x.dtype)
    return _in_32_bits(tf.pow)(x, tf.cast(y, x.dtype))


_as_it_is("Pow", _cast_pow)
_as_it_is("Softsign", tf.nn.softsign, override=_SOFTSIGN)
_as_it_is("LeakyRelu", tf.nn.leaky_relu, override=_LEAKY, alpha=0.01)


@operator("Cast", rankless=True)
def _cast(emitter: Emitter, node: ir.Node) -> None:
    elementwise(emitter, node, tf.cast, emitter.dtype(node.outputs[0]))


@_in_32_bits
def _product(x: Any, y: Any) -> Any:
    """ONNX's MatMul, which equals NumPy's."""
    if x.shape.rank == 1 and y.shape.rank == 1:
        return tf.tensordot(x, y, 1)
    if x.shape.rank == 1:
        return tf.squeeze(tf.matmul(x[tf.newaxis], y), -2)
    if y.shape.rank == 1:
        return tf.linalg.matvec(x, y)
    if x.shape.rank > 2 and y.shape.rank == 2:
        # One matrix for a whole batch: computed as one product, so that its gradient is one product too.
        rows = tf.matmul(tf.reshape(x, (-1, x.shape[-1] or tf.shape(x)[-1])), y)
        return tf.reshape(rows, _extents(x)[:-1] + _extents(y)[-1:])
    return tf.matmul(x, y)


def _extents(x: Any) -> list[Any]:
    """The shape; dimensions unknown before execution are tensors."""
    sizes: Any = tf.shape(x) if x.shape.as_list().count(None) else None
    return [sizes[index] if extent is None else extent for index, extent in enumerate(x.shape.as_list())]


@operator("MatMul", rankless=True)
def _matmul(emitter: Emitter, node: ir.Node) -> None:
    x, y = (emitter.name(value) for value in node.inputs)
    emitter.assign(node, f"{emitter.product(node, _product)}({x}, {y})")


@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
def _determinant(x: Any) -> Any:
    """The determinant; its gradient, the cofactors, also exists for singular matrices, which have no inverse."""

    def gradient(dy: Any) -> Any:
        s, u, v = tf.linalg.svd(x, full_matrices=True)
        count = x.shape[-1] or tf.shape(x)[-1]
        others = tf.where(tf.eye(count, dtype=tf.bool), tf.ones((), x.dtype), s[..., tf.newaxis, :])
        sign = tf.linalg.det(u) * tf.linalg.det(v)
        products = tf.reduce_prod(others, -1)[..., tf.newaxis, :]
        return (dy * sign)[..., tf.newaxis, tf.newaxis] * tf.matmul(u * products, v, transpose_b=True)

    return tf.linalg.det(x), gradient


@operator("Det")
def _det(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.product(node, _determinant)}({emitter.name(node.inputs[0])})")


def _without_terms(a: Any, b: Any, trans_a: bool = False, trans_b: bool = False) -> Any:
    """A product of matrices whose sums have no terms: TensorFlow fuses its own with a bias, and ends the process."""
    a = tf.linalg.matrix_transpose(a) if trans_a else a
    b = tf.linalg.matrix_transpose(b) if trans_b else b
    return tf.reduce_sum(a[..., tf.newaxis] * b[..., tf.newaxis, :, :], -2)


def _affine(a: Any, b: Any, c: Any, trans_a: bool, trans_b: bool, alpha: float, beta: float) -> Any:
    if a.shape[0 if trans_a else 1] == 0:
        y = _without_terms(a, b, trans_a, trans_b)
    else:
        y = tf.matmul(a, b, transpose_a=trans_a, transpose_b=trans_b)
    y = y if alpha == 1.0 else alpha * y
    if c is None:
        return y
    c = c if beta == 1.0 else beta * c
    # The gradient of bias_add is a separate kernel, several times faster than that of a broadcast sum.
    return with_bias(y, c) if c.shape.rank == 1 and c.shape[0] == y.shape[1] else _added(y, c)


@operator("Gemm")
def _gemm(emitter: Emitter, node: ir.Node) -> None:
    a, b, c = (emitter.name(value) for value in (*node.inputs, None)[:3])
    transposed = f"{bool(attribute(node, 'transA', 0))}, {bool(attribute(node, 'transB', 0))}"
    factors = f"{number(attribute(node, 'alpha', 1.0))}, {number(attribute(node, 'beta', 1.0))}"
    emitter.assign(node, f"{emitter.product(node, _affine)}({a}, {b}, {c}, {transposed}, {factors})")
