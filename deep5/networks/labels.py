"""Labels that are no class: found before an engine reads past the end of memory, or counts from the end, for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.errors import NetworkError
from deep5.networks.gradients.window import attribute
from deep5.networks.network import Network

__all__ = ["Labels", "label_inputs"]

_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


@dataclass(frozen=True, kw_only=True)
class Labels:
    """An input that a loss takes labels from.

    Attributes:
        position: Which of the network's inputs it is.
        name: Its name.
        classes: How many classes there are.
        unsigned: Its element type without a sign.
        ignored: The number that stands for no class, or None.
    """

    position: int
    name: str
    classes: int
    unsigned: np.dtype[Any]
    ignored: int | None

    def check(self, value: np.ndarray) -> None:
        """Look at a batch of labels; takes some 2 µs where all is well.

        Raises:
            NetworkError: One is no class.
        """
        # Without its sign a negative number is a large one: one look finds both.
        if not value.size or value.view(self.unsigned).max() < self.classes:
            return
        wrong, allowed = (value < 0) | (value >= self.classes), f"0 to {self.classes - 1}"
        if self.ignored is not None:
            wrong &= value != self.ignored
            allowed += f", and {self.ignored} for none"
        if wrong.any():
            raise NetworkError(f"input {self.name!r}: got the label {value[wrong][0]}; allowed: {allowed}")


def label_inputs(network: Network) -> list[Labels]:
    """The inputs of a network that go into a loss as they are, where the number of classes is known."""
    positions = {name: position for position, name in enumerate(network.inputs)}
    found = []
    for node in network.nodes:
        if node.op_type not in _LOSSES or node.domain:
            continue
        scores, label = node.inputs[:2]
        classes = scores.shape[1] if scores is not None and scores.shape is not None else None
        if label is not None and label.name in positions and isinstance(classes, int):
            name = str(label.name)
            found.append(
                Labels(
                    position=positions[name],
                    name=name,
                    classes=classes,
                    unsigned=np.dtype(f"u{network.inputs[name].dtype}"),
                    ignored=attribute(node, "ignore_index"),
                )
            )
    return found
