"""Check that the dimensions of weights, labels, windows and parts match where ONNX's own inference does not check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.element_types import called, type_name

__all__ = ["check_extents", "check_fit", "shown", "unlike"]

Wanted = tuple[int, str, Sequence[Any]]
"""Position of an input, its role, and its dimensions; None for a dimension that may have any size."""


def check_extents(nodes: Iterable[ir.Node], what: str) -> None:
    """Reject outputs with a negative dimension, such as a window larger than its input produces.

    Args:
        nodes: Nodes, with inferred shapes.
        what: Name of the network in messages.

    Raises:
        NetworkError: The first such node and value.
    """
    for node in nodes:
        for value in node.outputs:
            if value.shape is not None and any(isinstance(extent, int) and extent < 0 for extent in value.shape):
                raise NetworkError(
                    f"{what} is not valid: {_called(node)} makes {value.name!r} {shown(value)} of {_inputs(node)}; "
                    "allowed: dimensions of at least 0; remedy: a smaller window, more padding, or larger inputs"
                )


def check_fit(nodes: Iterable[ir.Node], what: str) -> None:
    """Reject nodes whose inputs do not match each other or the attributes, as far as dimensions are known.

    Args:
        nodes: Nodes, with inferred shapes; unknown dimensions are not checked.
        what: Name of the network in messages.

    Raises:
        NetworkError: The first such node, its input, and the allowed dimensions.
    """
    for node in nodes:
        if node.domain:
            continue
        if node.op_type == "Split" and len(node.inputs) < 2 and "num_outputs" not in node.attributes:
            raise NetworkError(
                f"{what} is not valid: {_called(node)} has neither sizes nor the number of its parts; allowed: "
                f"one of both; remedy: num_outputs={len(node.outputs)}, or a second input"
            )
        for position, kind, wanted in _WANTED[node.op_type](node) if node.op_type in _WANTED else ():
            value = node.inputs[position] if position < len(node.inputs) else None
            if value is not None and unlike(value.shape, wanted):
                extents = ", ".join("any" if one is None else str(one) for one in wanted)
                rest = _inputs(node, position)
                raise NetworkError(
                    f"{what} is not valid: {_called(node)} got {value.name!r} {shown(value)} as its {kind}; allowed "
                    f"beside {rest}{_attributes(node)}: [{extents}]; remedy: another value, or a node that reshapes it"
                )


def unlike(shape: ir.Shape | None, wanted: Sequence[Any] | ir.Shape) -> bool:
    """Whether a shape differs from the wanted one in its rank, or in a dimension that both know."""
    return shape is not None and (
        len(shape) != len(wanted)
        or any(
            isinstance(got, int) and isinstance(want, int) and got != want
            for got, want in zip(shape, wanted, strict=True)
        )
    )


def shown(value: ir.Value) -> str:
    """Element type and shape of a value, for a message."""
    if value.dtype is None or value.shape is None:
        return "of unknown shape"
    return f"{type_name(value.dtype)}{_extents(value.shape)}"


def _convolution(node: ir.Node) -> list[Wanted]:
    """X (N, C, …); W (M, C / group, …), or W (C, M / group, …) if transposed; B (M)."""
    x, weight = _shape(node, 0), _shape(node, 1)
    if weight is None:
        return []
    turned, group = node.op_type == "ConvTranspose", attribute(node, "group", 1)
    window = attribute(node, "kernel_shape")
    if window is None:
        window = [None] * ((len(x) if x is not None else len(weight)) - 2)
    channels = x[1] if x is not None and len(x) > 1 and isinstance(x[1], int) else None
    if turned:
        made = weight[1] * group if len(weight) > 1 and isinstance(weight[1], int) else None
        return [(1, "weight", [channels, None, *window]), (2, "bias", [made])]
    if channels is not None and channels % group and len(weight) > 1 and isinstance(weight[1], int):
        return [(0, "input", [None, weight[1] * group, *[None] * len(window)])]
    taken = None if channels is None or channels % group else channels // group
    return [(1, "weight", [None, taken, *window]), (2, "bias", weight[:1])]


def _gemm(node: ir.Node) -> list[Wanted]:
    """A (M, K), B (K, N), each optionally transposed, which ONNX checks; C broadcasts to (M, N)."""
    a, b, bias = _shape(node, 0), _shape(node, 1), _shape(node, 2)
    if a is None or b is None or bias is None or len(a) != 2 or len(b) != 2:
        return []
    whole = [a[1] if attribute(node, "transA", 0) else a[0], b[0] if attribute(node, "transB", 0) else b[1]]
    if len(bias) > 2:
        return [(2, "bias", whole)]
    return [(2, "bias", [1 if one == 1 else each for one, each in zip(bias, whole[2 - len(bias) :], strict=True)])]


def _labels(node: ir.Node) -> list[Wanted]:
    """Scores (N, C, …), labels (N, …), weights (C)."""
    scores = _shape(node, 0)
    return (
        [] if not scores or len(scores) < 2 else [(1, "labels", [scores[0], *scores[2:]]), (2, "weights", scores[1:2])]
    )


def _channels(node: ir.Node) -> list[Wanted]:
    """X (N, C, …), and one number per channel."""
    x = _shape(node, 0)
    return [] if x is None or len(x) < 2 else [(1, "scale", x[1:2]), (2, "bias", x[1:2])]


_WANTED = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Gemm": _gemm,
    "InstanceNormalization": _channels,
    "NegativeLogLikelihoodLoss": _labels,
    "SoftmaxCrossEntropyLoss": _labels,
}


def _shape(node: ir.Node, position: int) -> list[Any] | None:
    """The dimensions of an input, integers or names; None if it is omitted or its shape is unknown."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None or value.shape is None:
        return None
    return [extent if isinstance(extent, int) else extent.value for extent in value.shape]


def _extents(shape: Iterable[Any]) -> str:
    names = [extent if isinstance(extent, int) else extent.value for extent in shape]
    return f"[{', '.join('?' if name is None else str(name) for name in names)}]"


def _inputs(node: ir.Node, without: int | None = None) -> str:
    named = [value for at, value in enumerate(node.inputs) if value is not None and at != without]
    return ", ".join(f"{value.name!r} {shown(value)}" for value in named) or "nothing"


def _attributes(node: ir.Node) -> str:
    reported = [f"{name}={attribute(node, name)}" for name in ("group", "kernel_shape", "transA", "transB")
            if name in node.attributes]  # fmt: skip
    return f" and {', '.join(reported)}" if reported else ""


def _called(node: ir.Node) -> str:
    return called(node.name, node.op_type, [value.name for value in node.outputs])
