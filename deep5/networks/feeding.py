"""Initial values that are the defaults of inputs: a call of `inference` may feed others, which hold for that call only.

In ONNX, an initial value that is also an input is a default. It stays a parameter, or a constant that a back-end may
compile into its program; so a call that feeds one runs on another executor, which has the fed values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deep5.core.errors import ShapeError, UsageError, suggestion
from deep5.core.events import StepInfo
from deep5.core.memo import remember
from deep5.core.tensors import Arrays, dtype_name, to_numpy
from deep5.networks.edit.initials import with_defaults
from deep5.networks.network import Network

if TYPE_CHECKING:
    from deep5.core.executors import GraphExecutor

__all__ = ["Feeding", "FeedsInitialValues", "wrong_names"]

# Executors to keep, one for each combination of fed constants.
_KEPT = 8


class FeedsInitialValues(Protocol):
    """Runs calls of `inference` that feed values."""

    def is_fed(self, inputs: Any) -> bool:
        """Whether it runs a call with these inputs."""
        ...


class Feeding:
    """Runs the calls of one executor that feed initial values.

    Args:
        executor: The executor; its live values are those of all parameters and buffers that a call does not feed.
        network: Its network, some of whose initial values are defaults.
        make: Creates an executor of another network on the same back-end and device.
    """

    def __init__(self, executor: GraphExecutor, network: Network, make: Callable[[Network], GraphExecutor]) -> None:
        self._executor, self._network, self._make = executor, network, make
        self._defaults = frozenset(network.default_specs)
        self._made: dict[Hashable, GraphExecutor] = {}
        self._lock = threading.Lock()

    def is_fed(self, inputs: Any) -> bool:
        """Whether a call feeds an initial value."""
        return isinstance(inputs, Mapping) and not self._defaults.isdisjoint(inputs)

    def inference(self, inputs: Arrays, training: bool, info: StepInfo | None) -> Arrays:
        """The outputs of a call, in evaluation.

        Raises:
            UsageError: The call is in training.
            ShapeError: A fed value has another element type than the initial value.
            NetworkError: A fed value does not fit the nodes that read it.
        """
        given = {name: self._array(name, value) for name, value in inputs.items() if name in self._defaults}
        rest = {name: value for name, value in inputs.items() if name not in given}
        if training:
            raise UsageError(
                f"training=True with a fed value for {', '.join(map(repr, given))}; allowed: initial values are fed in "
                "evaluation only; remedy: network.with_values({…}) before the executor is made"
            )
        own = {**self._network.parameter_specs, **self._network.buffer_specs}
        constants = {name: value for name, value in given.items() if name not in own or value.shape != own[name].shape}
        key = tuple((name, value.shape, value.tobytes()) for name, value in sorted(constants.items()))
        with self._lock:
            other = self._made.get(key)
            if other is None:
                network = Network(with_defaults(self._network.model, constants)) if constants else self._network
                other = remember(self._made, key, self._make(network), room=_KEPT)
            specs = {**other.network.parameter_specs, **other.network.buffer_specs}
            live = self._executor.state_dict()
            other.load_state_dict({**{name: live[name] for name in specs if name in live}, **_among(given, specs)})
            return other.inference(rest, info=info)

    def _array(self, name: str, value: Any) -> np.ndarray:
        array = np.asarray(to_numpy(value))
        wanted = self._network.default_specs[name].dtype
        if dtype_name(array.dtype) != wanted:
            raise ShapeError(f"input {name!r}: got dtype {dtype_name(array.dtype)}, expected {wanted}")
        return array


def wrong_names(inputs: Any, expected: Mapping[str, Any], feeding: FeedsInitialValues | None) -> ShapeError:
    """The error to raise for inputs that are not those of the network.

    Args:
        inputs: What a call fed.
        expected: The network's inputs by name.
        feeding: Runs calls of `inference` that feed initial values, if there are any to feed.
    """
    if not isinstance(inputs, Mapping):
        return ShapeError(f"got {type(inputs).__name__} as inputs; expected a dict of arrays: {', '.join(expected)}")
    for name in inputs:
        if feeding is not None and feeding.is_fed({name: None}):
            return ShapeError(
                f"input {name!r} is an initial value, and a call fed it; allowed: only in inference, in evaluation; "
                "remedy: network.with_values({…}) before the executor is made"
            )
        if name not in expected:
            return ShapeError(
                f"unknown input {name!r}; expected: {', '.join(expected)}{suggestion(str(name), expected)}"
            )
    missing = ", ".join(repr(name) for name in expected if name not in inputs)
    return ShapeError(f"missing input {missing}; got: {', '.join(inputs) or 'none'}, expected: {', '.join(expected)}")


def _among(values: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: value for name, value in values.items() if name in names}
