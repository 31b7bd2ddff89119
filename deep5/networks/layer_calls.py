"""Calls of layers that compute another function in training, while a library's model is traced or trained.

Batch normalization and dropout are one ONNX operator each, which deep5 runs in both modes. An exporter that traces what
they compute sees one mode. So back-ends replace the calls of these layers; the decisions are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from deep5.core.errors import Unsupported
from deep5.networks.run_modes import Mask

__all__ = ["GivenMasks", "LayerCalls", "Trace"]

Trace = Literal["training", "without dropout", "evaluation"]
"""What is traced: the model in training; the same, whose dropout returns its input; the model in evaluation."""


class LayerCalls:
    """The calls that become operators, in traces of one model: in training, perhaps without dropout, in evaluation.

    If the last two are equal, the operators are the only difference between training and evaluation.

    Attributes:
        trace: What is traced now.
        drops: Whether dropout was called in training.
        twice: A batch normalization that became several operators, or "".
    """

    def __init__(self) -> None:
        self.trace: Trace = "training"
        self.drops, self.twice = False, ""
        # For each call of a batch normalization in training, whether it became an operator.
        self._chosen: list[bool] = []
        self._seen: set[int] = set()
        self._place = 0

    def begin(self, trace: Trace) -> None:
        """A trace begins."""
        self.trace, self._place = trace, 0
        if trace != "evaluation":
            self._chosen, self._seen = [], set()

    def normalizes(self, layer: int, name: str, *, by_batch: bool, plain: bool) -> bool:
        """Whether a call of a batch normalization becomes an operator.

        Args:
            layer: The identity of the layer, or of what it stores its statistics in.
            name: Its name, for messages.
            by_batch: Whether the call takes the statistics of the batch, and changes those of the layer.
            plain: Whether ONNX's operator computes the same.
        """
        if self.trace == "evaluation":
            place, self._place = self._place, self._place + 1
            return not by_batch and place < len(self._chosen) and self._chosen[place]
        self._chosen.append(by_batch and plain)
        if self._chosen[-1] and layer in self._seen:
            self.twice = name
        self._seen.add(layer)
        return self._chosen[-1]


class GivenMasks:
    """The masks of a model's export, for the calls of dropout of the model itself, in order.

    Args:
        name: Name of the model, for messages.
        masks: What each is for, and its factors: 0, or 1 / (1 - ratio).
    """

    def __init__(self, name: str, masks: Sequence[tuple[Mask, Any]]) -> None:
        self._name, self._masks = name, list(masks)
        self._calls, self._wrong = 0, ""

    def factors(self, ratio: float, shape: Sequence[Any]) -> Any | None:
        """The factors of the next call, which has this shape; None if they are not for it, which `check` reports.

        Libraries rewrite errors of layers, so none is raised here.
        """
        place, self._calls = self._calls, self._calls + 1
        if place >= len(self._masks):
            return None
        mask, found = self._masks[place]
        same = len(shape) == len(found.shape) and all(
            None in pair or pair[0] == pair[1] for pair in zip(shape, found.shape, strict=True)
        )
        # ONNX stores the ratio in float32.
        if math.isclose(mask.ratio, ratio, rel_tol=1e-6) and same:
            return found
        own = ", ".join(map(str, shape))
        self._wrong = self._wrong or (
            f"drops {ratio:g} of ({own}), and its export {mask.ratio:g} of {tuple(mask.shape)} there"
        )
        return None

    def check(self) -> None:
        """Check, after the model was called, that each mask had its call.

        Raises:
            Unsupported: The calls had other ratios or shapes, or there were more or fewer.
        """
        if self._calls != len(self._masks):
            raise Unsupported(
                f"{self._name} drops elements {self._calls} times, and its export {len(self._masks)} times"
            )
        if self._wrong:
            raise Unsupported(f"{self._name} {self._wrong}")
