"""Building blocks of the communicator checks: a call, its counters, and its expected result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import ml_dtypes
import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import CommunicationError

__all__ = [
    "DTYPES",
    "ENOUGH_S",
    "MORE_DTYPES",
    "check_same",
    "counted_as",
    "exact_numbers",
    "poll",
    "run_collective",
    "shaped",
]

DTYPES: tuple[Any, ...] = (np.float32, np.float64, np.int64, np.float16, ml_dtypes.bfloat16, np.uint8)
MORE_DTYPES: tuple[Any, ...] = (np.int32, np.int8, np.uint64, np.bool_)

# Small integers times these need most bits of the type, so that a detour through a shorter one is seen; sums of 36
# ranks stay exact.
_FACTORS = {"float64": 2**44 + 1, "float32": 2**15 + 1, "float16": 13, "int64": 2**54 + 1, "uint64": 2**54 + 1}
_FACTORS["int32"] = 2**22 + 1

# Time limit of a call that must succeed; the machine may have more ranks than processors.
ENOUGH_S = 60.0


def exact_numbers(dtype: Any, count: int, rank: int, op: str, size: int) -> np.ndarray:
    """Integers for which every result is exact in every dtype; a different row for every rank.

    Of both signs where there are any: a maximum that starts at zero is wrong only below it.
    """
    places, kind = np.arange(count), np.dtype(dtype)
    factor = _FACTORS.get(kind.name, 1)
    if kind.kind == "b":
        return np.asarray((places // size + rank) % 3 == 0)
    if op == "prod":
        signs = 1 if kind.kind == "u" else 1 - 2 * (places // size % 2)
        return np.where(places % size == rank, 3 * factor * signs, 1).astype(dtype)
    return (((3 * places + 5 * rank) % 7 - (0 if kind.kind == "u" else 4)) * factor).astype(dtype)


def shaped(values: np.ndarray, number: int) -> np.ndarray:
    """The same elements in one, two or three dimensions, by a number."""
    half = 1 + (values.size % 2 == 0)
    rest = values.size // half
    return values.reshape(((values.size,), (half, rest), (half, 1, rest))[number % 3])


def run_collective(communicator: Communicator, name: str, started: bool, *given: Any, **named: Any) -> None:
    """Call a collective by name, blocking or started and then waited for.

    Raises:
        CommunicationError: A request is not done after its wait.
    """
    if not started:
        getattr(communicator, name)(*given, timeout_s=ENOUGH_S, **named)
        return
    request = getattr(communicator, name + "_start")(*given, **named)
    request.wait(ENOUGH_S)
    if not request.done():
        raise CommunicationError(f"{name}_start: not done after its wait on rank {communicator.rank}")


def poll(request: Any, what: str) -> None:
    """Poll a request until it is done.

    Raises:
        CommunicationError: It takes too long.
    """
    deadline = monotonic() + ENOUGH_S
    while not request.done():
        if monotonic() > deadline:
            raise CommunicationError(f"{what}: not done in {ENOUGH_S:g} s of polling")
        sleep(0.001)
    request.wait(ENOUGH_S)


@contextmanager
def counted_as(communicator: Communicator, what: str, sent_bytes: int, messages: int | None = None) -> Iterator[None]:
    """Check that the calls inside count this many bytes, and one message unless `messages` is given."""
    if communicator.size == 1:
        sent_bytes = messages = 0
    expected = (sent_bytes, min(sent_bytes, 1) if messages is None else messages)
    before = (communicator.sent_bytes, communicator.messages)
    yield
    got = (communicator.sent_bytes - before[0], communicator.messages - before[1])
    if got != expected:
        raise CommunicationError(
            f"{what}: rank {communicator.rank} counted {got[0]} bytes in {got[1]} messages; allowed: {expected[0]} in "
            f"{expected[1]}"
        )


def check_same(communicator: Communicator, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Check that two arrays are bit-identical.

    Raises:
        CommunicationError: They differ; the message gives the first difference.
    """
    if got.dtype == expected.dtype and got.tobytes() == expected.tobytes():
        return
    wrong = np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
    place = int(wrong[0]) if len(wrong) else 0
    raise CommunicationError(
        f"{what}: on rank {communicator.rank}, {len(wrong)} of {got.size} numbers are wrong; the one at {place} is "
        f"{got.reshape(-1)[place]}; allowed: {expected.reshape(-1)[place]}"
    )
