"""Numbers and arrays that a loop reports: what they are, whose they are, and how to wait for them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, UsageError, brief
from deep5.core.plugins import framework, load, registered
from deep5.core.tensors import to_numpy

if TYPE_CHECKING:
    from deep5.core.framework import Framework

__all__ = ["Values", "loaded_frameworks"]


def loaded_frameworks() -> list[Framework]:
    """The back-ends whose libraries this process has already loaded; loads no library."""
    found = []
    for name in registered("frameworks"):
        with suppress(Deep5Error):  # a back-end that cannot be loaded owns no array
            required = load("frameworks", name).requires
            if required and all(module in sys.modules for module in required):
                found.append(framework(name))
    return found


class Values:
    """Reads what a loop reports, and remembers whose arrays they are.

    Attributes:
        owner: The framework of the first array; None: there was none.
        example: The first array.
    """

    def __init__(self) -> None:
        self.owner: Framework | None = None
        self.example: Any = None
        self._owners: dict[type, Framework | None] = {}
        self._keep: dict[type, Callable[[Any], Any]] = {}

    def owner_of(self, value: Any) -> Framework | None:
        """The framework of an array; None for numbers and NumPy arrays."""
        kind = type(value)
        if kind in self._owners:
            return self._owners[kind]
        owners = (own for own in loaded_frameworks() if own.owns_array(value))
        owner = self._owners[kind] = next(owners, None)
        if owner is not None and self.owner is None:
            self.owner, self.example = owner, value
        return owner

    def loss(self, value: Any) -> Any:
        """A loss to keep: a float, if reading it waits for no device, or an array that nothing changes.

        Raises:
            UsageError: It is not a number, or an array with one element.
        """
        keep = self._keep.get(type(value))  # one look-up: in a loop, code and data are not in the cache
        if keep is None:
            owner = self.owner_of(value)
            if owner is None:
                return self.number(value, "loss")
            keep = self._keep[type(value)] = owner.kept
        try:
            kept = keep(value)
        except (TypeError, ValueError, RuntimeError):
            self._check_shape(value)
            raise
        if type(kept) is not float:
            self._check_shape(value)
        return kept

    def _check_shape(self, value: Any) -> None:
        shape = value.shape
        if shape and math.prod(shape) != 1:
            raise UsageError(f"got the loss {brief(value)} of shape {tuple(shape)}; allowed: one number")

    def wait_for(self, array: Any) -> None:
        """Wait until the device has computed one array."""
        owner = self.owner_of(array)
        if owner is not None:
            owner.wait(array)

    def number(self, value: Any, name: str) -> float:
        """A number, read now.

        Args:
            value: A number, or an array with one element.
            name: Its name in messages.

        Raises:
            UsageError: It is neither.
        """
        self.owner_of(value)
        try:
            if isinstance(value, str):
                raise TypeError
            return float(value) if isinstance(value, (int, float)) else float(to_numpy(value).reshape(()))
        except (TypeError, ValueError, Deep5Error) as error:
            raise UsageError(f"got {name}={brief(value)}; allowed: a number, or an array with one element") from error

    def wait(self, given: tuple[Any, ...]) -> None:
        """Wait until the devices have computed arrays.

        Args:
            given: Arrays, or dicts, lists and tuples of arrays; anything else needs no wait.
        """
        for value in _leaves(given):
            self.wait_for(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
