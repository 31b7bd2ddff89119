"""Gradients of sums over indices, determinants and generated matrices."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Extents, Gradients, Rule, extents, operands, refuse
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _terms(node: ir.Node) -> tuple[list[str], str]:
    """The subscripts of the operands and of the result, which is derived if the equation omits it."""
    equation = "".join(attribute(node, "equation").split())
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = [letter for letter in left if letter.isalpha()]
        right = "..." * ("..." in left) + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    return terms, right


def _einsum(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = a sum over indices of a product: the gradient of a factor is the same sum over dy and the other factors.

    It is broadcast along an index that only this factor has; an index that the factor has twice gives a diagonal
    matrix.

    References:
        ONNX, Einsum-12. Laue, Mitterreiter and Giesen, A simple and efficient tensor calculus, AAAI 2020, theorem 8.
    """
    terms, result = _terms(node)
    values, sent = operands(node, len(terms)), list[ir.Value | None]()
    for place, (term, value) in enumerate(zip(terms, values, strict=True)):
        if not b.wants(value):
            sent.append(None)
            continue
        others = [(each, other) for at, (each, other) in enumerate(zip(terms, values, strict=True)) if at != place]
        dx, kept = grads[0], result
        if others:
            seen = set(result).union(*(each for each, _ in others))
            letters = dict.fromkeys(term.replace("...", ""))
            kept = "..." * ("..." in result) + "".join(letter for letter in letters if letter in seen)
            equation = ",".join([result, *(each for each, _ in others)]) + "->" + kept
            dx = b.op("Einsum", grads[0], *(other for _, other in others), equation=equation)
        sent.append(_fitted(b, dx, kept, value, term, _dots(node.outputs[0], result)))
    return sent


def _dots(value: ir.Value, term: str) -> Extents:
    """The dimensions that the ellipsis stands for."""
    before, dots, behind = term.partition("...")
    return extents(value)[len(before) : len(extents(value)) - len(behind)] if dots else ()


def _axes(term: str, dots: int, of: int) -> list[int | str]:
    """The axes of a subscript: letters, and for the ellipsis the last `of` of its `dots` numbers."""
    before, ellipsis, behind = term.partition("...")
    return [*before, *(range(dots - of, dots) if ellipsis else ()), *behind]


def _fitted(b: Backward, dx: ir.Value | None, kept: str, value: ir.Value, term: str, broadcast: Extents) -> ir.Value:
    """The gradient in the shape of a factor.

    Args:
        b: The backward pass.
        dx: The result of the sum over dy and the other factors.
        kept: The subscript of dx.
        value: The factor.
        term: Its subscript.
        broadcast: The dimensions that the ellipsis stands for in the result.
    """
    dots, own = len(broadcast), len(_dots(value, term))
    axes, given = _axes(term, dots, own), _axes(kept, dots, dots)
    gone = [at for at, axis in enumerate(given) if axis not in axes]
    if gone:
        dx = b.op("ReduceSum", dx, b.ints(*gone), keepdims=0)
        given = [axis for axis in given if axis in axes]
    first = [axes.index(axis) for axis in dict.fromkeys(axes) if axis in given]
    order = [given.index(axes[at]) for at in first]
    if order != sorted(order):
        dx = b.op("Transpose", dx, perm=order)
    missing = [at for at in range(len(axes)) if at not in first]
    if missing:
        dx = b.op("Expand", b.op("Unsqueeze", dx, b.ints(*missing)), b.shape(value))
    wide = [broadcast[axis] if isinstance(axis, int) else e for axis, e in zip(axes, extents(value), strict=True)]
    dx = b.unbroadcast(dx, tuple(wide), value)
    for letter in dict.fromkeys(term.replace("...", "")):
        places = [at for at, axis in enumerate(axes) if axis == letter]
        for one, other in itertools.pairwise(places):
            dx = b.op("Where", _diagonal(b, value, one, other), dx, b.like(0.0, value))
    assert dx is not None  # noqa: S101 - a needed gradient is computed from existing ones
    return dx


def _diagonal(b: Backward, value: ir.Value, one: int, other: int) -> ir.Value:
    """Whether the indices along two axes of a value are equal, in a shape that broadcasts against it."""
    rank, sides = len(extents(value)), []
    for axis in (one, other):
        extent = b.op("Squeeze", b.op("Shape", value, start=axis, end=axis + 1))
        numbers = b.op("Range", b.integer(0), extent, b.integer(1))
        sides.append(b.op("Reshape", numbers, b.ints(*(-1 if at == axis else 1 for at in range(rank)))))
    return b.op("Equal", *sides)


def _det(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = det(x): dx[i, j] = dy times the cofactor of x[i, j], which is also correct for singular x.

    References:
        ONNX, Det-11 (the same in Det-22). Giles, An extended collection of matrix derivative results for forward and
        reverse mode automatic differentiation, 2008, section 2.2.4, with the cofactors in place of the inverse times
        the determinant.
    """
    (x,) = operands(node, 1)
    size = extents(x)[-1]
    if not isinstance(size, int):
        raise refuse(node, f"the matrices' dimensions must be fixed, got {extents(x)}")
    lead = b.op("Shape", x, end=-2)
    column = b.op("Unsqueeze", b.op("Unsqueeze", grads[0], b.ints(-1)), b.ints(-1))
    if size < 2:
        return [b.op("Reshape", b.op("Expand", column, b.shape(x)), b.shape(x), allowzero=1)]
    rest = [[k for k in range(size) if k != i] for i in range(size)]
    places = [[[size * row + k for k in rest[j]] for row in rest[i]] for i in range(size) for j in range(size)]
    flat = b.op("Reshape", x, b.op("Concat", lead, b.ints(size * size), axis=0), allowzero=1)
    minors = b.op("Gather", flat, b.op("Constant", value=ir.tensor(np.array(places, np.int64))), axis=-1)
    found = b.op("Det", minors)
    signs = b.like([(-1.0) ** (i + j) for i in range(size) for j in range(size)], x)
    cofactors = b.op("Reshape", b.op("Mul", found, signs), b.shape(x), allowzero=1)
    return [b.op("Mul", column, cofactors)]


def _range(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y[i] = start + i delta: dstart = sum of dy, ddelta = sum of i dy; the limit affects no element.

    References:
        ONNX, Range-11.
    """
    start, _, delta = operands(node, 3)
    numbers = b.op("Range", b.integer(0), b.op("Size", node.outputs[0]), b.integer(1))
    weighted = b.op("Mul", grads[0], b.op("Cast", numbers, to=start.dtype)) if b.wants(delta) else None
    return [
        b.op("ReduceSum", grads[0], keepdims=0),
        b.like(0.0, start),
        None if weighted is None else b.op("ReduceSum", weighted, keepdims=0),
    ]


def _affine_grid(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y[n, p] = theta[n] (p, 1): dtheta[n] = sum over positions p of dy[n, p] (p, 1)^T.

    The positions p are the grid of the identity transform.

    References:
        ONNX, AffineGrid-20. Jaderberg et al., Spatial transformer networks, NeurIPS 2015, equation 1.
    """
    theta, size = operands(node, 2)
    axes = len(extents(node.outputs[0])) - 2
    identity = b.like([float(i == j) for i in range(axes) for j in range(axes + 1)], theta)
    one = b.op("Concat", b.ints(1), b.op("Slice", size, b.ints(1), b.ints(axes + 2)), axis=0)
    same = b.op("Reshape", identity, b.ints(1, axes, axes + 1))
    grid = b.op("AffineGrid", same, one, align_corners=attribute(node, "align_corners", 0))
    places = b.op("Pad", b.op("Reshape", grid, b.ints(-1, axes)), b.ints(0, 0, 0, 1), b.like(1.0, theta))
    rows = b.op("Reshape", grads[0], b.op("Concat", b.op("Shape", theta, end=1), b.ints(-1, axes), axis=0))
    return [b.op("MatMul", b.op("Transpose", rows, perm=[0, 2, 1]), places), None]


RULES: dict[str, Rule] = {"AffineGrid": _affine_grid, "Det": _det, "Einsum": _einsum, "Range": _range}
