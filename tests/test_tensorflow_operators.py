"""TensorFlow: every operator against ONNX Runtime, its gradient against central differences, and images' layout."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import deep5 as d5
from deep5.errors import Unsupported
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet
from deep5.networks.builder import ones, zeros
from test_tensorflow import SMALL, TF, XLA, arrays, batch, executor, normal

from deep5.frameworks.tensorflow.operators import OPERATORS  # isort: skip - behind TensorFlow, which the back-end loads
from deep5.frameworks.tensorflow.probe import runs  # isort: skip

RNG = np.random.default_rng(7)
END = np.iinfo(np.int64).max


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


def test_convolutions_that_the_kernels_do_not_know_are_written_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and dilation have gradients on every processor: where the kernels have none, by other means."""
    special = [case for case in CONVOLUTIONS if "group" in case[2] or "dilations" in case[2]]
    feeds = [named((normal(*x), normal(*w))) for x, w, _ in special]
    found: dict[bool, list[Any]] = {}
    for known in {False, runs("float32", 2, "/CPU:0")}:
        monkeypatch.setattr("deep5.frameworks.tensorflow.operators_windows.runs", lambda *_, known=known: known)
        for (_, _, options), feed in zip(special, feeds, strict=True):
            if known and len(feed["x0"].shape) == 5:
                continue
            run = executor(with_loss("Conv", feed, "float32", **options))
            run.inference_and_backprop(feed, wrt=list(feed))
            found.setdefault(known, []).append(arrays(run.gradients()))
    for ours, other in zip(found.get(True, []), found[False], strict=False):
        for name, value in ours.items():
            # Sums of some hundred float32 products.
            np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-5 * np.abs(value).max())


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
    network = build.network({"y0": flat, "y1": parts[1], "y2": wide, "y3": last})
    run = executor(network)
    for extents in ((2, 2, 5, 4), (3, 2, 6, 7)):
        feed = {"x": normal(*extents)}
        for got, want in zip(run.inference(feed).values(), runtime(network, feed), strict=True):
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
    y = build.op("Conv", x, build.parameter("w", (4, 2, 3, 3)), build.parameter("b", (4,), zeros), pads=[1, 1, 1, 1])
    y = tail(build, y)
    flat = build.op("Reshape", build.op("Mul", y, build.op("Sin", y)), build.constant("flat", np.array([-1])))
    return build.network({"y": y, "loss": build.op("ReduceMean", flat, keepdims=0)})


def ints(build: NetworkBuilder, name: str, *values: int) -> Any:
    return build.constant(name, np.array(values))


TAILS: dict[str, tuple[int, Callable[[NetworkBuilder, Any], Any]]] = {
    # How many transposes of images there are in inference (one of the input, one of each of the two outputs that is an
    # image), and what follows the convolution.
    "vector": (3, lambda b, y: b.op("Add", y, b.parameter("v", (5,), ones))),
    "channels": (3, lambda b, y: b.op("Mul", y, b.parameter("v", (4, 1, 1)))),
    "whole": (3, lambda b, y: b.op("Sub", b.parameter("v", (1, 4, 6, 5)), y)),
    "number": (3, lambda b, y: b.op("Mul", b.scalar(3.0), y)),
    "where": (3, lambda b, y: b.op("Where", b.op("Greater", y, b.scalar(0.0)), y, b.op("Neg", y))),
    "clip": (3, lambda b, y: b.op("Clip", y, b.scalar(-0.5))),
    "softmax": (3, lambda b, y: b.op("Softmax", y, axis=1)),
    "concat": (3, lambda b, y: b.op("Concat", y, b.op("Tanh", y), axis=-3)),
    "split": (3, lambda b, y: b.op("Sub", *b.op("Split", y, outputs=2, axis=1, num_outputs=2))),
    "slice": (3, lambda b, y: b.op("Slice", y, ints(b, "s", 1, 0), ints(b, "e", 3, 5), ints(b, "a", 1, 2))),
    "pad": (3, lambda b, y: b.op("Pad", y, ints(b, "p", 0, 1, 2, 0, 0, 0, 0, 3))),
    "keep": (1, lambda b, y: b.op("ReduceMax", y, ints(b, "axes", 2, 3))),  # space is gone: a change of shape
    "drop": (3, lambda b, y: b.op("ReduceSum", y, ints(b, "axes", -1), keepdims=0)),
    "channel": (1, lambda b, y: b.op("ReduceMean", y, ints(b, "axes", 1), keepdims=0)),
    "turned": (1, lambda b, y: b.op("Relu", b.op("Transpose", y, perm=[0, 2, 3, 1]))),
    "turned back": (3, lambda b, y: b.op("Transpose", b.op("Transpose", y, perm=[1, 2, 0, 3]), perm=[2, 0, 1, 3])),
    "other": (3, lambda b, y: b.op("Exp", b.op("Transpose", y, perm=[3, 2, 1, 0]))),
    "identity": (3, lambda b, y: b.op("Identity", b.op("Cast", y, to=11))),
    "weight": (3, lambda b, y: b.op("Add", y, b.op("ReduceSum", b.op("Mul", W(b), W(b)), keepdims=0))),
    "gather": (2, lambda b, y: b.op("Gather", y, ints(b, "i", 3, -4), axis=1)),
    "flatten": (2, lambda b, y: b.op("Flatten", y)),
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
    found = [node.inputs[0].shape for node in ours.graph.get_operations() if node.type == "Transpose"]
    assert len([shape for shape in found if None in shape]) == count
    assert len(found) <= count + 1  # and perhaps a parameter, to combine it with an image
