"""`Problem`: an operator, its inputs, its attributes and the directions in which it is run."""

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
    """What is run: the forward pass, or that and gradients.

    Attributes:
        name: "forward", "backward by data", …
        needs: Which inputs want a gradient; empty for the forward pass alone.
    """

    name: str = FORWARD
    needs: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One size of one operator.

    Attributes:
        name: Short and unique in its set: "conv-24", the row of the table.
        title: Its sizes in words.
        operator: ONNX's name, or what else `deep5 bench operator` takes.
        inputs: Specification of every input.
        outputs: Specification of every output; empty: what the operator says.
        attributes: Of the operator.
        directions: In which it is run; the first is the forward pass.
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
