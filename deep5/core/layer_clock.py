"""`LayerClock`: a back-end's instrument for timing the layers of a network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from deep5.core.tensors import Arrays

__all__ = ["Group", "LayerClock", "Pass"]


class Group(NamedTuple):
    """Layers that run fused, in the network's order, and whether their gradients are meant; usually a single layer."""

    layers: tuple[str, ...]
    backward: bool


Pass = Mapping[Group, float]
"""Seconds of one pass by group."""


class LayerClock(Protocol):
    """An instrumented executor of one network; created by `Framework.layer_clock`."""

    @abstractmethod
    def inference(self, inputs: Arrays) -> None:
        """Run forward once; see `GraphExecutor.inference`."""
        ...

    @abstractmethod
    def inference_and_backprop(self, inputs: Arrays, loss: str) -> None:
        """Run forward and backward once; see `GraphExecutor.inference_and_backprop`."""
        ...

    @abstractmethod
    def passes(self) -> tuple[Sequence[Pass], Sequence[Pass]]:
        """The measurements: one entry per call of `inference`, and one per call of `inference_and_backprop`; ends
        measuring.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Release its resources, including files."""
        ...
