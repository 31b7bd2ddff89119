"""Conversions of BatchNormalization: statistics per activation (opset 7 and 8), and training by outputs (before 14)."""

from __future__ import annotations

import numpy as np
import onnx

from deep5.core.errors import NetworkError
from deep5.networks.onnx.converting import Place
from deep5.networks.onnx.element_types import called

__all__ = ["per_activation", "running_statistics"]


def per_activation(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """Opset 7 and 8 may have one mean per activation (`spatial=0`): the activations become the channels."""
    spatial = [each.i for each in node.attribute if each.name == "spatial"]
    kept = [each for each in node.attribute if each.name != "spatial"]
    del node.attribute[:]
    node.attribute.extend(kept)
    x, y = node.input[0], node.output[0]
    if spatial in ([], [1]) or place.rank(x) == 2:
        return [node]
    if any(node.output[1:]):
        raise NetworkError(
            f"{called(node.name, node.op_type, node.output)} of opset 7 or 8 has spatial=0 and outputs of its "
            "statistics; allowed: spatial=1, or one output"
        )
    goal = place.compute("Shape", [x], f"{y}/dimensions")
    vector = place.constant(f"{y}/vector", np.array([-1], np.int64))
    for position in range(1, 5):
        node.input[position] = place.compute("Reshape", [node.input[position], vector], f"{node.input[position]}/flat")
    node.input[0] = place.compute("Flatten", [x], f"{y}/flat", axis=1)
    node.output[0] = place.name(f"{y}/normalized")
    return [node, onnx.helper.make_node("Reshape", [node.output[0], goal], [y], allowzero=1)]


def running_statistics(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """Before opset 14 a node trains if it has more than one output; `saved_mean` and `saved_var` are the batch's."""
    outputs = list(node.output)
    if not any(outputs[1:]):
        return [node]
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    saved = outputs[3:]
    del node.output[3:]
    while len(node.output) < 3:
        node.output.append("")
    for position in (1, 2):
        node.output[position] = node.output[position] or place.name(f"{outputs[0]}/running_{position}")
    return [*_saved(node.input[0], saved, outputs[0], place), node]


def _saved(x: str, saved: list[str], y: str, place: Place) -> list[onnx.NodeProto]:
    """Nodes that compute the mean and the variance of each channel of a batch, as far as they have names."""
    if not any(saved):
        return []
    mean, variance = (*saved, "")[:2]
    rows = place.constant(f"{y}/rows", np.array([0, 0, -1], np.int64))
    channels = place.compute("Reshape", [x, rows], f"{y}/channels")
    axes = place.constant(f"{y}/axes", np.array([0, 2], np.int64))
    center = place.compute("ReduceMean", [channels, axes], f"{y}/center", keepdims=1)
    nodes = [onnx.helper.make_node("Squeeze", [center, axes], [mean])] if mean else []
    if variance:
        apart = place.compute("Sub", [channels, center], f"{y}/apart")
        square = place.compute("Mul", [apart, apart], f"{y}/square")
        nodes.append(onnx.helper.make_node("ReduceMean", [square, axes], [variance], keepdims=0))
    return nodes
