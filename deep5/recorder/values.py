"""Numbers and arrays that a loop reports: what they are, whose they are, and how to wait for them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
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

    def owner_of(self, value: Any) -> Framework | None:
        """The framework of an array; None for numbers and NumPy arrays."""
        kind = type(value)
        if kind not in self._owners:
            owners = (own for own in loaded_frameworks() if own.owns_array(value))
            self._owners[kind] = next(owners, None)
        owner = self._owners[kind]
        if owner is not None and self.owner is None:
            self.owner, self.example = owner, value
        return owner

    def loss(self, value: Any) -> tuple[Any, partial[None] | None]:
        """A loss to keep, and what waits for it; it is read now only if that waits for no device.

        Raises:
            UsageError: It is not a number, or an array with one element.
        """
        if type(value) is float:
            return value, None
        owner = self.owner_of(value)
        if owner is None:
            return self.number(value, "loss"), None
        if math.prod(getattr(value, "shape", ())) != 1:
            raise UsageError(f"got the loss {brief(value)} of shape {tuple(value.shape)}; allowed: one number")
        kept = owner.kept(value)
        return kept, None if type(kept) is float else partial(owner.wait, kept)

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
            owner = self.owner_of(value)
            if owner is not None:
                owner.wait(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
