"""`LayerClock`: what a back-end times the layers of a network with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from deep5.core.tensors import Arrays

__all__ = ["Group", "LayerClock", "Pass"]


class Group(NamedTuple):
    """Layers that run as one, in the network's order, and whether their gradients are meant; mostly a single layer."""

    layers: tuple[str, ...]
    backward: bool


Pass = Mapping[Group, float]
"""Seconds of one pass by what ran."""


class LayerClock(Protocol):
    """An executor with instruments, of one network; made by `Framework.layer_clock`."""

    def inference(self, inputs: Arrays) -> None:
        """Run forward once; see `GraphExecutor.inference`."""
        ...

    def inference_and_backprop(self, inputs: Arrays, loss: str) -> None:
        """Run forward and backward once; see `GraphExecutor.inference_and_backprop`."""
        ...

    def passes(self) -> tuple[Sequence[Pass], Sequence[Pass]]:
        """What was measured: an entry a call of `inference`, and one a call of `inference_and_backprop`; ends it."""
        ...

    def close(self) -> None:
        """Give back what it holds, files among it."""
        ...
