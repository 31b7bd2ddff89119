"""Branches that are known when a file is read, where the other branch would hide a rank from what follows.

torch.jit writes "squeeze, if the axis has one element" as an If whose branches differ in rank. Where the sizes are
known, its condition is constant, and so is the rank.
"""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.folding import fold_constants
from deep5.networks.onnx.name_lists import DEFAULTS, listed_names
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.transforms.control_flow import written_out

__all__ = ["take_known_branches"]


def take_known_branches(model: ir.Model, what: str) -> None:
    """Replace every If whose branches differ in rank, and whose condition is constant, by the branch that runs.

    Args:
        model: The model, with inferred shapes and folded constants; changed in place. Initial values that a caller may
            feed are not constants.
        what: Its name in messages.
    """
    fed = frozenset(listed_names(model, DEFAULTS))
    while any([_taken(node, fed) for node in list(model.graph)]):  # noqa: C419 - all of them, before the next pass
        infer_shapes(model, what)
        fold_constants(model, what)


def _taken(node: ir.Node, fed: frozenset[str]) -> bool:
    if node.op_type != "If" or node.domain or not _of_several_ranks(node):
        return False
    condition = node.inputs[0]
    if condition is None or condition.name in fed:
        return False
    known = constant_value(condition)
    if known is None or known.size != 1:
        return False
    node.name = node.name or str(node.outputs[0].name)  # the nodes of the branch are named after it
    return written_out(node)


def _of_several_ranks(node: ir.Node) -> bool:
    made = zip(*(graph.outputs for graph in subgraphs(node).values()), strict=True)
    ranks = [{None if value.shape is None else len(value.shape) for value in values} for values in made]
    return any(len(each) > 1 or None in each for each in ranks)
