"""`Stamps`: the time between the lines of a generated program; `StampedClock`: an executor of such programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from deep5.core.executors import GraphExecutor
from deep5.core.layer_clock import Group, Pass
from deep5.core.tensors import Arrays
from deep5.networks.network import Network

__all__ = ["StampedClock", "Stamps"]


class Stamps:
    """Measures the time between the lines of a generated program, which calls `begin` and `mark`.

    Args:
        network: The network that defines the layers.
        wait: Returns when the device has finished; None: lines run synchronously.

    Attributes:
        network: As given.
    """

    def __init__(self, network: Network, wait: Callable[[], object] | None = None) -> None:
        self.network, self._wait = network, wait
        self._numbers: dict[Group, int] = {}
        self._spans: list[tuple[int, int]] = []
        self._last = 0

    def number(self, group: Group) -> int:
        """The argument of `mark` for lines that belong to these layers."""
        return self._numbers.setdefault(group, len(self._numbers))

    def begin(self) -> None:
        """A program begins, or resumes after lines that belong to no layer."""
        if self._wait is not None:
            self._wait()
        self._last = perf_counter_ns()

    def mark(self, number: int, *values: Any) -> None:
        """The lines since the previous mark belong to a group of layers.

        Args:
            number: The group's number.
            values: The values that those lines computed, for subclasses that inspect them.
        """
        if self._wait is not None:
            self._wait()
        self._spans.append((number, perf_counter_ns() - self._last))
        if values:
            self._look(number, values)
        self._last = perf_counter_ns()

    def _look(self, number: int, values: tuple[Any, ...]) -> None:
        """Inspect the values; not part of the measured time."""

    def taken(self) -> dict[Group, float]:
        """Seconds by layers since the previous call."""
        found: dict[Group, float] = {}
        groups = list(self._numbers)
        for number, nanoseconds in self._spans:
            found[groups[number]] = found.get(groups[number], 0.0) + nanoseconds / 1e9
        self._spans.clear()
        return found


class StampedClock:
    """Times the layers of an executor whose programs are stamped. Implements `LayerClock`.

    Args:
        executor: The executor.
        stamps: The stamps that its programs call.
    """

    def __init__(self, executor: GraphExecutor, stamps: Stamps) -> None:
        self._executor, self._stamps = executor, stamps
        self._forward: list[Pass] = []
        self._steps: list[Pass] = []

    def inference(self, inputs: Arrays) -> None:
        """Run forward once."""
        self._executor.inference(inputs)
        self._forward.append(self._stamps.taken())

    def inference_and_backprop(self, inputs: Arrays, loss: str) -> None:
        """Run forward and backward once."""
        self._executor.inference_and_backprop(inputs, loss)
        self._steps.append(self._stamps.taken())

    def passes(self) -> tuple[Sequence[Pass], Sequence[Pass]]:
        """The measurements: passes of inference, and of training steps."""
        return self._forward, self._steps

    def close(self) -> None:
        """Does nothing: no resources are held."""
