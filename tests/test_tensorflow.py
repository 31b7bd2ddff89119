"""TensorFlow: every operator against ONNX Runtime, layouts, the executor, whole steps, Keras's optimizers."""

from __future__ import annotations

import collections
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.backend import GraphExecutor, ParameterGroup, StepOptimizer, TrainStep
from deep5.errors import RuleError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet
from deep5.networks.check import check_executor
from deep5.networks.masks import dropout_mask
from deep5.training.expression import OPERATIONS

# By the back-end, so that TensorFlow's start-up reports are kept off the screen.
TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")

import tensorflow as tf  # noqa: E402

from deep5.frameworks.tensorflow.framework import TensorFlow, from_model  # noqa: E402
from deep5.frameworks.tensorflow.memory import shared  # noqa: E402
from deep5.frameworks.tensorflow.namespace import NAMESPACE  # noqa: E402
from deep5.frameworks.tensorflow.operators import OPERATORS  # noqa: E402
from deep5.frameworks.tensorflow.probe import runs  # noqa: E402
from deep5.frameworks.tensorflow.quiet import without_reports  # noqa: E402

RNG = np.random.default_rng(7)
SMALL: dict[str, Any] = {"features": 4, "hidden": 3, "classes": 2}
END = np.iinfo(np.int64).max


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def single(
    op: str, feeds: dict[str, np.ndarray], constants: tuple[Any, ...] = (), outputs: int = 1, **attributes: Any
) -> Network:
    build = NetworkBuilder("single")
    inputs = [build.input(name, value.shape, str(value.dtype)) for name, value in feeds.items()]
    inputs += [None if c is None else build.constant(f"c{i}", np.asarray(c)) for i, c in enumerate(constants)]
    results = build.op(op, *inputs, outputs=outputs, **attributes)
    return build.network({f"y{i}": value for i, value in enumerate((results,) if outputs == 1 else results)})


def named(values: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    return {f"x{i}": value for i, value in enumerate(values)}


def runtime(network: Network, feeds: dict[str, np.ndarray]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString(), options)
    return list(session.run(list(network.outputs), feeds))


def batch(count: int = 5, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"input": RNG.standard_normal((count, 4)).astype(dtype), "label": np.arange(count) % 2}


def executor(network: Network | None = None, **options: Any) -> Any:
    return TF.executor(network or mlp(**SMALL), **options)


def info(step: int = 0, size: int = 5) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=size)


def arrays(values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(d5.to_numpy(value)) for name, value in values.items()}


def transposes(graph: Any) -> int:
    return collections.Counter(node.type for node in graph.get_operations())["Transpose"]


# Every operator

X, Y, P = normal(2, 3, 4), normal(3, 1), np.abs(normal(2, 3, 4)) + 0.1
BIT = X > 0
I7 = np.array([7, -7, 7, -7], np.int64)
CASES: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
    *((op, (X, Y), {}) for op in ("Add", "Sub", "Mul", "Div")),
    *((op, (X,), {}) for op in ("Abs", "Erf", "Exp", "Identity", "Neg", "Relu", "Sigmoid", "Tanh", "Transpose")),
    *((op, (P,), {}) for op in ("Log", "Sqrt", "Reciprocal")),
    *((op, (I7, np.array([2, 2, -2, -2])), {}) for op in ("Add", "Sub", "Mul", "Div")),
    *((op, (X,), {}) for op in ("Ceil", "Cos", "Floor", "IsNaN", "Sign", "Sin")),
    *((op, (4 * X,), {}) for op in ("Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Round")),
    ("Elu", (X,), {"alpha": 0.3}),
    ("Gelu", (X,), {"approximate": "tanh"}),
    ("HardSigmoid", (X,), {"alpha": 0.4, "beta": 0.1}),
    ("LeakyRelu", (X,), {"alpha": 0.3}),
    ("Round", (np.array([-2.5, -1.5, 0.5, 1.5, 2.5], np.float32),), {}),
    *(("Softplus", (factor * X,), {}) for factor in (1, 30)),
    ("Not", (BIT,), {}),
    *((op, (BIT, Y > 0), {}) for op in ("And", "Or", "Xor", "Equal")),
    *((op, (X, Y), {}) for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *((op, (I7, np.array([7, 1, -7, -8])), {}) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    ("Equal", (X, X.copy()), {}),
    ("Mod", (I7, np.array([2, 2, -4, -4])), {}),
    ("Mod", (I7, np.array([2, 2, -4, -4])), {"fmod": 1}),
    ("Mod", (X, Y), {"fmod": 1}),
    ("Pow", (P, Y), {}),
    ("Pow", (X, np.array([[0], [1], [2]], np.int32)), {}),
    ("Pow", (I7, np.array([0, 1, 2, 3])), {}),
    ("Pow", (np.abs(I7), np.array([0.5, 1, 1.5, 2], np.float32)), {}),
    *((op, (X, Y, normal(4)), {}) for op in ("Max", "Min", "Sum")),
    *((op, (X,), {}) for op in ("Max", "Min", "Sum")),
    ("Clip", (X,), {}),
    ("Clip", (X,), {"constants": (np.float32(-0.5), np.float32(0.5))}),
    ("Clip", (X,), {"constants": (None, np.float32(0.5))}),
    ("Clip", (X,), {"constants": (np.float32(0.5), np.float32(-0.5))}),
    ("Clip", (I7,), {"constants": (np.int64(-3), np.int64(3))}),
    *(("Cast", (3 * X,), {"to": to}) for to in (1, 3, 6, 7, 9, 10, 11)),
    ("Cast", (BIT,), {"to": 1}),
    *(
        (op, (X,), {**({} if axes is None else {"constants": (np.array(axes, np.int64),)}), **options})
        for op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
        for axes, options in ((None, {}), ([2, 0], {"keepdims": 0}), ([-1], {}))
    ),
    ("ReduceSum", (X,), {"constants": (np.array([], np.int64),), "noop_with_empty_axes": 1}),
    ("ReduceSum", (X,), {"constants": (np.array([], np.int64),), "keepdims": 0}),
    ("ReduceSum", (I7.astype(np.int32),), {}),
    *((op, (X,), {"axis": axis, "keepdims": keep}) for op in ("ArgMax", "ArgMin") for axis, keep in ((0, 1), (-1, 0))),
    ("Split", (normal(2, 7),), {"axis": 1, "num_outputs": 3, "outputs": 3}),
    ("Split", (normal(2, 6),), {"axis": -1, "constants": ([1, 0, 5],), "outputs": 3}),
    *(("Squeeze", (normal(1, 3, 1),), {"constants": c}) for c in ((), ([0],), ([-1, 0],))),
    *(("Unsqueeze", (X,), {"constants": (axes,)}) for axes in ([0], [-1], [4, 0])),
    *(("Expand", (normal(3, 1),), {"constants": (to,)}) for to in ([3, 4], [2, 3, 4], [1, 1], [1])),
    ("Tile", (X,), {"constants": ([2, 1, 3],)}),
    *(("Shape", (X,), options) for options in ({}, {"start": 1}, {"start": -2, "end": 2}, {"end": -1})),
    ("ConstantOfShape", (), {"constants": ([2, 3],)}),
    ("ConstantOfShape", (), {"constants": ([2],), "value": ir.tensor(np.array([7]))}),
    *(("Gather", (X, np.array([[1, -1], [0, -2]])), {"axis": axis}) for axis in (0, 1, -1)),
    *(("Gather", (X[0], np.array(2, dtype)), {}) for dtype in (np.int64, np.int32)),
    ("Gather", (I7, np.array([1, -1])), {}),
    *(("Gather", (X,), {"axis": 1, "constants": (np.array(i),)}) for i in (2, -1, [0, -1], [[2]])),
    ("Where", (BIT, X, Y), {}),
    ("Transpose", (X,), {"perm": [1, 2, 0]}),
    ("MatMul", (normal(2, 3), normal(3, 4)), {}),
    ("MatMul", (normal(3), normal(3)), {}),
    ("MatMul", (normal(3), normal(2, 3, 4)), {}),
    ("MatMul", (normal(2, 4, 3), normal(3)), {}),
    ("MatMul", (normal(5, 2, 3), normal(3, 4)), {}),
    ("MatMul", (normal(2, 1, 3, 4), normal(5, 4, 2)), {}),
    *((op, (4 * X,), {"axis": axis}) for op in ("Softmax", "LogSoftmax") for axis in (0, 1, -1)),
    *((op, (100 * X,), {}) for op in ("Softmax", "LogSoftmax")),
    *(("Concat", (X, normal(2, 3, 4)), {"axis": axis}) for axis in (0, 2, -2)),
    *(("Flatten", (normal(2, 3, 4, 5),), {"axis": axis}) for axis in (0, 1, 2, 4, -1)),
    *(("Reshape", (X,), {"constants": (np.array(to),)}) for to in ([0, -1], [-1], [4, 0, 2], [2, 1, 3, 4], [0, 0, 0])),
    ("Reshape", (X, np.array([4, 6])), {}),
    ("Reshape", (normal(0, 3),), {"constants": (np.array([3, 0]),), "allowzero": 1}),
    ("Slice", (X,), {"constants": ([1], [END], [-1], [2])}),
    ("Slice", (X,), {"constants": ([0, 1], [1, 3])}),
    ("Slice", (X,), {"constants": ([0, 1], [2, 3], None, [1, 2])}),
    ("Slice", (X,), {"constants": ([-3, -100], [-1, 100], [2, 0])}),
    ("Slice", (X,), {"constants": ([2], [1], [1])}),
    ("Slice", (X,), {"constants": ([-1], [-END], [1], [-1])}),
    ("Slice", (X,), {"constants": ([3, 0], [0, 2], [2, 1], [-2, 1])}),
    ("Pad", (X,), {"constants": ([0, 1, 0, 0, 2, 3],)}),
    ("Pad", (X,), {"constants": ([1, 0, 0, 0, 2, 3], np.float32(1.5))}),
    ("Pad", (X,), {"constants": ([1, 2], np.float32(-np.inf), [-1])}),
    ("Pad", (X,), {"constants": ([1, -1, 2, 0], None, [0, 2])}),
    ("Gemm", (normal(2, 3), normal(3, 4)), {}),
    ("Gemm", (normal(2, 3), normal(3, 4)), {"alpha": 0.5}),
    ("Gemm", (normal(3, 2), normal(4, 3), normal(4)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    *(("Gemm", (normal(2, 3), normal(4, 3), normal(*c)), {"transB": 1}) for c in ((), (1,), (4,), (2, 1), (2, 4))),
    *((f"Global{kind}Pool", (normal(*s),), {}) for kind in ("Average", "Max") for s in ((2, 3, 4, 5), (2, 3, 4))),
    *(
        ("LayerNormalization", (normal(2, 3, 4), normal(*s), normal(*s)), {"axis": axis})
        for axis, s in ((-1, (4,)), (1, (3, 4)))
    ),
    ("LayerNormalization", (normal(2, 3, 4), normal(4)), {"epsilon": 0.1}),
    *(
        ("NegativeLogLikelihoodLoss", (normal(4, 3), np.array([0, 2, 1, 1])), {"reduction": reduction})
        for reduction in ("mean", "sum", "none")
    ),
    ("NegativeLogLikelihoodLoss", (normal(2, 3, 5), np.arange(10).reshape(2, 5) % 3), {"ignore_index": 1}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, 1, 1])), {}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, 1, 1])), {"outputs": 2}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, 1, 1], np.int32)), {"reduction": "sum"}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, -1, 1])), {"ignore_index": -1}),
    ("SoftmaxCrossEntropyLoss", (normal(2, 3, 5), np.arange(10).reshape(2, 5) % 3), {"reduction": "none"}),
    ("SoftmaxCrossEntropyLoss", (normal(2, 3, 2, 2), np.arange(8).reshape(2, 2, 2) % 3), {"outputs": 2}),
    (
        "SoftmaxCrossEntropyLoss",
        (normal(4, 3), np.array([0, 2, 1, 1])),
        {"constants": (np.array([1, 2, 3], np.float32),), "ignore_index": 0},
    ),
]
CONVOLUTIONS = [
    ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    ((2, 3, 7, 6), (4, 3, 3, 2), {"kernel_shape": [3, 2], "auto_pad": "VALID"}),
    ((2, 3, 7, 6), (4, 3, 1, 1), {"strides": [2, 2]}),
    ((2, 3, 7, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 7, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 3, 7, 6), (4, 3, 3, 3), {"pads": [1, 2, 1, 2]}),
    ((2, 4, 9, 8), (6, 2, 3, 3), {"group": 2, "strides": [2, 1], "pads": [1, 2, 0, 1]}),
    ((2, 4, 9, 8), (8, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "strides": [2, 1]}),
    ((2, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "dilations": [2, 2]}),
    ((2, 4, 9, 8), (6, 4, 3, 2), {"dilations": [2, 3], "strides": [2, 1], "pads": [1, 0, 2, 0]}),
    ((2, 3, 11), (4, 3, 4), {"strides": [3], "pads": [2, 1]}),
    ((2, 4, 11), (4, 2, 3), {"group": 2, "dilations": [2]}),
    ((2, 3, 7, 6), (4, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((2, 3, 7, 6), (4, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    ((2, 2, 5, 4, 6), (3, 2, 2, 2, 3), {"strides": [1, 2, 1], "pads": [0, 1, 0, 1, 0, 2]}),
    ((1, 4, 5, 4, 6), (4, 2, 2, 2, 2), {"group": 2, "dilations": [1, 2, 2]}),
]
WINDOWS = [
    ((2, 3, 6, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 2]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((2, 3, 8, 9), {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 0, 1, 0], "ceil_mode": 1}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((2, 3, 9), {"kernel_shape": [4], "strides": [2], "auto_pad": "VALID"}),
    ((1, 2, 5, 4, 6), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 3], "pads": [1, 0, 0, 1, 0, 0]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 4], "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((2, 3, 7, 9), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
]
STATISTICS = [np.array([1, 2, 0.5], np.float32), np.array([0, 1, -1], np.float32)]
CASES += [
    *(("Conv", (normal(*x), normal(*w)), a) for x, w, a in CONVOLUTIONS),
    *(("Conv", (normal(*x), normal(*w), normal(w[0])), a) for x, w, a in CONVOLUTIONS[:3]),
    *(("AveragePool", (normal(*x),), {**a, "count_include_pad": c}) for x, a in WINDOWS for c in (0, 1)),
    *(("MaxPool", (normal(*x) - 9,), a) for x, a in WINDOWS),  # all negative: padding must not win
    ("MaxPool", (normal(2, 3, 9, 9),), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [1, 2]}),
    *(
        ("BatchNormalization", (normal(*shape), *STATISTICS), {"constants": (STATISTICS[1], STATISTICS[0]), **a})
        for shape, a in (((4, 3), {}), ((4, 3, 5), {"epsilon": 0.1}), ((2, 3, 4, 5), {}), ((2, 3, 2, 2, 2), {}))
    ),
]
by_name = pytest.mark.parametrize(
    ("op", "values", "options"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)


@by_name
def test_operator_against_onnxruntime(op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    feeds = named(values)
    network = single(op, feeds, **options)
    assert not TF.unsupported(network.nodes)
    for got, want in zip(executor(network).inference(feeds).values(), runtime(network, feeds), strict=True):
        want = np.asarray(want)  # noqa: PLW2901 - a scalar comes as a number
        assert (tuple(got.shape), got.numpy().dtype) == (want.shape, want.dtype)
        # Sums of at most a hundred float32 products of size one.
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)


def test_every_operator_of_the_table_is_tried() -> None:
    assert {op for op, _, _ in CASES} | {"Constant"} == OPERATORS.keys()


def converted(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype == np.float32 else array


def with_loss(op: str, feeds: dict[str, np.ndarray], dtype: str, constants: Any = (), **options: Any) -> Network:
    """The operator, and a loss: a weighted sum of its floating-point outputs."""
    build = NetworkBuilder("single", dtype=dtype)
    inputs = [build.input(name, value.shape, str(value.dtype)) for name, value in feeds.items()]
    for index, constant in enumerate(constants):
        array = None if constant is None else np.asarray(constant)
        inputs.append(None if array is None else build.constant(f"c{index}", converted(array, dtype)))
    outputs = build.op(op, *inputs, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    flat, parts = build.constant("flat", np.array([-1])), []
    for output in outputs:
        weight = build.op("Sin", build.op("Cast", output, to=ir.DataType.from_numpy(np.dtype(dtype)).value))
        parts.append(build.op("ReduceSum", build.op("Reshape", build.op("Mul", weight, output), flat), keepdims=0))
    return build.network({"loss": build.op("Sum", *parts)})


# Outputs that are no floating-point numbers, or constant in pieces.
WITHOUT_GRADIENT = {
    *("And", "ArgMax", "ArgMin", "Cast", "Ceil", "ConstantOfShape", "Equal", "Floor", "Greater", "GreaterOrEqual"),
    *("IsNaN", "Less", "LessOrEqual", "Not", "Or", "Round", "Shape", "Sign", "Xor"),
}
SMOOTH = [
    case
    for case in CASES
    if case[0] not in WITHOUT_GRADIENT
    and case[1]
    and case[1][-1 if case[0] == "Where" else 0].dtype == np.float32
    and -np.inf not in [bound for bound in case[2].get("constants", ()) if isinstance(bound, np.float32)]
]


@pytest.mark.parametrize(("op", "values", "options"), SMOOTH, ids=lambda value: value if isinstance(value, str) else "")
def test_gradient_of_every_operator(op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    feeds = {name: converted(value, "float64") for name, value in named(values).items()}
    network = with_loss(op, feeds, "float64", **options)
    run, moving = executor(network), [name for name, value in feeds.items() if value.dtype == np.float64]
    rng, step = np.random.default_rng(1), 1e-6
    direction = {name: rng.standard_normal(feeds[name].shape) for name in moving}
    up, down = (
        float(
            run.inference_and_backprop(
                {**feeds, **{name: feeds[name] + sign * step * direction[name] for name in moving}}, wrt=moving
            )["loss"]
        )
        for sign in (1, -1)
    )
    run.inference_and_backprop(feeds, wrt=moving)
    gradients = arrays(run.gradients())
    slope = sum(float(np.sum(gradients[name] * direction[name])) for name in moving)
    # A central difference is right to the square of the step, and to rounding (1e-16 of the loss) over the step.
    assert slope == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-7)
    if op not in {"Conv", "AveragePool", "MaxPool", "BatchNormalization", "SoftmaxCrossEntropyLoss"}:
        return  # the others run the same kernels in both element types
    feeds = {name: converted(value, "float32") for name, value in named(values).items()}
    single_precision = executor(with_loss(op, feeds, "float32", **options))
    single_precision.inference_and_backprop(feeds, wrt=moving)
    for name, value in single_precision.gradients().items():
        # Sums of some hundred products in float32.
        scale = np.abs(gradients[name]).max(initial=1.0)
        np.testing.assert_allclose(value.numpy(), gradients[name], rtol=1e-4, atol=1e-5 * scale)


SOME = [case for case in CASES if case[0] in {"Conv", "AveragePool", "MaxPool", "BatchNormalization", "Gather"}][::4]


@pytest.mark.parametrize(("op", "values", "options"), SOME, ids=lambda value: value if isinstance(value, str) else "")
def test_operators_under_xla(op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    feeds = named(values)
    network = single(op, feeds, **options)
    got = XLA.executor(network).inference(feeds)["y0"]
    # As without XLA.
    np.testing.assert_allclose(got.numpy(), runtime(network, feeds)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_convolutions_that_the_kernels_do_not_know_are_written_otherwise(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups and dilation have gradients on every processor: where the kernels have none, by other means."""
    for known in (True, False):
        if known and not runs(dtype, 2, "/CPU:0"):
            continue
        monkeypatch.setattr("deep5.frameworks.tensorflow.operators_layers.runs", lambda *_: known)  # noqa: B023 - used within
        for x, w, a in CONVOLUTIONS:
            if "group" in a or "dilations" in a:
                feeds = {name: value.astype(dtype) for name, value in named((normal(*x), normal(*w))).items()}
                ours = executor(with_loss("Conv", feeds, dtype, **a))
                reference = d5.framework("reference").executor(with_loss("Conv", feeds, dtype, **a))
                for run in (ours, reference):
                    run.inference_and_backprop(feeds, wrt=list(feeds))
                for name, value in reference.gradients().items():
                    # Sums of some hundred products.
                    close = {"float32": 1e-5, "float64": 1e-13}[dtype] * np.abs(value).max()
                    np.testing.assert_allclose(ours.gradients()[name].numpy(), value, rtol=0, atol=close)


REFUSED: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any], str]] = [
    ("Slice", (X, np.array([0]), np.array([1])), {}, "the input 'x1' is computed"),
    ("Pad", (X, np.array([1, 1, 1, 1, 1, 1])), {}, "the input 'x1' is computed; a constant is supported"),
    ("Pad", (X,), {"constants": ([0, 1, 0, 0, 1, 0],), "mode": "reflect"}, "padding other than constant"),
    ("MaxPool", (normal(1, 1, 4, 4),), {"kernel_shape": [2, 2], "outputs": 2}, "the further outputs"),
    ("AveragePool", (normal(1, 1, 9, 9),), {"kernel_shape": [3, 3], "dilations": [2, 2]}, "dilations"),
    ("Conv", (normal(1, 1, 3, 3, 3, 3), normal(1, 1, 2, 2, 2, 2)), {}, "4 spatial axes; 1 to 3"),
    ("ArgMax", (X,), {"select_last_index": 1}, "the last of several"),
    ("Gemm", (I7[:, None], I7[None]), {}, "whole numbers"),
    ("Add", (I7.astype(np.uint32), I7.astype(np.uint32)), {}, "the element type UINT32"),
    ("Atan", (X,), {}, "the TensorFlow back-end has no such operator"),
]


@pytest.mark.parametrize(("op", "values", "options", "reason"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_cannot_run_is_refused_with_its_reason(
    op: str, values: tuple[np.ndarray, ...], options: dict[str, Any], reason: str
) -> None:
    network = single(op, named(values), **options)
    assert not TF.supports(network.nodes[0])
    with pytest.raises(Unsupported, match=rf"(?s)tensorflow cannot run this network:\n  {op}_1 \({op}\): .*{reason}"):
        executor(network)


def test_names_from_the_model_never_enter_the_source() -> None:
    proto = mlp(**SMALL).to_onnx()
    evil = '"); import os; os.abort() #\n'
    for node in proto.graph.node:
        node.name = evil + node.name
        for names in (node.input, node.output):
            names[:] = [evil if name == "fc1.weight" else name for name in names]
    for initializer in proto.graph.initializer:
        initializer.name = evil if initializer.name == "fc1.weight" else initializer.name
    run = executor(Network.from_onnx(proto))
    run.inference_and_backprop(batch())
    assert evil in run.gradients()
    for name in ("abort", "fc1", "logits", "label", "input"):
        assert name not in run.source
    assert not any(word in run.source for word in (" for ", " if ", "while", "import", "exec", "eval("))


def test_symbolic_extents() -> None:
    """Space, batch and classes are known only when the network runs; everything here has to do with shapes."""
    build = NetworkBuilder("symbolic")
    x = build.input("x", ("N", 2, "H", "W"))
    y = build.op("Conv", x, build.parameter("w", (3, 2, 3, 3)), pads=[1, 1, 1, 1])
    y = build.op("AveragePool", y, kernel_shape=[2, 2], pads=[1, 0, 0, 1])
    y = build.op("MaxPool", y, kernel_shape=[2, 2], pads=[0, 1, 0, 1])
    flat = build.op("Flatten", y, axis=2)
    parts = build.op("Split", flat, outputs=2, axis=1, num_outputs=2)
    shape = build.op("Concat", build.op("Shape", y, end=2), build.constant("rest", np.array([-1])), axis=0)
    rows = build.op("Unsqueeze", build.op("Reshape", y, shape), build.constant("axes", np.array([0, 3])))
    wide = build.op(
        "Expand", build.op("Squeeze", rows, build.constant("first", np.array([0]))), build.op("Shape", rows)
    )
    last = build.op("Gather", wide, build.constant("last", np.array([-1])), axis=3)
    network = build.network({"flat": flat, "part": parts[1], "wide": wide, "last": last})
    run = executor(network)
    for extents in ((2, 2, 5, 4), (3, 2, 6, 7)):
        feed = {"x": normal(*extents)}
        for got, want in zip(
            run.inference(feed).values(), ReferenceEvaluator(network.to_onnx()).run(None, feed), strict=True
        ):
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)  # sums of some dozen products
    assert run._functions["forward", False].traces == 1


# Layouts


def test_images_stay_channels_last() -> None:
    """Transposes stand where images begin and end, and nowhere else."""
    small = executor(lenet())
    # One channel: the input only changes shape. What is left is Flatten, forward and backward.
    assert transposes(small.graph) == 1
    assert transposes(small.train_step(d5.Adam()).graph) == 2
    for network in (resnet(depth=8), d5.networks.resnet18(width=4, image=16), d5.networks.inception(width=8)):
        run = executor(network)
        assert transposes(run.graph) == 1  # the input; the global average is a vector already
        assert transposes(run.train_step(d5.SGD()).graph) == 1


def image_network(tail: Callable[[NetworkBuilder, Any], Any]) -> Network:
    build = NetworkBuilder("image", dtype="float64", seed=2)
    x = build.input("input", ("N", 2, 6, 5))
    y = build.op("Conv", x, build.parameter("w", (4, 2, 3, 3)), build.parameter("b", (4,)), pads=[1, 1, 1, 1])
    y = tail(build, y)
    flat = build.op("Reshape", build.op("Mul", y, build.op("Sin", y)), build.constant("flat", np.array([-1])))
    return build.network({"y": y, "loss": build.op("ReduceMean", flat, keepdims=0)})


def ints(build: NetworkBuilder, name: str, *values: int) -> Any:
    return build.constant(name, np.array(values))


TAILS: dict[str, tuple[int, Callable[[NetworkBuilder, Any], Any]]] = {
    # How many transposes of images there are in inference, and what follows the convolution.
    "vector": (2, lambda b, y: b.op("Add", y, b.parameter("v", (5,)))),
    "channels": (2, lambda b, y: b.op("Mul", y, b.parameter("v", (4, 1, 1)))),
    "whole": (2, lambda b, y: b.op("Sub", b.parameter("v", (1, 4, 6, 5)), y)),
    "number": (2, lambda b, y: b.op("Mul", b.scalar(3.0), y)),
    "where": (2, lambda b, y: b.op("Where", b.op("Greater", y, b.scalar(0.0)), y, b.op("Neg", y))),
    "clip": (2, lambda b, y: b.op("Clip", y, b.scalar(-0.5))),
    "softmax": (2, lambda b, y: b.op("Softmax", y, axis=1)),
    "concat": (2, lambda b, y: b.op("Concat", y, b.op("Tanh", y), axis=-3)),
    "split": (2, lambda b, y: b.op("Sub", *b.op("Split", y, outputs=2, axis=1, num_outputs=2))),
    "slice": (2, lambda b, y: b.op("Slice", y, ints(b, "s", 1, 0), ints(b, "e", 3, 5), ints(b, "a", 1, 2))),
    "pad": (2, lambda b, y: b.op("Pad", y, ints(b, "p", 0, 1, 2, 0, 0, 0, 0, 3))),
    "keep": (1, lambda b, y: b.op("ReduceMax", y, ints(b, "axes", 2, 3))),  # space is gone: a change of shape
    "drop": (2, lambda b, y: b.op("ReduceSum", y, ints(b, "axes", -1), keepdims=0)),
    "channel": (1, lambda b, y: b.op("ReduceMean", y, ints(b, "axes", 1), keepdims=0)),
    "turned": (1, lambda b, y: b.op("Relu", b.op("Transpose", y, perm=[0, 2, 3, 1]))),
    "turned back": (2, lambda b, y: b.op("Transpose", b.op("Transpose", y, perm=[1, 2, 0, 3]), perm=[2, 0, 1, 3])),
    "other": (2, lambda b, y: b.op("Exp", b.op("Transpose", y, perm=[3, 2, 1, 0]))),
    "identity": (2, lambda b, y: b.op("Identity", b.op("Cast", y, to=11))),
    "weight": (3, lambda b, y: b.op("Add", y, b.op("ReduceSum", b.op("Mul", W(b), W(b)), keepdims=0))),
    "gather": (2, lambda b, y: b.op("Gather", y, ints(b, "i", 3, -4), axis=1)),
    "flatten": (2, lambda b, y: b.op("Flatten", y)),
    "argument": (2, lambda b, y: b.op("Mul", y, b.op("Cast", b.op("ArgMax", y, axis=1), to=11))),
}


def W(build: NetworkBuilder) -> Any:  # noqa: N802 - the weight, which lies in another order
    return build._graph.initializers["w"]


@pytest.mark.parametrize("name", TAILS)
def test_what_follows_an_image(name: str) -> None:
    count, tail = TAILS[name]
    network = image_network(tail)
    feed = {"input": RNG.standard_normal((3, 2, 6, 5))}
    ours, reference = executor(network), d5.framework("reference").executor(network)
    for run in (ours, reference):
        run.inference_and_backprop(feed, wrt=["input", *network.parameters])
    # float64 sums of some hundred products of size one.
    np.testing.assert_allclose(
        ours.inference(feed)["y"].numpy(), reference.inference(feed)["y"], rtol=1e-12, atol=1e-13
    )
    for key, value in reference.gradients().items():
        np.testing.assert_allclose(ours.gradients()[key].numpy(), value, rtol=1e-11, atol=1e-13)
    found = [node for node in ours.graph.get_operations() if node.type == "Transpose"]
    assert len([node for node in found if node.inputs[0].shape.rank == 4 and None in node.inputs[0].shape]) <= count
    assert len(found) <= count + 1  # and perhaps a parameter, for broadcasting


def test_weights_lie_transposed_and_are_shown_in_onnx_order() -> None:
    network = lenet(seed=3)
    run = executor(network)
    assert tuple(run.live["conv2.weight"].variable.shape) == (5, 5, 6, 16)
    view, plain = run.parameters()["conv2.weight"], run.parameters()["fc1.weight"]
    assert isinstance(plain, tf.Variable)
    assert (tuple(view.shape), view.dtype) == ((16, 6, 5, 5), tf.float32)
    initial = network.initial("conv2.weight")
    for value in (
        view,
        view.numpy(),
        view.read_value(),
        tf.convert_to_tensor(view),
        view + tf.zeros(()),
        d5.to_numpy(view),
    ):
        np.testing.assert_array_equal(value, initial)
    assert "shape=(16, 6, 5, 5)" in repr(view)
    feed = {"input": normal(2, 1, 28, 28), "label": np.array([1, 2])}
    before = run.inference(feed)["logits"].numpy()
    view.assign(initial * 2)
    view.assign_add(tf.constant(initial))
    view.assign_sub(initial)
    np.testing.assert_array_equal(run.state_dict()["conv2.weight"], initial * 2)
    doubled = d5.framework("reference").executor(network.with_values({"conv2.weight": initial * 2}))
    # float32 sums of some hundred products, twice.
    np.testing.assert_allclose(run.inference(feed)["logits"], doubled.inference(feed)["logits"], rtol=1e-4, atol=1e-5)
    assert not np.allclose(before, doubled.inference(feed)["logits"])
    packed = np.empty(initial.size + 16, np.float32)
    run.read(["conv2.weight", "conv2.bias"], packed)
    np.testing.assert_array_equal(packed[: initial.size].reshape(initial.shape), initial * 2)
    packed[:] = np.arange(packed.size)
    run.write(["conv2.weight", "conv2.bias"], packed)
    np.testing.assert_array_equal(run.state_dict()["conv2.weight"].reshape(-1), packed[: initial.size])
    run.inference_and_backprop(feed)
    assert tuple(run.gradients()["conv2.weight"].shape) == initial.shape


# Conformance


def test_conformance() -> None:
    check_executor("tensorflow")


@pytest.mark.slow
def test_conformance_under_xla() -> None:
    check_executor("tensorflow:xla")


def test_interfaces_are_met() -> None:
    run = executor()
    assert isinstance(run, GraphExecutor)
    assert isinstance(from_model(mlp(**SMALL)), GraphExecutor)
    assert isinstance(run.train_step(d5.SGD()), TrainStep)
    assert run.capabilities == {"float64", "whole_step"}
    for make in TF.optimizers().values():
        assert isinstance(make(), StepOptimizer)
    with pytest.raises(UnknownName, match="unknown native optimizer of tensorflow 'adm'; allowed: adam, momentum, sgd"):
        TF.optimizer("adm")
    assert (TF.name, XLA.name, TF.version()) == ("tensorflow", "tensorflow:xla", tf.__version__)
    with pytest.raises(UnknownName, match="unknown mode of the framework 'tensorflow' 'xlaa'; allowed: xla"):
        d5.framework("tensorflow:xlaa")


# Shapes and traces


def test_nothing_retraces_when_the_batch_or_the_rate_changes() -> None:
    run, rule = executor(mlp(**SMALL, dropout=0.5)), d5.Adam(lr=0.1)
    step = run.train_step(rule)
    for number, size in enumerate((5, 5, 3, 1, 7)):
        rule.lr = 0.1 / (number + 1)
        step(batch(size), info(number, size))
        run.inference(batch(size))
        run.inference(batch(size), training=True)
        run.inference_and_backprop(batch(size), loss_scale=2.0**number)
        outputs = step.backprop(batch(size), info(number, size))
        step.apply(run.gradients(), info(number, size))
        assert tuple(outputs["logits"].shape) == (size, 2)
    assert step.traces == 1
    assert {function.traces for function in run._functions.values()} == {1}
    assert run.compilations == step.compilations == 0


def test_xla_compiles_once_a_batch_size_and_traces_once() -> None:
    run = XLA.executor(mlp(**SMALL))
    step = run.train_step(d5.SGD(lr=0.1))
    for number, size in enumerate((5, 5, 3, 5, 3)):
        step(batch(size), info(number, size))
    assert (step.traces, step.compilations) == (1, 2)
    run.inference(batch(4))
    assert run.compilations == 1
    assert run.settings()["xla"] is True


def test_a_step_is_the_same_under_xla() -> None:
    network, feeds = resnet(depth=8, dtype="float64"), []
    feeds = [{"input": RNG.standard_normal((3, 3, 32, 32)), "label": np.arange(3)} for _ in range(2)]
    ends = []
    for framework in (TF, XLA):
        run = framework.executor(network)
        step = run.train_step(d5.Momentum(lr=0.01))
        losses = [float(step(feed, info(number, 3))["loss"]) for number, feed in enumerate(feeds)]
        ends.append((losses, run.state_dict()))
    # Two float64 steps through some dozen layers.
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-10)
    for name, value in ends[0][1].items():
        np.testing.assert_allclose(ends[1][1][name], value, rtol=1e-8, atol=1e-10)


# Batch normalisation and dropout


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2), (1, 3, 1, 1)])
def test_batch_normalisation_updates_its_statistics_as_onnx_has_it(shape: tuple[int, ...], dtype: str) -> None:
    x, scale, bias, mean = (RNG.standard_normal(s).astype(dtype) for s in (shape, (3,), (3,), (3,)))
    variance = np.abs(RNG.standard_normal(3)).astype(dtype) + 0.5
    build = NetworkBuilder("bn", dtype=dtype)
    inputs = [build.input("x", ("N", *shape[1:]))]
    inputs += [build.constant(n, v) for n, v in zip("sbmv", (scale, bias, mean, variance), strict=True)]
    network = build.network({"y": build.op("BatchNormalization", *inputs, epsilon=1e-3, momentum=0.7)})
    proto = network.to_onnx()
    node = proto.graph.node[0]
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    node.output.extend(["new_mean", "new_variance"])
    for name in ("new_mean", "new_variance"):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, [3]))
    want = ReferenceEvaluator(proto).run(None, {"x": x})
    for framework in (TF, XLA):
        run = framework.executor(network)
        before = run.inference({"x": x})["y"].numpy()
        got = run.inference({"x": x}, training=True)["y"].numpy(), *(run.buffers()[name].numpy() for name in "mv")
        for value, wanted in zip(got, want, strict=True):
            # Reductions of some dozen elements in another order.
            close = 1e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(value, wanted, rtol=close, atol=close)
        after = run.inference({"x": x})["y"].numpy()
        wide = (1, 3, *[1] * (len(shape) - 2))
        expected = (x - want[1].reshape(wide)) / np.sqrt(want[2].reshape(wide) + 1e-3)
        np.testing.assert_allclose(after, expected * scale.reshape(wide) + bias.reshape(wide), rtol=1e-4, atol=1e-4)
        assert not np.allclose(after, before)
    np.testing.assert_array_equal(network.initial("m"), mean)


def test_evaluation_leaves_statistics_alone_and_every_form_of_training_moves_them() -> None:
    run = executor(resnet(depth=8))
    feed = {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    step = run.train_step(d5.SGD(lr=0.0))
    seen = [run.buffers()["conv0.mean"].numpy()]
    for call in (
        lambda: run.inference(feed, training=True),
        lambda: run.inference_and_backprop(feed),
        lambda: step(feed, info(0, 4)),
        lambda: step.backprop(feed, info(0, 4)),
    ):
        call()
        run.inference(feed)
        seen.append(run.buffers()["conv0.mean"].numpy())
        assert not np.array_equal(seen[-1], seen[-2])
    batch_mean = (seen[1] - 0.9 * seen[0]) / 0.1
    for number, value in enumerate(seen):  # the same batch each time: a geometric series
        np.testing.assert_allclose(value, (1 - 0.9**number) * batch_mean, rtol=1e-3, atol=1e-6)


def test_the_variance_of_a_constant_is_not_negative() -> None:
    run = executor(resnet(depth=8))
    for value in (0.0, 1e3):
        run.inference({"input": np.full((2, 3, 32, 32), value, np.float32), "label": np.array([0, 1])}, training=True)
    assert all((value.numpy() >= 0).all() for name, value in run.buffers().items() if "variance" in name)


def dropping(dtype: str = "float64") -> Network:
    """Dropout of an image, which lives with channels last, and of a vector."""
    build = NetworkBuilder("dropping", dtype=dtype, seed=1)
    x, label = build.input("input", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    y = build.op("Conv", x, build.parameter("w", (4, 2, 3, 3)), pads=[1, 1, 1, 1])
    image = build.op("Dropout", build.op("Tanh", y), build.scalar(0.4))
    y = build.op("Flatten", build.op("AveragePool", image, kernel_shape=[2, 2], strides=[2, 2]))
    y = build.op("Dropout", y, build.scalar(0.25))
    y = build.op("Gemm", y, build.parameter("v", (3, 36)), transB=1)
    return build.network({"image": image, "loss": build.op("SoftmaxCrossEntropyLoss", y, label)})


def test_dropout_is_the_product_with_its_mask() -> None:
    network = dropping()
    feed = {"input": RNG.standard_normal((3, 2, 6, 6)), "label": np.arange(3)}
    run, reference = executor(network), d5.framework("reference").executor(network)
    plain = run.inference(feed)["image"].numpy()
    for number in (0, 3):
        told = d5.StepInfo(step=number, seed=5, batch_size=3)
        node = next(node for node in network.nodes if node.op_type == "Dropout")
        mask = dropout_mask((3, 4, 6, 6), ratio=0.4, seed=5, step=number, node=str(node.name), dtype="float64")
        got = run.inference(feed, training=True, info=told)["image"].numpy()
        np.testing.assert_array_equal(got, plain * mask)
        for one in (run, reference):
            one.inference_and_backprop(feed, info=told)
        for name, value in reference.gradients().items():
            # float64 sums of some hundred products.
            np.testing.assert_allclose(run.gradients()[name].numpy(), value, rtol=1e-11, atol=1e-14)
    np.testing.assert_array_equal(run.inference(feed)["image"].numpy(), plain)
    step, other = (one.train_step(d5.SGD(lr=0.1)) for one in (run, reference))
    for number in range(3):
        told = d5.StepInfo(step=number, seed=9, batch_size=3)
        assert float(step(feed, told)["loss"]) == pytest.approx(float(other(feed, told)["loss"]), rel=1e-10)
    assert step.traces == 1


# Gradients


def test_gradients_are_dense_and_zero_where_the_loss_does_not_depend() -> None:
    build = NetworkBuilder("rows")
    rows = build.op("Gather", build.parameter("table", (5, 3)), build.input("x", ("N",), "int64"), axis=0)
    idle = build.op("ReduceSum", build.parameter("idle", (2, 3)), keepdims=0)
    loss = build.op("ReduceSum", build.op("Mul", rows, rows), keepdims=0)
    run, told = executor(build.network({"loss": loss, "other": idle})), {}
    run.inference_and_backprop({"x": np.array([1, 1, -1])}, on_gradient=told.__setitem__)
    gradients = run.gradients()
    assert all(isinstance(value, tf.Tensor) for value in (*gradients.values(), *told.values()))
    table = run.state_dict()["table"]
    want = np.zeros((5, 3), np.float32)
    want[1], want[4] = 4 * table[1], 2 * table[4]
    np.testing.assert_allclose(gradients["table"], want, rtol=1e-6)  # one float32 product and sum
    np.testing.assert_array_equal(gradients["idle"], np.zeros((2, 3)))
    np.testing.assert_array_equal(told["idle"], np.zeros((2, 3)))
    run.inference_and_backprop({"x": np.array([1])}, wrt=["idle"])
    np.testing.assert_array_equal(run.gradients()["idle"], np.zeros((2, 3)))


def test_wrt_inputs_and_subsets() -> None:
    run, feed = executor(mlp(**SMALL, dtype="float64")), batch(dtype="float64")
    run.inference_and_backprop(feed, wrt=["input", "fc2.weight"])
    gradients = arrays(run.gradients())
    assert list(gradients) == ["input", "fc2.weight"]
    step, shifted = 1e-6, {**feed, "input": feed["input"].copy()}
    shifted["input"][2, 1] += step
    slope = float(run.inference(shifted)["loss"] - run.inference(feed)["loss"]) / step
    assert gradients["input"][2, 1] == pytest.approx(slope, abs=1e-6)  # a forward difference is right to the step
    run.inference_and_backprop(feed, wrt=["input", "fc1.weight"], accumulate=True)
    assert set(run.gradients()) == {"input", "fc1.weight", "fc2.weight"}
    np.testing.assert_allclose(run.gradients()["input"], 2 * gradients["input"], rtol=1e-14)
    np.testing.assert_array_equal(run.gradients()["fc2.weight"], gradients["fc2.weight"])
    for wrt, error, message in (
        (["label"], Unsupported, r"no gradient by 'label', which is int64\[N\]"),
        (["fc9"], UnknownName, "unknown parameter or input 'fc9'"),
        ([], UsageError, "nothing to differentiate by"),
    ):
        with pytest.raises(error, match=message):
            run.inference_and_backprop(feed, wrt=wrt)


def test_gradients_are_never_stale() -> None:
    run, feed = executor(), batch()
    with pytest.raises(
        Unsupported, match="no gradients: nothing has run backward yet; remedy: call inference_and_back"
    ):
        run.gradients()
    run.inference_and_backprop(feed)
    want = arrays(run.gradients())

    def fail(name: str, gradient: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run.inference_and_backprop(feed, on_gradient=fail)
    with pytest.raises(Unsupported, match="there are no gradients: the last call failed"):
        run.gradients()
    run.inference_and_backprop(feed, accumulate=True)  # nothing of the failed call is added to
    for name, value in run.gradients().items():
        np.testing.assert_array_equal(value, want[name])
    run.train_step(d5.SGD())(feed, info())
    with pytest.raises(Unsupported, match="there are no gradients: a whole compiled step ran last"):
        run.gradients()


def test_wrong_losses() -> None:
    run = executor()
    for call in (lambda loss: run.inference_and_backprop(batch(), loss), lambda loss: run.train_step(d5.SGD(), loss)):
        with pytest.raises(UnknownName, match="unknown loss 'los'; allowed: logits, loss; did you mean 'loss'"):
            call("los")
        with pytest.raises(
            Unsupported, match=r"'logits', float32\[N, 2\], cannot be differentiated; allowed: a scalar"
        ):
            call("logits")


# Inputs


def test_inputs_that_do_not_fit() -> None:
    run, good = executor(), batch()
    for feed, message in (
        ({"input": good["input"]}, "missing input 'label'; got: input, expected: input, label"),
        ({**good, "input": good["input"].astype(np.float64)}, "'input': got dtype float64, expected float32"),
        ({**good, "label": tf.constant([0.0] * 5)}, "'label': got dtype float32, expected int64"),
        ({**good, "input": good["input"][:, :3]}, r"'input': got shape \(5, 3\), expected float32\[N, 4\]"),
        ({**good, "label": good["label"][:4]}, r"got N = 4 in shape \(4,\), expected N = 5 as in input 'input'"),
        ({**good, "input": np.array(["a"])}, "'input': got ndarray that tensorflow cannot take"),
        ({**good, "input": object()}, "'input': got object that tensorflow cannot take"),
    ):
        for call in (run.inference, run.inference_and_backprop, lambda feed: run.train_step(d5.SGD())(feed, info())):
            with pytest.raises(ShapeError, match=message):
                call(feed)
    run.inference(good)


def test_any_layout_of_memory_is_read_right() -> None:
    run, good = executor(), batch(6)
    want = run.inference(good)["logits"].numpy()
    x = good["input"]
    frozen = x.copy()
    frozen.flags.writeable = False
    wide = np.zeros((12, 8), np.float32)
    wide[::2, ::2] = x
    aligned = d5.tensors.aligned_empty(x.shape, x.dtype)
    aligned[...] = x
    off = np.zeros(x.size + 1, np.float32)[1:].reshape(x.shape)
    off[...] = x
    values = [np.asfortranarray(x), frozen, wide[::2, ::2], x[::-1].copy()[::-1], x.astype(">f4"), aligned, off]
    for value in (*values, tf.constant(x), tf.Variable(x)):
        np.testing.assert_array_equal(run.inference({**good, "input": value})["logits"], want)
    np.testing.assert_array_equal(
        run.inference({**good, "input": np.zeros((0, 4), np.float32), "label": I7[:0]})["logits"], want[:0]
    )
    # Shared where it can be, and the caller's array is not changed by anything that runs.
    assert np.shares_memory(np.from_dlpack(shared(aligned)), aligned)
    run.train_step(d5.Adam(lr=1.0))({**good, "input": aligned}, info(0, 6))
    np.testing.assert_array_equal(aligned, x)


# Whole steps


def half_steps(run: Any, step: Any, feed: Any, told: d5.StepInfo) -> None:
    step.backprop(feed, told)
    step.apply(arrays(run.gradients()), told)


@pytest.mark.parametrize(
    "rule", [d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05), d5.LARS(lr=0.5)], ids=lambda r: type(r).__name__
)
def test_two_halves_are_a_whole(rule: Any) -> None:
    network, ends = lenet(classes=3, dtype="float64"), []
    feeds = [{"input": RNG.standard_normal((2, 1, 28, 28)), "label": np.array([0, 2])} for _ in range(3)]
    group = ParameterGroup(lambda name: name.endswith("bias"), lr=0.01)
    for whole in (True, False):
        run = executor(network)
        step = run.train_step(
            rule, groups=(group,), modifier=lambda name, param, grad: grad + 0.01 * param if "conv" in name else grad
        )
        for number, feed in enumerate(feeds):
            if whole:
                step(feed, info(number, 2))
            else:
                half_steps(run, step, feed, info(number, 2))
        ends.append({**run.state_dict(), **step.state_dict()})
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        # The compiler orders float64 roundings as it likes.
        np.testing.assert_allclose(ends[1][name], value, rtol=1e-10, atol=1e-13)


def test_a_modifier_sees_onnx_order_and_is_checked() -> None:
    run, seen = executor(lenet(classes=3)), {}

    def modify(name: str, param: Any, grad: Any) -> Any:
        seen[name] = tuple(param.shape), tuple(grad.shape)
        return tf.zeros_like(grad) if name == "conv2.weight" else grad

    step, before = run.train_step(d5.SGD(lr=0.1), modifier=modify), run.state_dict()
    feed = {"input": normal(2, 1, 28, 28), "label": np.array([0, 2])}
    step(feed, info(0, 2))
    assert seen == {name: (spec.shape, spec.shape) for name, spec in run.network.parameters.items()}
    unchanged = {name for name, value in run.state_dict().items() if np.array_equal(value, before[name])}
    assert unchanged == {"conv2.weight"}
    for bad, message in (
        (lambda name, param, grad: grad[0], "the modified gradient of 'conv1.weight': got shape"),
        (lambda name, param, grad: tf.cast(grad, tf.float64), "'conv1.weight': got dtype float64, expected float32"),
    ):
        with pytest.raises(ShapeError, match=message):
            run.train_step(d5.SGD(lr=0.1), modifier=bad)(feed, info(0, 2))


def test_frozen_parameters_stay() -> None:
    run = executor()
    frozen = ParameterGroup(lambda name: name.startswith("fc1"), frozen=True)
    step, before = run.train_step(d5.Adam(lr=0.1), groups=(frozen,)), run.state_dict()
    step(batch(), info())
    step.backprop(batch(), info())
    assert run.gradients().keys() == {"fc2.weight", "fc2.bias"}
    assert step.state_dict().keys() == {f"{key}/fc2.{name}" for key in "mv" for name in ("weight", "bias")}
    changed = {name for name, value in run.state_dict().items() if not np.array_equal(value, before[name])}
    assert changed == {"fc2.weight", "fc2.bias"}
    with pytest.raises(RuleError, match="nothing to train by Adam: got 4 parameters, all of them frozen"):
        run.train_step(d5.Adam(), groups=(ParameterGroup(lambda name: True, frozen=True),))


def test_gradients_from_outside_are_checked() -> None:
    run = executor()
    step, zero = run.train_step(d5.SGD(lr=0.1)), {name: np.zeros_like(v) for name, v in executor().state_dict().items()}
    before = run.state_dict()
    for bad, message in (
        ({"fc1.bias": zero["fc1.bias"]}, "no gradient of 'fc1.weight'; allowed: one a parameter"),
        ({**zero, "fc1.bias": np.zeros(4, np.float32)}, r"the gradient of 'fc1.bias': got shape \(4,\)"),
        ({**zero, "fc1.bias": np.zeros(3)}, "the gradient of 'fc1.bias': got dtype float64"),
    ):
        with pytest.raises(ShapeError, match=message):
            step.apply(bad, info())
    step.apply(zero, info())
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_averaged_gives_back_what_was_there() -> None:
    run = executor()
    step = run.train_step(d5.AcceleGrad(lr=0.1))
    for number in range(3):
        step(batch(), info(number))
    live = run.state_dict()
    with step.averaged():
        averaged = run.state_dict()
    assert any(not np.array_equal(live[name], averaged[name]) for name in live)
    with pytest.raises(RuntimeError, match="stop"), step.averaged():
        raise RuntimeError("stop")
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, live[name])
    for evaluation, values in ((True, averaged), (False, live)):
        exported = run.export(evaluation=evaluation)
        for name, value in values.items():
            np.testing.assert_array_equal(exported.initial(name), value)
    step(batch(), info(3))  # the step goes on from the live values
    assert step.traces == 1


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05)], ids=str)
def test_a_resumed_run_is_the_same_bit_for_bit(kind: Any) -> None:
    feeds = [{"input": normal(4, 1, 28, 28), "label": np.arange(4)} for _ in range(6)]

    def start() -> tuple[Any, Any, Any]:
        run = executor(lenet(seed=4))
        if not isinstance(kind, str):
            step = run.train_step(kind)
            return run, step, step
        optimizer: Any = TF.optimizer(kind)(**NATIVE[kind])
        optimizer.bind(run)
        return run, optimizer, optimizer.step

    def go(call: Any, first: int, last: int) -> None:
        for number in range(first, last):
            call(feeds[number], info(number, 4))

    whole, _, call = start()
    go(call, 0, 6)
    half, optimizer, call = start()
    go(call, 0, 3)
    states = half.state_dict(), optimizer.state_dict()
    assert all(isinstance(value, (np.ndarray, np.generic)) for state in states for value in state.values())
    resumed, optimizer, call = start()
    resumed.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    go(call, 3, 6)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(resumed.state_dict()[name], value)
    if "velocity/conv2.weight" in states[1] or "m/conv2.weight" in states[1]:
        key = "m/conv2.weight" if "m/conv2.weight" in states[1] else "velocity/conv2.weight"
        assert states[1][key].shape == (16, 6, 5, 5)
    with pytest.raises(ShapeError, match="missing or unknown entries"):
        optimizer.load_state_dict({**states[1], "nothing": np.zeros(1)})


def test_nothing_leaves_tensorflow_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call back into Python, no evaluation by something else, no NumPy between input and output."""
    network = resnet(depth=8)
    feeds = [{"input": tf.constant(normal(2, 3, 32, 32)), "label": tf.constant([0, 1], tf.int64)} for _ in range(2)]

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("something else ran")

    run = executor(network)
    for name in ("numpy_function", "py_function"):
        monkeypatch.setattr(tf, name, forbidden)
    monkeypatch.setattr(ReferenceEvaluator, "run", forbidden)
    monkeypatch.setattr("deep5.frameworks.reference.emit.compile_network", forbidden)
    for name in ("numpy", "__array__", "__float__"):
        monkeypatch.setattr(type(feeds[0]["input"]), name, forbidden)
    step = run.train_step(d5.Adam(lr=0.01))
    losses = [step(feed, info(number, 2))["loss"] for number, feed in enumerate(feeds)]
    run.inference_and_backprop(feeds[0])
    gradients = run.gradients()
    monkeypatch.undo()
    types = {node.type for node in step.graph.get_operations()}
    assert not {name for name in types if "PyFunc" in name or name.startswith("Eager")}
    assert all(np.isfinite(value.numpy()).all() for value in (*losses, *gradients.values()))


# Keras's optimizers

NATIVE: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7},
}


@pytest.mark.parametrize("name", list(NATIVE))
def test_native_optimizers_are_keras_own(name: str) -> None:
    import keras

    network, feeds = mlp(**SMALL, seed=4), [batch(8) for _ in range(5)]
    run = executor(network)
    optimizer: Any = TF.optimizer(name)(**NATIVE[name])
    optimizer.bind(run)
    w = [tf.Variable(network.initial(key)) for key in network.parameters]
    by_hand: dict[str, Callable[[], Any]] = {
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.8, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.05, beta_1=0.8, beta_2=0.99, epsilon=1e-7),
    }
    theirs = by_hand[name]()
    for number, feed in enumerate(feeds):
        if number == 3:
            optimizer.set_hyper("lr", 0.01)
            theirs.learning_rate = 0.01
        loss = optimizer.step(feed, info(number, 8))["loss"]
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(feed["input"], w[0], transpose_b=True) + w[1])
            logits = tf.matmul(hidden, w[2], transpose_b=True) + w[3]
            other = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(feed["label"], logits))
        theirs.apply_gradients(zip(tape.gradient(other, w), w, strict=True))
        assert float(loss) == pytest.approx(float(other), rel=1e-5)
    for value, wanted in zip(run.state_dict().values(), w, strict=True):
        # Five float32 steps; a graph and eager calls round in another order.
        np.testing.assert_allclose(value, wanted.numpy(), rtol=1e-4, atol=1e-5)
    assert optimizer._step.traces == 1
    assert optimizer.state_dict()["iteration"] == 5


def test_native_optimizer_errors() -> None:
    optimizer: Any = TF.optimizer("adam")()
    for call in (lambda: optimizer.step({}, None), optimizer.state_dict, lambda: optimizer.set_hyper("lr", 1.0)):
        with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
            call()
    with pytest.raises(UsageError, match="native optimizer of tensorflow cannot drive a ReferenceExecutor"):
        optimizer.bind(d5.framework("reference").executor(mlp(**SMALL)))
    with pytest.raises(UsageError, match=r"keras refuses the optimizer .*'momentum': 2"):
        TF.optimizer("momentum")(momentum=2.0).bind(executor())
    run = executor()
    optimizer.bind(run)
    with pytest.raises(UsageError, match="no hyperparameter 'beta1' that may change; allowed: lr"):
        optimizer.set_hyper("beta1", 0.1)
    state = optimizer.state_dict()
    key = "momentum/fc1.bias"
    with pytest.raises(ShapeError, match=r"'momentum/fc1.bias': got float32\(9,\), expected float32\(3,\)"):
        optimizer.load_state_dict({**state, key: np.zeros(9, np.float32)})
    assert optimizer.describe()["native"] == "tensorflow"
    frozen = run.state_dict()
    optimizer.set_hyper("lr", 0.0)
    optimizer.step(batch(), info())
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, frozen[name])


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_keras_on_another_framework_is_refused() -> None:
    done = python(
        "import deep5 as d5\n"
        "framework = d5.framework('tensorflow')\n"
        "optimizer = framework.optimizer('adam')()\n"
        "optimizer.bind(framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)))\n",
        KERAS_BACKEND="numpy",
    )
    assert "UsageError: keras is set with the backend 'numpy'; allowed: 'tensorflow'; remedy: set KERAS" in done.stderr


# Threads, devices, start-up


def test_settings_are_read_back() -> None:
    settings = executor(mlp(**SMALL, dtype="float64")).settings()
    assert settings["threads"] == int(os.environ["TF_NUM_INTRAOP_THREADS"])
    assert (settings["dtype"], settings["device"], settings["tf32"]) == ("float64", "cpu", False)
    assert (settings["framework"], settings["version"]) == ("tensorflow", tf.__version__)
    assert (settings["deterministic"], settings["xla"]) == (True, False)


def test_threads_are_fixed_when_tensorflow_has_started() -> None:
    run = executor()
    have = run.settings()["threads"]
    TF.set_threads(have)  # what it has may be asked for
    with pytest.raises(
        UsageError,
        match=rf"got {have + 1} threads for tensorflow, which has started with {have} and cannot change; "
        rf"allowed: {have} in this process; remedy: .*TF_NUM_INTRAOP_THREADS={have + 1}",
    ):
        TF.set_threads(have + 1)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="threads; allowed: a whole number of at least 1"):
            TF.set_threads(bad)
    assert run.settings()["threads"] == have


def test_threads_are_set_before_it_starts_and_nothing_is_said_but_errors() -> None:
    done = python(
        "import deep5 as d5\n"
        "framework = d5.framework('tensorflow')\n"
        "framework.set_threads(2)\n"
        "settings = framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()\n"
        "print(settings['threads'], settings['inter_threads'])\n"
    )
    assert done.stdout.split() == ["2", "1"], done.stderr
    assert all(line.startswith("E") for line in done.stderr.splitlines()), done.stderr


def test_errors_at_start_up_are_let_through(capfd: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        with without_reports():
            os.write(2, b"I0000 00:00:1.2 1 a.cc:1] report\nW0000 00:00:1.2 1 a.cc:1] warning\n")
            os.write(2, b"E0000 00:00:1.2 1 a.cc] error\n")
            os.write(2, b"To enable the following instructions: AVX\nsomething else\n")
            sys.stderr.write("from Python\n")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        load()
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines() == [
        "E0000 00:00:1.2 1 a.cc] error",
        "something else",
        "from Python",
        "after",
    ]


def test_a_device_that_is_not_there_is_refused() -> None:
    index = len(tf.config.list_physical_devices("GPU"))
    with pytest.raises(Unsupported, match=f"no device cuda:{index} for tensorflow here; allowed: cpu"):
        executor(device=f"cuda:{index}")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        executor(device="tpu")


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="this TensorFlow finds no graphics processor")
def test_a_network_runs_on_a_graphics_processor() -> None:
    network = resnet(depth=8)
    feed = {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    here, there = executor(network), executor(network, device="cuda")
    for run in (here, there):
        run.inference_and_backprop(feed)
    there.synchronize()
    for name, value in arrays(here.gradients()).items():
        other = d5.to_numpy(there.gradients()[name])
        # TF32: ten bits of mantissa.
        assert np.linalg.norm(value - other) <= 2e-2 * np.linalg.norm(value) + 1e-6
    step = there.train_step(d5.Adam())
    losses = [float(step(feed, info(number, 4))["loss"]) for number in range(5)]
    assert losses[-1] < losses[0]


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
        # Elementary functions of two libraries: some units in the last place.
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
    if name == "truth":  # TensorFlow adds no truth values
        eager = tf.cast(NAMESPACE.any(tensor > 3) & NAMESPACE.all(tensor > 0, axis=0), tf.float64)
        want = (np.any(x > 3) & np.all(x > 0, axis=0)).astype(np.float64)
    else:
        traced = tf.function(lambda value: XP[name](NAMESPACE, value), autograph=False)(tensor)
        np.testing.assert_array_equal(traced, eager)
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
    """Rows of a table, with a whole-number input that has no gradient."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs[:1]

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
    # r sin(a) is y: the derivatives by hand, to a handful of float64 roundings.
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
    with pytest.raises(ShapeError, match=r"Short\.backward returned 0 gradients; allowed: one an input, 2"):
        tape.gradient(total, x)


# The opponents


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("network", [d5.networks.mlp, d5.networks.lenet, d5.networks.resnet18])
def test_what_is_written_by_hand_runs(network: Any, jit_compile: bool) -> None:
    from deep5.recipes.overhead import tensorflow_by_hand as hand

    threads = executor().settings()["threads"]
    for make in (hand.training_step, hand.inference):
        work = make(steps=2, seed=0, threads=threads, network=network, batch_size=2, jit_compile=jit_compile)
        work()


def test_the_back_end_is_made_anew_in_either_mode() -> None:
    assert TensorFlow().name == "tensorflow"
    assert TensorFlow("xla").executor(mlp(**SMALL)).settings()["xla"] is True
