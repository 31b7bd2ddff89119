"""`Series`: raw values of every step, compact in memory, as rows of samples.csv."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from deep5.results.samples_file import SampleRow

__all__ = ["Series"]


class Series:
    """Values of several quantities, each with its step and its epoch, in the order in which they are added."""

    def __init__(self) -> None:
        self._units: dict[str, str] = {}
        self._values: dict[str, array[float]] = {}
        self._places: dict[str, array[int]] = {}

    def add(self, label: str, value: float, unit: str, step: int, epoch: int) -> None:
        """Add one value.

        Args:
            label: Name of the quantity.
            value: In `unit`.
            unit: The unit of the quantity.
            step: Steps done before it.
            epoch: Epochs done before it.
        """
        if label not in self._values:
            self._units[label], self._values[label], self._places[label] = unit, array("d"), array("q")
        self._values[label].append(value)
        self._places[label].extend((step, epoch))

    def total(self, label: str) -> tuple[float, int]:
        """Sum of a quantity's values, and their number."""
        values = self._values.get(label, ())
        return sum(values), len(values)

    def labels(self) -> tuple[str, ...]:
        """Names of the quantities, in the order of their first values."""
        return tuple(self._values)

    def __iter__(self) -> Iterator[SampleRow]:
        for label, values in self._values.items():
            places = self._places[label]
            for index, value in enumerate(values):
                step, epoch = places[2 * index], places[2 * index + 1]
                yield SampleRow(metric=label, index=index, value=value, unit=self._units[label], step=step, epoch=epoch)
