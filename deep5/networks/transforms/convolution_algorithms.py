"""`convolutions_by`: a transformation that runs a network's convolutions by an algorithm of level 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, UnknownName, brief
from deep5.networks.arguments import check_network
from deep5.networks.edit.edited import drop, edited, known, made_node, nodes_of
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["CONVOLUTIONS", "DOMAIN", "convolutions_by", "unfit_convolutions"]

CONVOLUTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "direct": ("ConvDirect", {}),
    "im2col": ("ConvIm2Col", {"whole": 1}),
    "im2col_blocked": ("ConvIm2Col", {}),
    "fft": ("ConvFFT", {}),
    "winograd": ("ConvWinograd", {}),
}
"""For each algorithm, its operator in the domain `deep5` and the operator's attributes. `im2col` is the published
algorithm, with the whole matrix of patches in memory; `im2col_blocked` creates one block of its columns at a time."""

DOMAIN = "deep5"
"""The domain of these operators."""

_STRIDED = ("ConvDirect", "ConvIm2Col")


def convolutions_by(network: Network, algorithm: str, *, nodes: Iterable[str] | None = None) -> Network:
    """A network with the same function and names, whose convolutions are computed by an algorithm of level 0.

    A node keeps its name, its parameters and the name of its output; separate nodes add the bias.

    Args:
        network: The network; it is not changed.
        algorithm: One of `CONVOLUTIONS`.
        nodes: Names of Conv nodes, all of which the algorithm must support; None: all supported Conv nodes.
            `unfit_convolutions` lists the others.

    Raises:
        UsageError: The argument is not a network.
        UnknownName: Unknown algorithm.
        NetworkError: Unknown node, or one that the algorithm does not support.

    >>> from deep5.networks import lenet
    >>> [node.op_type for node in convolutions_by(lenet(), "fft").nodes][:4]
    ['ConvFFT', 'Unsqueeze', 'Add', 'Tanh']
    """
    unfit = _unfit_convolutions(network, algorithm, "convolutions_by")
    op_type, attributes = CONVOLUTIONS[algorithm]
    if isinstance(nodes, str) or (nodes is not None and not isinstance(nodes, Iterable)):
        raise NetworkError(f"convolutions_by: got {brief(nodes)} as nodes; allowed: a list of names")
    chosen = None if nodes is None else list(nodes)

    def change(model: ir.Model) -> list[ir.Node]:
        named = nodes_of(model)
        fitting = [name for name, node in named.items() if _is_convolution(node) and name not in unfit]
        made: list[ir.Node] = []
        for name in fitting if chosen is None else chosen:
            node = known(name, named, "node", "convolutions_by")
            reason = unfit.get(name) if _is_convolution(node) else f"it is a node of {node.op_type}; allowed: Conv"
            if reason is not None:
                raise NetworkError(f"convolutions_by: node {name!r} cannot run by {algorithm!r}: {reason}")
            made += _replace(model, node, op_type, attributes)
        return made

    return Network(edited(network.model, f"the network with convolutions by {algorithm!r}", change))


def unfit_convolutions(network: Network, algorithm: str) -> dict[str, str]:
    """The Conv nodes that an algorithm does not support, by name, each with the reason.

    Args:
        network: The network.
        algorithm: One of `CONVOLUTIONS`.

    Raises:
        UsageError: The argument is not a network.
        UnknownName: Unknown algorithm.

    >>> import deep5 as d5
    >>> d5.networks.unfit_convolutions(d5.networks.lenet(), "winograd")
    {'Conv_1': 'its kernel is of 5 x 5; allowed: 3 x 3', 'Conv_2': 'its kernel is of 5 x 5; allowed: 3 x 3'}
    >>> d5.networks.unfit_convolutions(d5.networks.lenet(), "fft")
    {}
    """
    return _unfit_convolutions(network, algorithm, "unfit_convolutions")


def _unfit_convolutions(network: Network, algorithm: str, what: str) -> dict[str, str]:
    check_network(network, what)
    if not isinstance(algorithm, str) or algorithm not in CONVOLUTIONS:
        raise UnknownName("convolution algorithm", brief(algorithm).strip("'"), CONVOLUTIONS)
    op_type = CONVOLUTIONS[algorithm][0]
    reasons = {str(node.name): _unfit(node, op_type) for node in network.nodes if _is_convolution(node)}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _is_convolution(node: ir.Node) -> bool:
    return node.op_type == "Conv" and not node.domain


def _unfit(node: ir.Node, op_type: str) -> str | None:
    weight = node.inputs[1]
    shape = None if weight is None or weight.shape is None else list(weight.shape)
    if shape is None or len(shape) != 4:
        return f"its weight has the shape {shape}; allowed: rank 4, for images"
    if (groups := attribute(node, "group", 1)) != 1:
        return f"it has {groups} groups; allowed: 1"
    if any(extent != 1 for extent in _listed(node, "dilations")):
        return f"it has the dilations {_listed(node, 'dilations')}; allowed: 1"
    if (auto := attribute(node, "auto_pad", "NOTSET")) != "NOTSET":
        return f"it has auto_pad={auto!r}; allowed: pads as numbers"
    if op_type not in _STRIDED and any(extent != 1 for extent in _listed(node, "strides")):
        return f"it has the strides {_listed(node, 'strides')}; allowed: 1: the algorithm computes every position"
    if op_type == "ConvWinograd" and shape[2:] != [3, 3]:
        return f"its kernel is of {shape[2]} x {shape[3]}; allowed: 3 x 3"
    return None


def _replace(model: ir.Model, node: ir.Node, op_type: str, attributes: dict[str, Any]) -> list[ir.Node]:
    graph, name, result = model.graph, str(node.name), node.outputs[0]
    x, weight, bias = (*node.inputs, None)[:3]
    given = {"pads": _listed(node, "pads") or [0] * 4, **attributes}
    if op_type in _STRIDED:
        given["strides"] = _listed(node, "strides") or [1, 1]
    convolved = str(result.name) if bias is None else f"{name}/convolved"
    what = "convolutions_by"
    made = [made_node(model, op_type, [x, weight], [convolved], name, DOMAIN, given, what)]
    if bias is not None:
        tensor = ir.Tensor(np.array([1, 2], dtype=np.int64), name=f"{name}/axes")
        axes = ir.Value(name=tensor.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        graph.initializers[str(tensor.name)] = axes
        raised = made_node(model, "Unsqueeze", [bias, axes], [f"{name}/bias"], f"{name}/unsqueeze", "", {}, what)
        terms = [made[0].outputs[0], raised.outputs[0]]
        made += [raised, made_node(model, "Add", terms, [str(result.name)], f"{name}/add", "", {}, what)]
    graph.insert_before(node, made)
    result.replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
    drop(graph, [node])
    return made


def _listed(node: ir.Node, name: str) -> Sequence[int]:
    return [int(each) for each in attribute(node, name) or ()]
