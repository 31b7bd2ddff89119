"""`gradient_network`: a network extended by the gradients of a scalar output; `vjp_network`: the same for outputs of
any shape, whose gradients are inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, UnknownName, Unsupported
from deep5.core.framework import Support
from deep5.networks.constants import FLOATS, constant_tensor, constant_value
from deep5.networks.custom import is_custom
from deep5.networks.gradients.backward import Backward
from deep5.networks.gradients.batch_normalization import split_batch_normalization
from deep5.networks.gradients.rules import REFUSED, RULES
from deep5.networks.gradients.rules_nested import declare_shapes
from deep5.networks.gradients.sweep import differentiate, path_between, targets
from deep5.networks.network import Network
from deep5.networks.nodes import captured, subgraphs
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.over_ranks import is_training
from deep5.networks.transforms.control_flow import CONTROL
from deep5.networks.transforms.explicit_padding import explicit_padding
from deep5.networks.transforms.lowering import lowered

__all__ = ["gradient_network", "vjp_network"]

# The first opset in which Reduce operators take axes as an input and ScatterElements adds, as the rules require.
_OLDEST_OPSET = 18
# The maximum length of a vector of axes, or of a shape.
_MOST_AXES = 64


def gradient_network(network: Network, loss: str = "loss", wrt: Sequence[str] | None = None) -> Network:
    """Extend a network by the gradient of one of its outputs, in ONNX operators.

    Reverse-mode differentiation: from the loss back to the inputs, each node's rule maps the gradients of its outputs
    to those of its inputs; the gradients of a value that is used several times are summed.

    Args:
        network: The network; it is not changed.
        loss: Name of a scalar floating-point output.
        wrt: Parameters and floating-point inputs to differentiate with respect to; all parameters if None.

    Returns:
        Inputs: those of the network, and the scalar `loss_scale` of the loss's dtype. Outputs: those of the network,
            then `grad:NAME` for every name in `wrt`: the gradient of `loss_scale * loss`, of the shape and dtype of
            NAME; zeros if the loss does not depend on it. Operators without a rule are expanded if possible, into the
            body of an ONNX function or into the cells of a recurrent layer; batch normalization in training is split
            into its statistics and its evaluation form.

    Raises:
        UnknownName: No such output, parameter or input.
        NetworkError: The loss is not a floating-point scalar, or a new name is already used in the network.
        Unsupported: Operators without a rule between `wrt` and the loss, each by name; integers in `wrt`.

    References:
        Griewank and Walther, Evaluating Derivatives, SIAM 2008, section 3.2.

    >>> from deep5.networks import mlp
    >>> gradients = gradient_network(mlp(features=4, hidden=3, classes=2))
    >>> list(gradients.inputs), gradients.outputs["grad:fc1.weight"].shape
    (['input', 'label', 'loss_scale'], (3, 4))
    """
    if loss not in network.outputs:
        raise UnknownName("loss", loss, network.outputs)
    names = list(network.trained_specs) if wrt is None else list(dict.fromkeys(wrt))
    root = next(value for value in network.model.graph.outputs if value.name == loss)
    if root.dtype not in FLOATS or network.outputs[loss].shape != ():
        raise NetworkError(f"the loss {loss!r} is {network.outputs[loss]}; allowed: a floating-point scalar")
    return _with_gradients(network, {loss: "loss_scale"}, names, f"the network with the gradients of {loss!r}")


def vjp_network(network: Network, wrt: Sequence[str]) -> Network:
    """Extend a network by its vector-Jacobian product, in ONNX operators.

    Args:
        network: The network; it is not changed.
        wrt: Parameters and floating-point inputs to differentiate with respect to.

    Returns:
        Inputs: those of the network, then `seed:NAME` for each of its floating-point outputs, of that output's shape
        and dtype. Outputs: those of the network, then `grad:NAME` for every name in `wrt`: the gradient of the sum of
        all outputs times their seeds. Otherwise as `gradient_network`.

    Raises:
        UnknownName: No such parameter or input.
        NetworkError: No output is floating-point, or a new name is already used in the network.
        Unsupported: As for `gradient_network`.

    >>> from deep5.networks import mlp
    >>> product = vjp_network(mlp(features=4, hidden=3, classes=2), ["input"])
    >>> list(product.inputs), product.outputs["grad:input"].shape
    (['input', 'label', 'seed:logits', 'seed:loss'], ('N', 4))
    """
    seeds = {str(value.name): f"seed:{value.name}" for value in network.model.graph.outputs if value.dtype in FLOATS}
    if not seeds:
        listed = ", ".join(f"{name} {spec}" for name, spec in network.outputs.items())
        raise NetworkError(f"nothing to differentiate: got the outputs {listed}; allowed: a floating-point one")
    what = "the network with its vector-Jacobian product"
    return _with_gradients(network, seeds, list(dict.fromkeys(wrt)), what)


def _with_gradients(network: Network, seeds: Mapping[str, str], names: Sequence[str], what: str) -> Network:
    """Extend a network by gradients.

    Args:
        network: The network; it is not changed.
        seeds: Outputs to differentiate, each with the name of the input that holds its gradient.
        names: Parameters and inputs to differentiate with respect to.
        what: Description for messages.
    """
    if network.opset < _OLDEST_OPSET:
        raise Unsupported(
            f"gradients of a network in opset {network.opset}; allowed: {_OLDEST_OPSET} and newer; "
            "remedy: onnx.version_converter.convert_version"
        )
    network = explicit_padding(_expanded(network, seeds, names))
    model = network.model.clone()
    graph = model.graph
    sources = {name: _source(network, graph, name) for name in names}
    roots = {value: seeds[str(value.name)] for value in graph.outputs if value.name in seeds}

    more = _settle_inside(graph)
    while declare_shapes(graph) or more:
        infer_shapes(model, what)
        more = False
    nodes = list(graph)
    active, path = path_between(nodes, set(sources.values()), roots)
    _check_rules(path)

    taken = {value.name for value in _values(graph)}
    for name in (*seeds.values(), *(f"grad:{name}" for name in names)):
        if name in taken:
            raise NetworkError(f"the network already has a value {name!r}; remedy: rename it")
    given = {root: ir.Value(name=name, shape=root.shape, type=root.type) for root, name in roots.items()}
    graph.inputs.extend(given.values())

    backward = Backward(graph, active, rules=RULES)
    gradients: dict[ir.Value, ir.Value] = {root: seed for root, seed in given.items() if root in active}
    results: dict[ir.Value, ir.Value] = {}

    def finish(source: ir.Value) -> None:
        found = gradients.get(source)
        if found is None:
            found = backward.op("Expand", backward.like(0.0, source), backward.shape(source))
        result = backward.op("Identity", found)
        result.name, result.shape, result.type = f"grad:{source.name}", source.shape, source.type
        results[source] = result

    # A gradient is named right after its last contribution: a communicator may send it while the rest is computed.
    wanted = set(sources.values())
    last = {value: node for node in reversed(path) for value in targets(node) if value in wanted}
    for node in reversed(path):
        differentiate(backward, node, active, gradients)
        for value in dict.fromkeys(targets(node)):
            if value is not None and last.get(value) is node:
                finish(value)
    for source in sources.values():
        if source not in results:
            finish(source)
        graph.outputs.append(results[source])
    _drop_copies(graph, set(nodes), results)
    for node in nodes:
        if is_training(node):  # no gradient passes it, but it runs in the same form as the others
            split_batch_normalization(backward, node)
    infer_shapes(model, what)
    return Network(model)


def _drop_copies(graph: ir.Graph, forward: Container[ir.Node], results: Mapping[ir.Value, ir.Value]) -> None:
    """Let the node that computes a gradient return it, where nothing else reads it: engines take time for each copy.

    Args:
        graph: The graph; changed in place.
        forward: Its nodes before the backward pass, whose values keep their names.
        results: By source, its gradient, the output of an Identity.
    """
    places, copies = {value: place for place, value in enumerate(graph.outputs)}, list[ir.Node]()
    for source, result in results.items():
        copy = result.producer()
        found = None if copy is None else copy.inputs[0]
        maker = None if found is None else found.producer()
        if copy is None or found is None or maker is None or maker in forward or len(found.uses()) > 1:
            continue
        name, result.name = result.name, None
        found.name, found.shape, found.type = name, source.shape, source.type
        graph.outputs[places[result]] = found
        copies.append(copy)
    graph.remove(copies, safe=True)  # at once: each call visits every output


def _expanded(network: Network, seeds: Collection[str], names: Sequence[str]) -> Network:
    """Expand the nodes without a rule between `names` and these outputs into other operators.

    Expands ONNX functions, recurrent layers, and loops and branches whose control flow is known; others stay.
    """
    while True:
        graph = network.model.graph
        roots = [value for value in graph.outputs if value.name in seeds]
        _, path = path_between(network.nodes, {_source(network, graph, name) for name in names}, roots)
        smaller = _without(
            network, {str(node.name) for node in _on(path) if node.op_type in CONTROL or not _has_rule(node)}
        )
        if smaller is network:
            return network
        network = smaller


def _settle_inside(graph: ir.Graph) -> bool:
    """Copy constants that may be axes or a shape into the subgraphs that read them, since ONNX's shape inference does
    not look them up in the enclosing graph; returns whether there were any.
    """
    count = 0
    for node in list(graph.all_nodes()):
        within = node.graph
        if within is graph or not isinstance(within, ir.Graph):
            continue
        for position, value in enumerate(node.inputs):
            known = None if value is None or value.graph is within else constant_value(value)
            if value is not None and known is not None and known.dtype == np.int64 and known.size <= _MOST_AXES:
                constant = ir.node("Constant", [], {"value": constant_tensor(value)})
                made, count = constant.outputs[0], count + 1
                made.name, made.type, made.shape = f"settled:{count}/{value.name}", value.type, value.shape
                within.insert_before(node, constant)
                node.replace_input_with(position, made)
    return count > 0


def _on(path: list[ir.Node]) -> Iterator[ir.Node]:
    """The nodes of a path, and the nodes in their subgraphs that a gradient passes."""
    for node in path:
        yield node
        for graph in subgraphs(node).values():
            sources = {value for value in (*graph.inputs, *captured(graph)) if value.dtype in FLOATS}
            yield from _on(path_between(list(graph), sources, graph.outputs)[1])


def _without(network: Network, names: set[str]) -> Network:
    """The network with the nodes of these names expanded; the network itself if none can be."""
    return lowered(network, lambda node: Support(node.name not in names))


def _has_rule(node: ir.Node) -> bool:
    return is_custom(node) or (node.domain in ("", "ai.onnx") and node.op_type in RULES)


def _source(network: Network, graph: ir.Graph, name: str) -> ir.Value:
    """The value in the copied graph for a name in `wrt`."""
    if name in network.parameter_specs:
        return graph.initializers[name]
    if name not in network.inputs:
        raise UnknownName("parameter or input", name, [*network.parameter_specs, *network.inputs])
    value = next(value for value in graph.inputs if value.name == name)
    if value.dtype not in FLOATS:
        raise Unsupported(f"no gradient by {name!r}, which is {network.inputs[name]}; allowed: floating-point inputs")
    return value


def _check_rules(path: list[ir.Node]) -> None:
    outside = set(path)
    missing = [node for node in _on(path) if not _has_rule(node) or (node not in outside and is_training(node))]
    if missing:
        reasons = [f": {REFUSED[node.op_type]}" if node.op_type in REFUSED else "" for node in missing]
        pairs = zip(missing, reasons, strict=True)
        listed = ", ".join(f"{node.name!r} ({node.op_type}{reason})" for node, reason in pairs)
        own = all(node.domain in ("", "ai.onnx") for node in missing)
        # No back-end differentiates the operators of an engine.
        other = "train it on pytorch, jax or tensorflow" if own else "train the file before its conversion to them"
        raise Unsupported(
            f"no gradient rule for {listed}; allowed: operators with one in docs/reference/onnx_operators.md; remedy: "
            f"{other}, or compute the loss without"
        )


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
