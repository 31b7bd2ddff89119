"""`Emitter`: the writer through which the operator table generates a network's source.

Images pass through convolutions with channels last, the order in which XLA is fastest on the CPU: a value keeps that
order from operator to operator until a reader needs ONNX's, and layer weights are stored in the order in which XLA
reads them. Readers of parameters get ONNX's axis order.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from deep5.core.errors import UsageError
from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.kernels.host import on_host
from deep5.networks.constants import constant_tensor, constant_value

__all__ = ["Emitter"]


class Emitter(ABC):
    """Collects the source, which contains no names of the model file: every value gets a generated identifier.

    Args:
        stored: Parameters that are not stored in ONNX's axis order.
        flat: Values that are images flattened to vectors, channels last.
        batch_norm: Replaces batch normalization in training.
        traced: Values that are computed while JAX traces, because settings depend on them.
        eager: Whether the network runs operator by operator, so that every value is known.

    Attributes:
        flat: As given.
        batch_norm: As given.
        eager: As given.
    """

    def __init__(
        self,
        stored: Container[str],
        flat: Container[str],
        batch_norm: Callable[..., Any],
        traced: Container[str],
        eager: bool,
    ) -> None:
        self._stored, self.flat, self.batch_norm = stored, flat, batch_norm
        self._traced, self.eager = traced, eager
        self._key, self._draws = "", 0
        self._weights: dict[str, str] = {}
        self._plain: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._count = 0
        self._lines: list[str] = []
        self.bound: dict[str, Any] = {}
        """The objects that the source refers to by name: constants and functions."""
        self.names: dict[ir.Value, str] = {}
        """The identifiers of computed values."""

    def new(self) -> str:
        """A new identifier."""
        self._count += 1
        return f"v{self._count}"

    def plain(self, value: ir.Value | None) -> str:
        """The identifier of a value in ONNX's axis order; `None` for an omitted input."""
        if value is None:
            return "None"
        key = str(value.name)
        if key not in self._plain:
            self._plain[key] = self.new()
            if key in self._last:
                self.line(f"{self._plain[key]} = {self.bind(layers.channels_first)}({self._last[key]})")
            else:
                self.bound[self._plain[key]] = _constant(value)
        return self._plain[key]

    def setting(self, value: ir.Value | None) -> str:
        """The source of a tuple of the numbers of a value, which must be known; `None` for an omitted input."""
        if value is None:
            return "None"
        known = constant_value(value)
        if known is not None and np.isfinite(known).all():
            return repr(tuple(known.reshape(-1).tolist()))
        return f"{self.bind(on_host)}({self.plain(value)})"

    def last(self, value: ir.Value | None, axes: int) -> str:
        """The identifier of a value with its channels last, broadcast to `axes` dimensions."""
        if value is None:
            return "None"
        key = str(value.name)
        if axes < 3:
            return self.plain(value)
        if key not in self._last:
            text = f"{self.bind(layers.channels_last)}({self.plain(value)}, {axes})"
            self._last[key] = self.new()
            self.line(f"{self._last[key]} = {text}")
        return self._last[key]

    def is_last(self, value: ir.Value | None) -> bool:
        """Whether a value exists only with its channels last."""
        return value is not None and value.name in self._last and value.name not in self._plain

    def is_traced(self, value: ir.Value | None) -> bool:
        """Whether a value is known while JAX traces."""
        return value is not None and (value.name in self._traced or constant_value(value) is not None)

    def is_stored(self, value: ir.Value | None) -> bool:
        """Whether a value is a layer's weight in storage order."""
        return value is not None and value.name in self._weights

    def weight(self, value: ir.Value | None) -> tuple[str, bool]:
        """The identifier of a layer's weight, and whether it is in storage order."""
        name = self._weights.get(str(value.name)) if value is not None else None
        return (self.plain(value), False) if name is None else (name, True)

    def assign_weight(self, value: ir.Value, text: str) -> None:
        """Append the line that computes a layer's weight in storage order."""
        self._weights[str(value.name)] = name = self.new()
        self.line(f"{name} = {text}")

    def bind(self, what: Any) -> str:
        """The identifier of a function or another object that the source refers to."""
        # The type of a non-NumPy dtype is named dtype[bfloat16], for example.
        own = re.sub(r"\W", "_", getattr(what, "__name__", type(what).__name__))
        name = f"f_{own.strip('_')}".lower()
        while self.bound.setdefault(name, what) is not what:
            name += "_"
        return name

    def assign(self, value: ir.Value, text: str, *, last: bool = False) -> None:
        """Append the line that computes a value."""
        (self._last if last else self._plain)[str(value.name)] = self.names[value] = name = self.new()
        self.line(f"{name} = {text}")

    def key(self, seed: float | None) -> str:
        """The source of a random key for one node; nodes with the same seed draw the same numbers."""
        self._draws += 1
        number = self._draws if seed is None else int(np.float32(seed).view(np.int32)) & 0x7FFFFFFF
        return f"{self.bind(jax.random.fold_in)}({self._key}, {number})"

    @abstractmethod
    def nested(self, graph: ir.Graph) -> str:
        """Append a function of a subgraph's inputs that returns a tuple of its outputs; returns its identifier."""

    def line(self, text: str) -> None:
        """Append a line to the body."""
        self._lines.append(text)

    def arguments(self, names: Sequence[str]) -> str:
        """Assign identifiers to input values; returns the source that unpacks them."""
        made = []
        for name in names:
            made.append(self.new())
            (self._weights if name in self._stored else self._plain)[name] = made[-1]
        return "".join(f"{name}, " for name in made)


def _constant(value: ir.Value) -> np.ndarray:
    known = constant_value(value)
    if known is None and value.is_initializer() and (tensor := constant_tensor(value)) is not None:
        return tensor.numpy()  # of a subgraph: the network's own are parameters
    if known is None:
        raise UsageError(f"the value {value.name!r} is used before it is computed; allowed: nodes in topological order")
    return known
