"""The steps of a program: usually one node each; several nodes if torch has one function for them.

Fused steps are mathematically equivalent; results differ only by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.core.python_source import number
from deep5.frameworks.pytorch.operators import OPERATORS
from deep5.frameworks.pytorch.table import key
from deep5.frameworks.pytorch.written_attention import find_attention
from deep5.frameworks.pytorch.written_losses import Huber, find_huber
from deep5.networks.custom import is_custom
from deep5.networks.nodes import only_for, reads

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__ = ["Step", "steps"]


_Value = ir.Value | None


class Step(NamedTuple):
    """One or several lines of a program.

    Attributes:
        emit: Returns the source of the first output; None if it appends the lines of all outputs itself.
        inputs: The values that it reads.
        outputs: The values that it computes.
        nodes: The nodes that it implements.
    """

    emit: Callable[[Emitter], str | None]
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]


def steps(nodes: Sequence[ir.Node]) -> list[Step]:
    """The steps of a graph's nodes in execution order."""
    fused: dict[ir.Node, Step] = {}
    inner: set[ir.Node] = set()
    for node in nodes:
        for find in (_linear, _attention, _huber):
            if (found := find(node)) is not None:
                fused[node], parts = found
                inner |= parts
    return [
        fused.get(node) or Step(_single(node), tuple(reads(node)), tuple(node.outputs), (node,))
        for node in nodes
        if node not in inner
    ]


def _single(node: ir.Node) -> Callable[[Emitter], str | None]:
    if is_custom(node):
        return lambda emitter: emitter.custom(node)
    return lambda emitter: OPERATORS[key(node)](emitter, node)


def _linear(node: ir.Node) -> tuple[Step, set[ir.Node]] | None:
    """x W + b, with a matrix W and a vector b over its columns."""
    if node.op_type != "Add" or node.domain != "":
        return None
    for product, bias in (node.inputs, tuple(node.inputs)[::-1]):
        inner: set[ir.Node] = set()
        matmul = only_for(product, ("MatMul",), inner)
        if matmul is None:
            continue
        x, weight = matmul.inputs
        shapes = [value.shape for value in (x, weight, bias)]  # type: ignore[union-attr]  # MatMul and Add have two
        if None in shapes or [len(shape) for shape in shapes[1:]] != [2, 1] or len(shapes[0]) < 2:  # type: ignore[arg-type]
            continue
        if shapes[2][0] == shapes[1][1] and weight.dtype.is_floating_point():  # type: ignore[index,union-attr]
            emit = partial(_emit_linear, node, x, weight, bias)
            return Step(emit, (x, weight, bias), tuple(node.outputs), (*inner, node)), inner
    return None


def _emit_linear(node: ir.Node, x: _Value, weight: _Value, bias: _Value, emitter: Emitter) -> str:
    function = emitter.product(node, F.linear)
    return f"{function}({emitter.name(x)}, {emitter.name(weight)}.t(), {emitter.name(bias)})"


def _attention(node: ir.Node) -> tuple[Step, set[ir.Node]] | None:
    """Attention written out."""
    found = find_attention(node)
    if found is None:
        return None
    return Step(found.emit, found.inputs, tuple(node.outputs), (*found.inner, node)), found.inner


def _huber(node: ir.Node) -> tuple[Step, set[ir.Node]] | None:
    """A Huber loss written out."""
    found = find_huber(node)
    if found is None:
        return None
    inputs = (found.first, found.second)
    return Step(partial(_emit_huber, found), inputs, tuple(node.outputs), (*found.inner, node)), found.inner


def _emit_huber(found: Huber, emitter: Emitter) -> str:
    inputs = f"{emitter.name(found.first)}, {emitter.name(found.second)}"
    return f"{emitter.function(F.huber_loss)}({inputs}, reduction='none', delta={number(found.delta)})"
