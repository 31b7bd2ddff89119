"""Operators on TensorFlow: in Python, in C++ as an operation of its own, its own functions; alone and in networks."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, OperatorError, ShapeError, Unsupported
from deep5.networks.gradients import gradient_network
from memory_cases import Where, addresses
from tracing_cases import CASES, arrays

TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from deep5.frameworks.tensorflow import compiled  # noqa: E402
from deep5.frameworks.tensorflow.array import TensorFlowArray  # noqa: E402
from deep5.frameworks.tensorflow.array_namespace import ARRAYS  # noqa: E402
from deep5.frameworks.tensorflow.namespace import NAMESPACE  # noqa: E402

RNG = np.random.default_rng(4)
DOMAIN = "test.tensorflow"
# Of elementary float64 operations; and what central differences with a step of 1e-6 leave of 16 digits.
ROUNDING, DIFFERENCES = 1e-13, 1e-7


class PyPow(d5.Operator):
    """x ** power."""

    def __init__(self, power: int) -> None:
        self.power = power

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        if len(x.shape) > 3:
            raise ShapeError(f"PyPow: got {x}; allowed: at most 3 axes")
        return (x,)

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (output_grads[0] * self.power * inputs[0] ** (self.power - 1),)


class CppPow(d5.CppOperator):
    source = """
    template <typename T>
    struct CppPow : deep5::Operator {
      int64_t power;
      explicit CppPow(int64_t power) : power(power) {}
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        report("calls", 1);
        if (x.size() == 13) throw std::runtime_error("thirteen is [not]; taken\\nat all");
        for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], power);
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * T(power) * deep5::power(x[i], power - 1);
      }
    };"""

    def __init__(self, power: int) -> None:
        super().__init__(power=power)

    specs = PyPow.specs


class PyOuter(d5.Operator):
    """(x [m], y [n], k) -> x y^T k [m, n], and by how many elements of y each of x is exceeded [m], int64."""

    asked: tuple[bool, ...] = ()

    def specs(self, x: d5.TensorSpec, y: d5.TensorSpec, k: d5.TensorSpec) -> Any:  # type: ignore[override]
        shape = (*x.shape, *y.shape)
        return d5.TensorSpec(shape=shape, dtype=x.dtype), d5.TensorSpec(shape=x.shape, dtype="int64")

    def forward(self, *inputs: Any) -> Any:
        xp, (x, y, k) = d5.array_namespace(*inputs), inputs
        count = xp.count_nonzero(y[None, :] > x[:, None], axis=1)
        return x[:, None] * y[None, :] * xp.astype(k, x.dtype), count

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        assert output_grads[1] is None
        assert not needs[2]
        self.asked = tuple(needs)
        xp, (x, y, k), dz = d5.array_namespace(*inputs), inputs, output_grads[0]
        dz = dz * xp.astype(k, x.dtype)
        return (
            xp.sum(dz * y[None, :], axis=1) if needs[0] else None,
            xp.sum(dz * x[:, None], axis=0) if needs[1] else None,
            None,
        )


class CppOuter(d5.CppOperator):
    source = """
    template <typename T>
    struct CppOuter : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> y, deep5::Tensor<const int32_t> k,
                   deep5::Tensor<T> z, deep5::Tensor<int64_t> count) {
        for (int64_t i = 0; i < x.size(); ++i) {
          count[i] = 0;
          for (int64_t j = 0; j < y.size(); ++j) z(i, j) = x[i] * y[j] * T(k[0]), count[i] += y[j] > x[i];
        }
      }
      void backward(deep5::Tensor<const T> dz, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<const int32_t> k, deep5::Tensor<const T> z, deep5::Tensor<const int64_t> count,
                    deep5::Tensor<T> dx, deep5::Tensor<T> dy) {
        report(dx ? "by x" : "not by x", 1);
        report(dy ? "by y" : "not by y", 1);
        for (int64_t i = 0; dx && i < x.size(); ++i) dx[i] = 0;
        for (int64_t j = 0; dy && j < y.size(); ++j) dy[j] = 0;
        for (int64_t i = 0; i < x.size(); ++i)
          for (int64_t j = 0; j < y.size(); ++j) {
            if (dx) dx[i] += dz(i, j) * y[j] * T(k[0]);
            if (dy) dy[j] += dz(i, j) * x[i] * T(k[0]);
          }
      }
    };"""

    specs = PyOuter.specs


d5.register_operator("PyPow", domain=DOMAIN)(PyPow)
d5.register_operator("CppPow", domain=DOMAIN)(CppPow)
d5.register_operator("PyOuter", domain=DOMAIN)(PyOuter)
d5.register_operator("CppOuter", domain=DOMAIN)(CppOuter)

KINDS = pytest.mark.parametrize("kind", ["Py", "Cpp"])


def power(kind: str, exponent: int = 3) -> Any:
    return PyPow(exponent) if kind == "Py" else CppPow(exponent)


def outer(kind: str) -> Any:
    return PyOuter() if kind == "Py" else CppOuter()


def types(graph: Any) -> set[str]:
    """Of the operations of a graph and of the functions that it calls."""
    listed = graph.as_graph_def()
    return {node.op for node in [*listed.node, *(node for each in listed.library.function for node in each.node_def)]}


def backprop(native: Callable[..., Any], inputs: Any, grads: Any) -> Any:
    """Outputs, and gradients by all inputs."""
    with tf.GradientTape() as tape:
        tape.watch([value for value in inputs if value.dtype.is_floating])
        outputs = native(*inputs)
        several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        wanted = [value for value in several if value.dtype.is_floating]
    return several, tape.gradient(wanted, inputs, output_gradients=grads)


# Values and gradients


@KINDS
@pytest.mark.parametrize("how", ["eager", "traced", "autograph", "symbolic"])
def test_values_and_gradients_are_the_formulas(kind: str, how: str) -> None:
    x, y, k = RNG.standard_normal(4), RNG.standard_normal(5), np.array(3, np.int32)
    k = k.reshape(()) if kind == "Py" else k
    dz = RNG.standard_normal((4, 5))
    native = TF.operator(outer(kind))
    inputs = [tf.constant(value) for value in (x, y, k)]
    run: Any = lambda *inputs: backprop(native, inputs, [tf.constant(dz)])  # noqa: E731
    if how != "eager":
        shapes = [value.shape if how != "symbolic" else [None] * value.shape.rank for value in inputs]
        signature = [tf.TensorSpec(shape, value.dtype) for shape, value in zip(shapes, inputs, strict=True)]
        run = tf.function(run, input_signature=signature, autograph=how == "autograph")
        kinds = types(run.get_concrete_function().graph)
        assert ("Deep5Operator" in kinds) == (kind == "Cpp")
        assert not {name for name in kinds if "Py" in name}  # neither PyFunc nor any other way back
    (z, count), (dx, dy, dk) = run(*inputs)
    np.testing.assert_allclose(z, 3 * np.outer(x, y), rtol=ROUNDING)
    np.testing.assert_array_equal(count, (y > x[:, None]).sum(1))
    np.testing.assert_allclose(dx, 3 * dz @ y, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(dy, 3 * x @ dz, rtol=ROUNDING, atol=ROUNDING)
    assert dk is None
    direction = RNG.standard_normal(4)
    ends = [float(np.sum(dz * native(x + sign * 1e-6 * direction, y, k)[0].numpy())) for sign in (1, -1)]
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(direction @ dx.numpy()), rel=DIFFERENCES, abs=DIFFERENCES)


@KINDS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_element_types(kind: str, dtype: str) -> None:
    given = np.array([[1.5, -2.0, 0.5], [3.0, 0.0, -1.25]])
    x = tf.cast(tf.constant(given), dtype)
    exact = given.astype(np.int32) if dtype == "int32" else given
    executor = TF.operator_executor(power(kind))
    (y,) = executor.inference(x)
    assert y.dtype.name == dtype
    # The factors are exact in all types; a product is rounded twice.
    tolerance = 0.0 if dtype == "int32" else 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(tf.cast(y, tf.float64), exact**3, rtol=tolerance)
    if dtype != "int32":
        _, (dx,) = executor.inference_and_backprop([x], [tf.ones_like(x)])
        assert dx.dtype.name == dtype
        np.testing.assert_allclose(tf.cast(dx, tf.float64), 3 * given**2, rtol=tolerance)
    else:
        assert executor.inference_and_backprop([x], [None])[1] == (None,)


@KINDS
def test_any_layout_and_extent_of_numpys(kind: str) -> None:
    executor, native, base = TF.operator_executor(power(kind)), TF.operator(power(kind)), RNG.standard_normal((6, 4))
    swapped = base.astype(">f8")
    for value in (base.T, np.asfortranarray(base), base[::2, ::-1], np.empty((0, 3)), np.array(2.0), swapped):
        (x,) = executor.arrays(value)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = native(x)
        for made in (y, executor.inference(x)[0], native(np.ascontiguousarray(value, "f8"))):
            np.testing.assert_allclose(made, value.astype("f8") ** 3, rtol=ROUNDING)
        gradient = tape.gradient(y, x)
        np.testing.assert_allclose(gradient, 3 * value.astype("f8") ** 2, rtol=ROUNDING)
        assert gradient.shape == value.shape
    # A part of another tensor, whose memory begins anywhere.
    parts = tf.split(tf.constant(base.reshape(-1)), [1, 3, 20], 0)
    for part in parts:
        np.testing.assert_allclose(native(part), part.numpy() ** 3, rtol=ROUNDING)


def test_compiled_gradients_are_those_that_are_wanted() -> None:
    operator = CppOuter()
    x, y, k = tf.ones(2), tf.ones(3), tf.constant(2)
    native = TF.operator(operator)

    @tf.function(autograph=False)
    def by_x(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            z, _ = native(x, y, k)
        return tape.gradient(z, x)

    np.testing.assert_array_equal(by_x(x), [6, 6])
    assert operator.report() == {"by x": 1, "not by y": 1}
    executor = TF.operator_executor(operator)
    _, gradients = executor.inference_and_backprop([x, y, k], [tf.ones((2, 3)), None], needs=[False, True, False])
    assert operator.report() == {"not by x": 1, "by y": 1}
    assert gradients[0] is gradients[2] is None
    python = PyOuter()
    k = tf.constant(2)
    TF.operator_executor(python).inference_and_backprop([x, y, k], [tf.ones((2, 3)), None], needs=[0, 1, 0])
    assert python.asked == (False, True, False)


@KINDS
def test_an_output_may_be_left_alone_and_gradients_go_through(kind: str) -> None:
    x, native, square = tf.constant([2.0, 3.0]), TF.operator(outer(kind)), TF.operator(power(kind, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(square(square(x))) + 0 * tf.cast(native(x, x, np.int32(1))[1][0], tf.float32)
    np.testing.assert_allclose(tape.gradient(total, x), 4 * x.numpy() ** 3, rtol=1e-6)  # some float32 products


def test_several_threads_call_one_operator() -> None:
    native, failed = TF.operator(CppPow(2)), []
    traced = tf.function(native, autograph=False, reduce_retracing=True)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            x = rng.standard_normal(int(rng.integers(14, 30)))
            for call in (native, traced):
                if not np.array_equal(call(tf.constant(x)), x * x):
                    failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


# Contracts


class Broken(PyPow):
    """Does what it is told, which is wrong."""

    def __init__(self, forward: Any = None, backward: Any = None, specs: Any = None) -> None:
        super().__init__(2)
        self.wrong = forward, backward, specs

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return super().specs(*inputs) if self.wrong[2] is None else self.wrong[2](*inputs)

    def forward(self, *inputs: Any) -> Any:
        return super().forward(*inputs) if self.wrong[0] is None else self.wrong[0](*inputs)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return self.wrong[1](inputs[0])


@pytest.mark.parametrize("how", ["eager", "traced", "symbolic"])
@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (Broken(lambda x: (x, x)), r"Broken\.forward returned 2 outputs; allowed: 1"),
        (Broken(lambda x: x[:, :2]), r"Broken\.forward: output 0: got shape float32\[.*, 2\], expected float32\[.*, 3"),
        (Broken(lambda x: tf.cast(x, tf.float64)), r"output 0: got dtype float64, expected float32, as its specs says"),
        (Broken(lambda x: np.zeros((2, 3), np.float32)), r"as output 0; allowed: a tensor; remedy: .*array_namespace"),
        (Broken(None, lambda x: ()), r"Broken\.backward returned 0 gradients; allowed: one an input, 1"),
        (Broken(None, lambda x: (None,)), r"returned None as the gradient by input 0; allowed: a tensor"),
        (Broken(None, lambda x: (x[:, :1],)), r"gradient by input 0: got float32\[.*, 1\], expected float32\[.*, 3\]"),
        (Broken(None, lambda x: (tf.cast(x, tf.float64),)), r"gradient by input 0: got float64"),
        (Broken(None, lambda x: x), r"backward returned .*Tensor; allowed: a tuple of gradients"),
    ],
)
def test_broken_contracts_are_named(operator: d5.Operator, said: str, how: str) -> None:
    native = TF.operator(operator)
    run: Any = lambda x: backprop(native, [x], None)  # noqa: E731
    if how != "eager":
        run = tf.function(run, input_signature=[tf.TensorSpec([2 if how == "traced" else None, 3])])
    with pytest.raises(OperatorError, match=said):
        run(tf.ones((2, 3)))


def test_what_specs_raises_and_what_it_is_not_given() -> None:
    for kind in ("Py", "Cpp"):
        native, executor = TF.operator(power(kind)), TF.operator_executor(power(kind))
        for call in (native, executor.inference, tf.function(native)):
            with pytest.raises(ShapeError, match="allowed: at most 3 axes"):
                call(tf.zeros((1, 1, 1, 1)))
            with pytest.raises(ShapeError, match=r"(Py|Cpp)Pow: got 2 inputs; allowed: 1, as its specs takes"):
                call(tf.zeros(1), tf.zeros(1))
        with pytest.raises(ShapeError, match=r"got object as input 0; allowed: a tensor|got an input of string"):
            native(["a"] if kind == "Cpp" else object())
        with pytest.raises(ShapeError, match=r"got ndarray as input 0; allowed: a tensor; remedy: executor\.arrays"):
            executor.inference(np.zeros(2))
        with pytest.raises(ShapeError, match="value 0: got str that tensorflow cannot take"):
            executor.arrays("a")
    with pytest.raises(OperatorError, match=r"Broken\.specs raised ZeroDivisionError"):
        TF.operator(Broken(specs=lambda x: (1 // 0,)))(tf.zeros(1))
    with pytest.raises(ShapeError, match="got inputs of float32, float64, int32; allowed, as its C\\+\\+ forward"):
        TF.operator(CppOuter())(tf.zeros(1), tf.zeros(1, tf.float64), tf.constant(1))


def test_what_a_compiled_operator_throws_is_said() -> None:
    native, said = TF.operator(CppPow(2)), r"CppPow failed: thirteen is \[not\]; taken\nat all$"
    for call in (native, TF.operator_executor(CppPow(2)).inference):
        with pytest.raises(OperatorError, match=said):
            call(tf.zeros(13))
        np.testing.assert_array_equal(tf.concat([tf.reshape(call(tf.ones(1)), [-1])] * 2, 0), [1, 1])
    # Shapes that nobody knew when it was traced are looked at when it runs.
    traced = tf.function(native, input_signature=[tf.TensorSpec(None)], autograph=False)
    np.testing.assert_array_equal(traced(tf.constant([3.0])), [9])
    with pytest.raises(tf.errors.InvalidArgumentError, match="deep5: CppPow: the shapes of the outputs") as raised:
        traced(tf.zeros((1, 1, 1, 1)))
    assert isinstance(compiled.failure(raised.value), ShapeError)

    class Lying(CppPow):
        template = "CppPow"

        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return (d5.TensorSpec(shape=inputs[0].shape, dtype="int64"),)

    said = r"says outputs of int64, the C\+\+ class writes float32"
    with pytest.raises(OperatorError, match=said):
        TF.operator(Lying(2))(tf.zeros(1))
    lying = TF.operator(Lying(2))
    traced = tf.function(lying, input_signature=[tf.TensorSpec(None)], autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        traced(tf.zeros(2))
    with pytest.raises(OperatorError, match=said):
        raise compiled.failure(raised.value) or AssertionError

    class Negative(Lying):
        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return (d5.TensorSpec(shape=(-3,), dtype="float32"),)

    with pytest.raises(OperatorError, match="output 0 has the extent -3"):
        TF.operator(Negative(2))(tf.zeros(1))


class NoBackward(d5.CppOperator):
    source = """
    template <typename T>
    struct NoBackward : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { for (auto &each : y) each = 1; }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs


def test_gradients_that_there_are_not() -> None:
    x, native = tf.constant([2.0]), TF.operator(CppPow(3))
    with pytest.raises(Unsupported, match=r"NoBackward has no backward in C\+\+"):
        TF.operator_executor(NoBackward()).inference_and_backprop([x], [x])
    with pytest.raises(Unsupported, match=r"NoBackward has no backward in C\+\+"):
        backprop(TF.operator(NoBackward()), [x], None)

    @tf.function(autograph=False)
    def second(x: Any) -> Any:
        return tf.gradients(tf.gradients(native(x), x)[0], x)[0]

    with pytest.raises(Unsupported, match=r"CppPow\.backward has no gradient of its own"):
        second(x)
    twice = TF.operator(PyPow(3))
    with tf.GradientTape() as above:
        above.watch(x)
        first = backprop(twice, [x], None)[1][0]
    np.testing.assert_allclose(above.gradient(first, x), 6 * x, rtol=1e-6)  # some float32 products


def test_kernels_live_as_long_as_what_was_traced() -> None:
    def make() -> Any:
        native = TF.operator(CppPow(5))
        loop = lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, native(y)), (0, x))[1]  # noqa: E731

        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = native(x)
            return y, tape.gradient(y, x), loop(x)

        return tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec([2]))

    gc.collect()
    before, concrete = len(compiled._BOUND), make()
    gc.collect()
    assert len(compiled._BOUND) > before
    # What lay where the kernel was, if it is gone, is overwritten.
    others = [TF.operator(CppPow(n))(tf.zeros(1)) for n in range(20)]
    y, gradient, looped = concrete(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(y, [1, 32])
    np.testing.assert_array_equal(gradient, [5, 80])
    np.testing.assert_array_equal(looped, [1, 2.0**25])
    definition = concrete.graph.as_graph_def()
    del concrete, y, gradient, looped, others
    gc.collect()
    assert len(compiled._BOUND) <= before
    # The same graph without its kernel: an error and not a wild address.
    number = next(node.attr["kernel"].i for node in definition.node if node.op == "Deep5Operator")
    apply = compiled._operation()[1]
    for gone, said in ((number, "CppPow is gone"), (12345, "made in another process")):
        with pytest.raises(tf.errors.FailedPreconditionError, match=said) as raised:
            apply(inputs=[tf.zeros(2)], Tout=[tf.float32], kernel=gone)
        assert isinstance(compiled.failure(raised.value), OperatorError)
    native = TF.operator(CppPow(5))
    native(tf.zeros(1))
    alive = max(compiled._BOUND)
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not take tensors of these element types"):
        apply(inputs=[tf.zeros(2, tf.float64)], Tout=[tf.float32], kernel=alive)


# Arrays of the standard


class Mixing(d5.Operator):
    """(x [N, 2 k], w [3, k]) -> y [N, 6], of halves of x, w^T and the number of rows."""

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (d5.TensorSpec(shape=(x.shape[0], 6), dtype=x.dtype),)

    def forward(self, *inputs: Any) -> Any:
        (x, w), xp = inputs, d5.array_namespace(*inputs)
        rows, half = x.shape[0], w.shape[1]
        assert (x.ndim, w.size, w.shape, w.T.shape) == (2, 3 * half, (3, half), (half, 3))
        assert x.dtype in (xp.float32, xp.float64)
        pairs = xp.reshape(x, (rows, 2, half)) @ w.T  # [N, 2, 3]
        swapped = xp.reshape(pairs.mT, (rows, 6)) + xp.zeros((rows, 1), dtype=x.dtype)
        scale = xp.broadcast_to(xp.asarray([0.5], dtype=x.dtype), (rows, 6))
        place = xp.astype(xp.arange(rows), x.dtype)[:, None] - xp.full((rows, 6), 1.0, dtype=x.dtype)
        return (1 - scale * swapped) / x.size + 2 * place[..., ::-1] * x[:rows, -1:]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w), xp, dy = inputs, d5.array_namespace(*inputs), output_grads[0]
        rows, half = x.shape[0], w.shape[1]
        assert outputs[0].ndim == 2
        by_pairs = xp.reshape(-0.5 * dy / x.size, (rows, 3, 2)).mT  # [N, 2, 3]
        place = xp.astype(xp.arange(rows), x.dtype) - 1
        by_last = 2 * xp.sum(dy * place[:, None], axis=1)[:, None]
        dx = xp.reshape(by_pairs @ w, (rows, 2 * half))
        dx = xp.concat([dx[:, :-1], dx[:, -1:] + by_last], axis=1)
        flat = xp.reshape(by_pairs, (2 * rows, 3))
        return dx if needs[0] else None, flat.T @ xp.reshape(x, (rows * 2, half)) if needs[1] else None


d5.register_operator("Mixing", domain=DOMAIN)(Mixing)


@pytest.mark.parametrize("framework", [TF, XLA], ids=["graph", "xla"])
def test_code_of_the_standard_runs_in_a_network_of_any_batch_size(framework: Any) -> None:
    build = d5.NetworkBuilder("mixing")
    y = build.op("Mixing", build.input("x", ("N", 8)), build.parameter("w", (3, 4)), domain=DOMAIN)
    loss = build.op("ReduceSum", build.op("Mul", y, y), keepdims=0)
    network = build.network({"loss": loss, "y": y})
    run, operator, w = framework.executor(network), Mixing(), network.initial("w")
    for size in (5, 2):
        x = RNG.standard_normal((size, 8)).astype(np.float32)
        made = run.inference_and_backprop({"x": x})
        want = operator.forward(x, w)
        _, dw = operator.backward([2 * want], [x, w], [want], [True, True])
        # Sums of some float32 products, by another library.
        np.testing.assert_allclose(made["y"], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(run.gradients()["w"], dw, rtol=1e-4, atol=1e-5 * np.abs(dw).max())
        # By the input too, eagerly and with fixed shapes.
        executor = framework.operator_executor(operator)
        tensors = executor.arrays(x, w)
        (alone,), (dx, _) = executor.inference_and_backprop(tensors, executor.inference(*tensors))
        by_x = operator.backward([want], [x, w], [want], [True, False])[0]
        np.testing.assert_allclose(alone, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dx, by_x, rtol=1e-4, atol=1e-5 * np.abs(by_x).max())
        eager, (eager_dx, _) = backprop(framework.operator(operator), tensors, [tf.constant(want)])
        np.testing.assert_allclose(eager[0], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(eager_dx, dx, rtol=1e-4, atol=1e-5 * np.abs(by_x).max())


def test_the_operator_is_the_standards_and_differentiated_rightly() -> None:
    import array_api_strict

    operator = Mixing()
    x, w, dy = (RNG.standard_normal(shape) for shape in ((3, 8), (3, 4), (3, 6)))
    y, (dx, dw) = operator.forward(x, w), operator.backward([dy], [x, w], [operator.forward(x, w)], [True, True])
    strict = [array_api_strict.asarray(value) for value in (x, w, y, dy)]
    again = operator.forward(*strict[:2]), *operator.backward(strict[3:], strict[:2], strict[2:3], [True, True])
    for ours, theirs in zip(again, (y, dx, dw), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)
    for number, gradient in enumerate((dx, dw)):
        way, ends = RNG.standard_normal(gradient.shape), []
        for step in (1e-6, -1e-6):
            moved = [x, w]
            moved[number] = moved[number] + step * way
            ends.append(np.sum(dy * operator.forward(*moved)))
        slope = (ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx(np.sum(gradient * way), rel=DIFFERENCES, abs=DIFFERENCES)


def test_nothing_of_the_arrays_is_left_in_a_graph() -> None:
    from deep5.frameworks.tensorflow.custom import route

    class Written(Mixing):
        def forward(self, *inputs: Any) -> Any:
            (x, w), xp = inputs, d5.array_namespace(*inputs)
            h = xp.reshape(x[:, 1:] @ w.T, (x.shape[0], 2, 3)) + xp.zeros((x.shape[0], 1, 1), dtype=x.dtype)
            return 1 - xp.reshape(xp.exp(h.mT), (x.shape[0], 6)) / x.shape[0]

    def by_hand(x: Any, w: Any) -> Any:
        rows = tf.shape(x)
        h = tf.reshape(tf.matmul(x[:, 1:], tf.transpose(w)), (rows[0], 2, 3)) + tf.zeros((rows[0], 1, 1))
        count = tf.cast(tf.shape(x, out_type=tf.int64)[0], tf.float32)
        return 1 - tf.reshape(tf.exp(tf.linalg.matrix_transpose(h)), (rows[0], 6)) / count

    signature = [tf.TensorSpec([None, 8]), tf.TensorSpec([6, 7])]
    graphs = [
        tf.function(call, input_signature=signature, autograph=False).get_concrete_function().graph
        for call in (route(Written(), TF).forward, by_hand)
    ]
    ours, own = ([each.type for each in graph.get_operations()] for graph in graphs)
    assert Counter(ours) == Counter(own)
    assert "MatMul" in ours


EXTENTS: dict[str, Callable[[Any, Any, int], Any]] = {
    "arithmetic": lambda xp, x, n: x * (n - 1) - (7 - n) * x + x / (n % 3 + 1) + (n // 2) * x + (3 + n) * (x + n),
    "a product": lambda xp, x, n: xp.reshape(x, (n * x.shape[1],)) * (x.size - n),
    "slices": lambda xp, x, n: xp.concat([x[1 : n - 1], x[n // 2 :, ::-1], x[0 - n : n : 2]]),
    "the last one": lambda xp, x, n: x[n - 1] + x[n // 2, None, ...],
    "making": lambda xp, x, n: (
        x + xp.eye(n, 3, dtype=x.dtype) + xp.full(n, 2.5, dtype=x.dtype)[:, None] + xp.ones((n, 1), dtype=x.dtype)
    ),
    "a range": lambda xp, x, n: x * xp.astype(xp.arange(1, n + 1), x.dtype)[:, None],
    "repeating": lambda xp, x, n: xp.concat([xp.tile(x, (n, 1)), xp.repeat(x, n, axis=0), xp.roll(x, n // 2, axis=0)]),
    "filling": lambda xp, x, n: (
        xp.full((2, n), n, dtype=x.dtype) + xp.asarray(n, dtype=x.dtype) + xp.clip(x, 0, n)[0, 0]
    ),
    "places": lambda xp, x, n: xp.take(x, xp.arange(n - 1, -1, -1), axis=0) + x[xp.argmax(x[:, 0]), :],
}


@pytest.mark.parametrize("name", EXTENTS)
def test_unknown_extents_are_computed_with(name: str) -> None:
    call = EXTENTS[name]

    def run(x: Any) -> Any:
        given = TensorFlowArray(x, ARRAYS)
        return call(d5.array_namespace(given), given, given.shape[0]).tensor

    traced = tf.function(run, input_signature=[tf.TensorSpec([None, 3], tf.float64)], autograph=False)
    for size in (5, 2):
        x = RNG.standard_normal((size, 3))
        for made in (traced(x), run(tf.constant(x))):
            want = call(np, x, size)
            assert (made.shape, made.dtype.name) == (want.shape, want.dtype)
            np.testing.assert_allclose(made, want, rtol=ROUNDING, atol=ROUNDING)


DECISIONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "extent": (lambda xp, x: x if x.shape[0] == 1 else -x, r"it decides by the symbolic extent .*shape\[0\] and 1"),
    "order": (lambda xp, x: x if x.size > 7 else -x, r"it decides by the symbolic extent .*; remedy: fix the extent"),
    "truth": (
        lambda xp, x: x if xp.any(x > 0) else -x,
        r"it decides by what an array holds \(bool\[\]\); allowed: wha",
    ),
    "number": (lambda xp, x: x * float(x[0, 0]), r"it decides by what an array holds \(float32\[\]\)"),
    "range": (lambda xp, x: next(x for _ in range(x.shape[0])), "it decides by the symbolic extent"),
    "numpy": (lambda xp, x: np.asarray(x) * 2, r"it decides by what an array holds \(float32\[\?, 3\]\)"),
    "len": (lambda xp, x: sum(row for row in x), r"len of float32\[\?, 3\]; allowed: arrays whose first extent"),
    "writing": (lambda xp, x: x.__setitem__(0, x[1]), "it writes into an array; allowed: new arrays"),
    "indices": (lambda xp, x: x[xp.argsort(x[:, 0])], "it indexes with int64.*; remedy: xp.take"),
    "share": (lambda xp, x: x * (1 / x.shape[0]), "it divides the symbolic extent .* as a number; .* remedy: x / n"),
    "kinds": (lambda xp, x: x + xp.astype(x, xp.int64), "float32 meets int64; allowed: pairs for which the array API"),
    "fraction": (lambda xp, x: xp.astype(x, xp.int32) * 0.5, "multiply of int32 and the number 0.5; allowed: a number"),
    "matrix": (lambda xp, x: x[None].T, r"\.T of float32\[1, \?, 3\]; allowed: two axes; remedy: \.mT"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_no_graph_can_follow_is_refused_with_the_reason(name: str) -> None:
    call, said = DECISIONS[name]
    native = TF.operator(Broken(lambda x: call(d5.array_namespace(x), x)))
    with pytest.raises(Unsupported, match=rf"Broken\.forward: {said}"):
        tf.function(native, input_signature=[tf.TensorSpec([None, 3])])(tf.ones((2, 3)))


def test_decisions_have_answers_in_eager_calls() -> None:
    def positive(x: Any) -> Any:
        assert x.shape == (2, 3)
        assert len(x) == 2
        assert int(x[0, 0]) == 1 == float(x[1, 2])
        assert np.asarray(x).shape == (2, 3)
        return x if d5.array_namespace(x).all(x > 0) else -x

    np.testing.assert_array_equal(TF.operator(Broken(positive))(tf.ones((2, 3))), np.ones((2, 3)))
    half = TF.operator(Broken(lambda x: np.float32(0.5) * x + x.shape[0] * x))
    traced = tf.function(half, input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    np.testing.assert_array_equal(traced(tf.ones((2, 3))), np.full((2, 3), 2.5))
    with pytest.raises(ShapeError, match=r"got the index 2 for float32\[2, 3\]; allowed: -2 to 1 on axis 0"):
        TF.operator(Broken(lambda x: x[2]))(tf.ones((2, 3)))


# What NumPy and TensorFlow answer differently, and the standard leaves open: NaN among extremes, division of whole
# numbers by zero and of infinities; and what has as many results as a symbolic extent says.
OPEN = re.compile(
    r"arg(max|min) .* of NaN|floor_divide.*|remainder of whole numbers|// and % (0|-1.5|2.0)|iter.*|unstack"
)


def test_functions_of_the_standard_on_arrays_of_unknown_extents() -> None:
    xp = TensorFlowArray(tf.constant(0), ARRAYS).__array_namespace__()
    names = [name for name in CASES if not OPEN.fullmatch(name)]
    for name in names:
        case = CASES[name]
        dtype = case.dtypes[-1] if len(case.dtypes) > 2 else case.dtypes[0]
        feed = arrays(case, dtype)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of nothing
            want = np.asarray(case.call(np, *feed))
        call = lambda *given, case=case: case.call(xp, *map(TensorFlowArray, given)).tensor  # noqa: E731
        signature = [tf.TensorSpec([None] * x.ndim, x.dtype) for x in feed]
        got = tf.function(call, input_signature=signature, autograph=False)(*feed).numpy()
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        if want.dtype.kind == "f":
            # Another library's elementary functions; TensorFlow makes zeros of denormal numbers.
            limits = np.finfo(want.dtype)
            rtol = max(16, 4 * case.ulps) * limits.eps
            np.testing.assert_allclose(got, want, rtol=rtol, atol=limits.smallest_normal, err_msg=name)
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)
    assert len(names) > 240


# Executors


def test_executors_of_all_kinds() -> None:
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal((4, 2))
    onnx, native = d5.ONNXOperator("MatMul"), d5.NativeOperator(tf.matmul, framework="tensorflow", transpose_a=False)
    for framework in (TF, XLA):
        for operator in (onnx, native):
            executor = framework.operator_executor(operator)
            x = executor.arrays(a, b)
            (y,), (da, db) = executor.inference_and_backprop(x, executor.inference(*x))
            np.testing.assert_allclose(y, a @ b, rtol=ROUNDING)
            np.testing.assert_allclose(da, a @ b @ b.T, rtol=ROUNDING, atol=ROUNDING)
            np.testing.assert_allclose(db, a.T @ a @ b, rtol=ROUNDING, atol=ROUNDING)
            _, (none, only) = executor.inference_and_backprop(x, [y], needs=[False, True])
            assert none is None
            np.testing.assert_array_equal(only, db)
            executor.synchronize()
            assert executor.settings()["xla"] == (framework is XLA)
            assert {"framework", "version", "device", "threads", "tf32", "deterministic"} <= set(executor.settings())
            assert executor.device == d5.core.tensors.Device()
            np.testing.assert_allclose(TF.operator(operator)(a, b), a @ b, rtol=ROUNDING)
    with pytest.raises(OperatorError, match=r"matmul failed on tensorflow: .*(incompatible|equal)"):
        TF.operator_executor(native).inference(tf.zeros((2, 3)), tf.zeros((2, 3)))
    with pytest.raises(NetworkError, match="MatMul"):
        TF.operator_executor(onnx).inference(tf.zeros((2, 3)), tf.zeros((2, 3)))


def test_functions_of_tensorflow_and_of_others() -> None:
    dense = keras.layers.Dense(3)
    executor = TF.operator_executor(d5.NativeOperator(dense, framework="tensorflow"))
    x = tf.ones((2, 5))
    (y,), (dx,) = executor.inference_and_backprop([x], [tf.ones((2, 3))])
    kernel = dense.kernel.numpy()
    np.testing.assert_allclose(y, x.numpy() @ kernel, rtol=1e-5)  # sums of five float32 products
    np.testing.assert_allclose(dx, np.ones((2, 3)) @ kernel.T, rtol=1e-5, atol=1e-6)
    with pytest.raises(Unsupported, match=r"is a function of pytorch, .*; allowed on tensorflow: functions of its own"):
        TF.operator_executor(d5.NativeOperator(len, framework="pytorch"))
    with pytest.raises(Unsupported, match="is a function of jax"):
        TF.operator(d5.NativeOperator(len, framework="jax"))
    wrong = d5.NativeOperator(tf.square, framework="tensorflow", specs=lambda x: (x, x))
    with pytest.raises(OperatorError, match=r"square\.forward returned 1 outputs; allowed: 2"):
        TF.operator_executor(wrong).inference(x)
    with pytest.raises(OperatorError, match="returned str as output 0; allowed: tensors"):
        TF.operator(d5.NativeOperator(lambda x: "x", framework="tensorflow"))(x)


@KINDS
def test_executors_say_what_is_wrong(kind: str) -> None:
    executor, x = TF.operator_executor(outer(kind)), (tf.ones(2), tf.ones(3), tf.constant(1))
    with pytest.raises(ShapeError, match="got 1 output gradients; allowed: one an output, 2"):
        executor.inference_and_backprop(x, [tf.ones((2, 3))])
    with pytest.raises(ShapeError, match=r"output gradient 0: got float32\(3, 2\), expected float32\(2, 3\)"):
        executor.inference_and_backprop(x, [tf.ones((3, 2)), None])
    with pytest.raises(ShapeError, match="output gradient 0 is None"):
        executor.inference_and_backprop(x, [None, None])
    with pytest.raises(ShapeError, match="a gradient is asked for by input 2, which is int32"):
        executor.inference_and_backprop(x, [tf.ones((2, 3)), None], needs=[True, True, True])
    with pytest.raises(ShapeError, match="got 1 needs; allowed: one an input, 3"):
        executor.inference_and_backprop(x, [tf.ones((2, 3)), None], needs=[True])
    with pytest.raises(Unsupported, match="no device cuda:7 for tensorflow here"):
        TF.operator_executor(outer(kind), device="cuda:7")
    # One gradient of an output that has none changes nothing.
    _, (dx, *_) = executor.inference_and_backprop(x, [tf.ones((2, 3)), tf.zeros(2, tf.int64)])
    np.testing.assert_array_equal(dx, [3, 3])


def test_executors_trace_once_for_a_shape() -> None:
    calls = []
    operator = Broken(lambda x: calls.append(x.shape) or x * x, lambda x: (2 * x,))
    executor = TF.operator_executor(operator)
    for size in (2, 3, 2, 3, 2):
        executor.inference(tf.ones(size))
    assert calls == [(2,), (3,)]
    assert "Mul" in types(executor.graph(tf.ones(2)))
    assert "Deep5Operator" in types(TF.operator_executor(CppPow(2)).graph(tf.ones(2)))


def test_xla_compiles_what_is_python_and_refuses_what_is_compiled() -> None:
    x = tf.constant([1.0, 2.0])
    (y,), (dx,) = XLA.operator_executor(PyPow(3)).inference_and_backprop([x], [tf.ones(2)])
    np.testing.assert_allclose(y, [1, 8], rtol=1e-6)
    np.testing.assert_allclose(dx, [3, 12], rtol=1e-6)
    native = XLA.operator(PyPow(3))
    jitted = tf.function(lambda x: backprop(native, [x], None)[1][0], jit_compile=True, autograph=False)
    np.testing.assert_allclose(jitted(x), [3, 12], rtol=1e-6)
    for make in (XLA.operator, XLA.operator_executor):
        with pytest.raises(Unsupported, match="CppPow is compiled already, and XLA compiles no kernel"):
            make(CppPow(2))


@pytest.mark.parametrize("wrap", [lambda own: own, tf.function], ids=["own", "within"])
def test_functions_that_xla_compiles_refuse_compiled_operators_with_the_reason(wrap: Any) -> None:
    own, x = wrap(TF.operator(CppPow(2))), tf.constant([1.0, 2.0])
    jitted = tf.function(lambda x: own(x) + 1, jit_compile=True, autograph=False)
    with pytest.raises(Unsupported, match=r"CppPow is compiled already, .*; remedy: tf\.function without jit_compile"):
        jitted(x)
    np.testing.assert_array_equal(own(x), [1, 4])


def test_nan_and_infinity_are_tensorflows_as_the_documentation_says() -> None:
    """Should this fail, a newer TensorFlow has mended it: then take it out of docs/networks.md."""
    x = tf.constant([1.0, np.nan, 2.0])
    assert (NAMESPACE.argmax(x), NAMESPACE.argmin(x)) == (2, 0)
    assert NAMESPACE.floor_divide(tf.constant(np.inf), 2) == np.inf


# Networks


def cubes(operator: str, reduced: str = "ReduceMean") -> d5.Network:
    """A batch through x W, its third power and a mean of squares; the power by a registered operator or by products."""
    build = d5.NetworkBuilder("cubes")
    x, label = build.input("input", ("N", 4)), build.input("label", ("N", 2))
    h = build.op("MatMul", x, build.parameter("w", (4, 3)))
    if operator == "Mul":
        h = build.op("Mul", build.op("Mul", h, h), h)
    else:
        h = build.op(operator, h, domain=DOMAIN, power=3)
    y = build.op("MatMul", h, build.parameter("v", (3, 2)))
    error = build.op("Sub", y, label)
    loss = build.op(reduced, build.op("Mul", error, error), keepdims=0)
    return build.network({"loss": loss, "y": y})


@pytest.mark.parametrize(("framework", "kind"), [(TF, "Py"), (TF, "Cpp"), (XLA, "Py")], ids=["py", "cpp", "xla"])
def test_a_network_trains_as_one_of_products(framework: Any, kind: str) -> None:
    run, same = framework.executor(cubes(f"{kind}Pow")), TF.executor(cubes("Mul"))
    rng = np.random.default_rng(1)
    steps = [each.train_step(d5.SGD(lr=0.05)) for each in (run, same)]
    for number in range(3):
        size = 5 - number  # a batch size is no other network
        feed = {
            name: rng.standard_normal((size, width)).astype(np.float32) for name, width in (("input", 4), ("label", 2))
        }
        losses = [float(step(feed, d5.StepInfo(step=number, batch_size=size))["loss"]) for step in steps]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, value in same.parameters().items():
        # Sums of a few float32 products, in another order in XLA; a wrong gradient is off by far more.
        np.testing.assert_allclose(run.parameters()[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6)
        assert np.abs(value.numpy() - cubes("Mul").initial(name)).max() > 1e-3
    if framework is TF:
        assert ("Deep5Operator" in types(run.graph)) == (kind == "Cpp")
        assert not {name for name in types(run.graph) if "Py" in name}
    assert run.inference({"input": np.zeros((0, 4), np.float32), "label": np.zeros((0, 2), np.float32)})["y"].shape == (
        0,
        2,
    )


@KINDS
def test_a_gradient_network_holds_the_backward_pass_as_a_node(kind: str) -> None:
    feed = {"input": RNG.standard_normal((5, 4)).astype(np.float32), "label": np.zeros((5, 2), np.float32)}
    both = gradient_network(cubes(f"{kind}Pow", "ReduceSum"))
    made = TF.executor(both).inference({**feed, "loss_scale": np.float32(1)})
    run = TF.executor(cubes("Mul", "ReduceSum"))
    run.inference_and_backprop(feed)
    for name, gradient in run.gradients().items():
        np.testing.assert_allclose(made[f"grad:{name}"], gradient, rtol=1e-4, atol=1e-6)  # as above


@KINDS
def test_several_outputs_in_a_network_of_images(kind: str) -> None:
    build = d5.NetworkBuilder("several")
    image = build.input("image", ("N", 2, 6))
    h = build.op("Conv", image, build.parameter("w", (3, 2, 3)))  # whose channels lie last
    h = build.op(f"{kind}Pow", h, domain=DOMAIN, power=2)
    pooled = build.op("ReduceMean", h, build.constant("a", np.array([1, 2])), keepdims=0)
    z, count = build.op(
        f"{kind}Outer", pooled, pooled, build.constant("k", np.array(2, np.int32)), outputs=2, domain=DOMAIN
    )
    loss = build.op("ReduceSum", z, keepdims=0)
    network = build.network({"loss": loss, "z": z, "count": count})
    run = TF.executor(network)
    x = RNG.standard_normal((3, 2, 6)).astype(np.float32)
    made, weight = run.inference_and_backprop({"image": x}), network.initial("w").astype(np.float64)
    patches = np.lib.stride_tricks.sliding_window_view(x, 3, axis=2)
    c = np.einsum("nchi,oci->noh", patches.astype(np.float64), weight)
    mean = (c**2).mean((1, 2))
    np.testing.assert_allclose(made["z"], 2 * np.outer(mean, mean), rtol=1e-5)  # sums of float32 products
    np.testing.assert_array_equal(made["count"], (mean > mean[:, None]).sum(1))
    by_mean = 4 * mean.sum()  # of 2 (sum m)^2
    want = np.einsum("noh,nchi->oci", by_mean * 2 * c / c[0].size, patches)
    np.testing.assert_allclose(run.gradients()["w"], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_nodes_that_cannot_run_are_refused() -> None:
    network = cubes("CppPow")
    with pytest.raises(Unsupported, match=r"CppPow_1 \(CppPow\): CppPow is compiled already, and XLA"):
        XLA.executor(network)
    node = next(node for node in network.nodes if node.op_type == "CppPow")
    assert TF.supports(node)
    assert XLA.supports(next(node for node in cubes("PyPow").nodes if node.op_type == "PyPow"))
    node.replace_input_with(0, None)
    assert "its input 0 is left out" in TF.supports(node).reason
    build = d5.NetworkBuilder("thirteen")
    x = build.input("x", ("N",))
    throwing = TF.executor(build.network({"y": build.op("CppPow", x, domain=DOMAIN, power=2)}))
    with pytest.raises(OperatorError, match="CppPow failed: thirteen"):
        throwing.inference({"x": np.zeros(13, np.float32)})
    np.testing.assert_array_equal(throwing.inference({"x": np.full(2, 3, np.float32)})["y"], [9, 9])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_an_operator_in_cpp_is_given_the_memory_of_tensorflow(wrap: Callable[[Any], Any]) -> None:
    def address(value: Any) -> int:
        # The buffer of a tensor is its memory, where numpy() makes a copy.
        return int(np.asarray(memoryview(value)).ctypes.data)

    where = wrap(TF.operator(Where()))
    for elements in (5, 5000):
        x = tf.constant(np.ones(elements))
        places = where(x)
        assert addresses(places) == [address(x), address(places)]


def test_the_refusal_of_graphics_processors_names_the_operator() -> None:
    from deep5.frameworks.tensorflow.custom import route
    from deep5.frameworks.tensorflow.operator_check import refusal
    from deep5.frameworks.tensorflow.operators_custom import refuse_compiled

    with pytest.raises(Unsupported, match=r"CppPow_1 \(CppPow\): CppPow is compiled, and deep5 has no way for CUDA"):
        refuse_compiled(cubes("CppPow"))
    refuse_compiled(cubes("PyPow"))
    with pytest.raises(Unsupported, match="no way for CUDA kernels into tensorflow"):
        route(CppPow(2), TF, device="/GPU:0")
    assert not refusal(PyPow(2), xla=True, on_host=False)


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys; import deep5.frameworks.tensorflow.framework; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The namespace

A = np.array([[3.0, 1.0, 2.0], [0.5, -1.5, 0.5]])
B = np.array([[1, 0, 2], [3, 1, 1]])
STANDARD: dict[str, Callable[[Any, Any, Any], Any]] = {
    "argsort": lambda xp, x, n: xp.argsort(x) + xp.argsort(n, axis=0),
    "argsort_ties": lambda xp, x, n: xp.argsort(n % 2, axis=1),
    "bitwise": lambda xp, x, n: (
        xp.bitwise_and(n, 1) + xp.bitwise_or(n, 4) * xp.bitwise_xor(n, 3) + xp.bitwise_invert(n)
    ),
    "bitwise_truths": lambda xp, x, n: xp.bitwise_or(x > 0, x < 1) & xp.bitwise_invert(xp.bitwise_xor(x > 0, n > 0)),
    "broadcast_arrays": lambda xp, x, n: xp.broadcast_arrays(x[:1, :], x)[0] + x,
    "copysign": lambda xp, x, n: xp.copysign(x, -x) + xp.copysign(1.0, x),
    "count_nonzero": lambda xp, x, n: xp.count_nonzero(n, axis=1) + xp.count_nonzero(n),
    "cumulative_prod": lambda xp, x, n: xp.cumulative_prod(x, axis=1),
    "cumulative_sum": lambda xp, x, n: xp.cumulative_sum(x, axis=0) * 2,
    "cumulative_whole": lambda xp, x, n: xp.cumulative_sum(n, axis=-1) + xp.trunc(n),
    "cumulative_initial": lambda xp, x, n: xp.cumulative_sum(x, axis=1, include_initial=True),
    "cumulative_flat": lambda xp, x, n: xp.cumulative_sum(x[0, :]),
    "diff": lambda xp, x, n: xp.diff(x) + xp.diff(x, axis=1, n=1),
    "diff_further": lambda xp, x, n: xp.diff(x, axis=0, n=2, prepend=x[:1, :], append=x),
    "diagonal": lambda xp, x, n: xp.linalg.diagonal(x, offset=1) + xp.linalg.trace(x),
    "eye": lambda xp, x, n: xp.eye(2, 3, k=1, dtype=x.dtype) + x,
    "hyperbolic": lambda xp, x, n: xp.asinh(x) + xp.acosh(x * x + 1.5) + xp.atanh(x / 4),
    "hypot": lambda xp, x, n: xp.hypot(x * 1e200, x * 1e-200) + xp.hypot(x, 0.0) + xp.hypot(x, x),
    "inverse": lambda xp, x, n: xp.linalg.inv(x[:, :2]) + xp.linalg.solve(x[:, :2], x[:, 1:]) + xp.linalg.det(x[:, :2]),
    "solve": lambda xp, x, n: xp.linalg.solve(x[:, :2], x[:, 2]),
    "cholesky": lambda xp, x, n: xp.linalg.cholesky(xp.matmul(x, xp.matrix_transpose(x))),
    "linspace": lambda xp, x, n: xp.linspace(0.0, 1.0, 7, dtype=x.dtype),
    "linspace_open": lambda xp, x, n: xp.linspace(-1.0, 1.0, 4, dtype=x.dtype, endpoint=False),
    "logs": lambda xp, x, n: xp.log2(x * x + 1) + xp.log10(x * x + 1),
    "logaddexp": lambda xp, x, n: xp.logaddexp(x * 1000, 1.0) + xp.logaddexp(x, x) + xp.logaddexp(-xp.inf, x),
    "logaddexp_infinite": lambda xp, x, n: xp.logaddexp(x - xp.inf, x - xp.inf),
    "meshgrid": lambda xp, x, n: xp.meshgrid(x[0, :], x[:, 0], indexing="ij")[1],
    "moveaxis": lambda xp, x, n: xp.moveaxis(x[None, :, :], (0, 1), (2, 0)) + xp.moveaxis(x[None, :, :], 0, -1),
    "nextafter": lambda xp, x, n: xp.nextafter(x, xp.zeros_like(x)),
    "norm": lambda xp, x, n: xp.linalg.vector_norm(x, axis=1) + xp.linalg.vector_norm(x, ord=1),
    "norms": lambda xp, x, n: (
        xp.linalg.vector_norm(x, ord=xp.inf, axis=0, keepdims=True)
        + xp.linalg.vector_norm(x, ord=3, axis=0)
        + xp.linalg.vector_norm(x, ord=0, axis=0)
        + xp.linalg.vector_norm(x, ord=-xp.inf)
    ),
    "outer": lambda xp, x, n: xp.linalg.outer(x[0, :], x[1, :]),
    "repeat": lambda xp, x, n: xp.repeat(x, 2, axis=1) + xp.reshape(xp.repeat(xp.repeat(x, 1), 2), (2, 6)),
    "roll": lambda xp, x, n: xp.roll(x, 1) + xp.roll(x, -2, axis=1) + xp.roll(x, (1, 1), axis=(0, 1)),
    "searchsorted": lambda xp, x, n: (
        xp.searchsorted(xp.sort(x[0, :]), x) + xp.searchsorted(x[0, :], x, side="right", sorter=xp.argsort(x[0, :]))
    ),
    "shifts": lambda xp, x, n: xp.bitwise_left_shift(n, 2) + xp.bitwise_right_shift(n, 1),
    "signbit": lambda xp, x, n: xp.signbit(x) ^ xp.signbit(xp.negative(xp.zeros_like(x))),
    "sort": lambda xp, x, n: xp.sort(x) + xp.sort(x, axis=0),
    "sort_whole": lambda xp, x, n: xp.sort(n, axis=1) - xp.sort(-n, axis=0),
    "take_along_axis": lambda xp, x, n: xp.take_along_axis(x, n % 2, axis=0) + xp.take_along_axis(x, n % 3 - 3, axis=1),
    "take_along_wide": lambda xp, x, n: xp.take_along_axis(x, n[:, :1] % 3, axis=1),
    "tile": lambda xp, x, n: xp.tile(x, (2, 2)) + xp.tile(xp.tile(x, (2,)), (1, 2, 1)),
    "trunc": lambda xp, x, n: xp.trunc(x * 1.7),
    "unstack": lambda xp, x, n: xp.unstack(x, axis=1)[2] + xp.unstack(x)[0][0],
    "vecdot": lambda xp, x, n: xp.vecdot(x, x) + xp.linalg.vecdot(x, x, axis=1),
}


@pytest.mark.parametrize("name", STANDARD)
def test_further_functions_of_the_namespace_are_the_standards(name: str) -> None:
    function = STANDARD[name]
    want = np.asarray(function(np, A, B))
    eager = function(NAMESPACE, tf.constant(A), tf.constant(B))
    traced = tf.function(lambda x, n: function(NAMESPACE, x, n), autograph=False)(A, B)
    for got in (eager, traced):
        assert (got.shape, got.dtype.as_numpy_dtype) == (want.shape, want.dtype.type)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)  # float64, some elementary operations


def test_element_types_of_the_namespace() -> None:
    xp, x = NAMESPACE, tf.constant(A)
    for descending, axis in ((True, 1), (True, 0), (False, 1)):
        order = np.argsort(-B if descending else B, axis=axis, kind="stable")
        np.testing.assert_array_equal(xp.argsort(tf.constant(B), axis=axis, descending=descending), order)
    np.testing.assert_array_equal(xp.sort(x, descending=True), -np.sort(-A))
    np.testing.assert_array_equal(xp.sort(tf.constant([True, False])), [False, True])
    np.testing.assert_array_equal(xp.sort(tf.constant([200, 3, 255], tf.uint8)), [3, 200, 255])
    assert xp.result_type(tf.float32, tf.float64) == tf.float64
    assert xp.result_type(tf.constant(1.0), 2.0, 1) == tf.float32
    assert xp.result_type(tf.uint8, tf.int8) == tf.int16
    assert xp.isdtype(tf.float16, "real floating")
    assert xp.isdtype(tf.uint8, ("bool", "unsigned integer"))
    assert not xp.isdtype(tf.bool, "numeric")
    assert xp.isdtype(tf.int32, "signed integer")
    assert xp.isdtype(tf.uint8, "integral")
    assert not xp.isdtype(tf.uint8, "signed integer")
    assert xp.isdtype(tf.int32, tf.int32)
    with pytest.raises(ValueError, match="got the kind 'float'; allowed: bool, "):
        xp.isdtype(tf.int32, "float")
    for name in ("float32", "float64", "float16"):
        ours, theirs = xp.finfo(getattr(tf, name)), np.finfo(name)
        assert (ours.eps, ours.max, ours.min, ours.bits) == (theirs.eps, theirs.max, theirs.min, theirs.bits)
    assert xp.finfo(x).smallest_normal == np.finfo("float64").smallest_normal
    assert (xp.iinfo(tf.int8).min, xp.iinfo(tf.int8).max) == (-128, 127)
    assert xp.cumulative_sum(tf.constant([1, 2], tf.int32)).dtype == tf.int64
    assert xp.empty((2, 3)).shape == xp.empty_like(x).shape == (2, 3)
    infinite = tf.constant([np.inf, -np.inf, 0.0, np.nan])
    np.testing.assert_array_equal(xp.hypot(infinite, 1.0), np.hypot(infinite.numpy(), np.float32(1)))


# Times


def test_a_compiled_operator_is_one_operation_of_the_graph() -> None:
    """Inside `tf.function` it is a node of its own, and no call of Python."""
    native = TF.operator(CppPow(2))
    graph = tf.function(native, autograph=False).get_concrete_function(tf.TensorSpec([1])).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert not kinds & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
