"""`Repeats`: the results of every call of an operator, to find calls of the same arguments with other results."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from deep5.core.arguments import THREADS

__all__ = ["Repeats"]


class Repeats:
    """Hashes of the arguments and the results of all calls, so that a fault of one call is seen whichever it is.

    Most calls of the checks repeat an earlier one, but only some compare the two. Sums may depend on memory layout and
    number of threads: these count as arguments.

    Attributes:
        differing: Description of each call whose result differed from an earlier one's.
    """

    def __init__(self) -> None:
        self.differing: list[str] = []
        self._known: dict[bytes, bytes] = {}

    def key(self, method: str, *given: Sequence[Any]) -> bytes:
        """Identifies a call; computed before it, since it may change its arguments.

        Args:
            method: Name of the method.
            given: Its arguments: arrays, None, and booleans.
        """
        parts = [part for values in given for value in values for part in (*_parts(value), _layout(value))]
        return _hash([method.encode(), repr((THREADS[0], *map(len, given))).encode(), *parts])

    def see(self, method: str, key: bytes, made: Any) -> None:
        """Compare a call's results with those of an earlier call of this key, if there was one."""
        values = made if isinstance(made, (tuple, list)) else (made,)
        found = _hash([part for value in values for part in _parts(value)])
        if self._known.setdefault(key, found) != found:
            self.differing.append(f"{method} of {_described(values)}")


def _parts(value: Any) -> tuple[bytes, bytes]:
    """Shape and type, and content."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return repr(value).encode(), b""
    return repr((value.shape, str(value.dtype))).encode(), value.tobytes()


def _layout(value: Any) -> bytes:
    return repr((value.strides, value.flags.aligned)).encode() if isinstance(value, np.ndarray) else b""


def _hash(parts: Sequence[bytes]) -> bytes:
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


def _described(values: Sequence[Any]) -> str:
    return ", ".join(f"{value.dtype}{list(value.shape)}" for value in values if value is not None)
