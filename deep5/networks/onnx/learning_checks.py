"""Check the attributes of ai.onnx.ml: engines follow a cycle of trees without end, and read features out of range."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.element_types import called
from deep5.networks.onnx.learning_types import DOMAIN

__all__ = ["check_learning"]

_PREFIX = {"TreeEnsembleClassifier": "class", "TreeEnsembleRegressor": "target"}
# Linear models, with the number of rows of their weights.
_ROWS: dict[str, Callable[[ir.Node], int]] = {
    "LinearClassifier": lambda node: len(attribute(node, "intercepts", ())),
    "LinearRegressor": lambda node: int(attribute(node, "targets", 1)),
    "SVMClassifier": lambda node: sum(_whole(node, "vectors_per_class")),
    "SVMRegressor": lambda node: int(attribute(node, "n_supports", 0)),
}
_Key = tuple[int, int]


def check_learning(model: ir.Model, what: str) -> None:
    """Reject trees whose nodes do not form trees, features or results that are out of range, and incomplete weights.

    Args:
        model: The model, with inferred shapes.
        what: Its name in messages.

    Raises:
        NetworkError: The first such node, the attribute, and what is allowed.
    """
    for node in model.graph.all_nodes():
        if node.domain != DOMAIN:
            continue
        if node.op_type in _PREFIX:
            reason = _wrong_nodes(node) or _wrong_leaves(node, _PREFIX[node.op_type])
        elif node.op_type == "TreeEnsemble":
            reason = _wrong_forest(node)
        elif node.op_type in _ROWS:
            reason = _wrong_weights(node)
        else:
            continue
        if reason := reason or (_wrong_features(node) if "nodes_featureids" in node.attributes else None):
            name = called(node.name, node.op_type, [value.name for value in node.outputs])
            raise NetworkError(f"{what}: {name}: {reason}")


def _whole(node: ir.Node, name: str) -> list[int]:
    return [int(number) for number in attribute(node, name, ())]


def _keys(node: ir.Node) -> list[_Key]:
    return list(zip(_whole(node, "nodes_treeids"), _whole(node, "nodes_nodeids"), strict=False))


def _wrong_nodes(node: ir.Node) -> str | None:
    """Why the nodes of an older ensemble are not trees."""
    keys, modes = _keys(node), list(attribute(node, "nodes_modes", ()))
    names = ("nodes_treeids", "nodes_featureids", "nodes_modes", "nodes_truenodeids", "nodes_falsenodeids")
    for name in names:
        if (count := len(attribute(node, name, ()))) != len(keys):
            return f"{name} has {count} entries; allowed: one for each of the {len(keys)} nodes"
    tensor = attribute(node, "nodes_values_as_tensor", None)
    count = len(attribute(node, "nodes_values", ())) if tensor is None else int(tensor.size)
    if count != len(keys):
        return f"nodes_values has {count} entries; allowed: one for each of the {len(keys)} nodes"
    place = {key: number for number, key in enumerate(keys)}
    if len(place) < len(keys):
        return "two nodes of a tree have one number; allowed: nodes_nodeids that differ within a tree"
    sides = _whole(node, "nodes_truenodeids"), _whole(node, "nodes_falsenodeids")
    after: list[Sequence[int]] = []
    for number, (tree, _) in enumerate(keys):
        children = [] if modes[number] == "LEAF" else [(tree, side[number]) for side in sides]
        if missing := [child for child in children if child not in place]:
            return f"node {keys[number][1]} of tree {tree} leads to node {missing[0][1]}, which the tree does not have"
        after.append([place[child] for child in children])
    return _wrong_order(after)


def _wrong_order(after: Sequence[Sequence[int]]) -> str | None:
    """Why a graph of branches is not made of trees: a node is reached twice."""
    reached = [0] * len(after)
    for children in after:
        for child in dict.fromkeys(children):
            reached[child] += 1
    if (again := next((number for number, count in enumerate(reached) if count > 1), None)) is not None:
        return f"two branches lead to entry {again} of its nodes; allowed: trees"
    waiting = [number for number, count in enumerate(reached) if not count]
    met = 0
    while waiting:
        met += 1
        waiting += dict.fromkeys(after[waiting.pop()])
    return "the branches lead back to where they come from; allowed: trees" if met < len(after) else None


def _wrong_leaves(node: ir.Node, kind: str) -> str | None:
    keys = set(_keys(node))
    places = list(zip(_whole(node, f"{kind}_treeids"), _whole(node, f"{kind}_nodeids"), strict=False))
    if wrong := next((place for place in places if place not in keys), None):
        return f"{kind}_nodeids names node {wrong[1]} of tree {wrong[0]}, which the tree does not have"
    results = _whole(node, f"{kind}_ids")
    tensor = attribute(node, f"{kind}_weights_as_tensor", None)
    weights = len(attribute(node, f"{kind}_weights", ())) if tensor is None else int(tensor.size)
    if not len(results) == len(places) == weights:
        return f"got {len(places)} leaves, {len(results)} {kind}_ids and {weights} weights; allowed: as many of each"
    if kind == "target":
        most = int(attribute(node, "n_targets", 1))
    else:
        most = max(len(attribute(node, f"classlabels_{each}", ())) for each in ("strings", "int64s"))
    if out := [each for each in results if not 0 <= each < most]:
        return f"got {out[0]} in {kind}_ids; allowed: 0 to {most - 1}"
    return None


def _wrong_forest(node: ir.Node) -> str | None:
    """Why the nodes of an ensemble of version 5 are not trees."""
    nexts = [_whole(node, f"nodes_{side}nodeids") for side in ("true", "false")]
    ends = [_whole(node, f"nodes_{side}leafs") for side in ("true", "false")]
    count, leaves = len(_whole(node, "nodes_featureids")), len(_whole(node, "leaf_targetids"))
    if any(len(each) != count for each in (*nexts, *ends)):
        return f"its lists of branches have other lengths than nodes_featureids, {count}; allowed: one entry per node"
    after: list[list[int]] = [[] for _ in range(count)]
    for side, stops in zip(nexts, ends, strict=True):
        for number, (target, stop) in enumerate(zip(side, stops, strict=True)):
            if not 0 <= target < (leaves if stop else count):
                return f"entry {number} of its nodes leads to {target}; allowed: 0 to {(leaves if stop else count) - 1}"
            if not stop:
                after[number].append(target)
    if out := [root for root in _whole(node, "tree_roots") if not 0 <= root < count]:
        return f"got {out[0]} in tree_roots; allowed: 0 to {count - 1}"
    return _wrong_order(after)


def _wrong_weights(node: ir.Node) -> str | None:
    """Why the weights or support vectors are not rows of as many columns as the input has."""
    rows = _ROWS[node.op_type](node)
    name = "support_vectors" if node.op_type.startswith("SVM") and rows else "coefficients"
    rows = rows or 1
    count, columns = len(attribute(node, name, ())), _columns(node)
    if rows < 1 or count % rows or not count or (columns is not None and count != rows * columns):
        wanted = f"{rows} times {'the columns' if columns is None else columns}"
        return f"{name} has {count} entries; allowed: {wanted} of its input"
    return None


def _columns(node: ir.Node) -> int | None:
    """The number of features, if it is known."""
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    columns = shape[-1] if shape is not None and len(shape) else None
    return columns if isinstance(columns, int) else None


def _wrong_features(node: ir.Node) -> str | None:
    features = _whole(node, "nodes_featureids")
    columns = _columns(node)
    most = 1 << 31 if columns is None else columns
    if out := [each for each in features if not 0 <= each < most]:
        return f"got {out[0]} in nodes_featureids; allowed: 0 to {most - 1}, the columns of its input"
    return None
