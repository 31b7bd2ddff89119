"""`Problem`: an operator, its inputs, its attributes and the directions to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deep5.core.tensors import TensorSpec

__all__ = ["FORWARD", "Direction", "Problem"]

FORWARD = "forward"
"""Name of the direction without gradients."""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """The passes to run: forward, or forward and gradients.

    Attributes:
        name: "forward", "backward by data", …
        needs: Which inputs need a gradient; empty for only the forward pass.
    """

    name: str = FORWARD
    needs: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One size of one operator.

    Attributes:
        name: Short and unique in its set: "conv-24", the row of the table.
        title: Its sizes in words.
        operator: ONNX's name, or another operator name accepted by `deep5 bench operator`.
        inputs: Specification of every input.
        outputs: Specification of every output; empty: inferred from the operator.
        attributes: Attributes of the operator.
        directions: Directions to run; the first is the forward pass.
        use: "training", "inference_server", "inference_device", or empty.
        scales: Largest absolute value of each input's random numbers.
        sizes: The row of the table.
    """

    name: str
    title: str
    operator: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    directions: tuple[Direction, ...] = (Direction(),)
    use: str = ""
    scales: tuple[float, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
