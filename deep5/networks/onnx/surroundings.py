"""Evidence for a guess: what the nodes next to a tensor do with it (rules 4 and 5)."""

from __future__ import annotations

import math

import onnx_ir as ir

from deep5.networks.constants import FLOATS
from deep5.networks.onnx.reaching import PASSING, End, Reach, before, is_tensor

__all__ = ["excludes", "is_bias", "scales_integers"]

# Operators that only rearrange the output of a layer, before its bias is added.
_REARRANGING = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
# Layers by operator, and the axis of their outputs that a bias has.
_LAYERS = {"Conv": 1, "ConvTranspose": 1, "Einsum": -1, "FusedMatMul": -1, "Gemm": -1, "MatMul": -1}
_INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})
# What an attention mask is multiplied by.
_EXCLUDING = -100.0


def is_bias(end: End, value: ir.Value) -> bool:
    """Whether a tensor is added directly to the output of a layer, which is a product with another tensor of the file.

    Args:
        end: The node that adds, if any.
        value: The tensor.
    """
    if end.node is None or end.node.domain or end.node.op_type not in ("Add", "Sum"):
        return False
    for other in _others(end):
        made = before(other, _REARRANGING)
        node = made.producer()
        if node is None or node.op_type not in _LAYERS:
            continue
        if not any(is_tensor(before(own, PASSING)) for own in node.inputs if own is not None):
            continue
        width = made.shape[_LAYERS[node.op_type]] if made.shape is not None and len(made.shape) > 1 else None
        # One number next to several channels is a shift of all, such as the 3 of a hard sigmoid written out.
        several = value.shape is None or math.prod(value.shape.numpy()) != 1
        if several or not isinstance(width, int) or width == 1:
            return True
    return False


def scales_integers(end: End) -> bool:
    """Whether a tensor converts between integers and floating-point numbers, as written-out quantization does."""
    node = end.node
    if node is None or node.domain or node.op_type not in ("Mul", "Div"):
        return False
    uses = node.outputs[0].uses()
    if uses and all(use.node.op_type == "Round" for use in uses):
        return True
    return node.op_type == "Mul" and any(_stored_integers(other) for other in _others(end))


def excludes(end: End, reach: Reach) -> bool:
    """Whether a tensor, or 1 minus it, is multiplied by a number that excludes, as zeros and ones of a mask are."""
    node = end.node
    if node is not None and not node.domain and node.op_type == "Sub":
        uses = node.outputs[0].uses()
        node = next(iter(uses)).node if len(uses) == 1 else None
    if node is None or node.domain or node.op_type != "Mul":
        return False
    numbers = [reach.known(value) for value in node.inputs]
    return any(array is not None and array.size == 1 and array.min() <= _EXCLUDING for array in numbers)


def _others(end: End) -> list[ir.Value]:
    inputs = () if end.node is None else end.node.inputs
    return [value for position, value in enumerate(inputs) if position != end.position and value is not None]


def _stored_integers(value: ir.Value) -> bool:
    """Whether a value was converted from integers of the file, or from a product of integers."""
    made = before(value, _REARRANGING)
    node = made.producer()
    if node is not None and node.op_type == "Sub" and node.inputs[0] is not None:  # a zero point
        made = before(node.inputs[0], _REARRANGING)
        node = made.producer()
    if made.dtype is None or made.dtype in FLOATS:
        return False
    return is_tensor(made) or (node is not None and node.op_type in _INTEGER_PRODUCTS)
