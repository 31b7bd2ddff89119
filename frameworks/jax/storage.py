"""How parameters are stored: weights of layers in the order of axes in which XLA reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.frameworks.jax.table import attribute
from deep5.networks.custom import is_custom
from deep5.networks.network import Network

__all__ = ["Storage", "find_flat", "find_storage"]

# What makes an image with its channels last, and what keeps it so.
_LAYERS = {"AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"}
_KEEPING = {"Add", "Cast", "Clip", "Elu", "Identity", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Tanh"}


class Storage(NamedTuple):
    """A parameter's way into storage and back; arrays of NumPy or JAX.

    Attributes:
        shape: Of the parameter.
        split: Its shape with axes taken apart.
        order: Which of these axes is stored where.
        stored: Shape in storage.
    """

    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    stored: tuple[int, ...]

    def store(self, value: Any) -> Any:
        """From the parameter's own order of axes."""
        return value.reshape(self.split).transpose(self.order).reshape(self.stored)

    def present(self, value: Any) -> Any:
        """Back to the parameter's own order of axes."""
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return value.reshape([self.split[axis] for axis in self.order]).transpose(back).reshape(self.shape)


def find_flat(network: Network) -> dict[str, tuple[int, ...]]:
    """Images that become vectors only for fully connected layers, with channels and extents.

    Their weights can be stored so that nothing is moved.
    """
    found = {}
    for node in network.nodes:
        value, image = node.outputs[0], node.inputs[0] if node.inputs else None
        if _kind(node) != "Flatten" or image is None or image.shape is None or value.is_graph_output():
            continue
        extents = [extent for extent in image.shape[1:] if isinstance(extent, int)]
        if (
            len(extents) == len(image.shape) - 1 > 1
            and attribute(node, "axis", 1) == 1
            and _is_image(image)
            and all(_is_layer(network, use.node, alone=True) and use.idx == 0 for use in _readers(value))
        ):
            found[str(value.name)] = tuple(extents)
    return found


def find_storage(network: Network, flat: dict[str, tuple[int, ...]]) -> dict[str, Storage]:
    """Parameters that nothing reads but layers as their weights: spatial axes, input channels, output channels.

    To turn the weights at every call costs a third of the inference of a small ResNet-18, and as much of LeNet's.

    Args:
        network: In evaluation.
        flat: What `find_flat` found.
    """
    found = {}
    for name, spec in network.parameter_specs.items():
        uses = _readers(network.model.graph.initializers[name])
        shape = tuple(map(int, spec.shape))
        if uses and all(_kind(use.node) == "Conv" and use.idx == 1 for use in uses):
            order = (*range(2, len(shape)), 1, 0)
            found[name] = Storage(shape, shape, order, tuple(shape[axis] for axis in order))
        elif uses and all(use.idx == 1 and _is_layer(network, use.node) for use in uses):
            source = _origin(uses[0].node.inputs[0])
            image = flat.get(str(source.name), shape[1:]) if source is not None else shape[1:]
            order = (*range(2, 1 + len(image)), 1, 0)
            found[name] = Storage(shape, (shape[0], *image), order, (shape[1], shape[0]))
    return found


def _is_layer(network: Network, node: ir.Node, *, alone: bool = False) -> bool:
    """Whether a node is a fully connected layer whose weight is a parameter that such layers alone read.

    Args:
        network: The network.
        node: The node.
        alone: Whether the node must be the only one that reads it, row by row.
    """
    weight = _origin(node.inputs[1]) if _kind(node) == "Gemm" else None
    if weight is None or weight.name not in network.parameter_specs or weight.is_graph_output():
        return False
    uses = _readers(weight)
    kinds = {(_kind(use.node), use.idx, attribute(use.node, "transB", 0)) for use in uses}
    return kinds == {("Gemm", 1, 1)} and not (alone and (len(uses) > 1 or attribute(node, "transA", 0)))


def _is_image(value: ir.Value) -> bool:
    """Whether a value comes out of a layer, with nothing between that wants ONNX's order of axes."""
    node = value.producer()
    while node is not None and _kind(node) in _KEEPING and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and _kind(node) in _LAYERS


def _readers(value: ir.Value) -> list[Any]:
    """Who reads a value, as it is or cast to another element type."""
    found: list[Any] = []
    for use in value.uses():
        result = use.node.outputs[0]
        cast = _kind(use.node) == "Cast" and not result.is_graph_output()
        found += _readers(result) if cast else [use]
    return found


def _origin(value: ir.Value | None) -> ir.Value | None:
    """What a value was before it was cast."""
    while value is not None and (node := value.producer()) is not None and _kind(node) == "Cast":
        value = node.inputs[0]
    return value


def _kind(node: ir.Node) -> str:
    """ONNX's name of an operator; empty for one that somebody registered, whatever it is called."""
    return "" if is_custom(node) else node.op_type
