"""Gradients of operators that only move elements."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands
from deep5.networks.gradients.window import attribute

__all__ = ["RULES"]


def _identity(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x: dx = dy."""
    return [grads[0]]


def _reshape(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y holds the elements of x in their order (Reshape, Flatten): dx is dy in the shape of x."""
    return [b.op("Reshape", grads[0], b.shape(*operands(node, 1))), *[None] * (len(node.inputs) - 1)]


def _transpose(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x with its axes permuted: dx is dy under the inverse permutation."""
    rank = len(extents(*operands(node, 1)))
    perm = list(attribute(node, "perm", range(rank - 1, -1, -1)))
    return [b.op("Transpose", grads[0], perm=[perm.index(axis) for axis in range(rank)])]


RULES: dict[str, Rule] = {
    "Flatten": _reshape,
    "Identity": _identity,
    "Reshape": _reshape,
    "Transpose": _transpose,
}
