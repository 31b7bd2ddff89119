"""Operators on TensorFlow, beyond the suite of all back-ends: as an operation of its graphs, and under XLA."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backend_operators import THIRTEEN, Broken, CppPow, PyPow, mixed, mixed_values, powers
from backends import BACKENDS
from deep5.core.errors import OperatorError, ShapeError, Unsupported

TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from deep5.frameworks.tensorflow import compiled  # noqa: E402

BACKEND = BACKENDS["tensorflow"]


def types(graph: Any) -> set[str]:
    """The operation types of a graph and of the functions that it calls."""
    listed = graph.as_graph_def()
    return {node.op for node in [*listed.node, *(node for each in listed.library.function for node in each.node_def)]}


@pytest.mark.daily
@pytest.mark.parametrize("kind", ["Py", "Cpp"])
@pytest.mark.parametrize("how", ["traced", "autograph", "symbolic"])
def test_what_is_traced_is_the_operators_own_graph(kind: str, how: str) -> None:
    """With static or dynamic sizes; neither PyFunc nor any other call back into Python."""
    native, values = TF.operator(mixed(kind)), mixed_values()
    grads = [tf.ones((4, 3), tf.float64), None, tf.ones(3, tf.float64)]
    shapes = [value.shape if how != "symbolic" else [None] * value.ndim for value in values]
    run = tf.function(
        lambda *inputs: BACKEND.pulled(native, inputs, grads),
        input_signature=[tf.TensorSpec(shape, value.dtype) for shape, value in zip(shapes, values, strict=True)],
        autograph=how == "autograph",
    )
    kinds = types(run.get_concrete_function().graph)
    assert ("Deep5Operator" in kinds) == (kind == "Cpp")
    assert not {name for name in kinds if "Py" in name}
    (product, rows, twice), (dx, dw, none) = run(*values)
    x, w, _ = values
    assert none is None
    np.testing.assert_array_equal(rows, [14])
    for got, want in ((product, x * w), (twice, 2 * w), (dx, np.broadcast_to(w, x.shape)), (dw, x.sum(0) + 2)):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)  # some float64 operations


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (Broken(lambda x: x[:, :2]), r"Broken\.forward: output 0: got shape float32\[.*, 2\], expected float32\[.*, 3"),
        (Broken(None, lambda x: (x[:, :1],)), r"gradient by input 0: got float32\[.*, 1\], expected float32\[.*, 3\]"),
        (Broken(None, lambda x: x), r"backward returned .*Tensor; allowed: a tuple of gradients"),
    ],
)
def test_broken_contracts_are_named_where_extents_are_not_known(operator: d5.Operator, said: str) -> None:
    native, one = TF.operator(operator), tf.ones((2, 3))
    run = tf.function(lambda x: BACKEND.pulled(native, [x], [x]), input_signature=[tf.TensorSpec([None, 3])])
    with pytest.raises(OperatorError, match=said):
        run(one)


def test_a_part_of_another_tensor_is_read_where_it_begins() -> None:
    base, native = mixed_values()[0].reshape(-1), TF.operator(CppPow(3))
    for part in tf.split(tf.constant(base), [1, 3, 8], 0):
        np.testing.assert_allclose(native(part), part.numpy() ** 3, rtol=1e-13)


def test_a_network_holds_the_operation_and_an_empty_batch_runs() -> None:
    for op in ("CppPow", "PyPow"):
        run = TF.executor(powers(op))
        assert run.inference({"x": np.zeros((0, 4), np.float32)})["y"].shape == (0, 3)
        assert ("Deep5Operator" in types(run.graph)) == (op == "CppPow")
        assert not {name for name in types(run.graph) if "Py" in name}


def test_what_a_compiled_operator_throws_is_said() -> None:
    native, said = TF.operator(CppPow(2)), THIRTEEN
    for call in (native, TF.operator_executor(CppPow(2)).inference):
        with pytest.raises(OperatorError, match=said):
            call(tf.zeros(13))
        np.testing.assert_array_equal(tf.concat([tf.reshape(call(tf.ones(1)), [-1])] * 2, 0), [1, 1])
    # Shapes that are unknown during tracing are checked at run time.
    traced = tf.function(native, input_signature=[tf.TensorSpec(None)], autograph=False)
    np.testing.assert_array_equal(traced(tf.constant([3.0])), [9])
    with pytest.raises(tf.errors.InvalidArgumentError, match="deep5: CppPow: the shapes of the outputs") as raised:
        traced(tf.zeros((1, 1, 1, 1, 1)))
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

    with pytest.raises(OperatorError, match="output 0 has the dimension -3"):
        TF.operator(Negative(2))(tf.zeros(1))


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
    # If the kernel has been freed, its memory is overwritten.
    others = [TF.operator(CppPow(n))(tf.zeros(1)) for n in range(20)]
    y, gradient, looped = concrete(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(y, [1, 32])
    np.testing.assert_array_equal(gradient, [5, 80])
    np.testing.assert_array_equal(looped, [1, 2.0**25])
    definition = concrete.graph.as_graph_def()
    del concrete, y, gradient, looped, others
    gc.collect()
    assert len(compiled._BOUND) <= before
    # The same graph without its kernel: an error and not a wild pointer.
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


def test_a_layer_of_keras_is_a_function_of_tensorflow() -> None:
    dense = keras.layers.Dense(3)
    executor = TF.operator_executor(d5.NativeOperator(dense, framework="tensorflow"))
    x = tf.ones((2, 5))
    (y,), (dx,) = executor.inference_and_backprop([x], [tf.ones((2, 3))])
    kernel = dense.kernel.numpy()
    np.testing.assert_allclose(y, x.numpy() @ kernel, rtol=1e-5)  # sums of five float32 products
    np.testing.assert_allclose(dx, np.ones((2, 3)) @ kernel.T, rtol=1e-5, atol=1e-6)
    wrong = d5.NativeOperator(tf.square, framework="tensorflow", specs=lambda x: (x, x))
    with pytest.raises(OperatorError, match=r"square\.forward returned 1 outputs; allowed: 2"):
        TF.operator_executor(wrong).inference(x)
    with pytest.raises(OperatorError, match="returned str as output 0; allowed: tensors"):
        TF.operator(d5.NativeOperator(lambda x: "x", framework="tensorflow"))(x)


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
    jitted = tf.function(lambda x: BACKEND.pulled(native, [x], [tf.ones(2)])[1][0], jit_compile=True, autograph=False)
    np.testing.assert_allclose(jitted(x), [3, 12], rtol=1e-6)
    for make in (XLA.operator, XLA.operator_executor):
        with pytest.raises(Unsupported, match="CppPow is already compiled, and XLA does not compile"):
            make(CppPow(2))


@pytest.mark.parametrize("wrap", [lambda own: own, tf.function], ids=["own", "within"])
def test_functions_that_xla_compiles_refuse_compiled_operators_with_the_reason(wrap: Any) -> None:
    own, x = wrap(TF.operator(CppPow(2))), tf.constant([1.0, 2.0])
    jitted = tf.function(lambda x: own(x) + 1, jit_compile=True, autograph=False)
    with pytest.raises(Unsupported, match=r"CppPow is already compiled, .*; remedy: tf\.function without jit_compile"):
        jitted(x)
    np.testing.assert_array_equal(own(x), [1, 4])


def test_the_refusal_of_graphics_processors_names_the_operator() -> None:
    from deep5.frameworks.tensorflow.custom import route
    from deep5.frameworks.tensorflow.operator_check import refusal
    from deep5.frameworks.tensorflow.operators_custom import refuse_compiled

    with pytest.raises(Unsupported, match=r"CppPow_1 \(CppPow\): CppPow is compiled, and deep5 does not support CUDA"):
        refuse_compiled(powers("CppPow"))
    refuse_compiled(powers("PyPow"))
    with pytest.raises(Unsupported, match="does not support CUDA kernels in TensorFlow"):
        route(CppPow(2), TF, device="/GPU:0")
    assert not refusal(PyPow(2), xla=True, on_host=False)


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys; import deep5.frameworks.tensorflow.framework; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_compiled_operator_is_one_operation_of_the_graph() -> None:
    """Inside `tf.function` it is a separate node, and not a Python call."""
    native = TF.operator(CppPow(2))
    graph = tf.function(native, autograph=False).get_concrete_function(tf.TensorSpec([1])).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert not kinds & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
