"""Branches that are known when a file is read.

torch.jit writes "squeeze, if the axis has one element" as an If whose branches differ in rank. Where the sizes are
known, its condition is constant, and so is the rank. What the other branch reads is no part of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.networks.constants import constant_value
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.folding import evaluated, fold_constants
from deep5.networks.onnx.name_lists import DEFAULTS, listed_names
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.transforms.control_flow import written_out

__all__ = ["HiddenError", "take_known_branches"]

# Nodes from a size to a condition.
_DEPTH = 16


class HiddenError(NetworkError):
    """ONNX refuses what an If hid whose condition is constant."""


def take_known_branches(model: ir.Model, what: str, *, equal_ranks: bool = True) -> None:
    """Replace every If whose condition is constant by the branch that runs; values keep names that are unique.

    Args:
        model: The model, with inferred shapes and folded constants; changed in place. Initial values that a caller may
            feed are not constants.
        what: Its name in messages.
        equal_ranks: Whether those are replaced, too, whose branches have equal ranks.

    Raises:
        HiddenError: ONNX refuses what an If with branches of equal ranks hid, such as a vector of one element as the
            limit of a Range, which engines accept. The model is changed up to there; read anew, that If can stay.
    """
    _take(model, what, _of_several_ranks)
    if equal_ranks:
        try:
            _take(model, what, lambda node: True)
        except NetworkError as error:
            raise HiddenError(str(error)) from error


def _take(model: ir.Model, what: str, accepts: Callable[[ir.Node], bool]) -> None:
    # Of the initial values that a caller may feed nothing follows.
    fed, opset = frozenset(listed_names(model, DEFAULTS)), model.graph.opset_imports[""]
    while True:
        nodes = list(model.graph.all_nodes())
        chosen = [node for node in nodes if node.op_type == "If" and not node.domain and accepts(node)]
        counts = Counter(str(value.name) for node in nodes for value in node.outputs) if chosen else Counter()
        # All of them, those inside others first: each is copied once into the graph around it.
        if not any([_taken(node, fed, opset, counts) for node in reversed(chosen)]):  # noqa: C419
            return
        infer_shapes(model, what)
        fold_constants(model, what)


def _of_several_ranks(node: ir.Node) -> bool:
    made = zip(*(graph.outputs for graph in subgraphs(node).values()), strict=True)
    ranks = [{None if value.shape is None else len(value.shape) for value in values} for values in made]
    return any(len(each) > 1 or None in each for each in ranks)


def _taken(node: ir.Node, fed: Collection[str], opset: int, counts: Mapping[str, int]) -> bool:
    if node.graph is None:  # in a branch that was dropped
        return False
    known = _known(node.inputs[0], fed, opset, _DEPTH)
    if known is None or known.size != 1:
        return False
    node.name = node.name or str(node.outputs[0].name)  # the nodes of the branch are named after it
    if constant_value(node.inputs[0]) is None:  # computed inside another node, where constants are not folded
        made = ir.node("Constant", [], {"value": ir.tensor(known)}, name=f"{node.name}/condition")
        made.outputs[0].name, made.outputs[0].shape = made.name, ir.Shape(known.shape)
        made.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
        node.graph.insert_before(node, made)
        node.replace_input_with(0, made.outputs[0])
    branches = list(subgraphs(node).values())
    if not written_out(node, counts):
        return False
    for graph in branches:  # they still use the values of the graphs around them
        for inner in graph.all_nodes():
            for place in range(len(inner.inputs)):
                inner.replace_input_with(place, None)
    return True


def _known(value: ir.Value | None, fed: Collection[str], opset: int, depth: int) -> np.ndarray | None:
    """A value that follows from constants and known sizes; None for any other."""
    if value is None or value.name in fed or not depth:
        return None
    node = value.producer()
    if node is None or node.op_type == "Constant":
        return constant_value(value)
    if node.domain or not node.inputs or len(node.outputs) > 1:
        return None
    source = node.inputs[0]
    if node.op_type in ("Shape", "Size"):
        if source is None or source.shape is None or not source.shape.is_static():
            return None
        extents = np.array(source.shape.numpy(), np.int64)
        part = slice(*(attribute(node, key) for key in ("start", "end")))
        return extents[part] if node.op_type == "Shape" else extents.prod()
    inputs = [_known(each, fed, opset, depth - 1) for each in node.inputs]
    if any(known is None and each is not None for known, each in zip(inputs, node.inputs, strict=True)):
        return None
    return evaluated(node, inputs, opset).get(value)
