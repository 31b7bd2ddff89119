"""Floating-point operations and bytes of an operator, by formula, for rates and for the roofline.

A multiplication and an addition count as two operations. For recurrent cells, only matrix products are counted, not
elementwise parts, as in DeepBench. Bytes are the unavoidable ones: every input is read once and every output written
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from deep5.core.tensors import TensorSpec, numpy_dtype

__all__ = ["RECURRENT", "backward_bytes", "backward_flops", "bytes_of", "flops", "misfit", "moved_bytes"]

# One operation per output element, and one per input element.
_ELEMENTWISE = frozenset(("Abs", "Add", "Div", "Max", "Min", "Mul", "Neg", "Reciprocal", "Relu", "Sub", "Sum"))
_REDUCTIONS = frozenset(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"))
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RECURRENT = frozenset(_GATES)
"""ONNX's recurrent layers."""

# Linear in each of their first two inputs: the gradient of one of them costs as much as the forward pass.
_BILINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


def flops(
    op_type: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> int | None:
    """Floating-point operations of one forward pass; None if no formula is known.

    Args:
        op_type: ONNX's name.
        inputs: Inputs of the node, with integer dimensions.
        outputs: Outputs of the node.
        attributes: Attributes of the node.

    >>> a, b = TensorSpec(shape=(2, 3)), TensorSpec(shape=(3, 4))
    >>> flops("MatMul", (a, b), (TensorSpec(shape=(2, 4)),), {})
    48
    """
    if op_type == "Conv":
        # Each output element is a sum over a filter: weights are (filters, channels per group, *window).
        bias = outputs[0].size if len(inputs) > 2 else 0
        return 2 * outputs[0].size * prod(_extents(inputs[1])[1:]) + bias
    if op_type == "ConvTranspose":
        bias = outputs[0].size if len(inputs) > 2 else 0
        return 2 * inputs[0].size * prod(_extents(inputs[1])[1:]) + bias
    if op_type == "MatMul":
        return 2 * outputs[0].size * _extents(inputs[0])[-1]
    if op_type == "Gemm":
        shape = _extents(inputs[0])
        added = outputs[0].size if len(inputs) > 2 else 0
        return 2 * outputs[0].size * (shape[0] if attributes.get("transA", 0) else shape[1]) + added
    if op_type in _GATES:
        steps, batch, width = _extents(inputs[0])
        directions, _, hidden = _extents(inputs[2])
        return 2 * _GATES[op_type] * directions * steps * batch * hidden * (width + hidden)
    if op_type in _ELEMENTWISE:
        return sum(spec.size for spec in outputs)
    if op_type in _REDUCTIONS:
        return inputs[0].size
    return None


def backward_flops(
    op_type: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    attributes: Mapping[str, Any],
    needs: Sequence[bool],
) -> int | None:
    """Floating-point operations of only the gradients; None if no formula is known.

    Args:
        op_type: ONNX's name.
        inputs: Inputs of the node.
        outputs: Outputs of the node.
        attributes: Attributes of the node.
        needs: Which inputs need a gradient.
    """
    forward = flops(op_type, inputs[:2] if op_type in _BILINEAR else inputs, outputs, attributes)
    if forward is None:
        return None
    if op_type in _BILINEAR:
        bias = outputs[0].size if len(needs) > 2 and needs[2] else 0
        return forward * sum(map(bool, needs[:2])) + bias
    if op_type in _GATES:
        # Products with the gates' gradients: those for the state are always needed, for backpropagation through time.
        steps, batch, width = _extents(inputs[0])
        directions, _, hidden = _extents(inputs[2])
        each = 2 * _GATES[op_type] * directions * steps * batch * hidden
        return each * (hidden + width * bool(needs[0]) + width * bool(needs[1]) + hidden * bool(needs[2]))
    return None


def misfit(op_type: str, inputs: Sequence[TensorSpec], attributes: Mapping[str, Any]) -> str | None:
    """Why the shapes of two inputs do not match, in cases that ONNX's shape inference accepts; None if they do.

    Args:
        op_type: ONNX's name.
        inputs: Inputs of the node.
        attributes: Attributes of the node.

    >>> misfit("Conv", (TensorSpec(shape=(1, 3, 8, 8)), TensorSpec(shape=(4, 5, 3, 3))), {})
    'got 3 channels and filters over 5 in 1 groups; allowed: 5 channels'
    """
    if op_type in ("Conv", "ConvTranspose") and len(inputs) > 1:
        channels, weights, groups = _extents(inputs[0])[1], _extents(inputs[1]), int(attributes.get("group", 1))
        wanted = groups * weights[1] if op_type == "Conv" else weights[0]
        over = weights[1] if op_type == "Conv" else weights[0]
        if channels != wanted:
            return f"got {channels} channels and filters over {over} in {groups} groups; allowed: {wanted} channels"
    if op_type in _GATES and len(inputs) > 2:
        if any(len(spec.shape) != 3 for spec in inputs[:3]):
            return "got inputs of other ranks; allowed: rank 3 for the sequence and for both weights"
        width, (hidden, rows) = _extents(inputs[0])[2], _extents(inputs[2])[:0:-1]
        wanted_rows = _GATES[op_type] * hidden
        weights = _extents(inputs[1])[1:]
        if rows != wanted_rows or weights != (wanted_rows, width):
            return (
                f"got {width} features, weights of {weights[0]}x{weights[1]} and of {rows}x{hidden} for the state; "
                f"allowed: {wanted_rows}x{width} and {wanted_rows}x{hidden}"
            )
    return None


def bytes_of(specs: Sequence[TensorSpec]) -> int:
    """Size of tensors in bytes."""
    return sum(spec.size * numpy_dtype(spec.dtype).itemsize for spec in specs)


def moved_bytes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """Bytes that one forward pass must read and write."""
    return bytes_of(inputs) + bytes_of(outputs)


def backward_bytes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], needs: Sequence[bool]) -> int:
    """Bytes that computing the gradients must move: inputs, output gradients, and the needed input gradients."""
    wanted = [spec for spec, needed in zip(inputs, needs, strict=True) if needed]
    return bytes_of(inputs) + bytes_of(outputs) + bytes_of(wanted)


def _extents(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(extent) for extent in spec.shape)
