"""`micro_batched`: a network whose chosen layers run on parts of the minibatch, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, brief
from deep5.networks.arguments import check_network
from deep5.networks.edit.edited import is_list, known
from deep5.networks.network import Network
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.transforms.convolution_algorithms import CONVOLUTIONS, DOMAIN

__all__ = ["micro_batched"]

# ONNX operators that compute each sample (row of axis 0) of their first input independently.
_BY_SAMPLE = frozenset((
    "AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "LRN", "MaxPool", "Relu", "Sigmoid",
    "Tanh",
))  # fmt: skip
# The same for operators of level 0.
_OWN = frozenset(f"{DOMAIN}.{op_type}" for op_type, _ in CONVOLUTIONS.values())


def micro_batched(network: Network, plan: Mapping[str, Sequence[int]], *, own: Sequence[str] = ()) -> Network:
    """A network with the same outputs and gradients, whose chosen layers process the minibatch in parts.

    A layer's first input is split along axis 0, the layer runs on each part with the same weights, and its results are
    concatenated. The gradient of a weight is the sum over the parts, rounded in another order.

    Args:
        network: The first dimension of its inputs becomes the sum of the parts.
        plan: The sizes of the parts by node name; a node with one part stays as it is.
        own: Registered operators (`"domain.Name"`) that compute each sample independently; ONNX operators and deep5's
            convolutions are known.

    Raises:
        UsageError: The argument is not a network.
        NetworkError: An invalid plan, an unknown node, an operator that does not compute each sample independently,
            sizes that are not integers, or parts whose sums differ.

    >>> import deep5 as d5
    >>> network = d5.networks.lenet()
    >>> divided = d5.networks.micro_batched(network, {"Conv_1": [16, 16]})
    >>> [node.name for node in divided.nodes][:5]
    ['Conv_1/split', 'Conv_1/part0', 'Conv_1/part1', 'Conv_1/joined', 'Tanh_1']
    >>> str(network.inputs["input"]), str(divided.inputs["input"])
    ('float32[N, 1, 28, 28]', 'float32[32, 1, 28, 28]')
    >>> d5.check_equivalence(network, divided)
    """
    check_network(network, "micro_batched")
    if not isinstance(plan, Mapping) or not plan:
        raise NetworkError(
            f"micro_batched: got {brief(plan)} as the plan; allowed: by each node's name, the sizes of its parts; "
            "remedy: {'Conv_1': [16, 16]}, or the parts of what plan_microbatches gives"
        )
    if not is_list(own) or not all(isinstance(name, str) for name in own):
        raise NetworkError(
            f"micro_batched: got own={brief(own)}; allowed: a list of operators; remedy: own=['domain.Name']"
        )
    sizes = {name: _parts(name, parts) for name, parts in plan.items()}
    batches = {sum(parts) for parts in sizes.values()}
    if len(batches) != 1:
        raise NetworkError(
            f"micro_batched: got parts of {sorted(batches)} samples in all; allowed: one sum for all nodes"
        )
    model: ir.Model = network.model.clone()
    graph, batch = model.graph, batches.pop()
    nodes = {str(node.name): node for node in graph}
    for name, parts in sizes.items():
        _check(known(name, nodes, "node", "micro_batched"), own)
        if len(parts) > 1:
            _divide(graph, nodes[name], parts)
    symbol = None
    for value in graph.inputs:
        if value.name in network.inputs and value.shape is not None and len(value.shape):
            first = network.inputs[str(value.name)].shape[0]
            symbol = first if symbol is None else symbol
            if first == symbol and not isinstance(first, int):
                value.shape = ir.Shape([batch, *list(value.shape)[1:]])
    for node in graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    infer_shapes(model, "the network in micro-batches")
    return Network(model)


def _parts(name: str, parts: Any) -> list[int]:
    if not is_list(parts) or not parts:
        raise NetworkError(
            f"micro_batched: got {brief(parts)} for {name!r}; allowed: a list of sizes, such as [16, 16]"
        )
    for size in parts:
        if not is_whole(size) or size < 1:
            raise NetworkError(
                f"micro_batched: got a part of {brief(size)} for {name!r}; allowed: an integer of at least 1"
            )
    return [int(size) for size in parts]


def _check(node: ir.Node, own: Sequence[str]) -> None:
    called = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if called not in own and called not in _BY_SAMPLE | _OWN:
        remedy = f"; remedy: own=[{called!r}], if it does" if node.domain else ""
        raise NetworkError(
            f"micro_batched: {called} node {node.name!r} is not known to compute each sample by itself; allowed: "
            f"{', '.join(sorted(_BY_SAMPLE))}, deep5's convolutions, and registered operators that are named in "
            f"own={remedy}"
        )
    if len(node.outputs) != 1:
        raise NetworkError(f"micro_batched: node {node.name!r} has {len(node.outputs)} outputs; allowed: one")


def _divide(graph: ir.Graph, node: ir.Node, parts: list[int]) -> None:
    x, result = node.inputs[0], node.outputs[0]
    assert x is not None  # noqa: S101 - every operator here needs its first input
    tensor = ir.Tensor(np.array(parts, dtype=np.int64), name=f"{node.name}/parts")
    sizes = ir.Value(name=tensor.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.initializers[str(tensor.name)] = sizes
    split = ir.node("Split", [x, sizes], {"axis": 0}, num_outputs=len(parts), name=f"{node.name}/split")
    made = [split]
    for index, piece in enumerate(split.outputs):
        piece.name = f"{node.name}/in{index}"
        attributes = [ir.Attr(each.name, each.type, each.value) for each in node.attributes.values()]
        run = ir.Node(node.domain, node.op_type, [piece, *node.inputs[1:]], attributes, name=f"{node.name}/part{index}")
        run.outputs[0].name = f"{node.name}/out{index}"
        made.append(run)
    joined = ir.node("Concat", [run.outputs[0] for run in made[1:]], {"axis": 0}, name=f"{node.name}/joined")
    made.append(joined)
    graph.insert_before(node, made)
    name = result.name
    result.replace_all_uses_with(joined.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=False)
    node.resize_inputs(0)
    joined.outputs[0].name = name
