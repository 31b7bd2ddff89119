"""`Series`: raw values of every step, compact in memory, as lines of samples.csv."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from deep5.results.samples_file import quoted

__all__ = ["Series"]


class _Values(NamedTuple):
    unit: str
    values: array[float]
    steps: array[int]
    epochs: array[int]


class Series:
    """Values of several quantities, each with its step and its epoch, in the order in which they are added."""

    def __init__(self) -> None:
        self._values: dict[str, _Values] = {}

    def _of(self, label: str, unit: str) -> _Values:
        found = self._values.get(label)
        if found is None:
            found = self._values[label] = _Values(unit, array("d"), array("q"), array("q"))
        return found

    def add(self, label: str, value: float, unit: str, step: int, epoch: int) -> None:
        """Add one value.

        Args:
            label: Name of the quantity.
            value: In `unit`.
            unit: The unit of the quantity.
            step: Steps done before it.
            epoch: Epochs done before it.
        """
        own = self._of(label, unit)
        own.values.append(value)
        own.steps.append(step)
        own.epochs.append(epoch)

    def extend(self, label: str, values: Any, unit: str, steps: Any, epoch: int) -> None:
        """Add values of one epoch.

        Args:
            label: Name of the quantity.
            values: An array of numbers, in `unit`.
            unit: The unit of the quantity.
            steps: For each value, steps done before it: an array of integers.
            epoch: Epochs done before them.
        """
        own = self._of(label, unit)
        own.values.frombytes(np.asarray(values, np.float64).tobytes())
        own.steps.frombytes(np.asarray(steps, np.int64).tobytes())
        own.epochs.frombytes(np.full(len(values), epoch, np.int64).tobytes())

    def total(self, label: str) -> tuple[float, int]:
        """Sum of a quantity's values, and their number."""
        own = self._values.get(label)
        return (0.0, 0) if own is None else (sum(own.values), len(own.values))

    def labels(self) -> tuple[str, ...]:
        """Names of the quantities, in the order of their first values."""
        return tuple(self._values)

    def __iter__(self) -> Iterator[str]:
        """Lines of samples.csv."""
        for label, own in self._values.items():
            name, unit = quoted(label), quoted(own.unit)
            rows = zip(own.values, own.steps, own.epochs, strict=True)
            for index, (value, step, epoch) in enumerate(rows):
                yield f"{name},{index},{value!r},{unit},{step},{epoch},"
