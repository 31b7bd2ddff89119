"""A node of each operator at two sizes, for `make operator-bench`: the cost of a call, and that of its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Make = Callable[[bool], "Case"]

TRAINING = "ai.onnx.preview.training"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node and its inputs.

    Attributes:
        feeds: Inputs of the network; gradients with respect to those of float32 are measured.
        constants: The inputs that follow, as constants; None: omitted.
        attributes: Attributes.
        outputs: The number of outputs.
        gradient: Whether the first output has a gradient.
        shape: The shape of the first output, float32, if onnx does not infer it.
        domain: The domain.
        opset: The opset of the ONNX domain.
    """

    feeds: Sequence[Array]
    constants: Sequence[Array | None] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    gradient: bool = True
    shape: Sequence[int] | None = None
    domain: str = ""
    opset: int = 24


def _floats(shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> Array:
    return np.random.default_rng(len(shape)).uniform(low, high, tuple(shape)).astype(np.float32)


def _integers(shape: Sequence[int], high: int, low: int = 0, dtype: str = "int64") -> Array:
    return np.random.default_rng(len(shape)).integers(low, high, tuple(shape)).astype(dtype)


def _image(large: bool) -> tuple[int, ...]:
    return (8, 64, 56, 56) if large else (2, 3, 8, 8)


def _matrix(large: bool) -> tuple[int, ...]:
    return (2048, 512) if large else (8, 16)


def _channels(large: bool, low: float = -2.0) -> Array:
    return _floats(_image(large)[1:2], low)


def _row(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def _each(count: int = 1, *, low: float = -2.0, high: float = 2.0, gradient: bool = True, **attributes: Any) -> Make:
    """An elementwise function of images."""
    return lambda large: Case(
        feeds=[_floats(_image(large), low, high) + np.float32(0.01 * number) for number in range(count)],
        attributes=attributes,
        gradient=gradient,
    )


def _whole(count: int, dtype: str, high: int, **attributes: Any) -> Make:
    """An elementwise function of integers or Booleans."""
    return lambda large: Case(
        feeds=[_integers(_image(large), high, dtype=dtype) for _ in range(count)],
        attributes=attributes,
        gradient=False,
    )


def _along(*constants: Any, rows: bool = False, low: float = -2.0, gradient: bool = True, **attributes: Any) -> Make:
    """A function of an image, or of the rows of a matrix, with constants."""
    return lambda large: Case(
        feeds=[_floats(_matrix(large) if rows else _image(large), low)],
        constants=[None if each is None else np.asarray(each) for each in constants],
        attributes=attributes,
        gradient=gradient,
    )


def _normalized(count: int, **attributes: Any) -> Make:
    """A normalization of an image with parameters along its channels."""
    return lambda large: Case(
        feeds=[_floats(_image(large)), *(_channels(large, 0.5) for _ in range(count))], attributes=attributes
    )


def _rows_normalized(count: int) -> Make:
    return lambda large: Case(
        feeds=[_floats(_matrix(large)), *(_floats(_matrix(large)[1:], 0.5) for _ in range(count))]
    )


def _selected(large: bool) -> Case:
    shape = _image(large)
    return Case(feeds=[_integers(shape, 2, dtype="bool"), _floats(shape), _floats(shape)])


ELEMENTWISE: dict[str, Make] = {
    **{op: _each() for op in ("Abs", "Atan", "Asinh", "Cos", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Mish")},
    **{op: _each() for op in ("Neg", "Relu", "Selu", "Sigmoid", "Sin", "Sinh", "Cosh", "Softplus", "Softsign")},
    **{op: _each() for op in ("Identity", "Swish", "Tanh", "ThresholdedRelu", "Celu", "Elu", "LeakyRelu", "Shrink")},
    "Gelu:tanh": _each(approximate="tanh"),
    **{op: _each(low=-0.9, high=0.9) for op in ("Acos", "Asin", "Atanh", "Tan")},
    "Acosh": _each(low=1.1),
    **{op: _each(low=0.1) for op in ("Log", "Reciprocal", "Sqrt")},
    **{op: _each(gradient=False) for op in ("Ceil", "Floor", "IsInf", "IsNaN", "Round", "Sign")},
    **{op: _each(2, low=0.1) for op in ("Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub")},
    **{op: _each(3) for op in ("Mean", "Sum")},
    "Mod": _each(2, low=0.1, fmod=1),
    **{op: _each(2, gradient=False) for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")},
    **{op: _whole(2, "bool", 2) for op in ("And", "Or", "Xor")},
    "Not": _whole(1, "bool", 2),
    **{op: _whole(2, "int32", 100) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseNot": _whole(1, "int32", 100),
    "BitShift": _whole(2, "uint8", 7, direction="LEFT"),
    "Clip": _along(np.float32(-0.5), np.float32(0.5)),
    "Cast": _along(to=7, gradient=False),
    "Cast:half": _along(to=10, gradient=False),
    "Where": _selected,
}


_LAST_TWO = _row(2, 3)
REDUCTIONS: dict[str, Make] = {
    **{
        op: _along(_LAST_TWO, low=0.1)
        for op in (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
            *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
        )
    },
    "ReduceSum:channels": _along(_row(1)),
    "ReduceL2:rows": _along(_row(-1), rows=True),
    **{op: _along(rows=True, axis=-1, gradient=False) for op in ("ArgMax", "ArgMin")},
    **{op: _along(rows=True, axis=-1) for op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")},
    "LayerNormalization": _rows_normalized(2),
    "RMSNormalization": _rows_normalized(1),
    "InstanceNormalization": _normalized(2),
    "MeanVarianceNormalization": lambda large: Case(feeds=[_floats(_image(large))], shape=_image(large)),
    "GroupNormalization": lambda large: Case(
        feeds=[_floats((8, 64, 56, 56) if large else (2, 4, 8, 8)), *(_floats((64 if large else 4,)) for _ in "sb")],
        attributes={"num_groups": 4},
        shape=(8, 64, 56, 56) if large else (2, 4, 8, 8),
    ),
    "BatchNormalization": lambda large: Case(
        feeds=[_floats(_image(large)), *(_channels(large, 0.5) for _ in range(2))],
        constants=[_channels(large), _channels(large, 0.5)],
    ),
    "LRN": _along(size=5),
    "CumSum": _along(np.int64(1)),
    "CumProd": lambda large: Case(feeds=[_floats(_image(large))], constants=[np.int64(1)], opset=26),
    "TopK": lambda large: Case(
        feeds=[_floats(_matrix(large))], constants=[_row(8)], attributes={"axis": -1}, outputs=2
    ),
    "Det": lambda large: Case(feeds=[_floats((256, 16, 16) if large else (2, 3, 3))]),
}


def _gathered(op: str, **attributes: Any) -> Make:
    def make(large: bool) -> Case:
        rows, columns = _matrix(large)
        found = {
            "Gather": lambda: _integers((rows,), rows),
            "GatherElements": lambda: _integers((rows, columns), rows),
            "GatherND": lambda: _integers((rows, 1), rows),
        }[op]()
        return Case(feeds=[_floats((rows, columns)), found], attributes=attributes)

    return make


def _scattered(op: str, **attributes: Any) -> Make:
    def make(large: bool) -> Case:
        rows, columns = _matrix(large)
        where = _integers((rows, columns), rows) if op == "ScatterElements" else _integers((rows, 1), rows)
        return Case(feeds=[_floats((rows, columns)), where, _floats((rows, columns))], attributes=attributes)

    return make


def _padded(**attributes: Any) -> Make:
    return _along(_row(0, 0, 2, 1, 0, 0, 1, 2), **attributes)


def _tensor_scattered(large: bool) -> Case:
    batch, length, size = (8, 512, 256) if large else (2, 8, 4)
    return Case(
        feeds=[_floats((batch, length, size)), _floats((batch, length // 4, size)), _integers((batch,), length // 2)],
        attributes={"axis": 1},
    )


SHAPES: dict[str, Make] = {
    "Transpose": _along(perm=[0, 2, 3, 1]),
    "Reshape": _along(_row(0, 0, -1)),
    "Flatten": _along(),
    "Squeeze": lambda large: Case(feeds=[_floats((1, *_matrix(large)))], constants=[_row(0)]),
    "Unsqueeze": _along(_row(0)),
    "Shape": _along(gradient=False),
    "Size": _along(gradient=False),
    "Concat": lambda large: Case(feeds=[_floats(_image(large)) for _ in range(2)], attributes={"axis": 1}),
    "Split": lambda large: Case(feeds=[_floats(_matrix(large))], attributes={"axis": 1, "num_outputs": 2}, outputs=2),
    "Slice": _along(_row(1, 1), _row(7, 7), _row(2, 3), _row(1, 2)),
    "Pad": _padded(),
    "Pad:reflect": _padded(mode="reflect"),
    "Pad:edge": _padded(mode="edge"),
    "Expand": lambda large: Case(
        feeds=[_floats((64, 1, 56) if large else (3, 1, 8))],
        constants=[_row(*((8, 64, 56, 56) if large else (2, 3, 8, 8)))],
    ),
    "Tile": _along(_row(1, 1, 2, 1)),
    **{op: _gathered(op) for op in ("Gather", "GatherElements", "GatherND")},
    **{op: _scattered(op) for op in ("ScatterElements", "ScatterND")},
    "ScatterElements:add": _scattered("ScatterElements", reduction="add"),
    "ScatterND:add": _scattered("ScatterND", reduction="add"),
    "TensorScatter": _tensor_scattered,
    "OneHot": lambda large: Case(
        feeds=[_integers((2048 if large else 8,), 16)],
        constants=[np.int64(512 if large else 16), np.array([0, 1], np.float32)],
        gradient=False,
    ),
    "Trilu": _along(rows=True),
    "EyeLike": _along(rows=True, gradient=False),
    "ReverseSequence": lambda large: Case(
        feeds=[_floats((512, 64, 64) if large else (6, 3, 4))],
        constants=[_integers((64 if large else 3,), 6, 1)],
    ),
    "DepthToSpace": lambda large: Case(
        feeds=[_floats((8, 64, 56, 56) if large else (2, 4, 4, 4))], attributes={"blocksize": 2}
    ),
    "SpaceToDepth": _along(blocksize=2),
    "CenterCropPad": _along(_row(6, 10), axes=[2, 3]),
    "Compress": lambda large: Case(
        feeds=[_floats(_matrix(large)), _integers(_matrix(large)[:1], 2, dtype="bool")], attributes={"axis": 0}
    ),
    "NonZero": _along(rows=True, gradient=False),
    "Unique": lambda large: Case(feeds=[_integers((100000 if large else 16,), 1000)], gradient=False),
    "ConstantOfShape": lambda large: Case(feeds=[_row(*_image(large))], gradient=False),
    "Range": lambda large: Case(feeds=[np.int64(0), np.int64(1000000 if large else 16), np.int64(1)], gradient=False),
    "BitCast": lambda large: Case(feeds=[_floats(_image(large))], attributes={"to": 6}, gradient=False, opset=26),
}


def _convolution(op: str, **attributes: Any) -> Make:
    def make(large: bool) -> Case:
        x = (8, 32, 28, 28) if large else (1, 4, 8, 8)
        group = attributes.get("group", 1)
        return Case(
            feeds=[_floats(x), _floats((x[1], x[1] // group, 3, 3)), _floats(x[1:2])],
            attributes={"pads": [1, 1, 1, 1], **attributes},
        )

    return make


def _unpooled(large: bool) -> Case:
    shape = (8, 32, 28, 28) if large else (1, 2, 4, 4)
    # The first element of each window of 2 x 2.
    rows, columns = np.indices(shape[2:])
    plane = 2 * rows * 2 * shape[3] + 2 * columns
    images = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1, 1) * plane.size * 4
    return Case(
        feeds=[_floats(shape), (images + plane).astype(np.int64)],
        attributes={"kernel_shape": [2, 2], "strides": [2, 2]},
    )


def _deformed(large: bool) -> Case:
    batch, channels, size = (4, 16, 28) if large else (1, 2, 6)
    return Case(
        feeds=[
            _floats((batch, channels, size, size)),
            _floats((channels, channels, 3, 3)),
            _floats((batch, 18, size, size), -1, 1),
        ],
        attributes={"pads": [1, 1, 1, 1]},
    )


def _recurrent(gates: int) -> Make:
    def make(large: bool) -> Case:
        steps, batch, size, hidden = (32, 32, 128, 128) if large else (4, 2, 3, 4)
        return Case(
            feeds=[
                _floats((steps, batch, size)),
                _floats((1, gates * hidden, size), -0.1, 0.1),
                _floats((1, gates * hidden, hidden), -0.1, 0.1),
            ],
            attributes={"hidden_size": hidden},
        )

    return make


def _attended(large: bool) -> Case:
    shape = (8, 8, 128, 64) if large else (1, 2, 8, 4)
    return Case(feeds=[_floats(shape) for _ in "qkv"], attributes={"is_causal": 1})


def _rotated(large: bool) -> Case:
    batch, heads, length, size = (8, 8, 128, 64) if large else (1, 2, 8, 4)
    angles = [_floats((batch, length, size // 2), -1, 1) for _ in "cs"]
    return Case(feeds=[_floats((batch, heads, length, size)), *angles])


def _loss(op: str) -> Make:
    def make(large: bool) -> Case:
        rows, columns = _matrix(large)
        return Case(feeds=[_floats((rows, columns), -2, -0.1), _integers((rows,), columns)])

    return make


POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
LAYERS: dict[str, Make] = {
    "MatMul": lambda large: Case(feeds=[_floats((8, 128, 128) if large else (2, 4, 4)) for _ in "ab"]),
    "Gemm": lambda large: Case(
        feeds=[_floats((256, 256) if large else (4, 4)), _floats((256, 256) if large else (4, 4)), _floats((1,))],
        attributes={"transB": 1, "alpha": 0.5},
    ),
    "Einsum": lambda large: Case(
        feeds=[_floats((8, 128, 128) if large else (2, 4, 4)) for _ in "ab"], attributes={"equation": "bij,bkj->bik"}
    ),
    "Conv": _convolution("Conv"),
    "Conv:grouped": _convolution("Conv", group=2),
    "ConvTranspose": _convolution("ConvTranspose", strides=[2, 2]),
    "DeformConv": _deformed,
    "MaxPool": _along(**POOL),
    "AveragePool": _along(**POOL),
    "LpPool": _along(**POOL),
    "MaxUnpool": _unpooled,
    **{op: _along() for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "Col2Im": lambda large: Case(
        feeds=[_floats((8, 64 * 9, 784) if large else (1, 18, 36))],
        constants=[_row(28, 28) if large else _row(6, 6), _row(3, 3)],
        attributes={"pads": [1, 1, 1, 1]},
    ),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attended,
    "RotaryEmbedding": _rotated,
    **{op: _loss(op) for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")},
    "SwiGLU": lambda large: Case(feeds=[_floats(_matrix(large)) for _ in "ab"], opset=28),
}


def _resized(scale: float, **attributes: Any) -> Make:
    scales = np.array([1, 1, scale, scale], np.float32)
    return lambda large: Case(
        feeds=[_floats((8, 32, 28, 28) if large else (1, 3, 8, 8))], constants=[None, scales], attributes=attributes
    )


def _sampled(**attributes: Any) -> Make:
    def make(large: bool) -> Case:
        batch, channels, size = (8, 32, 56) if large else (1, 3, 8)
        return Case(
            feeds=[_floats((batch, channels, size, size)), _floats((batch, size, size, 2), -1, 1)],
            attributes=attributes,
        )

    return make


def _regions(**attributes: Any) -> Make:
    def make(large: bool) -> Case:
        count, shape = (64, (2, 32, 56, 56)) if large else (4, (1, 3, 16, 16))
        low = _floats((count, 2), 0, shape[2] / 2)
        boxes = np.concatenate([low, low + _floats((count, 2), 2, shape[2] / 2)], 1)
        return Case(
            feeds=[_floats(shape), boxes],
            constants=[_integers((count,), shape[0])],
            attributes={"output_height": 7, "output_width": 7, "sampling_ratio": 2, **attributes},
        )

    return make


def _boxes(large: bool) -> Case:
    count = 256 if large else 8
    low = _floats((1, count, 2), 0, 8)
    boxes = np.concatenate([low, low + _floats((1, count, 2), 1, 4)], 2)
    scores = _floats((1, 1, count), 0, 1)
    return Case(feeds=[boxes, scores], constants=[np.int64(16), np.float32(0.5), np.float32(0.1)], gradient=False)


IMAGES: dict[str, Make] = {
    "Resize": _resized(2.0, mode="linear"),
    "Resize:nearest": _resized(2.0, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "Resize:nearest_1.5": _resized(1.5, mode="nearest"),
    "Resize:cubic": _resized(2.0, mode="cubic"),
    "Resize:cubic_half": _resized(0.5, mode="cubic"),
    "GridSample": _sampled(),
    "GridSample:nearest": _sampled(mode="nearest"),
    "GridSample:cubic": _sampled(mode="cubic"),
    "GridSample:reflection": _sampled(padding_mode="reflection"),
    "AffineGrid": lambda large: Case(
        feeds=[_floats((8, 2, 3) if large else (1, 2, 3))],
        constants=[_row(8, 3, 112, 112) if large else _row(1, 3, 8, 8)],
    ),
    "RoiAlign": _regions(),
    "RoiAlign:max": _regions(mode="max"),
    "NonMaxSuppression": _boxes,
}


def _quantized(op: str) -> Make:
    def make(large: bool) -> Case:
        x = _floats(_image(large)) if op == "QuantizeLinear" else _integers(_image(large), 255, dtype="uint8")
        return Case(feeds=[x], constants=[np.float32(0.02), np.uint8(128)], gradient=False)

    return make


def _integer_product(large: bool) -> Case:
    size = 256 if large else 8
    return Case(
        feeds=[_integers((size, size), 255, dtype="uint8"), _integers((size, size), 255, dtype="uint8")],
        constants=[np.uint8(128), np.uint8(127)],
        gradient=False,
    )


def _quantized_product(large: bool) -> Case:
    size = 256 if large else 8
    scale, zero = np.float32(0.02), np.uint8(128)
    weight = _integers((size, size), 255, dtype="uint8")
    return Case(
        feeds=[_integers((size, size), 255, dtype="uint8")],
        constants=[scale, zero, weight, scale, zero, np.float32(0.5), zero],
        gradient=False,
    )


def _integer_convolution(large: bool) -> Case:
    channels, size = (16, 28) if large else (2, 6)
    return Case(
        feeds=[_integers((1, channels, size, size), 255, dtype="uint8")],
        constants=[_integers((channels, channels, 3, 3), 255, dtype="uint8"), np.uint8(128), np.uint8(127)],
        attributes={"pads": [1, 1, 1, 1]},
        gradient=False,
    )


def _quantized_convolution(large: bool) -> Case:
    channels, size = (16, 28) if large else (2, 6)
    scale, zero = np.float32(0.02), np.uint8(128)
    return Case(
        feeds=[_integers((1, channels, size, size), 255, dtype="uint8")],
        constants=[
            *(scale, zero, _integers((channels, channels, 3, 3), 255, dtype="uint8")),
            *(scale, zero, np.float32(0.5), zero),
        ],
        attributes={"pads": [1, 1, 1, 1]},
        gradient=False,
    )


QUANTIZED: dict[str, Make] = {
    **{op: _quantized(op) for op in ("QuantizeLinear", "DequantizeLinear")},
    "DynamicQuantizeLinear": lambda large: Case(feeds=[_floats(_image(large))], outputs=3, gradient=False),
    "MatMulInteger": _integer_product,
    "QLinearMatMul": _quantized_product,
    "ConvInteger": _integer_convolution,
    "QLinearConv": _quantized_convolution,
}


def _transformed(large: bool) -> Case:
    return Case(feeds=[_floats((64, 1024, 1) if large else (2, 8, 1))], constants=[None, np.int64(1)])


def _short_time(large: bool) -> Case:
    length, frame = (16384, 256) if large else (64, 16)
    return Case(
        feeds=[_floats((4 if large else 1, length, 1))],
        constants=[np.int64(frame // 2), np.ones(frame, np.float32), np.int64(frame)],
    )


def _weights(large: bool) -> Case:
    count, length = (64, 1024) if large else (4, 16)
    return Case(
        feeds=[np.int64(count), np.int64(length), np.int64(8000)],
        constants=[np.float32(0.0), np.float32(4000.0)],
        gradient=False,
        shape=(length // 2 + 1, count),
    )


def _updated(states: int, **attributes: Any) -> Make:
    """An update of ONNX's training domain: a rate, a step, then weights, gradients and states."""

    def make(large: bool) -> Case:
        shape = _matrix(large)
        arrays = [np.abs(_floats(shape)) + np.float32(0.1) for _ in range(2 + states)]
        return Case(
            feeds=[np.float32(0.1), np.int64(3), *arrays],
            attributes=attributes,
            outputs=1 + states,
            gradient=False,
            domain=TRAINING,
        )

    return make


def _drawn(shape: Callable[[bool], tuple[int, ...]], **attributes: Any) -> Make:
    """Random numbers from an input of numbers between 0 and 1."""
    return lambda large: Case(feeds=[_floats(shape(large), 0.0, 1.0)], attributes=attributes, gradient=False)


def _drawn_alone(large: bool) -> Case:
    return Case(feeds=[], attributes={"shape": _image(large)}, gradient=False)


OTHER: dict[str, Make] = {
    "Bernoulli": _drawn(_image),
    "Multinomial": _drawn(_matrix, sample_size=8),
    "RandomNormal": _drawn_alone,
    "RandomNormalLike": _drawn(_image),
    "RandomUniform": _drawn_alone,
    "RandomUniformLike": _drawn(_image),
    "DFT": _transformed,
    "STFT": _short_time,
    "MelWeightMatrix": _weights,
    f"{TRAINING}.Adagrad": _updated(1),
    f"{TRAINING}.Adam": _updated(2),
    f"{TRAINING}.Momentum": _updated(1, alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0),
}

CASES: dict[str, Make] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **SHAPES,
    **LAYERS,
    **IMAGES,
    **QUANTIZED,
    **OTHER,
}
"""By name: an operator, or an operator, a colon and what is special about its attributes."""


def operator_of(name: str) -> str:
    """The operator of a case.

    >>> operator_of("Resize:cubic")
    'Resize'
    """
    return name.partition(":")[0]
