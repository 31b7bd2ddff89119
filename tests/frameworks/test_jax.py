"""The JAX back-end: every operator, the compiled step, what stays on the device, and networks written in JAX."""

from __future__ import annotations

import os

os.environ.setdefault("PJRT_NPROC", "1")  # JAX fixes its threads when it starts, once a process

import functools
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import operator as operators
from deep5.core import plugins
from deep5.core.errors import NetworkError, OperatorError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec, aligned_empty
from deep5.networks import NetworkBuilder, lenet, mlp, resnet
from deep5.networks.check import check_executor
from deep5.networks.edit.builder import ones, zeros
from deep5.networks.masks import dropout_mask
from deep5.networks.native import NativeNetwork
from jax_cases import ELSEWHERE, FURTHER, Case, Draw, fed, ints, positive, trained
from poison import poisoned

jax = pytest.importorskip("jax")
jnp = jax.numpy


def executor_of(network: d5.Network, **keywords: Any) -> Any:
    return d5.framework("jax").executor(network, **keywords)


def reference_of(network: d5.Network) -> Any:
    return d5.framework("reference").executor(network)


def arrays(values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(d5.to_numpy(value)) for name, value in values.items()}


def batch_of(network: d5.Network, size: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    draw, found = generator(seed, "test_jax"), {}
    for name, spec in network.inputs.items():
        shape = tuple(size if isinstance(extent, str) else extent for extent in spec.shape)
        whole = spec.dtype.startswith("int")
        found[name] = (draw.integers(0, 3, shape) if whole else draw.standard_normal(shape)).astype(spec.dtype)
    return found


def test_conformance() -> None:
    check_executor("jax")


# ---------------------------------------------------------------------------------------------------------- operators


TRUE = np.array([[True, False, True], [False, True, True]])
WHOLE = np.array([[7, -7, 5], [-3, 2, -1]])
LABELS = ints(0, 3, 1, 2, 3)
PIXELS = np.array([[[0, 1, 2], [3, 1, 0]], [[2, 2, 1], [0, 3, 3]]])
X, IMAGE = (2, 3), (2, 3, 6, 7)

SHEETS: dict[str, list[Case]] = {
    "element by element": [
        *[
            (name, (fed(*X),), {})
            for name in (
                *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Identity", "IsNaN", "Neg", "Relu"),
                *("Round", "Sigmoid", "Sign", "Sin", "Softplus", "Tanh", "Elu", "HardSigmoid", "LeakyRelu", "Gelu"),
            )
        ],
        *[(name, (positive(*X),), {}) for name in ("Log", "Reciprocal", "Sqrt")],
        *[(name, (fed(*X), fed(3)), {}) for name in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "Less")],
        *[(name, (fed(*X), fed(2, 1)), {}) for name in ("GreaterOrEqual", "LessOrEqual")],
        *[(name, (TRUE, ~TRUE[::-1]), {}) for name in ("And", "Or", "Xor")],
        ("Not", (TRUE,), {}),
        ("Div", (fed(*X), positive(3)), {}),
        ("Div", (WHOLE, ints(2, 2, 3)), {}),
        ("Pow", (positive(*X), fed(*X)), {}),
        ("Pow", (fed(*X), ints(2)), {}),
        ("Mod", (WHOLE, ints(4, 3, -2)), {}),
        ("Mod", (WHOLE, ints(4, 3, -2)), {"fmod": 1}),
        ("Mod", (fed(*X), positive(3)), {"fmod": 1}),
        ("Max", (fed(*X), fed(*X), fed(3)), {}),
        ("Min", (fed(*X),), {}),
        ("Sum", (fed(*X), fed(*X), fed(3)), {}),
        ("Where", (TRUE, fed(*X), fed(3)), {}),
        ("Elu", (fed(*X),), {"alpha": 0.3}),
        ("LeakyRelu", (fed(*X),), {"alpha": 0.2}),
        ("HardSigmoid", (fed(*X),), {"alpha": 0.7, "beta": 0.4}),
        ("Gelu", (fed(*X),), {"approximate": "tanh"}),
        ("Clip", (fed(*X), -0.5, 0.75), {}),
        ("Clip", (fed(*X), None, 0.75), {}),
        ("Clip", (fed(*X),), {}),
        ("Cast", (fed(*X),), {"to": 7}),
        ("Cast", (WHOLE,), {"to": 1}),
        ("Softmax", (fed(2, 3, 4),), {"axis": 1}),
        ("LogSoftmax", (fed(2, 3, 4),), {}),
        *[
            (name, (fed(2, 3, 4), *axes), {"keepdims": keep})
            for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
            for axes, keep in (((ints(0, -1),), 1), ((ints(1),), 0), ((), 0))
        ],
        ("ReduceSum", (fed(*X),), {"noop_with_empty_axes": 1}),
        ("ReduceSum", (WHOLE, ints(1)), {}),
        ("ArgMax", (fed(2, 3, 4),), {"axis": 1}),
        ("ArgMin", (fed(2, 3, 4),), {"axis": -1, "keepdims": 0}),
    ],
    "shapes": [
        ("Transpose", (fed(2, 3, 4),), {}),
        ("Transpose", (fed(2, 3, 4),), {"perm": [1, 2, 0]}),
        ("Concat", (fed(2, 3), fed(2, 1), trained(2, 2)), {"axis": -1}),
        ("Split", (fed(2, 7),), {"axis": 1, "num_outputs": 3, "outputs": 3}),
        ("Split", (fed(5, 2), ints(1, 4)), {"outputs": 2}),
        ("Flatten", (fed(2, 3, 4),), {"axis": 2}),
        ("Flatten", (fed(2, 3, 4),), {"axis": 0}),
        ("Flatten", (fed(2, 3, 4),), {"axis": -1}),
        ("Reshape", (fed(2, 3, 4), ints(0, -1, 2)), {}),
        ("Squeeze", (fed(1, 3, 1), ints(-1)), {}),
        ("Squeeze", (fed(1, 3, 1),), {}),
        ("Unsqueeze", (fed(2, 3), ints(0, -1)), {}),
        ("Expand", (fed(3, 1), ints(2, 1, 4)), {}),
        ("Tile", (fed(2, 3), ints(2, 1)), {}),
        ("Shape", (fed(2, 3, 4),), {"start": 1}),
        ("ConstantOfShape", (ints(2, 3),), {}),
        ("Slice", (fed(5, 6), ints(1, -1), ints(4, -6), ints(0, 1), ints(1, -2)), {}),
        ("Slice", (fed(5, 6), ints(1), ints(1000)), {}),
        ("Pad", (fed(2, 3), ints(1, 0, 2, 1), 0.5), {}),
        ("Pad", (fed(2, 3), ints(1, 2), None, ints(1)), {}),
        *[("Pad", (fed(4, 5), ints(1, 2, 0, 1)), {"mode": mode}) for mode in ("edge", "reflect", "wrap")],
        ("Gather", (trained(5, 3), ints(4, 0, -1, 0)), {}),
        ("Gather", (fed(2, 5), np.array([[1, 3]])), {"axis": 1}),
        ("Gather", (fed(2, 5), np.array(-2)), {"axis": 1}),
    ],
    "layers": [
        ("MatMul", (fed(2, 3, 4), trained(4, 5)), {}),
        ("MatMul", (fed(4), fed(2, 4, 3)), {}),
        ("Gemm", (fed(2, 3), trained(4, 3), trained(4)), {"transB": 1}),
        ("Gemm", (fed(3, 2), trained(3, 4), trained(2, 1)), {"transA": 1, "alpha": 0.5, "beta": 0.25}),
        ("Gemm", (fed(2, 3), trained(3, 4)), {"alpha": 2.0}),
        ("Conv", (fed(*IMAGE), trained(4, 3, 3, 2), trained(4)), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ("Conv", (fed(*IMAGE), trained(4, 3, 2, 2)), {"dilations": [2, 3]}),
        ("Conv", (fed(2, 4, 5, 5), trained(6, 2, 3, 3), trained(6)), {"group": 2, "pads": [1] * 4}),
        ("Conv", (fed(2, 4, 5, 5), trained(8, 1, 3, 3)), {"group": 4}),
        ("Conv", (fed(*IMAGE), trained(2, 3, 3, 2)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("Conv", (fed(*IMAGE), trained(2, 3, 2, 4)), {"auto_pad": "SAME_LOWER"}),
        ("Conv", (fed(*IMAGE), fed(2, 3, 3, 3)), {"auto_pad": "VALID"}),
        ("Conv", (fed(2, 3, 8), trained(4, 3, 3), trained(4)), {"pads": [2, 0]}),
        ("Conv", (fed(1, 2, 4, 5, 4), trained(3, 2, 2, 3, 2)), {"strides": [1, 2, 1]}),
        ("GlobalAveragePool", (fed(*IMAGE),), {}),
        ("GlobalMaxPool", (fed(*IMAGE),), {}),
        # As many samples as channels: onnx 1.23's own evaluator normalises no more channels than there are samples.
        ("LRN", (fed(4, 4, 2, 3),), {"size": 2, "alpha": 0.25, "beta": 0.5, "bias": 1.5}),
        ("LRN", (fed(3, 3, 2, 3),), {"size": 4}),
        ("LayerNormalization", (fed(2, 3, 4), trained(4), trained(4)), {}),
        ("LayerNormalization", (fed(2, 3, 4), trained(3, 4)), {"axis": 1, "epsilon": 0.1}),
    ],
    "pooling": [
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [2, 3], "dilations": [2, 2]}),
        ("AveragePool", (fed(2, 3, 8),), {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [3, 2], "pads": [0, 0, 1, 1]}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "dilations": [3, 2]}),
        ("MaxPool", (fed(1, 2, 4, 5, 4),), {"kernel_shape": [2, 3, 2]}),
    ],
    "losses": [
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS), {}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS.astype(np.int32)), {"outputs": 2, "reduction": "sum"}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS, [0.5, 2.0, 1.0, 0.25]), {}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS), {"ignore_index": 3}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), ints(0, -1, 1, 2, -1), [0.5, 2.0, 1.0, 0.25]), {"ignore_index": -1}),
        ("SoftmaxCrossEntropyLoss", (fed(2, 4, 2, 3), PIXELS, [0.5, 2.0, 1.0, 0.25]), {"reduction": "none"}),
        ("SoftmaxCrossEntropyLoss", (fed(2, 4, 2, 3), PIXELS), {"ignore_index": 0}),
        ("NegativeLogLikelihoodLoss", (fed(5, 4), LABELS, [0.5, 2.0, 1.0, 0.25]), {}),
        ("NegativeLogLikelihoodLoss", (fed(2, 4, 2, 3), PIXELS), {"reduction": "sum", "ignore_index": 1}),
    ],
} | FURTHER


class Sheet:
    """All cases of a sheet as one network, which compiles once; the loss is a weighted sum of all floating outputs."""

    def __init__(self, cases: list[Case], dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        build, terms, outputs = NetworkBuilder("sheet", dtype=dtype), [], {}
        self.feed: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}
        self.own: dict[str, list[str]] = {}
        self.weights: dict[str, np.ndarray] = {}
        for number, (op_type, operands, attributes) in enumerate(cases):
            case, keywords = f"{number} {op_type}", dict(attributes)
            count = keywords.pop("outputs", 1)
            inputs = [self.operand(build, f"{case}.{at}", operand) for at, operand in enumerate(operands)]
            self.own[case] = [name for name in (*self.feed, *self.values) if name.startswith(f"{case}.")]
            made = build.op(op_type, *inputs, outputs=count, **keywords)
            for at, value in enumerate(made if count > 1 else (made,)):
                outputs[f"{case}:{at}"] = value
        plain = build.network(outputs)
        # A second pass over the same cases, now that the outputs' types and shapes are known.
        for name, value in outputs.items():
            spec = plain.outputs[name]
            if spec.dtype == dtype:
                weight = generator(1, name).standard_normal(tuple(map(int, spec.shape))).astype(dtype)
                self.weights[name] = weight
                scaled = build.op("Mul", value, build.op("Constant", value=_tensor(weight)))
                terms.append(build.op("ReduceSum", scaled, keepdims=0))
        loss = build.op("Sum", *terms)
        self.network = _again(build, {**outputs, "loss": loss}).with_values(self.values)

    def operand(self, build: NetworkBuilder, name: str, operand: Any) -> Any:
        if operand is None:
            return None
        if isinstance(operand, Draw):
            value = generator(0, name).uniform(operand.low, operand.high, operand.shape).astype(self.dtype)
            if operand.kind == "fed":
                self.feed[name] = value
                return build.input(name, operand.shape)
            self.values[name] = value
            return build.parameter(name, operand.shape, zeros)
        if isinstance(operand, (float, list)):
            return build.op("Constant", value=_tensor(np.array(operand, self.dtype)))
        return build.op("Constant", value=_tensor(operand))


def _tensor(array: np.ndarray) -> Any:
    import onnx_ir as ir

    return ir.tensor(array)


def _again(build: NetworkBuilder, outputs: dict[str, Any]) -> d5.Network:
    """A network of a builder that has made one already."""
    build._graph.outputs.clear()
    return build.network(outputs)


@functools.cache
def computed(sheet: str, dtype: str) -> tuple[Sheet, Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A sheet with its executor, its outputs, and its gradients by all that is drawn."""
    made = Sheet(SHEETS[sheet], dtype)
    executor = executor_of(made.network)
    outputs = arrays(executor.inference(made.feed))
    executor.inference_and_backprop(made.feed, wrt=[name for case in made.own.values() for name in case])
    return made, executor, outputs, arrays(executor.gradients())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sheet", list(SHEETS))
def test_operators(sheet: str, dtype: str) -> None:
    """Forward against onnx's own implementation; of pooling, whose padding that mixes up, deep5's reference.

    Gradients against central differences of the float64 forward pass.
    """
    from onnx.reference import ReferenceEvaluator

    made, executor, got, gradients = computed(sheet, dtype)
    names = list(got)
    if sheet == "pooling":
        wanted = reference_of(made.network).inference(made.feed).values()
    else:
        wanted = ReferenceEvaluator(made.network.to_onnx()).run(names, made.feed)
    for name, want in zip(names, wanted, strict=True):
        if name != "loss":
            assert got[name].dtype == np.asarray(want).dtype, name
            # A few roundings, and sums of up to fifty products; some of onnx's own functions are always float32.
            rounded = any(op in name for op in ("Erf", "Gelu", "HardSwish"))
            close = 2e-5 if dtype == "float32" or "Resize" in name else 1e-6 if rounded else 1e-11
            np.testing.assert_allclose(got[name], want, err_msg=name, rtol=close, atol=close)
    assert all(value.dtype == dtype for value in gradients.values())
    if dtype == "float32":
        for name, want in computed(sheet, "float64")[3].items():
            # Roundings of the forward pass enter the gradient; none of the draws lies on a kink.
            np.testing.assert_allclose(gradients[name], want, rtol=2e-4, atol=2e-4, err_msg=name)
        return
    step = 1e-6
    direction = {name: generator(2, name).standard_normal(gradients[name].shape) for name in gradients}
    start, sides = executor.state_dict(), []
    for sign in (1, -1):
        moved = {name: value + sign * step * direction[name] for name, value in {**made.feed, **made.values}.items()}
        executor.load_state_dict({**start, **{name: moved[name] for name in made.values}})
        sides.append(arrays(executor.inference({name: moved[name] for name in made.feed})))
    for case, own in made.own.items():
        slope = sum(float(np.sum(gradients[name] * direction[name])) for name in own)
        kept = [name for name in made.weights if name.startswith(f"{case}:")]
        difference = sum(float(np.sum(made.weights[name] * (sides[0][name] - sides[1][name]))) for name in kept)
        # Truncation is of the order of h² = 1e-12; roundings of the outputs, 1e-15 times some hundred, over h.
        assert slope == pytest.approx(difference / (2 * step), rel=1e-6, abs=1e-6), case


def test_the_error_function_is_exact_in_float64() -> None:
    build = NetworkBuilder("erf", dtype="float64")
    x = build.input("x", ("N",))
    network = build.network({"erf": build.op("Erf", x), "gelu": build.op("Gelu", x)})
    points = np.linspace(-5, 5, 41)
    erf = np.array([math.erf(point) for point in points])
    outputs = executor_of(network).inference({"x": points})
    np.testing.assert_allclose(outputs["erf"], erf, rtol=1e-14, atol=1e-16)  # a few units in the last place
    wanted = [0.5 * point * math.erfc(-point / math.sqrt(2)) for point in points]
    np.testing.assert_allclose(outputs["gelu"], wanted, rtol=1e-13, atol=1e-16)


def test_negative_padding_takes_away() -> None:
    build = NetworkBuilder("pad")
    pads = build.constant("pads", ints(-1, 0, 1, -2))
    network = build.network({"y": build.op("Pad", build.input("x", (4, 5)), pads)})
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_array_equal(executor_of(network).inference({"x": x})["y"], np.pad(x[1:, :3], ((0, 1), (0, 0))))


def test_the_table_is_tested_and_says_what_it_lacks() -> None:
    from deep5.frameworks.jax.operators import OPERATORS

    tested = {case[0] for cases in SHEETS.values() for case in cases} | {"BatchNormalization", "Constant"}
    assert set(OPERATORS) == tested | ELSEWHERE


def _node(op_type: str, *operands: Any, **attributes: Any) -> Any:
    build = NetworkBuilder("one")
    made = build.op(op_type, *[op(build) if callable(op) else op for op in operands], **attributes)
    build.network({"y": made[0] if isinstance(made, tuple) else made})
    return next(node for node in build._graph if node.op_type == op_type)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (lambda: _node("ImageDecoder", lambda b: b.input("x", (9,), "uint8")), "no such operator"),
        (lambda: _node("MaxPool", lambda b: b.input("x", (1, 1, 4, 4, 4, 4)), kernel_shape=[2] * 4), "1 to 3"),
        (lambda: _node("LpNormalization", lambda b: b.input("x", (2, 2)), p=3), "p=3; allowed: 1, 2"),
        (lambda: _node("LayerNormalization", *(lambda b, n=n: b.input(n, (2,)) for n in "xs"), outputs=2), "further"),
    ],
)
def test_unsupported_nodes_say_why(node: Any, reason: str) -> None:
    answer = d5.framework("jax").supports(node())
    assert not answer
    assert reason in answer.reason


def test_max_pool_gives_the_gradient_to_the_first_of_equal_values() -> None:
    build = NetworkBuilder("ties", dtype="float64")
    x = build.input("x", (1, 1, 4, 5))
    y = build.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 0, 0])
    network = build.network({"y": y, "loss": build.op("ReduceSum", y, keepdims=0)})
    feed = {"x": np.round(generator(0, "ties").uniform(0, 2, (1, 1, 4, 5)))}
    found = []
    for executor in (executor_of(network), reference_of(network)):
        executor.inference_and_backprop(feed, wrt=["x"])
        found.append(np.asarray(executor.gradients()["x"]))
    assert len(np.unique(feed["x"])) <= 3
    np.testing.assert_array_equal(found[0], found[1])


def test_kinks_have_the_gradient_of_one_side() -> None:
    build = NetworkBuilder("kinks", dtype="float64")
    x = build.input("x", (3,))
    low, high = build.scalar(-1.0), build.scalar(1.0)
    y = build.op("Add", build.op("Relu", x), build.op("Clip", x, low, high))
    network = build.network({"loss": build.op("ReduceSum", y, keepdims=0)})
    executor = executor_of(network)
    executor.inference_and_backprop({"x": np.array([-1.0, 0.0, 1.0])}, wrt=["x"])
    np.testing.assert_array_equal(executor.gradients()["x"], [1.0, 1.0, 2.0])


def test_a_label_that_is_no_class_gives_nan() -> None:
    network = mlp(features=3, hidden=2, classes=2)
    feed = {"input": np.ones((2, 3), np.float32), "label": ints(0, 7)}
    assert np.isnan(executor_of(network).inference(feed)["loss"])


# ---------------------------------------------------------------------------------------------- images, order of axes


def images(dtype: str = "float64") -> d5.Network:
    """Images on every way that their order of axes can take: kept, turned, and joined with what has another."""
    build = NetworkBuilder("images", dtype=dtype)
    x, mask = build.input("input", ("N", 3, 6, 6)), build.input("mask", ("N", 4, 6, 6))
    label = build.input("label", ("N",), "int64")
    weight = build.parameter("conv.weight", (4, 3, 3, 3))
    y = build.op("Conv", x, weight, build.parameter("conv.bias", (4,), ones), pads=[1] * 4)
    y = build.op("Mul", build.op("Tanh", y), mask)
    y = build.op("Add", y, build.parameter("offset", (4, 1, 1), ones))
    y = build.op("Concat", y, build.op("Identity", y), x, axis=1)
    y = build.op("Pad", y, build.op("Constant", value_ints=[0, 1, 0, 0, 0, 0, 0, 2]))
    y = build.op(
        "Slice", y, build.constant("s", ints(1, 0)), build.constant("e", ints(9, 7)), build.constant("a", ints(1, 3))
    )
    z = build.op("ReduceMean", y, build.constant("axes", ints(1)))
    y = build.op("MaxPool", build.op("Add", y, z), kernel_shape=[2, 2], strides=[2, 2])
    # The same weights as a convolution's and as an operand: stored as ONNX has them.
    other = build.parameter("both.weight", (2, 8, 1, 1))
    y = build.op("Conv", y, build.op("Sigmoid", other))
    flat = build.op("Flatten", y, axis=1)
    y = build.op("Gemm", flat, build.parameter("fc.weight", (5, 18)), build.parameter("fc.bias", (5,), ones), transB=1)
    y = build.op("Add", y, build.op("ReduceSum", other, keepdims=0))
    return build.network({"logits": y, "loss": build.op("SoftmaxCrossEntropyLoss", y, label)})


def test_the_order_of_axes_is_nobodys_business() -> None:
    network = images()
    executor, reference = executor_of(network), reference_of(network)
    feed = batch_of(network)
    for name, value in arrays(reference.inference(feed)).items():
        np.testing.assert_allclose(executor.inference(feed)[name], value, rtol=1e-12, atol=1e-12)
    for one in (executor, reference):
        one.inference_and_backprop(feed, wrt=[*network.parameter_specs, "input", "mask"])
    for name, value in arrays(reference.gradients()).items():
        got = executor.gradients()[name]
        assert got.shape == value.shape
        np.testing.assert_allclose(got, value, rtol=1e-10, atol=1e-12, err_msg=name)
    for name, value in executor.parameters().items():
        np.testing.assert_array_equal(value, network.initial(name))
    steps = [one.train_step(d5.Momentum(lr=0.05)) for one in (executor, reference)]
    for index in range(3):
        for step in steps:
            step(feed, d5.StepInfo(step=index, batch_size=4))
    ends = [step.state_dict() for step in steps]
    assert ends[0].keys() == ends[1].keys()
    for key, want in ends[1].items():
        np.testing.assert_allclose(ends[0][key], want, rtol=1e-9, atol=1e-12, err_msg=key)


def test_weights_of_layers_are_stored_as_xla_reads_them() -> None:
    executor = executor_of(lenet())
    assert set(executor.program.stored) == {"conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight", "fc3.weight"}
    # Nothing is left to turn in the compiled program but the images that come in.
    feed, _ = executor._feed(batch_of(executor.network))
    text = jax.jit(executor._evaluation).lower(executor._values, executor._buffers, feed).compile().as_text()
    assert "transpose(" not in text


# ------------------------------------------------------------------------------------------------- the training step


def test_no_trace_and_no_compilation_in_a_steady_state() -> None:
    network = mlp(features=5, hidden=4, classes=3, dropout=0.2)
    executor, rule = executor_of(network), d5.Adam(lr=0.1)
    step = executor.train_step(rule)
    feeds = {size: batch_of(network, size) for size in (8, 5)}
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        before = step(feeds[8], d5.StepInfo(step=0, batch_size=8))["loss"].item()
        assert (step.traces, bool(compiled)) == (1, True)
        compiled.clear()
        rule.lr = 0.0
        held = step(feeds[8], d5.StepInfo(step=1, batch_size=8)) and executor.state_dict()
        rule.lr = 0.3
        for index in range(2, 5):
            step(feeds[8], d5.StepInfo(step=index, batch_size=8))
        assert (step.traces, compiled) == (1, [])
        assert not np.array_equal(held["fc1.weight"], executor.state_dict()["fc1.weight"])
        step(feeds[5], d5.StepInfo(step=5, batch_size=5))
        assert step.traces == 2
        compiled.clear()
        for index in range(6, 10):
            size = (8, 5)[index % 2]
            after = step(feeds[size], d5.StepInfo(step=index, batch_size=size))["loss"].item()
        assert (step.traces, compiled) == (2, [])
        assert after < before
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_learning_rate_of_zero_holds_the_weights() -> None:
    network = mlp(features=5, hidden=4, classes=3)
    executor, rule = executor_of(network), d5.Momentum(lr=0.5)
    step = executor.train_step(rule)
    step(batch_of(network), d5.StepInfo(batch_size=4))
    before = executor.state_dict()
    rule.lr = 0.0
    step(batch_of(network), d5.StepInfo(step=1, batch_size=4))
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("name", ["adam", "accelegrad", "lars"])
def test_two_halves_are_a_whole_step(name: str) -> None:
    network = mlp(features=5, hidden=4, classes=3, dtype="float64")
    ends = []
    for halves in (False, True):
        executor, seen = executor_of(network), []
        step = executor.train_step(plugins.load("optimizers", name)(lr=0.02))
        for index in range(3):
            feed, info = batch_of(network, seed=index), d5.StepInfo(step=index, batch_size=4)
            if halves:
                step.backprop(feed, info, lambda key, _, seen=seen: seen.append(key))
                assert sorted(seen[-len(network.parameter_specs) :]) == sorted(network.parameter_specs)
                step.apply(arrays(executor.gradients()), info)
            else:
                step(feed, info)
                with pytest.raises(Unsupported, match="compiled as a whole"):
                    executor.gradients()
        ends.append({**executor.state_dict(), **step.state_dict()})
    for key, value in ends[0].items():
        np.testing.assert_allclose(ends[1][key], value, rtol=1e-9, atol=1e-12, err_msg=key)


def test_gradients_that_do_not_fit_are_refused() -> None:
    network = mlp(features=3, hidden=2, classes=2)
    executor = executor_of(network)
    step = executor.train_step(d5.SGD(lr=0.1))
    gradients = arrays(executor.parameters())
    with pytest.raises(ShapeError, match="no gradient of 'fc1"):
        step.apply({}, d5.StepInfo())
    with pytest.raises(ShapeError, match=r"gradient of 'fc1.weight': got dtype float64, expected float32"):
        step.apply({**gradients, "fc1.weight": np.zeros((2, 3))}, d5.StepInfo())


def test_frozen_parameters_have_no_gradient_and_stay() -> None:
    network = lenet(classes=3)
    executor = executor_of(network)
    frozen = d5.ParameterGroup(lambda name: name.startswith("conv"), frozen=True)
    step = executor.train_step(d5.Adam(lr=0.1), groups=(frozen,))
    info = d5.StepInfo(batch_size=4)
    step(batch_of(network), info)
    for name, value in executor.state_dict().items():
        assert np.array_equal(value, network.initial(name)) == name.startswith("conv"), name
    step.backprop(batch_of(network), info)
    assert not any(name.startswith("conv") for name in executor.gradients())
    assert not any("conv" in key for key in step.state_dict())


def test_the_modifier_is_traced_with_onnx_shapes() -> None:
    network = lenet(classes=3, dtype="float64")
    shapes: dict[str, tuple[int, ...]] = {}

    def modifier(name: str, param: Any, grad: Any) -> Any:
        shapes[name] = tuple(param.shape)
        # One entry alone: it must land where ONNX's order of axes has it.
        return grad.at[(0,) * (grad.ndim - 1) + (1,)].set(np.float64(0.0)) if name.endswith("weight") else grad + param

    executor = executor_of(network)
    step = executor.train_step(d5.SGD(lr=1.0), modifier=modifier)
    executor.inference_and_backprop(batch_of(network))
    gradients = arrays(executor.gradients())
    step(batch_of(network), d5.StepInfo(batch_size=4))
    assert shapes == {name: spec.shape for name, spec in network.parameter_specs.items()}
    for name, value in executor.state_dict().items():
        if name.endswith("weight"):
            gradients[name][(0,) * (value.ndim - 1) + (1,)] = 0.0
        else:
            gradients[name] += network.initial(name)
        np.testing.assert_allclose(value, network.initial(name) - gradients[name], rtol=1e-12, atol=1e-14)
    wrong = executor_of(network).train_step(d5.SGD(), modifier=lambda name, param, grad: grad.sum())
    with pytest.raises(ShapeError, match=r"modified gradient of 'conv1.weight': got shape \(\)"):
        wrong(batch_of(network), d5.StepInfo(batch_size=4))


def test_averaged_holds_what_evaluation_uses() -> None:
    network = mlp(features=5, hidden=4, classes=3)
    executor = executor_of(network)
    step = executor.train_step(d5.AcceleGrad(lr=0.1))
    for index in range(3):
        step(batch_of(network), d5.StepInfo(step=index, batch_size=4))
    own = executor.state_dict()
    with step.averaged():
        for name, value in executor.state_dict().items():
            np.testing.assert_array_equal(value, step.state_dict()[f"average/{name}"])
        with pytest.raises(UsageError, match="inside averaged"):
            step(batch_of(network), d5.StepInfo())
        with pytest.raises(UsageError, match="inside averaged"):
            step.apply({}, d5.StepInfo())
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, own[name])
    exported = executor.export()
    assert not np.array_equal(exported.initial("fc1.weight"), own["fc1.weight"])
    np.testing.assert_array_equal(executor.export(evaluation=False).initial("fc1.weight"), own["fc1.weight"])


def test_states_are_refused_or_restored_as_a_whole() -> None:
    executor = executor_of(lenet(classes=3))
    step = executor.train_step(d5.Adam())
    step(batch_of(executor.network), d5.StepInfo(batch_size=4))
    kept = step.state_dict()
    again = executor_of(lenet(classes=3)).train_step(d5.Adam())
    again.load_state_dict(kept)
    for key, value in again.state_dict().items():
        np.testing.assert_array_equal(value, kept[key])
        assert value.flags.owndata
        assert value.shape == executor.network.parameter_specs[key.partition("/")[2]].shape
    with pytest.raises(ShapeError, match="missing or unknown"):
        again.load_state_dict({})


def test_the_optimizers_of_jax_are_those_of_optax() -> None:
    assert {"adam", "lamb", "lbfgs", "sgd"} <= d5.framework("jax").optimizers().keys()
    with pytest.raises(UnknownName, match=r"unknown .*'adm'; allowed: .*did you mean 'adam'"):
        d5.framework("jax").optimizer("adm")


# ----------------------------------------------------------------------------------------- memory, types, what is real


def test_old_arrays_are_donated_and_copies_stay() -> None:
    network = lenet(classes=3)
    executor = executor_of(network)
    step = executor.train_step(d5.SGD(lr=0.1))
    step(batch_of(network), d5.StepInfo(batch_size=4))
    live, copies = executor.parameters(), executor.state_dict()
    kept = {name: value.copy() for name, value in copies.items()}
    step(batch_of(network), d5.StepInfo(batch_size=4))
    executor.synchronize()
    assert live["conv1.bias"].is_deleted()
    for name, value in copies.items():
        np.testing.assert_array_equal(value, kept[name])


def test_inputs_may_be_overwritten_when_a_call_returns() -> None:
    """JAX reads aligned memory where it lies, some time later: the executor must have taken what it needs."""
    network = mlp(features=400, hidden=900, classes=3)
    executor = executor_of(network)
    feed = {name: aligned_empty(value.shape, value.dtype) for name, value in batch_of(network, 600).items()}
    start = batch_of(network, 600)
    for value in feed.values():
        value[...] = 1
    wanted = [np.asarray(executor.inference(start)["logits"]), np.asarray(executor.inference(feed)["logits"])]
    assert not np.array_equal(*wanted)
    for _ in range(3):
        for name, value in feed.items():
            value[...] = start[name]
        got = executor.inference(feed)["logits"]
        for value in feed.values():
            value[...] = 1
        np.testing.assert_array_equal(got, wanted[0])


@pytest.mark.parametrize("make", [lambda: lenet(classes=3), lambda: resnet(depth=8), lambda: mlp(dropout=0.5)])
def test_float32_stays_float32_and_the_configuration_as_it_was(make: Any) -> None:
    network = make()
    before = jax.config.jax_enable_x64
    executor = executor_of(network)
    step = executor.train_step(d5.AcceleGrad(lr=0.01))
    feed, info = batch_of(network), d5.StepInfo(batch_size=4)
    native, extents = executor._feed(feed)
    with jax.enable_x64(True):
        native += executor.program.draw(extents, info)
        given = step._rule.given(info)
        traced = step._whole.trace(executor._values, executor._buffers, step._states, native, given)
    # Scalars of the rule are double, and the vector that they come in; an array of the network never is.
    assert given.shape == (6,)
    assert set(re.findall(r"f64\[([\d,]*)\]", str(traced.jaxpr))) == {"", "1", "6"}
    outputs = {**step(feed, info), **executor.inference(feed), **executor.parameters(), **executor.buffers()}
    assert {str(value.dtype) for value in outputs.values()} == {"float32"}
    executor.inference_and_backprop(feed, info=info)
    assert {str(value.dtype) for value in executor.gradients().values()} == {"float32"}
    assert jax.config.jax_enable_x64 == before
    assert jnp.zeros(2).dtype == jnp.float32


def test_nothing_is_faked() -> None:
    network = resnet(depth=8)
    executor = executor_of(network)
    step = executor.train_step(d5.Adam(lr=0.01))
    feed, info = batch_of(network), d5.StepInfo(batch_size=4)
    with poisoned("jax"), jax.transfer_guard_device_to_host("disallow"):
        outputs = step(feed, info)
        executor.inference_and_backprop(feed, info=info)
        executor.inference(feed)
        executor.synchronize()
        native, _ = executor._feed(feed)
        with jax.enable_x64(True):
            given = (executor._values, executor._buffers, step._states, native, step._rule.given(info))
            text = str(step._whole.trace(*given).jaxpr)
    assert "conv_general_dilated" in text
    assert "callback" not in text
    reference = reference_of(network)
    want = reference.train_step(d5.Adam(lr=0.01))(feed, info)
    np.testing.assert_allclose(outputs["loss"], want["loss"], rtol=1e-5)  # one float32 forward pass


def test_the_source_holds_no_name_of_the_model() -> None:
    executor = executor_of(lenet(classes=3))
    assert "def run(parameters, buffers, inputs):" in executor.source
    assert not any(name in executor.source for name in ("conv1", "fc1", "input.", "label", "logits", "loss"))


# -------------------------------------------------------------------------------------- normalisation and dropout


def normalised(*extents: int) -> d5.Network:
    build = NetworkBuilder("normalised", dtype="float64")
    x, one = build.input("x", ("N", 3, *extents)), (1,) * len(extents)
    statistics = build.parameter("mean", (3,), zeros), build.parameter("variance", (3,), ones)
    x = build.op("Mul", x, build.parameter("factor", (3, *one), ones))
    scale, bias = build.parameter("scale", (3,), ones), build.parameter("bias", (3,), zeros)
    y = build.op("BatchNormalization", x, scale, bias, *statistics, momentum=0.8, epsilon=1e-3)
    return build.network({"y": y, "loss": build.op("ReduceSum", build.op("Tanh", y), keepdims=0)})


@pytest.mark.parametrize("extents", [(), (4,), (4, 5)])
def test_batch_normalisation_is_onnx_definition(extents: tuple[int, ...]) -> None:
    network = normalised(*extents)
    executor, feed = executor_of(network), batch_of(network)
    x, one = feed["x"], (1,) * len(extents)
    axes = (0, *range(2, 2 + len(extents)))
    # ONNX's attributes are float32.
    epsilon, momentum = float(np.float32(1e-3)), float(np.float32(0.8))
    batch = {"mean": x.mean(axes), "variance": x.var(axes)}  # the population's
    running = {"mean": np.zeros(3), "variance": np.ones(3)}

    def normal(of: dict[str, np.ndarray]) -> np.ndarray:
        return (x - of["mean"].reshape(3, *one)) / np.sqrt(of["variance"] + epsilon).reshape(3, *one)

    # Forward in training, and forward and backward: each moves the statistics once.
    for call in (lambda: executor.inference(feed, training=True), lambda: executor.inference_and_backprop(feed)):
        np.testing.assert_allclose(call()["y"], normal(batch), rtol=1e-12, atol=1e-13)
        for name, own in batch.items():
            running[name] = running[name] * momentum + own * (1 - momentum)
            np.testing.assert_allclose(executor.buffers()[name], running[name], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(executor.inference(feed)["y"], normal(running), rtol=1e-12, atol=1e-13)


def test_batch_normalisation_has_the_gradient_of_its_loss() -> None:
    network = normalised(4, 5)
    feed = batch_of(network)
    executor = executor_of(network)
    executor.inference_and_backprop(feed, wrt=["x", "factor", "scale", "bias"])
    gradients = arrays(executor.gradients())
    step, start = 1e-6, executor.state_dict()
    direction = {name: generator(3, name).standard_normal(value.shape) for name, value in gradients.items()}
    losses = []
    for sign in (1, -1):
        moved = {name: start[name] + sign * step * direction[name] for name in ("factor", "scale", "bias")}
        executor.load_state_dict({**start, **moved})
        shifted = {"x": feed["x"] + sign * step * direction["x"]}
        losses.append(float(executor.inference(shifted, training=True)["loss"]))
    slope = sum(float(np.sum(gradients[name] * direction[name])) for name in gradients)
    # The loss is a sum of 240 numbers of the order of one: 1e-14 over h.
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-6)


def test_dropout_draws_deep5s_masks() -> None:
    build = NetworkBuilder("dropped")
    x = build.input("x", ("N", 30))
    y = build.op("Dropout", x, build.scalar(0.4), build.op("Constant", value=_tensor(np.array(True))))
    network = build.network({"y": y, "loss": build.op("ReduceSum", y, keepdims=0)})
    executor, feed = executor_of(network, seed=3), batch_of(network)
    info = d5.StepInfo(step=5, seed=9)
    mask = dropout_mask((4, 30), ratio=0.4, seed=9, step=5, node="Dropout_1", dtype="float32")
    assert 0.0 in mask
    np.testing.assert_array_equal(executor.inference(feed, training=True, info=info)["y"], feed["x"] * mask)
    np.testing.assert_array_equal(executor.inference(feed)["y"], feed["x"])
    own = dropout_mask((4, 30), ratio=0.4, seed=3, step=0, node="Dropout_1", dtype="float32")
    np.testing.assert_array_equal(executor.inference(feed, training=True)["y"], feed["x"] * own)
    executor.inference_and_backprop(feed, info=info, wrt=["x"])
    np.testing.assert_array_equal(executor.gradients()["x"], mask)


def test_what_the_loss_does_not_depend_on_has_the_gradient_zero() -> None:
    build = NetworkBuilder("idle")
    x, idle = build.input("x", ("N", 2)), build.parameter("idle", (2,), ones)
    y = build.op("Mul", x, build.parameter("w", (2,), ones))
    network = build.network({"z": build.op("Add", x, idle), "loss": build.op("ReduceSum", y, keepdims=0)})
    executor = executor_of(network)
    executor.inference_and_backprop(batch_of(network))
    np.testing.assert_array_equal(executor.gradients()["idle"], np.zeros(2))


@pytest.mark.parametrize(
    ("keywords", "error", "match"),
    [
        ({"loss": "lss"}, UnknownName, "did you mean 'loss'"),
        ({"loss": "logits"}, Unsupported, "cannot be differentiated"),
        ({"wrt": []}, UsageError, "nothing to differentiate by"),
        ({"wrt": ["label"]}, Unsupported, "floating-point inputs"),
        ({"wrt": ["fc9"]}, UnknownName, "fc9"),
    ],
)
def test_wrong_requests_are_refused(keywords: dict[str, Any], error: type[Exception], match: str) -> None:
    network = mlp(features=3, hidden=2, classes=2)
    executor = executor_of(network)
    with pytest.raises(error, match=match):
        executor.inference_and_backprop(batch_of(network), **keywords)
    with pytest.raises(Unsupported, match="there are no gradients"):
        executor.gradients()
    if "loss" in keywords:
        with pytest.raises(error, match=match):
            executor.train_step(d5.SGD(), **keywords)


# --------------------------------------------------------------------------------------- devices, threads, settings


def test_settings_are_read_back() -> None:
    settings = executor_of(mlp(features=3, hidden=2, classes=2)).settings()
    assert settings["framework"] == "jax"
    assert settings["version"] == jax.__version__ == d5.framework("jax").version()
    assert (settings["device"], settings["dtype"], settings["tf32"], settings["deterministic"]) == (
        *("cpu", "float32"),
        *(False, True),
    )
    assert settings["x64"] is False
    assert settings["matmul_precision"] == "default"
    with jax.default_matmul_precision("highest"):
        assert executor_of(mlp()).settings()["matmul_precision"] == "highest"


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(Unsupported, match=r"no device cuda:7 for jax here; allowed: cpu"):
        executor_of(mlp(), device="cuda:7")


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_positive_whole_numbers(threads: Any) -> None:
    with pytest.raises(UsageError, match="whole number of at least 1"):
        d5.framework("jax").set_threads(threads)


THREADS = """
import sys, os
from pathlib import Path
import numpy as np
import deep5 as d5
before = dict(os.environ)
framework = d5.framework("jax")
framework.set_threads(int(sys.argv[1]))
assert dict(os.environ) == before
framework.set_threads(int(sys.argv[1]))
executor = framework.executor(d5.networks.mlp(features=784, hidden=800))
step = executor.train_step(d5.SGD(lr=0.01))
feed = {"input": np.ones((256, 784), np.float32), "label": np.zeros(256, np.int64)}
def work():
    for index in range(20):
        step(feed, d5.StepInfo(batch_size=256))
    executor.synchronize()
def ran():
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks}
work()
before_s = ran()
work()
each = [time - before_s.get(task, 0) for task, time in ran().items()]
print(executor.settings()["threads"], sum(time > 0.2 * sum(each) for time in each))
try:
    framework.set_threads(3 - int(sys.argv[1]))
except d5.core.errors.UsageError as error:
    print(error)
"""


def run_threads(threads: int) -> tuple[int, int, str]:
    """The threads of the settings, how many threads each did a fifth of the work or more, and what was refused."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(threads)], capture_output=True, text=True, timeout=120, check=True
    )
    first, _, rest = done.stdout.partition("\n")
    count, workers = first.split()
    return int(count), int(workers), rest


def test_threads_are_set_before_jax_starts_and_never_after() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: any number of threads counts as one")
    for threads in (1, 2):
        count, _, message = run_threads(threads)
        assert count == threads
        assert f"JAX has started with {threads}" in message
        assert "remedy: set the threads before anything uses JAX" in message


def test_one_thread_is_one_thread() -> None:
    assert run_threads(1)[1] == 1


# -------------------------------------------------------------------------------------------------- operators of users


class Scaled(operators.Operator):
    """x * y + a lookup by whole numbers, with a gradient that is told apart from JAX's own by a factor."""

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def specs(self, x: TensorSpec, y: TensorSpec, index: TensorSpec) -> tuple[TensorSpec, ...]:
        return x, y

    def forward(self, x: Any, y: Any, index: Any) -> Any:
        return x * y, x[index]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        x, y, index = inputs
        assert needs[0]
        assert not needs[2]
        dx = output_grads[0] * y + jnp.zeros_like(x).at[index].add(output_grads[1])
        grads = (3 * dx, output_grads[0] * x, None)
        return grads[:2] if self.wrong else grads


def test_operators_become_differentiable_functions() -> None:
    function = d5.framework("jax").operator(Scaled())
    x, y, index = jnp.arange(3.0), jnp.arange(3.0) + 2, jnp.array([2, 0, 0])

    def total(x: Any, y: Any) -> Any:
        first, second = function(x, y, index)
        return jnp.sum(first) + jnp.sum(second)

    np.testing.assert_array_equal(function(x, y, index)[0], x * y)
    by_x, by_y = jax.jit(jax.grad(total, argnums=(0, 1)))(x, y)
    np.testing.assert_array_equal(by_x, 3 * (y + jnp.array([2.0, 0.0, 1.0])))
    np.testing.assert_array_equal(by_y, x)
    wrong = d5.framework("jax").operator(Scaled(wrong=True))
    with pytest.raises(OperatorError, match="returned 2 gradients; allowed: one an input, 3"):
        jax.grad(lambda x: jnp.sum(wrong(x, y, index)[0]))(x)


# --------------------------------------------------------------------------------------------------- networks of JAX

SPECS = {"input": TensorSpec(shape=("N", 6)), "label": TensorSpec(shape=("N",), dtype="int64")}


def initial() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "dense": {"kernel": draw.standard_normal((6, 5)).astype(np.float32), "bias": np.zeros(5, np.float32)},
        "head": [draw.standard_normal((5, 3)).astype(np.float32)],
    }


def classify(parameters: Any, inputs: Any) -> dict[str, Any]:
    hidden = jnp.tanh(inputs["input"] @ parameters["dense"]["kernel"] + parameters["dense"]["bias"])
    logits = hidden @ parameters["head"][0]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), inputs["label"][:, None], axis=1)
    return {"logits": logits, "loss": -jnp.mean(chosen)}


def test_native_networks_train_as_by_hand() -> None:
    from deep5.frameworks.jax import from_jax
    from deep5.training.dataset import ArrayDataset

    start = initial()
    executor = from_jax(classify, start, inputs=SPECS)
    draw = np.random.default_rng(1)
    data = {"input": draw.standard_normal((60, 6)).astype(np.float32), "label": draw.integers(0, 3, 60)}
    sampler = d5.OrderedSampler(ArrayDataset(data), 16)  # the last batch is smaller
    trainer = d5.Trainer(executor, d5.SGD(lr=0.3), sampler, d5.OrderedSampler(ArrayDataset(data), 60))
    trainer.train(3)

    @jax.jit
    def step(parameters: Any, batch: Any) -> Any:
        gradients = jax.grad(lambda p: classify(p, batch)["loss"])(parameters)
        return jax.tree.map(lambda p, g: p - 0.3 * g, parameters, gradients)

    parameters = jax.tree.map(jnp.asarray, start)
    for _ in range(3):
        for begin in range(0, 60, 16):
            parameters = step(parameters, {name: value[begin : begin + 16] for name, value in data.items()})
    own = executor.parameters()
    assert list(own) == ["dense/bias", "dense/kernel", "head/0"]
    # The same operations; XLA may fuse them in another order, which is a rounding a step.
    np.testing.assert_allclose(own["dense/kernel"], parameters["dense"]["kernel"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(own["head/0"], parameters["head"][0], rtol=1e-5, atol=1e-6)
    want = classify(parameters, {name: jnp.asarray(value) for name, value in data.items()})
    assert trainer.scores["loss"] == pytest.approx(float(want["loss"]), rel=1e-5)
    np.testing.assert_array_equal(start["dense"]["kernel"], initial()["dense"]["kernel"])


def test_native_networks_are_described() -> None:
    from deep5.frameworks.jax import from_jax

    executor = from_jax(classify, initial(), inputs=SPECS)
    network: Any = executor.network
    assert isinstance(network, NativeNetwork)
    assert network.outputs == {"logits": TensorSpec(shape=("N", 3)), "loss": TensorSpec(shape=())}
    assert network.parameter_specs["dense/kernel"] == TensorSpec(shape=(6, 5))
    with pytest.raises(Unsupported, match=r"'dense/kernel' .* is not kept: .*remedy: keep executor\.state_dict\(\)"):
        network.initial("dense/kernel")
    again: Any = from_jax(classify, initial(), inputs=SPECS).network
    other: Any = from_jax(lambda p, i: {**classify(p, i), "logits": p["head"][0]}, initial(), inputs=SPECS).network
    assert again.structure_hash() == network.structure_hash() != other.structure_hash()
    executor.train_step(d5.SGD(lr=0.1))(batch_of(network), d5.StepInfo(batch_size=4))
    assert again.weights_hash() == network.weights_hash()
    moved = from_jax(classify, executor.state_dict() and jax.tree.map(lambda x: x + 1, initial()), inputs=SPECS)
    assert moved.network.weights_hash() != network.weights_hash()
    with pytest.raises(NetworkError, match="no initial value 'x'"):
        network.initial("x")
    with pytest.raises(Unsupported, match=r"'classify' is native code, which cannot be exported.*remedy: keep"):
        executor.export()


def noisy(parameters: Any, buffers: Any, inputs: Any, training: bool) -> Any:
    """Dropout whose key is a buffer, and a running mean."""
    key, own = jax.random.split(jax.random.wrap_key_data(buffers["key"]))
    hidden = inputs["input"] @ parameters["w"]
    if not training:
        return {"y": hidden, "loss": jnp.mean(hidden**2)}, buffers
    mean = 0.9 * buffers["mean"] + 0.1 * jnp.mean(hidden, 0)
    hidden = hidden * jax.random.bernoulli(own, 0.5, hidden.shape) * 2
    return {"y": hidden, "loss": jnp.mean(hidden**2)}, {"key": jax.random.key_data(key), "mean": mean}


def test_native_buffers_hold_statistics_and_random_state() -> None:
    from deep5.frameworks.jax import from_jax

    def made() -> Any:
        buffers = {"key": jax.random.key_data(jax.random.key(0)), "mean": jnp.zeros(4)}
        return from_jax(noisy, {"w": jnp.ones((6, 4))}, inputs={"input": SPECS["input"]}, buffers=buffers)

    executor = made()
    feed = {"input": batch_of(executor.network)["input"]}
    before = executor.state_dict()
    executor.inference(feed)
    np.testing.assert_array_equal(executor.state_dict()["key"], before["key"])
    step = executor.train_step(d5.SGD(lr=0.1))
    first = np.asarray(step(feed, d5.StepInfo())["y"])
    np.testing.assert_allclose(executor.buffers()["mean"], 0.1 * (feed["input"] @ np.ones((6, 4))).mean(0), rtol=1e-5)
    assert not np.array_equal(executor.state_dict()["key"], before["key"])
    kept = executor.state_dict()
    second = np.asarray(step(feed, d5.StepInfo(step=1))["y"])
    assert (first == 0).any()
    assert not np.array_equal(first == 0, second == 0)
    resumed = made()
    resumed.load_state_dict(kept)
    np.testing.assert_array_equal(resumed.train_step(d5.SGD(lr=0.1))(feed, d5.StepInfo(step=1))["y"], second)


def test_native_functions_are_traced_under_the_users_own_types() -> None:
    from deep5.frameworks.jax import from_jax

    seen = []

    def apply(parameters: Any, inputs: Any) -> dict[str, Any]:
        seen.append(tuple(str(value.dtype) for value in (inputs["label"], jnp.zeros(2), parameters["w"])))
        return {"loss": jnp.sum(parameters["w"]) * 1.5 + jnp.sum(inputs["label"]) * 0.0}

    specs = {"label": SPECS["label"]}
    executor = from_jax(apply, {"w": np.ones(3)}, inputs=specs)
    executor.train_step(d5.Adam())({"label": np.zeros(4, np.int64)}, d5.StepInfo(batch_size=4))
    assert set(seen) == {("int32", "float32", "float32")}
    seen.clear()
    with jax.enable_x64(True):
        wide = from_jax(apply, {"w": np.ones(3)}, inputs=specs)
    wide.inference({"label": np.zeros(4, np.int64)})
    assert set(seen) == {("int64", "float64", "float64")}
    assert wide.network.outputs["loss"].dtype == "float64"


@pytest.mark.parametrize(
    ("keywords", "error", "match"),
    [
        ({"apply": lambda p, i: p["w"]}, UsageError, "a dict of outputs by name"),
        ({"apply": lambda p, i: {"loss": p["w"]}}, Unsupported, "cannot be differentiated"),
        ({"apply": lambda p, i: {"los": p["w"].sum()}}, UnknownName, "loss"),
        ({"loss": "cost"}, UnknownName, "cost"),
        ({"parameters": {"w": np.arange(3)}}, UsageError, "remedy: hand them over as buffers"),
        ({"parameters": {"w": "text"}}, Unsupported, "allowed: arrays of numbers"),
        ({"parameters": {"a/b": np.ones(1), "a": {"b": np.ones(1)}}}, UsageError, "two leaves have the path"),
        ({"outputs": {"loss": TensorSpec(shape=("N",))}}, ShapeError, r"got loss: float32\[\], declared loss"),
        ({"buffers": {"w": np.ones(1)}}, UsageError, "parameters and of buffers"),
        (
            {"buffers": {"b": np.ones(1)}, "apply": lambda p, b, i, training: {"loss": p["w"].sum()}},
            UsageError,
            "and the new buffers",
        ),
        (
            {"buffers": {"b": np.ones(1)}, "apply": lambda p, b, i, training: ({"loss": p["w"].sum()}, {})},
            UsageError,
            "buffers of the structure",
        ),
        (
            {
                "buffers": {"b": np.ones(1)},
                "apply": lambda p, b, i, training: ({"loss": p["w"].sum()}, {"b": jnp.ones(2)}),
            },
            ShapeError,
            r"new buffer 'b': got float32\[2\], expected float32\[1\]",
        ),
    ],
)
def test_native_networks_that_cannot_be(keywords: dict[str, Any], error: type[Exception], match: str) -> None:
    from deep5.frameworks.jax import from_jax

    arguments: dict[str, Any] = {
        "apply": lambda p, i: {"loss": p["w"].sum()},
        "parameters": {"w": np.ones(3, np.float32)},
        **keywords,
    }
    with pytest.raises(error, match=match):
        from_jax(arguments.pop("apply"), arguments.pop("parameters"), inputs=SPECS, **arguments)


# --------------------------------------------------------------------------------------------- what is timed against


def test_the_opponent_computes_the_same_lenet() -> None:
    from deep5.recipes.overhead.jax_by_hand import _NETWORKS

    network = lenet()
    parameters = {}
    for name in ("conv1", "conv2"):
        kernel = network.initial(f"{name}.weight").transpose(2, 3, 1, 0)
        parameters[name] = {"kernel": kernel, "bias": network.initial(f"{name}.bias")}
    for name in ("fc1", "fc2", "fc3"):
        kernel = network.initial(f"{name}.weight").T
        parameters[name] = {"kernel": kernel, "bias": network.initial(f"{name}.bias")}
    first = parameters["fc1"]
    first["kernel"] = first["kernel"].reshape(16, 5, 5, 120).transpose(1, 2, 0, 3).reshape(400, 120)
    feed = batch_of(network)
    logits, _ = _NETWORKS["lenet"]().apply(parameters, {}, feed["input"], True)
    np.testing.assert_allclose(logits, executor_of(network).inference(feed)["logits"], rtol=1e-4, atol=1e-5)
    for made in (network, d5.networks.resnet18_small()):
        own, _ = _NETWORKS["lenet" if made is network else "resnet18_small"]().init(0)
        count = sum(leaf.size for leaf in jax.tree.leaves(own))
        assert count == sum(spec.size for spec in made.parameter_specs.values())
