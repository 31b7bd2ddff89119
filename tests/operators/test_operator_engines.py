"""Operators on NumPy, ONNX Runtime and OpenVINO: alone and as nodes, in Python and in C++, values and gradients."""

from __future__ import annotations

import itertools
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, OperatorError, ShapeError, UnknownName, Unsupported
from deep5.networks.compiled import DOMAIN as COMPILED
from deep5.networks.edit.builder import ones
from deep5.networks.engine import engine_model
from deep5.networks.gradients import gradient_network, vjp_network
from deep5.networks.onnx_operator import ONNXOperator
from deep5.networks.single import Single
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.operators.registry import registered_operators
from memory_cases import Where, addresses

DOMAIN = "test.engines"
RNG = np.random.default_rng(11)
ENGINES = ("reference", "onnxruntime", "openvino")
# Float32 and a few operations an element; float64 where an engine has it.
CLOSE = {"float32": 1e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = {name: d5.framework(name).threads for name in ENGINES[1:]}  # type: ignore[attr-defined]
    for name in before:
        d5.framework(name).set_threads(1)
    yield
    for name, threads in before.items():
        d5.framework(name).set_threads(threads)


@d5.register_operator("PyPow", domain=DOMAIN)
class PyPow(d5.Operator):
    def __init__(self, power: int = 2) -> None:
        self.power = power

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


@d5.register_operator("CppPow", domain=DOMAIN)
class CppPow(CppOperator):
    source = r"""
    template <typename T>
    struct CppPow : deep5::Operator {
      int64_t power;
      explicit CppPow(int64_t power) : power(power) {}
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        if (x.size() == 13) throw std::runtime_error("thirteen is [not] taken\nat all");
        for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], power);
        report("elements", x.size());
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i) dx[i] = T(power) * deep5::power(x[i], power - 1) * dy[i];
      }
    };"""

    def __init__(self, power: int = 2) -> None:
        super().__init__(power=int(power))

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        if len(inputs[0].shape) > 3:
            raise ShapeError(f"CppPow: got {inputs[0]}; allowed: at most three axes")
        return inputs


@d5.register_operator("CppOuter", domain=DOMAIN)
class CppOuter(CppOperator):
    """(x, y, k) -> (k x y^T, how many elements): two outputs, one of them whole, and a whole input."""

    source = r"""
    template <typename T>
    struct CppOuter : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> y, deep5::Tensor<const int64_t> k,
                   deep5::Tensor<T> z, deep5::Tensor<int64_t> n) {
        for (int64_t i = 0; i < x.size(); ++i)
          for (int64_t j = 0; j < y.size(); ++j) z(i, j) = T(k[0]) * x[i] * y[j];
        n[0] = x.size() * y.size();
      }
      void backward(deep5::Tensor<const T> dz, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<const int64_t> k, deep5::Tensor<const T> z, deep5::Tensor<const int64_t> n,
                    deep5::Tensor<T> dx, deep5::Tensor<T> dy) {
        for (int64_t i = 0; dx && i < x.size(); ++i) {
          dx[i] = 0;
          for (int64_t j = 0; j < y.size(); ++j) dx[i] += T(k[0]) * dz(i, j) * y[j];
        }
        for (int64_t j = 0; dy && j < y.size(); ++j) {
          dy[j] = 0;
          for (int64_t i = 0; i < x.size(); ++i) dy[j] += T(k[0]) * dz(i, j) * x[i];
        }
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        x, y, _ = inputs
        shape = (x.shape[0], y.shape[0])
        return d5.TensorSpec(shape=shape, dtype=x.dtype), d5.TensorSpec(shape=(), dtype="int64")


class Alias(PyPow):
    """Gives its input back, or a view of it."""

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] if self.power == 1 else inputs[0][...]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (output_grads[0],)


class Same(PyPow):
    """Gives the same array again and again."""

    def forward(self, *inputs: Any) -> Any:
        if not hasattr(self, "kept"):
            self.kept = np.ones(inputs[0].shape, inputs[0].dtype)
        return self.kept


class InPlace(PyPow):
    def forward(self, *inputs: Any) -> Any:
        inputs[0][...] = 0
        return inputs[0]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        output_grads[0][...] = 0
        return (output_grads[0],)


for made in (Alias, Same, InPlace):
    d5.register_operator(made.__name__, domain=DOMAIN)(made)


def draw(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (RNG.standard_normal(shape) + 2).astype(_dtype(dtype))


def _dtype(name: str) -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def executor(name: str, operator: d5.Operator) -> Any:
    return d5.framework(name).operator_executor(operator)


# ----------------------------------------------------------------------------------------------------------- alone


@pytest.mark.parametrize("kind", [PyPow, CppPow])
@pytest.mark.parametrize("name", ENGINES)
def test_values_and_gradients_are_those_of_the_formula(name: str, kind: Any) -> None:
    for dtype in ("float32", "float64") if name != "openvino" else ("float32",):
        made, x, g = executor(name, kind(3)), draw(4, 3, dtype=dtype), draw(4, 3, dtype=dtype)
        (alone,) = made.inference(x)
        (value,), (gradient,) = made.inference_and_backprop((x,), (g,))
        for got, want in ((alone, x**3), (value, x**3), (gradient, 3 * x**2 * g)):
            assert type(got) is np.ndarray
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=5 * CLOSE[dtype])
        assert made.settings()["framework"] == name
        made.synchronize()
        (single,) = (d5.framework(name).operator(kind(3))(x),)
        np.testing.assert_array_equal(single, alone)


@pytest.mark.parametrize("name", ["reference", "onnxruntime"])
def test_gradients_are_those_of_differences(name: str) -> None:
    """Two outputs, one of them whole, in float64: step 1e-6, central; what is left is rounding over the step."""
    made = executor(name, CppOuter())
    inputs = [draw(3, dtype="float64"), draw(2, dtype="float64"), np.array(5)]
    g = draw(3, 2, dtype="float64")
    outputs, gradients = made.inference_and_backprop(inputs, (g, None))
    np.testing.assert_allclose(outputs[0], 5 * np.outer(inputs[0], inputs[1]), rtol=1e-15)
    assert outputs[1].dtype == np.int64
    assert outputs[1] == 6
    assert gradients[2] is None
    for index in (0, 1):
        direction = RNG.standard_normal(inputs[index].shape)
        ends = []
        for sign in (1, -1):
            moved = [x + sign * 1e-6 * direction if i == index else x for i, x in enumerate(inputs)]
            ends.append(float((g * made.inference(*moved)[0]).sum()))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float((gradients[index] * direction).sum()), rel=1e-7)
    _, one = made.inference_and_backprop(inputs, (g, None), needs=(False, True, False))
    assert one[0] is None
    np.testing.assert_array_equal(one[1], gradients[1])
    _, none = made.inference_and_backprop(inputs, (g, None), needs=(False,) * 3)
    assert none == (None,) * 3


def test_openvino_runs_two_outputs_and_whole_numbers_too() -> None:
    """It holds whole numbers of 64 bits in 32; 2^31 does not fit, and is told."""
    inputs, g = [draw(3), draw(2), np.array(5)], draw(3, 2)
    made = executor("openvino", CppOuter())
    outputs, gradients = made.inference_and_backprop(inputs, (g, None))
    np.testing.assert_allclose(outputs[0], 5 * np.outer(inputs[0], inputs[1]), rtol=5e-7)
    assert outputs[1] == 6
    np.testing.assert_allclose(gradients[0], 5 * g @ inputs[1], rtol=1e-6)
    np.testing.assert_allclose(gradients[1], 5 * inputs[0] @ g, rtol=1e-6)
    whole = executor("openvino", CppPow(3))
    np.testing.assert_array_equal(whole.inference(np.arange(5))[0], np.arange(5) ** 3)
    with pytest.raises(OperatorError, match="CppPow failed: output 0 holds 2147483648; allowed: whole numbers of 32"):
        executor("openvino", CppPow(31)).inference(np.array([1, 2]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64"])
def test_element_types_of_compiled_operators(dtype: str) -> None:
    x = np.array([[1.5, 2], [3, 0.5]]).astype(_dtype(dtype))
    for name in ("reference", "onnxruntime"):
        (y,) = executor(name, CppPow(2)).inference(x)
        assert y.dtype == x.dtype
        want = x.astype("float64") ** 2
        np.testing.assert_allclose(y.astype("float64"), want, rtol=CLOSE.get(dtype, 0))
    if dtype != "int64":
        with pytest.raises(Unsupported, match="another element type; allowed: bool, float32"):
            executor("openvino", CppPow(2)).inference(x)
    with pytest.raises(ShapeError, match="a gradient is asked for by input 0, which is int64"):
        executor("onnxruntime", CppPow(2)).inference_and_backprop((np.arange(3),), (np.arange(3),), needs=(True,))


@pytest.mark.parametrize("name", ENGINES)
def test_operators_of_onnx_run_on_the_engine(name: str) -> None:
    made = executor(name, ONNXOperator("Gemm", transB=1))
    a, b, c, g = draw(3, 4), draw(5, 4), draw(5), draw(3, 5)
    outputs, gradients = made.inference_and_backprop((a, b, c), (g,))
    # Sums of five float32 products.
    np.testing.assert_allclose(outputs[0], a @ b.T + c, rtol=1e-6)
    for got, want in zip(gradients, (g @ b, g.T @ a, g.sum(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(d5.framework(name).operator(ONNXOperator("Relu"))(a - 2), np.maximum(a - 2, 0))
    loss = executor(name, ONNXOperator("SoftmaxCrossEntropyLoss"))
    with pytest.raises(OperatorError, match="got the label 7; allowed: 0 to 3"):
        loss.inference(a, np.array([0, 7, 1]))
    with pytest.raises((ShapeError, NetworkError, OperatorError)):
        made.inference(a, c, c)
    with pytest.raises(Unsupported, match="no output is a floating-point number"):
        executor(name, ONNXOperator("Shape")).inference_and_backprop((a,), (None,))


@pytest.mark.parametrize("name", ENGINES)
def test_what_the_engine_runs_is_no_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own methods are called by the reference alone; elsewhere the code was written down in ONNX."""
    operator, x, calls = PyPow(2), draw(3), []
    made = executor(name, operator)
    made.inference_and_backprop((x,), (x,))
    made.inference(x)
    right = operator.forward
    monkeypatch.setattr(operator, "forward", lambda *inputs: (calls.append(1), right(*inputs))[1])
    if name == "reference":
        made = executor(name, operator)
    made.inference(x)
    assert len(calls) == (name == "reference")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("rows", [3, 4000])
def test_outputs_that_are_held_stay_as_they_are(name: str, rows: int) -> None:
    """In any number, through views and what else needs no copy; what an earlier caller did to his own is his alone."""
    made, x = executor(name, CppPow(2)), draw(rows, 50)
    held = [made.inference(x + number)[0] for number in range(5)]
    wanted = [value.copy() for value in held]
    for number, value in enumerate(wanted):
        np.testing.assert_allclose(value, (x + number) ** 2, rtol=1e-6)
    torch = pytest.importorskip("torch")
    others = [torch.from_numpy(held[0])[1:], memoryview(held[1]), held[2].T[::-1], np.from_dlpack(held[3])]
    held[4].shape = (50, rows)
    held[4][...] = wanted[4] = np.float32(7)
    last = held[4]
    del held, value
    for number in range(5):
        again = made.inference(x - number)[0]
        assert again.shape == (rows, 50)
        assert again.flags.writeable
        assert again.flags.c_contiguous
        np.testing.assert_allclose(again, (x - number) ** 2, rtol=1e-6)
        again[...] = 0
        np.testing.assert_array_equal(others[0], wanted[0][1:])
        np.testing.assert_array_equal(others[1], wanted[1])
        np.testing.assert_array_equal(others[2], wanted[2].T[::-1])
        np.testing.assert_array_equal(others[3], wanted[3])
        assert (last == 7).all()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_memory_of_outputs_that_nobody_holds_is_written_to_again(name: str) -> None:
    made, x = executor(name, CppPow(2)), draw(4000, 50)
    places = {made.inference(x)[0].ctypes.data for _ in range(6)}
    assert len(places) == 1
    for _ in range(6):
        y = made.inference(x)[0]  # the one before is held while this one is computed
        places.add(y.ctypes.data)
    assert len(places) == 2
    kept = [made.inference(x)[0] for _ in range(6)]
    assert len({value.ctypes.data for value in kept}) == 6


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_inputs_are_read_where_they_lie_however_they_come(name: str) -> None:
    """The same array again with other content, others in turn, other strides, read-only ones, outputs as inputs."""
    for rows in (3, 4000):  # ONNX Runtime copies small inputs that do not come twice in a row
        made, one, other = executor(name, CppPow(2)), draw(rows, 50), draw(rows, 50)
        strided, fixed = draw(50, rows).T, draw(rows, 50)
        fixed.flags.writeable = False
        for x in (one, one, one, other, one, other, other, strided, strided, one, fixed, fixed, one, one):
            if x.flags.writeable:
                x[...] = draw(rows, 50)
            np.testing.assert_allclose(made.inference(x)[0], x * x, rtol=1e-6)
        right = y = one / 8
        for _ in range(3):
            y, right = made.inference(y)[0], right * right
            np.testing.assert_allclose(y, right, rtol=1e-5)
        square = draw(60, 60)
        made.inference(square)
        made.inference(square)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy asks for views instead
            square.strides = square.strides[::-1]
        np.testing.assert_allclose(made.inference(square)[0], square * square, rtol=1e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_an_operator_in_cpp_is_given_the_memory_of_the_engine(name: str) -> None:
    made = executor(name, Where())
    for elements in (3, 5000):
        x = np.ones(elements, np.float32)
        made.inference(x)  # ONNX Runtime copies small arrays that do not come twice in a row, and small outputs
        (places,) = made.inference(x)
        written = made._last._copies[0][1] if name == "onnxruntime" else places
        assert addresses(places) == [x.ctypes.data, written.ctypes.data]


def test_strided_misaligned_and_foreign_input() -> None:
    base = draw(8, 6)
    raw = np.zeros(4 * 4 + 1, np.uint8)[1:].view(np.float32)
    raw[...] = [1, 2, 3, 4]
    for name in ENGINES:
        made = executor(name, CppPow(2))
        for x in (base[::2], base.T, base[:, ::-1], np.asfortranarray(base), raw, np.asarray(draw())):
            np.testing.assert_allclose(made.inference(x)[0], x * x, rtol=5e-7)
        arrays = made.arrays(base.T, raw, [1.0, 2.0], base.astype(">f4"))
        assert all(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative for a in arrays)
        with pytest.raises(ShapeError, match="byte order"):
            made.inference(base.astype(">f4"))
        with pytest.raises(ShapeError, match="got list as input 0"):
            made.inference([1.0])
        with pytest.raises(ShapeError, match="value 0"):
            made.arrays("no array")


def test_an_empty_tensor() -> None:
    for name in ("reference", "onnxruntime"):
        made, x = executor(name, CppPow(2)), np.zeros((0, 3), np.float32)
        assert made.inference(x)[0].shape == (0, 3)
        assert made.inference_and_backprop((x,), (x,))[1][0].shape == (0, 3)


# ------------------------------------------------------------------------------------------------- broken contracts


@pytest.mark.parametrize("name", ENGINES)
def test_what_a_compiled_operator_throws_arrives(name: str) -> None:
    made = executor(name, CppPow(2))
    for call in (
        lambda: made.inference(draw(13)),
        lambda: made.inference_and_backprop((draw(13),), (draw(13),)),
        lambda: made.inference(draw(13)),
    ):
        with pytest.raises(OperatorError, match=r"CppPow failed: thirteen is \[not\] taken\nat all"):
            call()
    x = draw(12)
    np.testing.assert_allclose(made.inference(x)[0], x * x, rtol=5e-7)
    with pytest.raises(ShapeError, match="allowed: at most three axes"):
        made.inference(draw(1, 1, 1, 1))
    with pytest.raises(ShapeError):
        made.inference(draw(2), draw(2))


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_asked_for_is_held_to_shapes(name: str) -> None:
    made, x = executor(name, CppPow(2)), draw(4)
    for grads, match in (
        ((), "got 0 output_grads; allowed: one an output, 1"),
        ((None,), "the gradient by output 0: got no array of the framework's, expected float32"),
        ((draw(3),), r"gradient by output 0: got float32\[3\], expected float32\[4\]"),
        ((draw(4, dtype="float64"),), r"got float64\[4\], expected float32\[4\]"),
    ):
        with pytest.raises(ShapeError, match=match):
            made.inference_and_backprop((x,), grads)
    with pytest.raises(ShapeError, match="got 2 needs; allowed: one an input, 1"):
        made.inference_and_backprop((x,), (x,), needs=(True, False))
    with pytest.raises(Unsupported, match="allowed: cpu"):
        d5.framework(name).operator_executor(CppPow(2), device="cuda:7")


def test_numpy_holds_operators_to_their_contract() -> None:
    x = np.ones(3)

    class Broken(PyPow):
        def __init__(self, forward: Any, backward: Any = None) -> None:
            super().__init__(2)
            self.gives, self.pulls = forward, backward

        def forward(self, *inputs: Any) -> Any:
            return self.gives(inputs[0])

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return self.pulls(inputs[0])

    for wrong, match in (
        (lambda x: (x, x), "returned 2 outputs; allowed: 1"),
        (lambda x: x[:2], r"output 0: got shape \(2,\), expected float64\[3\]"),
        (lambda x: x.astype("float32"), "output 0: got dtype float32, expected float64"),
        (lambda x: None, "returned None as output 0"),
        (lambda x: 1 // 0, "forward raised ZeroDivisionError"),
    ):
        for run in (NUMPY.operator(Broken(wrong)), executor("reference", Broken(wrong)).inference):
            with pytest.raises(OperatorError, match=match):
                run(x)
    for wrong, match in (
        (lambda x: (), "returned 0 gradients; allowed: one an input, 1"),
        (lambda x: (x[:2],), r"gradient by input 0: got float64\[2\]"),
        (lambda x: (None,), "returned None as the gradient by input 0"),
        (lambda x: 1 // 0, "backward raised ZeroDivisionError"),
    ):
        with pytest.raises(OperatorError, match=match):
            executor("reference", Broken(lambda x: x * x, wrong)).inference_and_backprop((x,), (x,))

    class One(PyPow):
        def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
            return (x,)

    with pytest.raises(ShapeError, match="got 2 inputs; allowed"):
        NUMPY.operator(One())(x, x)


def test_an_input_that_is_written_to_is_no_longer_silent() -> None:
    x = np.ones(3)
    for run in (NUMPY.operator(InPlace()), executor("reference", InPlace()).inference):
        with pytest.raises(OperatorError, match=r"(?s)InPlace\.forward raised ValueError: .*read-only.*a new array"):
            run(x)
    np.testing.assert_array_equal(x, 1)
    x[0] = 2  # the caller may still write
    grads = np.ones(3)

    class OnlyBackward(InPlace):
        def forward(self, *inputs: Any) -> Any:
            return inputs[0] * 1

    with pytest.raises(OperatorError, match=r"OnlyBackward\.backward raised ValueError: .*read-only"):
        executor("reference", OnlyBackward()).inference_and_backprop((x,), (grads,))
    np.testing.assert_array_equal(grads, 1)


NUMPY = d5.framework("reference")


def test_native_operators() -> None:
    native = NativeOperator(np.clip, framework="reference", a_min=0.0, a_max=1.0)
    x = np.array([-1.0, 0.5, 2.0])
    np.testing.assert_array_equal(NUMPY.operator(native)(x), [0, 0.5, 1])
    np.testing.assert_array_equal(executor("reference", native).inference(x)[0], [0, 0.5, 1])
    with pytest.raises(Unsupported, match="NumPy does not differentiate"):
        executor("reference", native).inference_and_backprop((x,), (x,))
    said = NativeOperator(np.cumsum, framework="reference", specs=lambda x: (d5.TensorSpec(shape=(9,)),))
    with pytest.raises(OperatorError, match="expected float32"):
        NUMPY.operator(said)(x)
    for name in ENGINES:
        with pytest.raises(Unsupported, match=r"function of torch|function of pytorch"):
            executor(name, NativeOperator(len, framework="pytorch"))
    for name in ENGINES[1:]:
        with pytest.raises(Unsupported, match="runs networks alone"):
            executor(name, native)


# ------------------------------------------------------------------------------------------------------- in networks


def network(node: str, *, rows: int | str = "N", dtype: str = "float32") -> d5.Network:
    """A squared layer between two others; `node` is the operator that squares, or `Mul`."""
    build = d5.NetworkBuilder("squared", dtype=dtype, seed=3)
    x, w = build.input("x", (rows, 4)), build.parameter("w", (4, 3))
    h = build.op("MatMul", x, w)
    h = build.op("Mul", h, h) if node == "Mul" else build.op(node, h, domain=DOMAIN, power=2)
    h = build.op("MatMul", h, build.parameter("v", (3, 2)))
    return build.network({"h": h, "loss": build.op("ReduceMean", build.op("Mul", h, h), keepdims=0)})


@pytest.mark.parametrize("node", ["PyPow", "CppPow"])
@pytest.mark.parametrize("name", ENGINES)
def test_training_is_that_of_a_network_of_native_nodes(name: str, node: str) -> None:
    """Three steps, with batches of several sizes; only the order of float32 roundings may differ."""
    states = []
    for kind in ("Mul", node):
        made = d5.framework(name).executor(network(kind))
        step = made.train_step(d5.Momentum(lr=0.02, momentum=0.9))
        for index in range(3):
            batch = np.random.default_rng(index).standard_normal((5 - index, 4)).astype("float32")
            step({"x": batch}, d5.StepInfo(step=index, batch_size=5 - index))
        states.append((made.state_dict(), made.inference({"x": batch})))
    for native, own in zip(*states, strict=True):
        for key, value in native.items():
            np.testing.assert_allclose(own[key], value, rtol=2e-5, atol=1e-6)
    assert not np.allclose(states[0][0]["w"], network("Mul").initial("w"), atol=1e-3)  # it did train


def test_a_wrong_backward_would_be_seen() -> None:
    class Wrong(PyPow):
        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (inputs[0] * output_grads[0],)

    d5.register_operator("Wrong", domain=DOMAIN)(Wrong)
    found = []
    for name in ("Mul", "Wrong"):
        made = NUMPY.executor(network(name))
        made.inference_and_backprop({"x": np.ones((2, 4), "float32")})
        found.append(made.gradients()["w"])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(*found, rtol=1e-3)


@pytest.mark.parametrize("kind", ["Alias", "Same"])
def test_memory_that_an_operator_shares_is_not_written_to(kind: str) -> None:
    """Relu and Add would otherwise write where their inputs lie, which the operator gave twice or others read."""
    for power in (1, 2):
        build = d5.NetworkBuilder("shared")
        x = build.input("x", ("N",))
        fresh = build.op("Add", x, x)
        alias = build.op(kind, fresh, domain=DOMAIN, power=power)
        negative = build.op("Neg", alias)
        changed = build.op("Exp", build.op("Neg", fresh))
        hidden = build.op("Neg", build.op(kind, build.op("Mul", x, x), domain=DOMAIN, power=power))
        made = NUMPY.executor(
            build.network(
                {"alias": alias, "twice": build.op("Identity", alias), "n": negative, "c": changed, "h": hidden}
            )
        )
        value = np.array([1.0, -2.0], np.float32)
        want = np.ones(2) if kind == "Same" else 2 * value
        for _ in range(2):
            found = made.inference({"x": value})
            np.testing.assert_array_equal(found["alias"], want)
            np.testing.assert_array_equal(found["twice"], want)
            np.testing.assert_array_equal(found["n"], -want)
            np.testing.assert_array_equal(found["h"], -np.ones(2) if kind == "Same" else -(value**2))
            np.testing.assert_allclose(found["c"], np.exp(-2 * value), rtol=1e-6)
            for one in found.values():
                one[...] = 77  # what was given out is the caller's
        np.testing.assert_array_equal(value, [1, -2])


def test_an_operator_in_a_network_that_writes_to_its_input_is_told() -> None:
    build = d5.NetworkBuilder("written")
    y = build.op("InPlace", build.op("Add", build.input("x", ("N",)), build.parameter("w", (1,), ones)), domain=DOMAIN)
    made = NUMPY.executor(build.network({"loss": build.op("ReduceSum", y, keepdims=0)}))
    with pytest.raises(OperatorError, match=r"InPlace\.forward raised ValueError"):
        made.inference({"x": np.ones(2, np.float32)})


def test_onnx_runtime_runs_a_custom_operator_of_its_own(tmp_path: Path) -> None:
    """The session's model has the node in deep5's domain, and ONNX Runtime's own profile shows that it ran there."""
    import onnxruntime

    from deep5.frameworks.onnxruntime.custom import register_shim, with_kernels

    suited, kernels = with_kernels(network("CppPow"), d5.CPUDevice())
    model = onnx.ModelProto.FromString(engine_model(suited))
    (node,) = [node for node in model.graph.node if node.domain == COMPILED]
    assert node.op_type == "deep5_1_to_1"
    assert [attribute.i for attribute in node.attribute] == [kernels["CppPow_1"].pointer]
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    register_shim(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": np.ones((2, 4), "float32"), "w": np.ones((4, 3), "float32"), "v": np.ones((3, 2), "float32")}
    np.testing.assert_array_equal(session.run(["h"], feed)[0], np.full((2, 2), 48))
    events = json.loads(Path(session.end_profiling()).read_text())
    assert any(event["name"] == "CppPow_1_kernel_time" for event in events)
    # Without the library nobody knows the node: it is no operator of ONNX Runtime's.
    with pytest.raises(Exception, match=COMPILED):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ENGINES)
def test_a_network_tells_what_its_operator_throws(name: str) -> None:
    build = d5.NetworkBuilder("throws")
    y = build.op("CppPow", build.op("Neg", build.input("x", ("N",))), domain=DOMAIN, power=2)
    made = d5.framework(name).executor(build.network({"y": build.op("Neg", y)}))
    x = np.arange(13, dtype=np.float32)
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"thirteen is \[not\] taken\nat all"):
            made.inference({"x": x})
    np.testing.assert_array_equal(made.inference({"x": x[:4]})["y"], -(x[:4] ** 2))


@pytest.mark.parametrize("name", ENGINES)
def test_an_operator_of_a_parameter_and_of_a_number(name: str) -> None:
    """A parameter that nobody writes to may be a constant of the session, and changes all the same when it is set."""
    build = d5.NetworkBuilder("numbers")
    x, w = build.input("x", ("N", 2)), build.parameter("w", (2, 2))
    y = build.op("MatMul", x, build.op("CppPow", w, domain=DOMAIN, power=3))
    mean = build.op("CppPow", build.op("ReduceMean", y, keepdims=0), domain=DOMAIN, power=2)
    made = d5.framework(name).executor(build.network({"y": y, "loss": mean}))
    value = np.ones((1, 2), "float32")
    for factor in (1, 2, 3):
        weight = factor * np.array([[1, 2], [3, 4]], "float32")
        made.load_state_dict({"w": weight})
        for _ in range(2):
            found = made.inference({"x": value})
            want = (weight**3).sum(0, keepdims=True)
            np.testing.assert_allclose(found["y"], want, rtol=1e-6)
            np.testing.assert_allclose(found["loss"], want.mean() ** 2, rtol=1e-6)
    made.inference_and_backprop({"x": value})
    # d/dw of the square of the mean of w^3, summed over rows.
    np.testing.assert_allclose(made.gradients()["w"], 3 * weight**2 * want.mean(), rtol=2e-6)


def test_onnx_runtime_refuses_compiled_operators_on_other_devices() -> None:
    from deep5.frameworks.onnxruntime.custom import with_kernels

    with pytest.raises(Unsupported, match="on the host alone; got the device cuda:0 and CppPow; allowed: cpu"):
        with_kernels(network("CppPow"), d5.GPUDevice())


@pytest.mark.parametrize("name", ENGINES[1:])
def test_two_programs_in_two_threads(name: str) -> None:
    """Each has kernels of its own, of other attributes; sessions are made and run at the same time."""
    errors: list[BaseException] = []

    def work(power: int) -> None:
        try:
            for size in range(1, 6):
                made = executor(name, CppPow(power))
                x = np.full(size + 20 * power, 2.0, np.float32)
                for _ in range(20):
                    np.testing.assert_array_equal(made.inference(x)[0], 2.0**power)
                with pytest.raises(OperatorError, match="thirteen"):
                    made.inference(np.ones(13, np.float32))
        except BaseException as error:  # a thread has nobody to raise it to
            errors.append(error)

    threads = [threading.Thread(target=work, args=(power,)) for power in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_one_executor_from_many_threads_reports_right() -> None:
    operator = CppPow(2)
    made = executor("onnxruntime", operator)
    made.inference(np.ones(4, np.float32))
    operator.report()
    made.inference(np.ones(4, np.float32))
    assert operator.report() == {"elements": 4.0}  # it ran once, there and nowhere else


@pytest.mark.parametrize("name", ENGINES[1:])
def test_programs_that_are_thrown_away_take_their_kernels_along(name: str) -> None:
    import gc
    import weakref

    made = d5.framework(name).executor(network("CppPow"))
    made.inference({"x": np.ones((1, 4), "float32")})
    (kernel,) = made._programs[("forward", False)].run._kernels.values()
    seen = weakref.ref(kernel)
    del kernel
    made.discard_programs()
    gc.collect()
    assert seen() is None
    np.testing.assert_allclose(made.inference({"x": np.ones((2, 4), "float32")})["h"].shape, (2, 2))


def test_what_cannot_run_is_refused_with_the_reason() -> None:
    class NoBackward(CppPow):
        source = CppPow.source.replace("backward", "no_such").replace("struct CppPow", "struct NoBackward")
        source = source.replace("explicit CppPow", "explicit NoBackward")

    class Torn(CppPow):
        source = "\n this is no C++ \n"

    for made in (NoBackward, Torn):
        d5.register_operator(made.__name__, domain=DOMAIN)(made)
    x = np.ones((2, 4), "float32")
    for name in ENGINES:
        framework = d5.framework(name)
        forward = framework.executor(network("NoBackward"))
        assert np.isfinite(forward.inference({"x": x})["loss"])
        with pytest.raises(Unsupported, match="NoBackward has no backward in C"):
            forward.inference_and_backprop({"x": x})
        with pytest.raises(OperatorError, match=r"(?s)refused the operator Torn for float32.*error"):
            framework.executor(network("Torn")).inference({"x": x})
        with pytest.raises(Unsupported, match="has no backward in C"):
            executor(name, NoBackward(2)).inference_and_backprop((x,), (x,))
    (node,) = [node for node in network("PyPow").nodes if node.domain]
    for name in ENGINES[1:]:
        answer = d5.framework(name).supports(node)
        assert not answer
        assert "PyPow is written in Python" in answer.reason
    assert NUMPY.supports(node)


# ------------------------------------------------------------------------------------------------ behind the scenes


def test_a_vector_jacobian_product_is_that_of_the_formula() -> None:
    build = d5.NetworkBuilder("product", dtype="float64")
    x, w = build.input("x", ("N", 3)), build.parameter("w", (3, 2))
    h = build.op("MatMul", x, w)
    made = vjp_network(
        build.network({"h": h, "square": build.op("Mul", h, h), "count": build.op("Shape", h)}), ["w", "x"]
    )
    assert list(made.inputs) == ["x", "seed:h", "seed:square"]
    assert list(made.outputs) == ["h", "square", "count", "grad:w", "grad:x"]
    assert str(made.inputs["seed:h"]) == "float64[N, 2]"
    runs = NUMPY.executor(made)
    x_, u, v = (RNG.standard_normal(shape) for shape in ((5, 3), (5, 2), (5, 2)))
    found = runs.inference({"x": x_, "seed:h": u, "seed:square": v})
    weight = made.initial("w")
    by_h = u + 2 * (x_ @ weight) * v
    # Float64 sums of a handful of terms.
    np.testing.assert_allclose(found["grad:w"], x_.T @ by_h, rtol=1e-12)
    np.testing.assert_allclose(found["grad:x"], by_h @ weight.T, rtol=1e-12)
    np.testing.assert_allclose(found["square"], (x_ @ weight) ** 2, rtol=1e-12)


def test_a_seed_alone_is_the_gradient_of_a_network_of_one_loss() -> None:
    plain = network("Mul", dtype="float64")
    one, other = gradient_network(plain, wrt=["w"]), vjp_network(plain, ["w"])
    x = RNG.standard_normal((3, 4))
    want = NUMPY.executor(one).inference({"x": x, "loss_scale": np.array(2.0)})["grad:w"]
    seeds = {"seed:h": np.zeros((3, 2)), "seed:loss": np.array(2.0)}
    np.testing.assert_allclose(NUMPY.executor(other).inference({"x": x, **seeds})["grad:w"], want, rtol=1e-13)
    with pytest.raises(UnknownName, match="parameter or input"):
        vjp_network(plain, ["nothing"])
    build = d5.NetworkBuilder("whole")
    with pytest.raises(NetworkError, match=r"nothing to differentiate: got the outputs y int64\[2\]"):
        vjp_network(build.network({"y": build.op("Shape", build.input("x", ("N", 2)))}), ["x"])


def test_a_network_of_one_given_operator() -> None:
    """The node stands for the very object, and nothing is left of it when its user has gone."""
    operator, before = PyPow(5), dict(registered_operators())
    single = Single(operator)
    (node,) = single.network([d5.TensorSpec(shape=(2,))]).nodes
    from deep5.networks.custom import operator_of

    assert operator_of(node) is operator
    assert len(registered_operators()) == len(before) + 1
    del single
    assert registered_operators() == before


@pytest.mark.parametrize("title", ["my op 3x3", "3x3", "größe", "a.b/c"])
@pytest.mark.parametrize("name", ENGINES)
def test_an_operator_may_be_called_anything(name: str, title: str) -> None:
    operator, x = PyPow(2), draw(3)
    operator.title = title
    np.testing.assert_array_equal(executor(name, operator).inference(x)[0], executor(name, PyPow(2)).inference(x)[0])


def test_discarding_programs_keeps_results() -> None:
    for name in ENGINES[1:]:
        made, x = executor(name, CppPow(2)), draw(3)
        first = made.inference(x)[0]
        d5.framework(name).set_threads(2)
        np.testing.assert_array_equal(made.inference(x)[0], first)
        assert made.settings()["threads"] == 2


def test_a_call_on_numpy_converts_nothing_and_a_session_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator gets the caller's own array, and a second call of an executor finds its session and its binding."""
    x, seen = np.ones(1, np.float32), []

    class Looks(PyPow):
        def forward(self, *inputs: Any) -> Any:
            seen.append(inputs[0])
            return super().forward(*inputs)

    NUMPY.operator(Looks(2))(x)
    assert np.shares_memory(seen[0], x)
    for operator, inputs in ((CppPow(2), (x,)), (ONNXOperator("Mul"), (x, x))):
        made = executor("onnxruntime", operator)
        made.inference(*inputs)
        program = made._last
        made.inference(*inputs)
        assert made._last is program


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("order", list(itertools.permutations(["unknown", "small", "large"])))
def test_outputs_of_all_sizes_come_in_the_order_of_the_network(name: str, order: tuple[str, ...]) -> None:
    """Small ones are copied, large ones lent, and of those of unknown shape the memory is the engine's."""
    for rows in (200, "rows"):
        build = d5.NetworkBuilder("mixed")
        x = build.input("x", (rows, 40), "float32")
        made = {"unknown": build.op("NonZero", x), "small": build.op("ReduceSum", x, keepdims=0)}
        made["large"] = build.op("Add", x, x)
        network = build.network({key: made[key] for key in order})
        executor = d5.framework(name).executor(network)
        held = []
        for count in (200, 200, 200, 200) if rows == 200 else (200, 300, 200, 1):
            values = draw(count, 40)
            held.append((values, executor.inference({"x": values})))
        for values, found in held:
            assert tuple(found) == order
            np.testing.assert_array_equal(found["unknown"], np.nonzero(values))
            np.testing.assert_array_equal(found["large"], values + values)
            # Eight thousand terms of float32.
            np.testing.assert_allclose(found["small"], values.sum(dtype=np.float64), atol=1e-2)


@pytest.mark.parametrize("name", ENGINES)
def test_a_network_reads_an_array_whose_shape_was_changed(name: str) -> None:
    build = d5.NetworkBuilder("double")
    x = build.input("x", ("B", "T"), "float32")
    executor = d5.framework(name).executor(build.network({"y": build.op("Add", x, x)}))
    values = draw(2, 6)
    for shape in ((2, 6), (2, 6), (3, 4), (3, 4), (2, 6)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy asks for views instead
            values.shape = shape
        found = executor.inference({"x": values})["y"]
        np.testing.assert_array_equal(found, values + values)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("rows", [3, 4000])
def test_an_interrupt_while_inputs_are_bound_leaves_no_mixture(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = executor(name, ONNXOperator("Sub"))
    one, two, three, four = (draw(rows, 50) for _ in range(4))
    for _ in range(3):
        made.inference(one, two)
    program = made._last
    method = "_bind_input" if name == "onnxruntime" else "_share"
    bind, calls = getattr(program, method), []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return bind(*given)

    monkeypatch.setattr(program, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.inference(three, four)
    for x, y in ((one, two), (one, two), (three, two), (three, four)):
        np.testing.assert_array_equal(made.inference(x, y)[0], x - y)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_what_is_no_array_is_refused_at_every_call(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    made, x = executor(name, CppPow(2)), draw(4000, 50)
    made.inference(x)
    with pytest.raises(ShapeError, match="allowed: "):
        made.inference(jnp.asarray(x))


@pytest.mark.gpu
def test_a_device_reads_what_an_input_holds_by_now() -> None:
    made = d5.framework("onnxruntime").operator_executor(ONNXOperator("Add"), device="cuda")
    for rows in (3, 4000):
        x = draw(rows, 50)
        for _ in range(4):
            x[...] = draw(rows, 50)
            np.testing.assert_array_equal(made.inference(x, x)[0], x + x)
