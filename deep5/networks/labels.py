"""Reject labels that are not a class, for which an engine would read out of bounds or count from the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["LOSSES", "Labels", "ignored_label", "label_inputs", "open_losses", "source_of", "weighs_otherwise"]

LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
# Operators that keep all elements of their first input. (A Cast to fewer bits may turn an invalid label into a class.)
_KEEPING = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@dataclass(frozen=True, kw_only=True)
class Labels:
    """An input that provides the labels of a loss.

    Attributes:
        position: Index of the input among the network's inputs.
        name: Its name.
        classes: The number of classes.
        unsigned: Its element type without a sign.
        ignored: The label to ignore, or None.
    """

    position: int
    name: str
    classes: int
    unsigned: np.dtype[Any]
    ignored: int | None

    def check(self, value: np.ndarray) -> None:
        """Check a batch of labels; takes about 2 us if all are valid, a tenth of that for a single label.

        Raises:
            NetworkError: A label is not a class.
        """
        if value.size == 1 and 0 <= value.item() < self.classes:
            return
        # Viewed as unsigned, a negative number is a large one: one pass finds both.
        if not value.size or value.view(self.unsigned).max() < self.classes:
            return
        wrong, allowed = (value < 0) | (value >= self.classes), f"0 to {self.classes - 1}"
        if self.ignored is not None:
            wrong &= value != self.ignored
            allowed += f", and {self.ignored} for none"
        if wrong.any():
            raise NetworkError(
                f"input {self.name!r}: got the label {value[wrong][0]}; allowed: {allowed}; remedy: a network of more "
                "classes, or labels that count from 0"
            )


def label_inputs(network: Network) -> list[Labels]:
    """The inputs whose elements all go into a loss as labels, if the number of classes is known."""
    positions = {name: position for position, name in enumerate(network.inputs)}
    found = []
    for node in network.nodes:
        if node.op_type not in LOSSES or node.domain:
            continue
        scores, label = node.inputs[0], source_of(node.inputs[1])
        classes = scores.shape[1] if scores is not None and scores.shape is not None else None
        if label is not None and label.name in positions and isinstance(classes, int):
            name = str(label.name)
            found.append(
                Labels(
                    position=positions[name],
                    name=name,
                    classes=classes,
                    unsigned=np.dtype(f"u{np.dtype(network.inputs[name].dtype).itemsize}"),
                    ignored=attribute(node, "ignore_index"),
                )
            )
    return found


def ignored_label(network: object, name: str) -> int | None:
    """The label that the loss of a graph ignores in this input, such as padding; None: none, or native code."""
    if not isinstance(network, Network):
        return None
    return next((each.ignored for each in label_inputs(network) if each.name == name), None)


def open_losses(network: Network) -> list[ir.Node]:
    """The losses whose labels `label_inputs` does not find: the labels are computed, the number of classes is unknown,
    or the loss is in a nested graph."""
    names = {labels.name for labels in label_inputs(network)}
    graph, found = network.model.graph, []
    for node in graph.all_nodes():
        if node.op_type in LOSSES and not node.domain:
            label = source_of(node.inputs[1]) if node.graph is graph else None
            if label is None or label.name not in names:
                found.append(node)
    return found


def weighs_otherwise(network: Network, loss: str) -> str | None:
    """Why a loss is known not to be the mean over samples; None if nothing indicates that.

    For such a loss, the mean over parts of a batch, weighted by their numbers of samples, is not that of the batch.

    Args:
        network: The network.
        loss: Name of its output.
    """
    for node in network.nodes:
        if node.domain:
            continue
        what = f"{node.op_type} (node {node.name!r})"
        if node.op_type == "ReduceSum" and any(value.name == loss for value in node.outputs):
            return f"{what} adds up over samples"
        if node.op_type in LOSSES:
            if attribute(node, "reduction") == "sum":
                return f"{what} adds up over samples"
            if attribute(node, "ignore_index") is not None:
                return f"{what} leaves out labels with ignore_index"
            if len(node.inputs) > 2 and node.inputs[2] is not None:
                return f"{what} weighs classes"
    return None


def source_of(value: ir.Value | None) -> ir.Value | None:
    """The source of a value's elements before reshapes and casts; None if a value on the way is not an integer."""
    while value is not None and value.dtype is not None and value.dtype.is_integer():
        node = value.producer()
        if node is None or node.op_type not in _KEEPING or node.domain:
            return value
        value = node.inputs[0]
    return None
