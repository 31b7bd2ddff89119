"""Batch normalisation in training, in operators that every engine has: statistics, then the evaluation form."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, extents, operands
from deep5.networks.gradients.window import attribute
from deep5.networks.network import Network
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.over_ranks import RANKS, is_over_ranks, is_training

__all__ = [
    "channel_wide",
    "expand_training",
    "normalized_axes",
    "split_batch_normalization",
]


def normalized_axes(x: ir.Value) -> tuple[int, ...]:
    """The axes that statistics run over: all but the channels'."""
    return (0, *range(2, len(extents(x))))


def channel_wide(b: Backward, x: ir.Value, value: ir.Value) -> ir.Value:
    """A vector with one entry a channel, in a shape that broadcasts against x."""
    return b.op("Reshape", value, b.ints(1, -1, *[1] * (len(extents(x)) - 2)))


def split_batch_normalization(graph: ir.Graph, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Turn a training node, in place, into its evaluation form, which normalises by statistics computed before it.

    mean = sum x / m and variance = sum (x - mean)^2 / m, over the m elements of a channel. Of the outputs for running
    statistics those that somebody reads, or that leave the graph, become nodes:
    running' = momentum running + (1 - momentum) batch.

    Args:
        graph: The graph that holds the node.
        node: A BatchNormalization with `training_mode=1`.

    Returns:
        Mean and variance of the batch, one entry a channel; of all ranks' parts where it `is_over_ranks`.

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, algorithm 1; ONNX, BatchNormalization-15: the running
        variance is the population's.
    """
    (x,) = operands(node, 1)
    b = Backward(graph, before=node, prefix=f"{node.name or node.outputs[0].name}/training")
    mean, variance = _of_all_ranks(b, x) if is_over_ranks(node) else _of_batch(b, x)
    momentum = attribute(node, "momentum", 0.9)
    for index, (running, batch) in enumerate(zip(node.inputs[3:5], (mean, variance), strict=True), start=1):
        old = node.outputs[index] if index < len(node.outputs) else None
        if running is None or old is None or not (old.uses() or old.is_graph_output()):
            continue
        added = batch if running.dtype == x.dtype else b.op("Cast", batch, to=running.dtype)
        added = b.op("Mul", added, b.like(1.0 - momentum, running))
        new = b.op("Add", b.op("Mul", running, b.like(momentum, running)), added)
        name, new.shape, new.type = old.name, old.shape, old.type
        old.name = None
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        new.name = name
    node.resize_outputs(1)
    node.attributes.pop("training_mode")
    node.replace_input_with(3, mean)
    node.replace_input_with(4, variance)
    return mean, variance


def _of_batch(b: Backward, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    axes = b.ints(*normalized_axes(x))
    wide = b.op("ReduceMean", x, axes, keepdims=1)
    # Centred before it is squared: the mean of squares less the square of the mean cancels.
    centred = b.op("Sub", x, wide)
    variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes, keepdims=0)
    return b.op("Reshape", wide, b.ints(-1)), variance


def _of_all_ranks(b: Backward, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    mean, variance, count = b.ops("BatchMoments", 3, x, domain=RANKS)
    b.graph.opset_imports.setdefault(RANKS, 1)
    # ONNX infers nothing of them.
    for value, shape in ((mean, extents(x)[1:2]), (variance, extents(x)[1:2]), (count, ())):
        value.shape, value.type = ir.Shape(shape), ir.TensorType(x.dtype or ir.DataType.FLOAT)
    return mean, variance


def expand_training(network: Network) -> Network:
    """The network with all batch normalisations in training split, for engines that have the evaluation form alone.

    Args:
        network: The network; it is not changed.

    Returns:
        A network of the same inputs and outputs; the network itself where there is nothing to split.
    """
    if not any(is_training(node) for node in network.nodes):
        return network
    model = network.model.clone()
    for node in list(model.graph):
        if is_training(node):
            split_batch_normalization(model.graph, node)
    infer_shapes(model, "the network in training")
    return Network(model)
