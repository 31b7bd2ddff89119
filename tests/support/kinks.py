"""Gradients where a function has no derivative: deep5's conventions, as numbers.

Each is exact, and the same on every back-end. `CONVENTIONS` states them in words; docs/results/validation.md shows
these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.networks import NetworkBuilder

__all__ = ["CONVENTIONS", "KINKS", "Kink"]

CONVENTIONS: Mapping[str, str] = {
    "Abs, Relu, ThresholdedRelu": "0 where the two slopes meet, as PyTorch",
    "LeakyRelu": "the slope of the negative side at 0, as PyTorch",
    "PRelu": "1 at 0",
    "Clip, HardSigmoid": "the gradient passes at their bounds, as that of PyTorch's clamp",
    "HardSwish": "0 at -3 and 1 at 3, as PyTorch",
    "Max, Min": "equal elements share the gradient",
    "ReduceMax, ReduceMin": "equal elements share the gradient",
    "MaxPool, TopK": "the first of equal elements has the gradient, whose index the operator gives",
    "ReduceL1, ReduceL2, LpNormalization, LpPool": "0 for a norm of 0",
    "Sign, Floor, Ceil, Round": "0 everywhere",
}


@dataclass(frozen=True, kw_only=True)
class Kink:
    """A function at its kinks.

    Attributes:
        name: What it is.
        x: The point.
        op: Takes a builder and `x`; returns the output.
        gradient: The gradient by `x` of the sum of the outputs times 1, 2, 3, …
        count: The number of outputs.
    """

    name: str
    x: np.ndarray
    op: Callable[[NetworkBuilder, ir.Value], ir.Value]
    gradient: np.ndarray
    count: int


def _kink(name: str, x: Any, op: Callable[[Any, Any], Any], gradient: Any, count: int | None = None) -> Kink:
    point = np.array(x, np.float32)
    right = np.array(gradient, np.float32)
    return Kink(name=name, x=point, op=op, gradient=right, count=point.size if count is None else count)


def _node(op_type: str, **attributes: Any) -> Callable[[Any, Any], Any]:
    return lambda build, x: build.op(op_type, x, **attributes)


def _axes(op_type: str, *axes: int, **attributes: Any) -> Callable[[Any, Any], Any]:
    return lambda build, x: build.op(op_type, x, _constant(build, np.array(axes, np.int64)), **attributes)


def _constant(build: NetworkBuilder, value: Any) -> ir.Value:
    return build.op("Constant", value=ir.tensor(np.asarray(value)))


def _number(build: NetworkBuilder, *values: float) -> ir.Value:
    return _constant(build, np.array(values[0] if len(values) == 1 else values, np.float32))


ENDS = [-1.0, 0.0, 1.0]
KINKS = [
    _kink("Abs at 0", ENDS, _node("Abs"), [-1, 0, 3]),
    _kink("Relu at 0", ENDS, _node("Relu"), [0, 0, 3]),
    _kink("LeakyRelu at 0", ENDS, _node("LeakyRelu", alpha=0.25), [0.25, 0.5, 3]),
    _kink("PRelu at 0", ENDS, lambda build, x: build.op("PRelu", x, _number(build, 0.25)), [0.25, 2, 3]),
    _kink("ThresholdedRelu at its threshold", [0.0, 1.0, 2.0], _node("ThresholdedRelu", alpha=1.0), [0, 0, 3]),
    _kink(
        "Clip at its bounds",
        [-2.0, -1.0, 0.0, 1.0, 2.0],
        lambda build, x: build.op("Clip", x, _number(build, -1.0), _number(build, 1.0)),
        [0, 2, 3, 4, 0],
    ),
    _kink("HardSigmoid at its bounds", [-2.0, 0.0, 2.0], _node("HardSigmoid", alpha=0.25, beta=0.5), [0.25, 0.5, 0.75]),
    _kink("HardSwish at -3 and 3", [-3.0, 0.0, 3.0], _node("HardSwish"), [0, 1, 3]),
    _kink("Max of equal elements", ENDS, lambda build, x: build.op("Max", x, _number(build, 0.0, 0.0, 0.0)), [0, 1, 3]),
    _kink("Min of equal elements", ENDS, lambda build, x: build.op("Min", x, _number(build, 0.0, 0.0, 0.0)), [1, 1, 0]),
    _kink("Max of itself", ENDS, lambda build, x: build.op("Max", x, x), [1, 2, 3]),
    _kink(
        "ReduceMax of equal elements",
        [[2.0, 2.0, 1.0, 2.0, 2.0]],
        _axes("ReduceMax", 1),
        [[0.25, 0.25, 0, 0.25, 0.25]],
        1,
    ),
    _kink("ReduceMin of equal elements", [[2.0, 2.0, 4.0, 3.0]], _axes("ReduceMin", 1), [[0.5, 0.5, 0, 0]], 1),
    _kink(
        "MaxPool of equal elements",
        [[[2.0, 2.0, 1.0, 1.0]]],
        _node("MaxPool", kernel_shape=[2], strides=[2]),
        [[[1, 0, 2, 0]]],
        2,
    ),
    _kink(
        "TopK of equal elements",
        [2.0, 1.0, 2.0, 2.0],
        lambda build, x: build.op("TopK", x, _constant(build, np.array([2])), axis=0, outputs=2)[0],
        [1, 0, 2, 0],
        2,
    ),
    _kink("ReduceL1 at 0", [[0.0, -1.0, 2.0], [0.0, 0.0, 0.0]], _axes("ReduceL1", 1), [[0, -1, 1], [0, 0, 0]], 2),
    _kink("ReduceL2 at 0", [[0.0, -3.0, 4.0], [0.0, 0.0, 0.0]], _axes("ReduceL2", 1), [[0, -0.6, 0.8], [0, 0, 0]], 2),
    _kink("LpNormalization of 0", [[0.0, 0.0]], _node("LpNormalization", axis=1, p=2), [[0, 0]]),
    _kink(
        "LpPool of 0",
        [[[0.0, 0.0, 3.0, 4.0]]],
        _node("LpPool", kernel_shape=[2], strides=[2], p=2),
        [[[0, 0, 1.2, 1.6]]],
        2,
    ),
    _kink("Sign", ENDS, _node("Sign"), [0, 0, 0]),
    _kink("Floor", [-0.5, 0.0, 0.5], _node("Floor"), [0, 0, 0]),
    _kink("Ceil", [-0.5, 0.0, 0.5], _node("Ceil"), [0, 0, 0]),
    _kink("Round", [-0.5, 0.0, 0.5], _node("Round"), [0, 0, 0]),
]
