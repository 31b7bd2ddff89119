"""Storage of parameters: layer weights in the axis order in which XLA reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.frameworks.jax.table import attribute
from deep5.networks.custom import is_custom
from deep5.networks.network import Network
from deep5.networks.transforms.unrolling import RECURRENT

__all__ = ["Storage", "find_flat", "find_storage"]

# Operators that produce a channels-last image, and operators that keep it so.
_LAYERS = {"AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"}
_KEEPING = {"Add", "Cast", "Clip", "Elu", "Identity", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Tanh"}


class Storage(NamedTuple):
    """A parameter's conversion to storage order and back, for NumPy and JAX arrays.

    Attributes:
        shape: Shape of the parameter.
        split: Its shape with axes split.
        order: The stored order of these axes.
        stored: Shape in storage.
    """

    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    stored: tuple[int, ...]

    def store(self, value: Any) -> Any:
        """Converts from the parameter's own axis order."""
        return value.reshape(self.split).transpose(self.order).reshape(self.stored)

    def present(self, value: Any) -> Any:
        """Converts back to the parameter's own axis order."""
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return value.reshape([self.split[axis] for axis in self.order]).transpose(back).reshape(self.shape)


def find_flat(network: Network) -> dict[str, tuple[int, ...]]:
    """Images that are flattened only for fully connected layers, with their channels and spatial size.

    These layers' weights can be stored so that flattening moves no data.
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
    """Parameters that are used only as layer weights: spatial axes, input channels, output channels.

    Transposing the weights at every call would take a third of the inference time of a small ResNet-18, and of LeNet's.
    Those of recurrent layers are (directions, in, gates).

    Args:
        network: The network in evaluation.
        flat: The result of `find_flat`.
    """
    found = {}
    for name, spec in network.parameter_specs.items():
        uses = _readers(network.model.graph.initializers[name])
        shape = tuple(map(int, spec.shape))
        if uses and all(_kind(use.node) == "Conv" and use.idx == 1 for use in uses):
            order = (*range(2, len(shape)), 1, 0)
            found[name] = Storage(shape, shape, order, tuple(shape[axis] for axis in order))
        elif uses and all(_kind(use.node) in RECURRENT and use.idx in (1, 2) for use in uses):
            found[name] = Storage(shape, shape, (0, 2, 1), (shape[0], shape[2], shape[1]))
        elif uses and all(use.idx == 1 and _is_layer(network, use.node) for use in uses):
            source = _origin(uses[0].node.inputs[0])
            image = flat.get(str(source.name), shape[1:]) if source is not None else shape[1:]
            order = (*range(2, 1 + len(image)), 1, 0)
            found[name] = Storage(shape, (shape[0], *image), order, (shape[1], shape[0]))
    return found


def _is_layer(network: Network, node: ir.Node, *, alone: bool = False) -> bool:
    """Whether a node is a fully connected layer whose weight is a parameter that only such layers read.

    Args:
        network: The network.
        node: The node.
        alone: Whether the node must be the only reader of the weight, with rows as samples.
    """
    weight = _origin(node.inputs[1]) if _kind(node) == "Gemm" else None
    if weight is None or weight.name not in network.parameter_specs or weight.is_graph_output():
        return False
    uses = _readers(weight)
    kinds = {(_kind(use.node), use.idx, attribute(use.node, "transB", 0)) for use in uses}
    return kinds == {("Gemm", 1, 1)} and not (alone and (len(uses) > 1 or attribute(node, "transA", 0)))


def _is_image(value: ir.Value) -> bool:
    """Whether a value is the output of a layer, with no operator in between that needs ONNX's axis order."""
    node = value.producer()
    while node is not None and _kind(node) in _KEEPING and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and _kind(node) in _LAYERS


def _readers(value: ir.Value) -> list[Any]:
    """The readers of a value, directly or after a cast."""
    found: list[Any] = []
    for use in value.uses():
        result = use.node.outputs[0]
        cast = _kind(use.node) == "Cast" and not result.is_graph_output()
        found += _readers(result) if cast else [use]
    return found


def _origin(value: ir.Value | None) -> ir.Value | None:
    """The value before casts."""
    while value is not None and (node := value.producer()) is not None and _kind(node) == "Cast":
        value = node.inputs[0]
    return value


def _kind(node: ir.Node) -> str:
    """ONNX's name of an operator; empty for registered operators, whatever their name."""
    return "" if is_custom(node) else node.op_type
