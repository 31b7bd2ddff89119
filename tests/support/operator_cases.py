"""Operators for tests of a back-end's table: cases that PyTorch and TensorFlow share, and those of only one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from deep5.networks import Network, NetworkBuilder
from tensorflow_cases import FURTHER, PIECEWISE

Case = tuple[str, tuple[np.ndarray, ...], dict[str, Any]]

RNG = np.random.default_rng(7)
END = np.iinfo(np.int64).max


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def single(
    op: str, feeds: dict[str, np.ndarray], constants: tuple[Any, ...] = (), outputs: int = 1, **attributes: Any
) -> Network:
    """A network of one operator, with outputs y0, y1, …; `constants` follow the inputs."""
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
    return list(session.run(list(network.outputs), {name: np.asarray(value) for name, value in feeds.items()}))


def converted(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype == np.float32 else array


def checked_gradients(run: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients by the fed float64 values, confirmed by a central difference of the loss."""
    moving = [name for name, value in feeds.items() if value.dtype == np.float64]
    rng, step = np.random.default_rng(1), 1e-6
    direction = {name: rng.standard_normal(feeds[name].shape) for name in moving}
    losses = []
    for sign in (1, -1):
        near = {name: feeds[name] + sign * step * direction[name] for name in moving}
        losses.append(float(run.inference_and_backprop({**feeds, **near}, wrt=moving)["loss"]))
    run.inference_and_backprop(feeds, wrt=moving)
    gradients = {name: value.numpy().copy() for name, value in run.gradients().items()}
    slope = sum(float(np.sum(gradients[name] * direction[name])) for name in moving)
    # A central difference is accurate to the square of the step, and to rounding (1e-16 of the loss) over the step.
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-7)
    return gradients


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
        weight = build.op("Sigmoid", build.op("Cast", output, to=ir.DataType.from_numpy(np.dtype(dtype)).value))
        parts.append(build.op("ReduceSum", build.op("Reshape", build.op("Mul", weight, output), flat), keepdims=0))
    return build.network({"loss": build.op("Sum", *parts)})


X, Y, P = normal(2, 3, 4), normal(3, 1), np.abs(normal(2, 3, 4)) + 0.1
BIT = X > 0
I7 = np.array([7, -7, 7, -7], np.int64)
CASES: list[Case] = [
    *((op, (X, Y), {}) for op in ("Add", "Sub", "Mul", "Div")),
    *((op, (X,), {}) for op in ("Abs", "Erf", "Exp", "Identity", "Neg", "Relu", "Sigmoid", "Tanh", "Transpose")),
    *((op, (P,), {}) for op in ("Log", "Sqrt")),
    *((op, (I7, np.array([2, 2, -2, -2])), {}) for op in ("Add", "Sub", "Mul", "Div")),
    *((op, (X,), {}) for op in ("Ceil", "Cos", "Floor", "IsNaN", "Sign", "Sin")),
    *((op, (4 * X,), {}) for op in ("Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Round")),
    ("Elu", (X,), {"alpha": 0.3}),
    ("Gelu", (X,), {"approximate": "tanh"}),
    ("HardSigmoid", (X,), {"alpha": 0.4, "beta": 0.1}),
    ("LeakyRelu", (X,), {"alpha": 0.3}),
    ("Reciprocal", (P,), {}),
    ("Round", (np.array([-2.5, -1.5, 0.5, 1.5, 2.5], np.float32),), {}),
    *(("Softplus", (factor * X,), {}) for factor in (1, 30)),
    ("Not", (BIT,), {}),
    *((op, (BIT, Y > 0), {}) for op in ("And", "Or", "Xor")),
    *((op, (X, Y), {}) for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *((op, (I7, np.array([7, 1, -7, -8])), {}) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    ("Equal", (X, X.copy()), {}),
    ("Equal", (BIT, Y > 0), {}),
    ("Mod", (I7, np.array([2, 2, -4, -4])), {}),
    ("Mod", (I7, np.array([2, 2, -4, -4])), {"fmod": 1}),
    ("Mod", (X, Y), {"fmod": 1}),
    ("Pow", (P, Y), {}),
    ("Pow", (X, np.array([[0], [1], [2]], np.int32)), {}),
    ("Pow", (I7, np.array([0, 1, 2, 3])), {}),
    ("Pow", (np.abs(I7), np.array([0.5, 1, 1.5, 2], np.float32)), {}),
    *((op, (X, Y, normal(4)), {}) for op in ("Max", "Min", "Sum")),
    *((op, (X,), {}) for op in ("Max", "Min", "Sum")),
    *((op, (I7, I7[::-1].copy()), {}) for op in ("Max", "Min")),
    ("Clip", (X,), {}),
    ("Clip", (X,), {"constants": (np.float32(-0.5), np.float32(0.5))}),
    ("Clip", (X,), {"constants": (None, np.float32(0.5))}),
    ("Clip", (X,), {"constants": (np.float32(0.5), np.float32(-0.5))}),
    ("Clip", (X, np.array(-0.5, np.float32)), {"constants": (np.float32(0.25),)}),
    ("Clip", (I7,), {"constants": (np.int64(-3), np.int64(3))}),
    *(("Cast", (3 * X,), {"to": to}) for to in (1, 3, 6, 7, 9, 10, 11)),
    *(("Cast", (BIT,), {"to": to}) for to in (1, 7)),
    *(
        (op, (X,), {**({} if axes is None else {"constants": (np.array(axes, np.int64),)}), **options})
        for op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
        for axes, options in (
            (None, {}),
            ([1], {}),
            ([2, 0], {"keepdims": 0}),
            ([-1], {"keepdims": 0}),
            ([], {"noop_with_empty_axes": 1}),
            ([], {"keepdims": 0}),
        )
    ),
    *((op, (I7.astype(np.int32),), {}) for op in ("ReduceMax", "ReduceMin", "ReduceSum")),
    *((op, (np.array(0.3, np.float32),), {}) for op in ("ReduceMean", "ReduceSum")),
    *((op, (X,), {"axis": axis, "keepdims": keep}) for op in ("ArgMax", "ArgMin") for axis, keep in ((0, 1), (-1, 0))),
    ("Split", (normal(2, 7),), {"axis": 1, "num_outputs": 3, "outputs": 3}),
    ("Split", (normal(2, 6),), {"axis": -1, "constants": ([1, 0, 5],), "outputs": 3}),
    ("Split", (normal(4),), {"num_outputs": 1}),
    *(("Squeeze", (normal(1, 3, 1),), {"constants": c}) for c in ((), ([0],), ([-1, 0],))),
    *(("Unsqueeze", (X,), {"constants": (axes,)}) for axes in ([0], [-1], [4, 0], [1, 2])),
    *(("Expand", (normal(3, 1),), {"constants": (to,)}) for to in ([3, 4], [2, 3, 4], [1, 1], [1])),
    ("Tile", (X,), {"constants": ([2, 1, 3],)}),
    *(("Shape", (X,), options) for options in ({}, {"start": 1}, {"start": -2, "end": 2}, {"end": -1})),
    ("ConstantOfShape", (), {"constants": ([2, 3],)}),
    ("ConstantOfShape", (), {"constants": ([2],), "value": ir.tensor(np.array([7]))}),
    *(("Gather", (X, np.array([[1, -1], [0, -2]])), {"axis": axis}) for axis in (0, 1, -1)),
    *(("Gather", (X[0], np.array(2, dtype)), {}) for dtype in (np.int64, np.int32)),
    *(("Gather", (X[0], np.array([[1, -1, 2], [0, 0, -3]], dtype)), {}) for dtype in (np.int64, np.int32)),
    ("Gather", (I7, np.array([1, -1])), {}),
    *(("Gather", (X,), {"axis": 1, "constants": (np.array(i),)}) for i in (2, -1, [0, -1], [[2]])),
    ("Where", (BIT, X, Y), {}),
    ("Transpose", (X,), {"perm": [1, 2, 0]}),
    *(
        ("ReduceProd", (X,), {**({} if axes is None else {"constants": (np.array(axes, np.int64),)}), **options})
        for axes, options in ((None, {}), ([2, 0], {"keepdims": 0}), ([-1], {}))
    ),
    ("Reshape", (X, np.array([4, 6])), {}),
    ("MatMul", (normal(2, 3), normal(3, 4)), {}),
    ("MatMul", (normal(3), normal(3)), {}),
    ("MatMul", (normal(3), normal(2, 3, 4)), {}),
    ("MatMul", (normal(2, 4, 3), normal(3)), {}),
    ("MatMul", (normal(5, 2, 3), normal(3, 4)), {}),
    ("MatMul", (normal(2, 1, 3, 4), normal(5, 4, 2)), {}),
    *((op, (4 * X,), {"axis": axis}) for op in ("Softmax", "LogSoftmax") for axis in (0, 1, -1, -2)),
    *((op, (100 * X,), {}) for op in ("Softmax", "LogSoftmax")),
    *(("Concat", (X, normal(2, 3, 4)), {"axis": axis}) for axis in (0, 2, -2)),
    ("Concat", (X,), {"axis": 0}),
    *(("Flatten", (normal(2, 3, 4, 5),), {"axis": axis}) for axis in (0, 1, 2, 4, -1, -3)),
    *(("Flatten", (normal(3),), {"axis": axis}) for axis in (0, 1)),
    *(("Reshape", (X,), {"constants": (np.array(to),)}) for to in ([0, -1], [-1], [4, 0, 2], [2, 1, 3, 4], [0, 0, 0])),
    ("Reshape", (normal(1, 1),), {"constants": (np.array([], np.int64),)}),
    ("Reshape", (normal(0, 3),), {"constants": (np.array([3, 0]),), "allowzero": 1}),
    ("Slice", (X,), {"constants": ([1], [END], [-1], [2])}),
    ("Slice", (X,), {"constants": ([0, 1], [1, 3])}),
    ("Slice", (X,), {"constants": ([0, 1], [2, 3], None, [1, 2])}),
    ("Slice", (X,), {"constants": ([-3, -100], [-1, 100], [2, 0])}),
    ("Slice", (X,), {"constants": ([2], [1], [1])}),
    ("Slice", (X,), {"constants": ([-1], [-END], [1], [-1])}),
    ("Slice", (X,), {"constants": ([3, 0], [0, 2], [2, 1], [-2, 1])}),
    ("Slice", (X,), {"constants": ([0], [3], [1], [-1])}),
    ("Pad", (X,), {"constants": ([0, 1, 0, 0, 2, 3],)}),
    ("Pad", (X,), {"constants": ([1, 0, 0, 0, 2, 3], np.float32(1.5))}),
    ("Pad", (X,), {"constants": ([1, 2], np.float32(-np.inf), [-1])}),
    ("Pad", (X,), {"constants": ([1, -1, 2, 0], None, [0, 2])}),
    ("Gemm", (normal(2, 3), normal(3, 4)), {}),
    ("Gemm", (normal(2, 3), normal(3, 4)), {"alpha": 0.5}),
    ("Gemm", (normal(3, 2), normal(4, 3), normal(4)), {"transA": 1, "transB": 1}),
    ("Gemm", (normal(3, 2), normal(4, 3), normal(4)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", (normal(2, 3), normal(4, 3)), {"transB": 1, "beta": 2.0}),
    *(
        ("Gemm", (normal(2, 3), normal(4, 3), normal(*c)), {"transB": 1})
        for c in ((), (1,), (4,), (2, 1), (1, 4), (2, 4))
    ),
    *((f"Global{kind}Pool", (normal(*s),), {}) for kind in ("Average", "Max") for s in ((2, 3, 4, 5), (2, 3, 4))),
    # ONNX Runtime only accepts odd sizes.
    *(("LRN", (normal(2, 4, 2, 3),), {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}) for size in (1, 3, 7)),
    ("LRN", (normal(3, 3, 2, 2),), {"size": 5}),
    *(
        ("LayerNormalization", (normal(2, 3, 4), normal(*s), normal(*s)), {"axis": axis})
        for axis, s in ((-1, (4,)), (1, (3, 4)), (0, (2, 3, 4)))
    ),
    ("LayerNormalization", (normal(2, 3, 4), normal(4)), {"epsilon": 0.1}),
    *(
        ("NegativeLogLikelihoodLoss", (normal(4, 3), np.array([0, 2, 1, 1])), {"reduction": reduction})
        for reduction in ("mean", "sum", "none")
    ),
    ("NegativeLogLikelihoodLoss", (normal(2, 3, 5), np.arange(10).reshape(2, 5) % 3), {"ignore_index": 1}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, 1, 1])), {}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, 1, 1], np.int32)), {"reduction": "sum"}),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, -1, 1])), {"ignore_index": -1}),
    ("SoftmaxCrossEntropyLoss", (normal(2, 3, 5), np.arange(10).reshape(2, 5) % 3), {"reduction": "none"}),
    (
        "SoftmaxCrossEntropyLoss",
        (normal(4, 3), np.array([0, 2, 1, 1])),
        {"constants": (np.array([1, 2, 3], np.float32),), "ignore_index": 0},
    ),
    ("SoftmaxCrossEntropyLoss", (normal(4, 3), np.array([0, 2, 1, 1])), {"outputs": 2}),
    ("SoftmaxCrossEntropyLoss", (normal(2, 3, 2, 2), np.arange(8).reshape(2, 2, 2) % 3), {"outputs": 2}),
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
    ((1, 2, 5, 4, 6), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 3]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 4], "pads": [2, 0, 2, 3]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 4], "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((2, 3, 7, 9), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
]
STATISTICS = [np.array([1, 2, 0.5], np.float32), np.array([0, 1, -1], np.float32)]
CASES += [
    *(("Conv", (normal(*x), normal(*w)), a) for x, w, a in CONVOLUTIONS),
    *(("Conv", (normal(*x), normal(*w), normal(w[0])), a) for x, w, a in CONVOLUTIONS),
    *(("AveragePool", (normal(*x),), {**a, "count_include_pad": c}) for x, a in WINDOWS for c in (0, 1)),
    *(("MaxPool", (normal(*x) - 9,), a) for x, a in WINDOWS),  # all negative: padding must not win
    ("MaxPool", (normal(2, 3, 9, 9),), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [1, 2]}),
    ("BatchNormalization", (normal(4, 2), normal(2), normal(2), normal(2), np.abs(normal(2)) + 0.1), {}),
    *(
        ("BatchNormalization", (normal(*shape), *STATISTICS), {"constants": (STATISTICS[1], STATISTICS[0]), **a})
        for shape in ((4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2))
        for a in ({}, {"epsilon": 0.1})
    ),
]
# Operators that only one of the tables has.
ONLY: dict[str, list[Case]] = {
    "pytorch": [
        *(
            (
                "LSTM",
                (normal(6, 2, 3), normal(d, 16, 3), normal(d, 16, 4), *further),
                {
                    "hidden_size": 4,
                    "outputs": outputs,
                    "direction": "bidirectional" if d == 2 else "forward",
                    **options,
                },
            )
            for d, further, outputs, options in (
                (1, (), 3, {}),
                (2, (normal(2, 32),), 3, {}),
                (1, (normal(1, 32),), 1, {}),
                (2, (normal(2, 32),), 2, {"constants": (None, normal(2, 2, 4), normal(2, 2, 4))}),
            )
        ),
        *(
            (
                op,
                (normal(6, 2, 3), normal(d, 4 * gates, 3), normal(d, 4 * gates, 4), *((normal(d, 8 * gates),) * more)),
                {
                    "hidden_size": 4,
                    "outputs": 1 + more,
                    "direction": "bidirectional" if d == 2 else "forward",
                    **({"constants": (None, normal(d, 2, 4))} if more else {}),
                    **options,
                },
            )
            for op, gates, options in (("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {}))
            for d, more in ((1, 0), (2, 0), (1, 1), (2, 1))
        ),
        *(
            (
                "RNN",
                (normal(6, 2, 3), normal(d, 4, 3), normal(d, 4, 4)),
                {
                    "hidden_size": 4,
                    "outputs": 2,
                    "direction": "bidirectional" if d == 2 else "forward",
                    "activations": ["Relu"] * d,
                },
            )
            for d in (1, 2)
        ),
    ],
    "tensorflow": [],
}
# Outputs that are not floating-point numbers, or are piecewise constant.
WITHOUT_GRADIENT = {
    *("And", "ArgMax", "ArgMin", "Cast", "Ceil", "ConstantOfShape", "Equal", "Floor", "Greater", "GreaterOrEqual"),
    *("IsNaN", "Less", "LessOrEqual", "Not", "Or", "Round", "Shape", "Sign", "Xor"),
    *PIECEWISE,
}


def cases(framework: str) -> list[Case]:
    """All cases for a back-end's table."""
    return [*CASES, *FURTHER, *ONLY[framework]]


def smooth(case: Case) -> bool:
    """Whether a central difference gives the gradient."""
    op, values, options = case
    return (
        op not in WITHOUT_GRADIENT
        and bool(values)
        and values[-1 if op == "Where" else 0].dtype == np.float32
        and options.get("outputs", 1) < 2 + (op != "MaxPool")  # whose second output is an integer array
        and not (op == "BatchNormalization" and len(values) > 3)  # computed statistics have no training mode
        and -np.inf not in [bound for bound in options.get("constants", ()) if isinstance(bound, np.float32)]
    )
