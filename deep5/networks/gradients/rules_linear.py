"""Gradients of matrix products."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Extents, Gradients, Rule, extents, operands
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _gemm(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Y = alpha A' B' + beta C, where ' may transpose: dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY.

    The transposes go into Gemm's own attributes, so that no matrix is transposed in memory.

    References:
        ONNX, Gemm-13. Giles, An extended collection of matrix derivative results for forward and reverse mode automatic
        differentiation, 2008, section 2.2.
    """
    a, w = operands(node, 2)
    c = node.inputs[2] if len(node.inputs) > 2 else None
    (y,), (dy, *_) = node.outputs, grads
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    flip_a, flip_w = attribute(node, "transA", 0), attribute(node, "transB", 0)
    da = dw = dc = None
    if b.wants(a):
        if flip_a:
            da = b.op("Gemm", w, dy, alpha=alpha, transA=flip_w, transB=1)
        else:
            da = b.op("Gemm", dy, w, alpha=alpha, transB=1 - flip_w)
    if b.wants(w):
        if flip_w:
            dw = b.op("Gemm", dy, a, alpha=alpha, transA=1, transB=flip_a)
        else:
            dw = b.op("Gemm", a, dy, alpha=alpha, transA=1 - flip_a)
    if c is not None and b.wants(c):
        dc = b.scaled(b.unbroadcast(dy, extents(y), c), beta, y)
    return [da, dw, dc][: len(node.inputs)]


def _matmul(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Y = A B over the last two axes: dA = dY B^T, dB = A^T dY, summed over the batch axes that were broadcast.

    A vector counts as a row on the left and as a column on the right (NumPy's `matmul`).

    References:
        ONNX, MatMul-13. Giles, An extended collection of matrix derivative results for forward and reverse mode
        automatic differentiation, 2008, section 2.2.
    """
    a, c = operands(node, 2)
    (y,), (dy, *_) = node.outputs, grads
    rank_a, rank_c = len(extents(a)), len(extents(c))
    if rank_a == 1 and rank_c == 1:
        return [b.op("Mul", dy, c) if b.wants(a) else None, b.op("Mul", dy, a) if b.wants(c) else None]
    if rank_c == 1:
        column = b.op("Unsqueeze", dy, b.ints(-1))
        axes = b.ints(*range(rank_a - 1))
        return [
            b.op("Mul", column, c) if b.wants(a) else None,
            b.op("ReduceSum", b.op("Mul", column, a), axes, keepdims=0) if b.wants(c) else None,
        ]
    if rank_a == 1:
        row = b.op("Unsqueeze", dy, b.ints(-2))
        axes = b.ints(*range(rank_c - 2), rank_c - 1)
        return [
            b.op("ReduceSum", b.op("Mul", row, c), axes, keepdims=0) if b.wants(a) else None,
            b.op("Mul", b.op("Unsqueeze", a, b.ints(-1)), row) if b.wants(c) else None,
        ]
    if rank_a == rank_c == 2:  # Gemm transposes on the way: no node, and no copy, for a transposed matrix
        return [
            b.op("Gemm", dy, c, transB=1) if b.wants(a) else None,
            b.op("Gemm", a, dy, transA=1) if b.wants(c) else None,
        ]
    batch = extents(y)[:-2]
    da = dc = None
    if b.wants(a):
        da = _reduced(b, b.op("MatMul", dy, _flipped(b, c, rank_c)), batch, a)
    if b.wants(c) and rank_c == 2 and rank_a > 2:
        # One large product instead of a batch of small ones and a sum.
        rows, flat = b.op("Flatten", a, axis=rank_a - 1), b.op("Flatten", dy, axis=rank_a - 1)
        dc = b.op("Gemm", rows, flat, transA=1)
    elif b.wants(c):
        dc = _reduced(b, b.op("MatMul", _flipped(b, a, rank_a), dy), batch, c)
    return [da, dc]


def _flipped(b: Backward, value: ir.Value, rank: int) -> ir.Value:
    return b.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _reduced(b: Backward, gradient: ir.Value, batch: Extents, target: ir.Value) -> ir.Value | None:
    return b.unbroadcast(gradient, batch + extents(target)[-2:], target)


RULES: dict[str, Rule] = {"Gemm": _gemm, "MatMul": _matmul}
