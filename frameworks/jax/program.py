"""`Program`: what an executor runs, pure functions that JAX traces."""

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
        call: Takes tuples of parameters, buffers and inputs; gives a tuple of outputs, and one of new buffers.
        source: Its generated source.
    """

    call: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
    source: str


class Program(Protocol):
    """What an executor runs: two pure functions, which JAX traces."""

    @property
    def evaluation(self) -> Function:
        """The network in evaluation."""
        ...

    @property
    def training(self) -> Function:
        """The network in training, of inputs with the masks behind them; gives new buffers too."""
        ...

    @property
    def stored(self) -> Mapping[str, Storage]:
        """How parameters are stored that are not stored as they are."""
        ...

    @property
    def x64(self) -> bool:
        """Whether the functions are traced with 64-bit types."""
        ...

    @property
    def untraceable(self) -> str:
        """Why JAX cannot trace it, so that it runs operator by operator; empty: JAX can."""
        ...

    @property
    def fallible(self) -> bool:
        """Whether a call may fail once it runs, since it holds compiled operators or waits for other ranks."""
        ...

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """The masks of a step, and its random key; called before each pass in training."""
        ...

    def evaluation_key(self, info: StepInfo) -> list[np.ndarray]:
        """The random key of a call in evaluation, none where nothing is drawn; called before each."""
        ...
