"""`low_rank_adapters` and `merge_adapters`: train a product of two thin matrices beside frozen weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import NetworkError, UsageError, brief, suggestion
from deep5.core.seeds import generator
from deep5.networks.arguments import check_network, check_seed
from deep5.networks.constants import FLOATS
from deep5.networks.edit.edited import drop, edited, is_output, made_node, name_of
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["low_rank_adapters", "merge_adapters"]

_A, _B = ".lora_a", ".lora_b"
_WHAT, _MERGE = "low_rank_adapters", "merge_adapters"


def low_rank_adapters(
    network: Network,
    *,
    rank: int = 8,
    alpha: float | None = None,
    where: str | Sequence[str] = "*",
    train: Sequence[str] = (),
    seed: int = 0,
) -> Network:
    """A network with the same function in which only low-rank adapters of chosen weights are trained.

    Each product x W with a weight W (in, out) becomes x W + (alpha / rank) x A B, for a Gemm times its own alpha, with
    two new parameters, A (in, rank) and B (rank, out), named `W.lora_a` and `W.lora_b`. B is zero at first, so the
    adapted network starts with the function of the given one. All parameters of the given network are frozen; running
    statistics of batch normalization still change, as in any training. `merge_adapters` returns to a network without
    adapters.

    Weights are the second operand of a MatMul, and of a Gemm whose first operand is not transposed. A weight that
    several such nodes read has one adapter. Weights that other nodes read too, such as an embedding that is also the
    output layer, have none, since merging would change the other use.

    Args:
        network: The network with its trained weights; it is not changed.
        rank: Columns of A and rows of B.
        alpha: The adapters' scale; None: the rank, so that the factor is 1.
        where: Names of the weights, with `*`, `?` and `[…]` as in file names.
        train: Names of other parameters that stay trained, such as a new classifier, likewise.
        seed: Seed of A: normal with standard deviation 1 / sqrt(in).

    Raises:
        UsageError: The argument is not a network, or a value is not allowed.
        NetworkError: A pattern matches no weight that can have an adapter, or the network has adapters.

    References:
        Hu et al., LoRA: Low-rank adaptation of large language models, ICLR 2022, arXiv:2106.09685, section 4.1,
        equation 3.

    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=16, hidden=32, classes=4)
    >>> adapted = d5.networks.low_rank_adapters(network, rank=2, where="fc1.*")
    >>> {name: spec.shape for name, spec in adapted.trained_specs.items()}
    {'fc1.weight.lora_a': (16, 2), 'fc1.weight.lora_b': (2, 32)}
    >>> sorted(adapted.frozen) == sorted(network.parameter_specs)
    True
    """
    check_network(network, _WHAT)
    check_seed(seed, _WHAT)
    if not is_whole(rank) or rank < 1:
        raise UsageError(f"{_WHAT}: got rank={brief(rank)}; allowed: an integer of at least 1")
    if alpha is not None and not (is_finite(alpha) and alpha > 0):
        raise UsageError(f"{_WHAT}: got alpha={brief(alpha)}; allowed: None or a number above 0")
    scale = 1.0 if alpha is None else float(alpha) / rank
    chosen = _chosen(network, [where] if isinstance(where, str) else where)

    def change(model: ir.Model) -> list[ir.Node]:
        made: list[ir.Node] = []
        for name in chosen:
            weight = model.graph.initializers[name]
            a, b = _new_parameters(model.graph, weight, rank, seed)
            for node in [use.node for use in weight.uses()]:
                made += _add(model, node, a, b, scale)
        return made

    adapted = Network(edited(network.model, "the network with adapters", change)).freeze()
    return adapted.unfreeze(*(f"{name}{end}" for name in chosen for end in (_A, _B)), *train)


def merge_adapters(network: Network) -> Network:
    """The network without its adapters: each weight is W + (alpha / rank) A B.

    The sum is computed in float64 and rounded once to the weight's type, so the outputs equal those of the adapted
    network except for rounding. All parameters are trained again (`Network.unfreeze`).

    Args:
        network: A network of `low_rank_adapters`, with trained values, such as `executor.export()`; it is not changed.

    Raises:
        UsageError: The argument is not a network.
        NetworkError: It has no adapters.

    References:
        Hu et al., LoRA: Low-rank adaptation of large language models, ICLR 2022, arXiv:2106.09685, section 4.1.

    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=16, hidden=32, classes=4)
    >>> adapted = d5.networks.low_rank_adapters(network, rank=2)
    >>> d5.networks.merge_adapters(adapted).weights_hash() == network.weights_hash()  # B is still zero
    True
    """
    check_network(network, _MERGE)
    merged: dict[str, np.ndarray] = {}
    for found in _adapters(network.model.graph):
        name = name_of(found.weight)
        product = _float64(network, found.a) @ _float64(network, found.b) * found.scale
        old = network.initial(name)
        merged[name] = (old.astype(np.float64) + (product.T if found.transposed else product)).astype(old.dtype)
    if not merged:
        raise NetworkError(f"{_MERGE}: the network has no adapters; allowed: a network of low_rank_adapters")

    def change(model: ir.Model) -> list[ir.Node]:
        return [found.remove(model.graph) for found in list(_adapters(model.graph))]

    return Network(edited(network.with_values(merged).model, "the network with merged adapters", change)).unfreeze()


class _Adapter(NamedTuple):
    """An adapter of one product, as `_add` built it."""

    base: ir.Node
    weight: ir.Value
    a: ir.Value
    b: ir.Value
    scale: float
    nodes: tuple[ir.Node, ...]
    transposed: bool

    def remove(self, graph: ir.Graph) -> ir.Node:
        """Remove the adapter's nodes and parameters; returns the product."""
        before, after = self.nodes[-1].outputs[0], self.base.outputs[0]
        name, before.name = before.name, f"{before.name}/removed"
        before.replace_all_uses_with(after, replace_graph_outputs=True)
        after.name = name
        drop(graph, self.nodes)
        return self.base


def _chosen(network: Network, patterns: Sequence[str]) -> list[str]:
    """The weights that get an adapter, in the order of first use."""
    graph = network.model.graph
    if any(name.endswith(_A) for name in graph.initializers):
        raise NetworkError(f"{_WHAT}: the network has adapters; remedy: {_MERGE}(network) first")
    able = [name for name in network.parameter_specs if _is_able(graph.initializers[name])]
    chosen = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise UsageError(f"{_WHAT}: got {brief(pattern)} in where; allowed: names of weights, such as 'fc*.weight'")
        matched = {pattern} if pattern in able else {name for name in able if fnmatchcase(name, pattern)}
        if not matched:
            raise NetworkError(
                f"{_WHAT}: {brief(pattern)} matches no weight that can have an adapter; allowed: "
                f"{', '.join(able[:10]) or 'none: no MatMul or Gemm reads one'}{', …' if len(able) > 10 else ''}"
                f"{suggestion(pattern, able)}"
            )
        chosen |= matched
    if not chosen:
        raise UsageError(f"{_WHAT}: got no names in where; allowed: names of weights, such as 'fc*.weight'")
    return [name for name in able if name in chosen]


def _is_able(weight: ir.Value) -> bool:
    """Whether every use of a matrix is the second operand of a product of the network's own graph, in one order."""
    uses = weight.uses()
    matrix = weight.shape is not None and len(weight.shape) == 2 and weight.dtype in FLOATS
    if not matrix or not all(use.idx == 1 and _is_product(use.node, weight) for use in uses):
        return False
    return len({_is_transposed(use.node) for use in uses}) == 1


def _is_product(node: ir.Node, weight: ir.Value) -> bool:
    if node.domain or node.graph is not weight.graph or node.op_type not in ("MatMul", "Gemm"):
        return False
    return node.op_type == "MatMul" or (not attribute(node, "transA", 0) and _own_factor(node) != 0)


def _is_transposed(node: ir.Node) -> bool:
    """Whether a product reads its weight as (out, in)."""
    return node.op_type == "Gemm" and bool(attribute(node, "transB", 0))


def _own_factor(node: ir.Node) -> float:
    """The factor of a product itself."""
    return float(attribute(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0


def _new_parameters(graph: ir.Graph, weight: ir.Value, rank: int, seed: int) -> tuple[ir.Value, ir.Value]:
    """A and B of a weight; A is drawn when it is first read."""
    assert weight.shape is not None  # noqa: S101 - a matrix
    rows, columns = weight.shape.numpy()
    if any(_is_transposed(use.node) for use in weight.uses()):
        rows, columns = columns, rows
    name, dtype = name_of(weight), weight.dtype
    assert dtype is not None  # noqa: S101 - a matrix of floating-point numbers

    def draw() -> ir.TensorProtocol:
        values = generator(seed, "weights", name + _A).standard_normal((rows, rank)) / math.sqrt(rows)
        return ir.Tensor(values.astype(dtype.numpy()), name=name + _A)

    tensors = (
        ir.LazyTensor(draw, dtype, ir.Shape((rows, rank)), name=name + _A),
        ir.Tensor(np.zeros((rank, columns), dtype.numpy()), name=name + _B),
    )
    for tensor in tensors:
        graph.initializers[str(tensor.name)] = ir.Value(
            name=tensor.name, shape=tensor.shape, type=ir.TensorType(dtype), const_value=tensor
        )
    return graph.initializers[name + _A], graph.initializers[name + _B]


def _add(model: ir.Model, node: ir.Node, a: ir.Value, b: ir.Value, scale: float) -> list[ir.Node]:
    """Add the adapter's product to that of a node; the sum has the name of the node's output."""
    graph, out, x = model.graph, node.outputs[0], node.inputs[0]
    assert a.dtype is not None  # noqa: S101 - from `_new_parameters`
    name = name_of(out)
    made: list[ir.Node] = []

    def op(op_type: str, inputs: Sequence[ir.Value | None], output: str, **attributes: object) -> ir.Value:
        made.append(
            made_node(model, op_type, inputs, [output], f"{node.name}/{op_type}_{len(made)}", "", attributes, _WHAT)
        )
        return made[-1].outputs[0]

    low = op("MatMul", [x, a], f"{name}/lora_a")
    whole = np.array(scale * _own_factor(node), a.dtype.numpy())
    factor = op("Constant", [], f"{name}/lora_scale", value=ir.tensor(whole))
    # Of the fewest numbers.
    low = op("Mul", [low, factor], f"{name}/lora_scaled")
    low = op("MatMul", [low, b], f"{name}/lora_b")
    out.name = f"{name}/base"
    users = [(use.node, use.idx) for use in out.uses()]
    total = op("Add", [out, low], name)
    for user, position in users:
        user.replace_input_with(position, total)
    if is_output(graph, out):
        for position, value in enumerate(graph.outputs):
            if value is out:
                graph.outputs[position] = total
    graph.insert_after(node, made)
    return made


def _adapters(graph: ir.Graph) -> Iterator[_Adapter]:
    """The adapters of a graph, found by their nodes, so that a file keeps them."""
    for node in graph:
        if node.op_type != "Add" or len(node.inputs) != 2:
            continue
        out, low = node.inputs
        base, last = (None if value is None else value.producer() for value in (out, low))
        if base is None or last is None or not name_of(last.inputs[1] if len(last.inputs) > 1 else None).endswith(_B):
            continue
        scaled = last.inputs[0].producer() if last.inputs[0] is not None else None
        first = scaled.inputs[0].producer() if scaled is not None and scaled.inputs[0] is not None else None
        if scaled is None or first is None or first.inputs[0] is not base.inputs[0]:
            continue
        a, b, weight, factor = first.inputs[1], last.inputs[1], base.inputs[1], scaled.inputs[1]
        if a is None or b is None or weight is None or not name_of(a).endswith(_A) or factor is None:
            continue
        made = factor.producer()
        nodes = (first, *([] if made is None else [made]), scaled, last, node)
        yield _Adapter(base, weight, a, b, _number(factor) / _own_factor(base), nodes, _is_transposed(base))


def _number(value: ir.Value) -> float:
    """The factor of an adapter: a Constant node, or an initial value in a file that another tool wrote."""
    made = value.producer()
    tensor = value.const_value if made is None else made.attributes["value"].value
    return float(np.asarray(tensor.numpy() if tensor is not None else math.nan))


def _float64(network: Network, value: ir.Value) -> np.ndarray:
    found: np.ndarray = network.initial(name_of(value)).astype(np.float64)
    return found
