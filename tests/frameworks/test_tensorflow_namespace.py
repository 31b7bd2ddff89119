"""deep5's array namespace for TensorFlow compared with NumPy, and deep5's operators on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_tensorflow import TF, tf

import deep5 as d5
from deep5.core.errors import OperatorError, Unsupported
from deep5.training.expression import OPERATIONS

from deep5.frameworks.tensorflow.namespace import NAMESPACE  # isort: skip - after TensorFlow, which the back-end loads

# deep5's array namespace

UNARY = [name for name, (count, *_) in OPERATIONS.items() if count == 1]
BINARY = [name for name, (count, *_) in OPERATIONS.items() if count == 2]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_operation_of_a_rule_is_numpys(dtype: str, traced: bool) -> None:
    x, y = (np.array(v, dtype) for v in ([0.5, 2.0, 1.5, 0.0], [2.0, 2.0, -1.0, np.nan]))

    def same(name: str, function: Callable[..., Any], *values: Any) -> None:
        tensors = [tf.constant(value) if isinstance(value, np.ndarray) else value for value in values]
        got = (tf.function(lambda: function(*tensors), autograph=False) if traced else lambda: function(*tensors))()
        got = got.numpy()
        with np.errstate(all="ignore"):
            want = OPERATIONS[name][3](*values)
        assert got.dtype == want.dtype, name
        # Elementary functions from two libraries: some units in the last place.
        np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "float32" else 1e-14, err_msg=name)

    for name in UNARY:
        same(name, getattr(NAMESPACE, name), x > 1 if name == "logical_not" else x)
    for name in BINARY:
        if name.startswith("logical"):
            same(name, getattr(NAMESPACE, name), x > 1, y > 0)
            continue
        function = getattr(NAMESPACE, name)
        for values in ((x, y), (x, 2.0), (0.5, x)):
            same(name, function, *values)
    same("where", NAMESPACE.where, x > 1, x, y)


def test_the_namespace_is_found_and_says_what_it_has() -> None:
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]], tf.float64)
    for value in (x, tf.Variable(x)):
        assert d5.array_namespace(value) is NAMESPACE
        assert d5.array_namespace(value, 1.0) is NAMESPACE
    found: list[Any] = []
    tf.function(lambda value: found.append(d5.array_namespace(value)) or value, autograph=False)(x)
    assert found == [NAMESPACE]
    with pytest.raises(
        Unsupported, match=r"no array namespace for EagerTensor, ndarray; allowed: arrays of one of .*tens"
    ):
        d5.array_namespace(x, np.zeros(1))
    with pytest.raises(AttributeError, match="array namespace for TensorFlow has no 'unique'; allowed: abs, acos, "):
        NAMESPACE.unique  # noqa: B018 - asking is what is tried
    assert NAMESPACE.pi == math.pi
    assert "matmul" in dir(NAMESPACE)


XP: dict[str, Callable[[Any, Any], Any]] = {
    "numbers first": lambda xp, x: xp.add(1, xp.multiply(0.5, xp.where(x > 2, 1.0, x))),
    "full_like": lambda xp, x: xp.full_like(x, 3.0) + xp.ones_like(x) + xp.zeros_like(x),
    "full": lambda xp, x: (
        xp.full((2, 2), 3.0, dtype=x.dtype) + xp.ones((2, 2), dtype=x.dtype) + xp.zeros(2, dtype=x.dtype)
    ),
    "asarray": lambda xp, x: xp.asarray(2.5, dtype=x.dtype) + xp.asarray(x, copy=True) + xp.positive(x),
    "astype": lambda xp, x: xp.astype(xp.astype(x, xp.int64), xp.float64),
    "clip": lambda xp, x: xp.clip(x, 1.5, 3.5) + xp.clip(x, min=2.0) + xp.clip(x, max=2.0),
    "square": lambda xp, x: xp.square(x) + xp.reciprocal(x) + xp.round(x * 0.3) + xp.floor_divide(x, 2.0),
    "sums": lambda xp, x: xp.sum(x) + xp.mean(x, axis=0) + xp.prod(x, axis=1, keepdims=True) + xp.sum(x, axis=(0, 1)),
    "spread": lambda xp, x: xp.var(x) + xp.std(x, axis=0, correction=1) + xp.var(x, axis=1, keepdims=True),
    "extremes": lambda xp, x: xp.max(x, axis=1) - xp.min(x, axis=0, keepdims=True),
    "places": lambda xp, x: xp.astype(xp.argmax(x) + xp.argmin(x, axis=1) + xp.argmax(x, keepdims=True), xp.float64),
    "truth": lambda xp, x: xp.astype(xp.any(x > 3) & xp.all(x > 0, axis=0), xp.float64) + xp.isinf(x),
    "matmul": lambda xp, x: (
        xp.matmul(x, x[0, :]) + xp.matmul(x[0, :], x) + xp.matmul(x[0, :], x[1, :]) + xp.matmul(x, x)
    ),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=1) + xp.matrix_transpose(x) + xp.permute_dims(x, (1, 0)),
    "joined": lambda xp, x: xp.concat([x, x], axis=1) + xp.reshape(xp.stack([x, x], axis=1), (2, 4)),
    "flat": lambda xp, x: xp.concat([x, x[0, :]], axis=None),
    "axes": lambda xp, x: xp.squeeze(xp.expand_dims(x, axis=1), axis=1) + xp.broadcast_to(x[0, :], (2, 2)),
    "taken": lambda xp, x: xp.take(x, xp.asarray([1, 0, 1]), axis=1),
    "flipped": lambda xp, x: xp.flip(x) + xp.flip(x, axis=0),
    "triangles": lambda xp, x: xp.tril(x) + xp.triu(x, k=1) + xp.tril(x, k=-1),
    "range": lambda xp, x: x + xp.arange(2, dtype=x.dtype) + xp.astype(xp.arange(1, 5, 2), x.dtype),
    "angles": lambda xp, x: xp.atan2(x, 2.0) + xp.remainder(x, 1.5) + xp.sinh(x) + xp.e + xp.acos(x / 10),
    "truths": lambda xp, x: xp.astype(xp.logical_xor(x > 1, x > 2), xp.float64),
}


@pytest.mark.parametrize("name", XP)
def test_functions_of_the_namespace_are_the_standards(name: str) -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.5]])
    tensor, want = tf.constant(x), XP[name](np, x) if name != "truth" else None
    eager = XP[name](NAMESPACE, tensor) if name != "truth" else None
    if name == "truth":  # TensorFlow does not add Booleans
        eager = tf.cast(NAMESPACE.any(tensor > 3) & NAMESPACE.all(tensor > 0, axis=0), tf.float64)
        want = (np.any(x > 3) & np.all(x > 0, axis=0)).astype(np.float64)
    else:
        traced = tf.function(lambda value: XP[name](NAMESPACE, value), autograph=False)(tensor)
        np.testing.assert_allclose(traced, eager, rtol=1e-14)  # a graph may add in another order
    assert eager.numpy().dtype == np.asarray(want).dtype
    np.testing.assert_allclose(eager, want, rtol=1e-14)  # float64, a handful of operations


# Operators


class Polar(d5.Operator):
    """(x, y) -> (radius, angle)."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        xp, (x, y) = d5.array_namespace(*inputs), inputs
        return xp.sqrt(x * x + y * y), xp.atan2(y, x)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, y), (radius, _), (by_radius, by_angle) = inputs, outputs, output_grads
        by_x = by_radius * x / radius - by_angle * y / (radius * radius)
        by_y = by_radius * y / radius + by_angle * x / (radius * radius)
        return by_x if needs[0] else None, by_y if needs[1] else None


class Rows(d5.Operator):
    """Rows of a table, with an integer input that has no gradient."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        table, rows = inputs
        return (d5.TensorSpec(shape=(*rows.shape, *table.shape[1:]), dtype=table.dtype),)

    def forward(self, *inputs: Any) -> Any:
        return d5.array_namespace(inputs[0]).take(inputs[0], inputs[1], axis=0) * 3.0

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        assert needs == (True, False)
        return d5.array_namespace(inputs[0]).ones_like(inputs[0]) * 7.0, None


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_operators_have_their_own_gradient(traced: bool) -> None:
    polar, rows = TF.operator(Polar()), TF.operator(Rows())

    def run(x: Any, y: Any, table: Any, index: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, y, table))
            radius, angle = polar(x, y)
            total = tf.reduce_sum(radius * tf.sin(angle) + radius) + tf.reduce_sum(rows(table, index))
        return total, tape.gradient(total, (x, y, table))

    x, y = tf.constant([1.0, 2.0], tf.float64), tf.constant([0.5, -1.0], tf.float64)
    call = tf.function(run, autograph=False) if traced else run
    total, (by_x, by_y, by_table) = call(x, y, tf.ones((2, 2), tf.float64), tf.constant([0, 0, 1]))
    radius = np.hypot(x, y)
    # r sin(a) is y: the derivatives calculated by hand, to a handful of float64 roundings.
    np.testing.assert_allclose(total, np.sum(y + radius) + 18.0, rtol=1e-14)
    np.testing.assert_allclose(by_x, x / radius, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(by_y, 1 + y / radius, rtol=1e-13)
    np.testing.assert_array_equal(by_table, np.full((2, 2), 7.0))  # deep5's, not TensorFlow's


def test_an_operator_with_one_output_unused_and_a_wrong_number_of_gradients() -> None:
    x = tf.Variable([3.0, 4.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(TF.operator(Polar())(x, tf.constant([4.0, 3.0]))[0])
    np.testing.assert_allclose(tape.gradient(total, x), [0.6, 0.8], rtol=1e-6)  # one float32 division

    class Short(Polar):
        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return ()

    with tf.GradientTape() as tape:
        total = tf.reduce_sum(TF.operator(Short())(x, x)[0])
    with pytest.raises(OperatorError, match=r"Short\.backward returned 0 gradients; allowed: one per input, 2"):
        tape.gradient(total, x)
