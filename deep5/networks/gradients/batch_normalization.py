"""Batch normalization in training, in operators that every engine has: statistics, then the evaluation form."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, extents, operands
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.over_ranks import RANKS, is_over_ranks, is_training

__all__ = [
    "channel_wide",
    "expand_training",
    "normalized_axes",
    "split_batch_normalization",
]


def normalized_axes(x: ir.Value) -> tuple[int, ...]:
    """The axes of the statistics: all except the channel axis."""
    return (0, *range(2, len(extents(x))))


def channel_wide(b: Backward, x: ir.Value, value: ir.Value) -> ir.Value:
    """A vector with one entry per channel, in a shape that broadcasts against x."""
    return b.op("Reshape", value, b.ints(1, -1, *[1] * (len(extents(x)) - 2)))


def split_batch_normalization(builder: Backward, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Convert a training node in place to the evaluation form, which normalizes by statistics computed before it.

    mean = sum x / m and variance = sum (x - mean)^2 / m, over the m elements of a channel. Outputs for running
    statistics that are read, or are graph outputs, become nodes:
    running' = momentum running + (1 - momentum) batch.

    Args:
        builder: A builder of the graph that holds the node.
        node: A BatchNormalization with `training_mode=1`.

    Returns:
        Mean and variance of the batch, one entry per channel; over all ranks if the node `is_over_ranks`.

    References:
        Ioffe and Szegedy, Batch normalization, ICML 2015, algorithm 1; ONNX, BatchNormalization-15: the running
        variance is the population variance.
    """
    (x,) = operands(node, 1)
    b = Backward(builder.graph, before=node, prefix=f"{node.name or node.outputs[0].name}/training", around=builder)
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
    # Center before squaring: the mean of squares minus the square of the mean suffers from cancellation.
    centred = b.op("Sub", x, wide)
    variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes, keepdims=0)
    return b.op("Reshape", wide, b.ints(-1)), variance


def _of_all_ranks(b: Backward, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    mean, variance, count = b.ops("BatchMoments", 3, x, domain=RANKS)
    b.graph.opset_imports.setdefault(RANKS, 1)
    # ONNX does not infer their shapes.
    for value, shape in ((mean, extents(x)[1:2]), (variance, extents(x)[1:2]), (count, ())):
        value.shape, value.type = ir.Shape(shape), ir.TensorType(x.dtype or ir.DataType.FLOAT)
    return mean, variance


def expand_training(network: Network) -> Network:
    """Split all batch normalizations in training, for engines that have only the evaluation form.

    Args:
        network: The network; it is not changed.

    Returns:
        A network with the same inputs and outputs; the network itself if there is nothing to split.
    """
    if not any(is_training(node) for node in network.nodes):
        return network
    model = network.model.clone()
    builder = Backward(model.graph)
    for node in list(model.graph):
        if is_training(node):
            split_batch_normalization(builder, node)
    infer_shapes(model, "the network in training")
    return Network(model)
