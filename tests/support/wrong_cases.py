"""Nodes that ONNX Runtime or OpenVINO computes otherwise than ONNX, each with what deep5's back-ends do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from drawn_answers import Case
from opset_cases import Drawn

__all__ = ["WRONG", "Wrong"]

_DRAW = np.random.default_rng(3)


class Wrong(NamedTuple):
    """A node.

    Attributes:
        case: It, with its inputs.
        refused: By back-end, a part of the message where it is refused; the others run it and are right.
    """

    case: Case
    refused: Mapping[str, str]


def _floats(*shape: int, low: float = -1, high: float = 1) -> np.ndarray:
    return _DRAW.uniform(low, high, shape).astype(np.float32)


def _wrong(
    operator: str,
    inputs: Sequence[Any],
    *,
    outputs: int = 1,
    stored: Sequence[int] = (),
    opset: int = 22,
    symbolic: bool = False,
    refused: Mapping[str, str] | None = None,
    **attributes: Any,
) -> Wrong:
    case = Case(operator=operator, opset=opset, number=2 if symbolic else 0)
    case.__dict__["drawn"] = Drawn(inputs=inputs, attributes=attributes, outputs=outputs, stored=frozenset(stored))
    return Wrong(case, refused or {})


def _layer(kind: str, *, layout: int = 0, peepholes: bool = False, **attributes: Any) -> Wrong:
    """A recurrent layer of 4 steps, a batch of 3, 2 inputs and 3 outputs."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind] * 3
    x = _floats(3, 4, 2) if layout else _floats(4, 3, 2)
    inputs: list[Any] = [x, _floats(1, gates, 2), _floats(1, gates, 3), _floats(1, 2 * gates)]
    if peepholes:
        inputs += [None, None, None, _floats(1, 9)]
    if layout:
        attributes["layout"] = layout
    count = 3 if kind == "LSTM" else 2
    return _wrong(kind, inputs, outputs=count, stored=(1, 2, 3, 7), hidden_size=3, **attributes)


def _attention(queries: int, keys: int, past: int, **attributes: Any) -> Wrong:
    shapes = [(1, 2, queries, 4), (1, 2, keys, 4), (1, 2, keys, 4)]
    inputs = [*(_floats(*shape) for shape in shapes), None, _floats(1, 2, past, 4), _floats(1, 2, past, 4)]
    return _wrong("Attention", inputs, outputs=3, opset=24, is_causal=1, **attributes)


def _resize(x: tuple[int, ...], *scales: float, **others: Any) -> Wrong:
    return _wrong("Resize", [_floats(*x), None, np.array(scales, np.float32)], stored=(1, 2), opset=19, **others)


_COPY = {"onnxruntime": "ONNX Runtime copies the image", "openvino": "OpenVINO copies the axis"}
_REJECTED = {"onnxruntime": "Scale value should be greater than 0"}
_EMPTY = {"openvino": "no elements"}
WRONG: dict[str, Wrong] = {
    # Both: the input of the last activation of an LSTM is clipped as well.
    "LSTM that clips": _layer("LSTM", clip=0.2),
    "RNN that clips": _layer("RNN", clip=0.2),
    # ONNX Runtime: alpha and beta of these are 0 where they are not written.
    **{
        f"{kind} with {name}": _layer(kind, activations=[name, "Tanh", "Tanh"][: {"RNN": 1, "GRU": 2, "LSTM": 3}[kind]])
        for kind in ("RNN", "GRU", "LSTM")
        for name in ("Affine", "ScaledTanh", "ThresholdedRelu")
    },
    "LSTM with Affine for the output": _layer("LSTM", activations=["Sigmoid", "Tanh", "Affine"]),
    "RNN with ThresholdedRelu at its threshold": _wrong(
        "RNN",
        [
            np.array([[[1, 0.5]], [[2, 1]]], np.float32),
            np.eye(2, dtype=np.float32)[None],
            np.zeros((1, 2, 2), np.float32),
        ],
        outputs=2,
        stored=(1, 2),
        hidden_size=2,
        activations=["ThresholdedRelu"],
        activation_alpha=[1.0],
    ),
    "LSTM with Softplus": _layer("LSTM", activations=["Sigmoid", "Tanh", "Softplus"]),
    # OpenVINO: ignored.
    "LSTM of coupled gates": _layer("LSTM", input_forget=1),
    "LSTM with peepholes": _layer("LSTM", peepholes=True),
    "GRU with the batch first": _layer("GRU", layout=1),
    "LSTM with the batch first": _layer("LSTM", layout=1),
    "Hardmax of equal numbers": _wrong("Hardmax", [np.array([[1, 2, 2], [0, 0, 0]], np.float32)], opset=13, axis=1),
    "LpNormalization of small numbers": _wrong("LpNormalization", [_floats(2, 3) * np.float32(1e-5)], axis=1, p=2),
    "LpNormalization of zeros": _wrong("LpNormalization", [np.zeros((2, 3), np.float32)], axis=1, p=1),
    "Mod of multiples": _wrong(
        "Mod",
        [np.array([0.3, -0.3, 0.9, 7.0, -7.0], np.float32), np.array([0.1, 0.1, -0.3, 0.7, 0.7], np.float32)],
        fmod=1,
        opset=13,
    ),
    "LRN of an even number of channels": _wrong(
        "LRN",
        [_floats(1, 5, 2, 2)],
        opset=13,
        refused={"openvino": "got size=4", "onnxruntime": "got size=4"},
        size=4,
        alpha=0.5,
    ),
    "SpaceToDepth by columns": _wrong("SpaceToDepth", [_floats(1, 2, 4, 4)], opset=28, blocksize=2, mode="CRD"),
    "MaxPool whose last window starts after the image": _wrong(
        "MaxPool", [_floats(1, 1, 6, 9)], kernel_shape=[1, 2], strides=[2, 2], ceil_mode=1
    ),
    "QuantizeLinear along an axis of unknown size": _wrong(
        "QuantizeLinear",
        [_floats(3, 3), _floats(3, low=0.1), np.array([2, 4, 6], np.uint8)],
        stored=(1, 2),
        opset=13,
        symbolic=True,
        refused={"openvino": "which OpenVINO takes for those of the last axis"},
        axis=0,
    ),
    "Tile of nothing, which ended the process": _wrong(
        "Tile", [np.zeros((1, 0, 3), np.float32), np.array([1, 2, 1])], stored=(1,), opset=13, refused=_EMPTY
    ),
    "DFT of an unknown last dimension": _wrong(
        "DFT",
        [_floats(2, 5, 1)],
        opset=17,
        symbolic=True,
        refused={"openvino": "a last dimension of unknown size"},
        axis=1,
        onesided=1,
    ),
    "Shape of no dimension": _wrong("Shape", [_floats(2, 3)], opset=21, refused=_EMPTY, start=2, end=1),
    "ReduceLogSum of no axes": _wrong(
        "ReduceLogSum",
        [_floats(2, 3, low=1, high=2), np.zeros(0, np.int64)],
        stored=(1,),
        opset=18,
        noop_with_empty_axes=1,
    ),
    # ONNX Runtime: the cached keys of a causal mask are counted otherwise.
    "Attention with a cache": _attention(1, 3, 2),
    "Attention with a cache and a soft cap": _attention(1, 3, 2, softcap=2.0),
    # Both: a copy.
    "Resize that keeps its size": _resize((2, 1, 3), 1, 1, 1.25, mode="linear", refused=_COPY),
    "nearest Resize that keeps its size": _resize((1, 1, 3), 1, 1, 1.25, refused=_COPY),
    "Resize of unknown size": _resize(
        (1, 1, 3),
        1,
        1,
        1.25,
        symbolic=True,
        refused={"onnxruntime": "Scale value should be greater than 0", "openvino": "OpenVINO copies the axis"},
    ),
    "Resize of a part that keeps a size": _wrong(
        "Resize",
        [
            _floats(1, 1, 3, 4),
            np.array([0, 0, 0.25, 0, 1, 1, 1, 0.9], np.float32),
            None,
            np.array([1, 1, 3, 7]),
        ],
        stored=(1, 2, 3),
        opset=19,
        refused=_COPY,
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    **{
        f"Resize of a part that is fed, {said}": _wrong(
            "Resize",
            [
                np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4),
                np.array([0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8], np.float32),
                *given,
            ],
            opset=19,
            refused={"openvino": "OpenVINO copies the axis", **refused},
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
        )
        for said, given, refused in (
            ("to sizes", [None, np.array([2, 1, 3, 3])], {}),
            ("by scales", [np.array([1, 1, 1.5, 0.5], np.float32)], {}),
            ("to sizes of which one stays", [None, np.array([2, 1, 3, 4])], _REJECTED),
            ("by scales of which one is 1", [np.array([1, 1, 1.5, 1], np.float32)], _REJECTED),
        )
    },
    "Resize of corners to a part of an element": _resize(
        (1, 1, 4, 5),
        1,
        1,
        0.6,
        1.5,
        mode="linear",
        coordinate_transformation_mode="align_corners",
        refused={"onnxruntime": "where corners are aligned", "openvino": "where corners are aligned"},
    ),
    # ONNX Runtime: the shape of the input, by negative axes; a mean of 0.
    **{
        f"{name} of nothing": _wrong(
            name,
            [np.zeros((2, 0, 3), np.float32)],
            opset=11,
            refused={"openvino": "no elements"},
            axes=[-2],
            keepdims=keep,
        )
        for name, keep in (("ReduceL1", 0), ("ReduceL2", 1), ("ReduceMax", 1), ("ReduceMean", 1), ("ReduceProd", 0))
    },
    **{
        f"{name} of unknown size, of nothing, by {'axes that are fed' if fed else axes}": _wrong(
            name,
            [np.zeros((2, 0, 3), kind), np.array(axes)],
            stored=() if fed else (1,),
            opset=20,
            symbolic=not fed,
            refused={"openvino": "", **refused},
        )
        for name, kind, axes, fed, refused in (
            ("ReduceSumSquare", np.float32, [0, 1], False, {}),
            ("ReduceL2", np.float32, [-2], False, {}),
            ("ReduceSum", np.int64, [0, -2], False, {}),
            ("ReduceMax", np.bool_, [-2], True, {}),
            ("ReduceProd", np.float32, [-1, -2], True, {}),
            ("ReduceMean", np.float32, [-2], False, {"onnxruntime": "on an input without elements"}),
        )
    },
    # ONNX Runtime: dilations of one dimension are ignored.
    "Col2Im of a line": _wrong(
        "Col2Im",
        [_floats(1, 4, 5), np.array([7]), np.array([2])],
        stored=(1, 2),
        opset=18,
        refused={"openvino": "Col2Im"},
        dilations=[2],
    ),
    "MeanVarianceNormalization of equal numbers": _wrong(
        "MeanVarianceNormalization", [np.full((3, 2, 5), 0.7, np.float32)], opset=13, axes=[2]
    ),
    "LpPool padded before": _wrong(
        "LpPool", [_floats(1, 1, 7)], opset=22, kernel_shape=[4], strides=[1], auto_pad="SAME_LOWER", p=2
    ),
    "ConvTranspose with a stride above its kernel": _wrong(
        "ConvTranspose", [_floats(1, 2, 5), _floats(2, 1, 2)], stored=(1,), strides=[3], auto_pad="SAME_UPPER"
    ),
}
