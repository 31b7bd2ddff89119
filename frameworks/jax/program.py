"""`Program`: the pure functions that an executor runs and JAX traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from deep5.core.events import StepInfo
from deep5.frameworks.jax.storage import Storage

__all__ = ["Function", "Program"]


class Function(NamedTuple):
    """A network that JAX can trace.

    Attributes:
        call: Takes tuples of parameters, buffers and inputs; returns a tuple of outputs, and one of new buffers.
        source: Its generated source.
    """

    call: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
    source: str


class Program(Protocol):
    """The two pure functions that an executor runs and JAX traces."""

    @property
    def evaluation(self) -> Function:
        """The network in evaluation."""
        ...

    @property
    def training(self) -> Function:
        """The network in training; takes what `draw` gives after the inputs, and also returns new buffers."""
        ...

    @property
    def stored(self) -> Mapping[str, Storage]:
        """The storage of parameters that are not stored in their own axis order."""
        ...

    @property
    def x64(self) -> bool:
        """Whether the functions are traced with 64-bit types."""
        ...

    @property
    def untraceable(self) -> str:
        """Why JAX cannot trace it, so that it runs operator by operator; empty if JAX can."""
        ...

    @property
    def fallible(self) -> bool:
        """Whether a call may fail at run time, because it contains compiled operators or waits for other ranks."""
        ...

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """What selects the masks of a step, or the masks, and its random key; called before each training pass."""
        ...

    def evaluation_key(self, info: StepInfo) -> list[np.ndarray]:
        """The random key of an evaluation call, none if nothing draws; called before each evaluation pass."""
        ...
