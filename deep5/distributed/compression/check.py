"""`check_compression`: the conformance suite of compressions, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.core.seeds import generator
from deep5.distributed.communicators.base_communicator import CountedCommunicator
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.compression.compression import Compression
from deep5.distributed.schemes.check import check_initialised

__all__ = ["check_compression"]

# Buffers of odd sizes, of one and of several buckets, and of one element.
_COUNTS = (1, 7, 1000, 5003)


def check_compression(
    compression: Compression, *, sizes: Sequence[int] = (1, 2, 3, 4), conserves: bool | None = None, steps: int = 200
) -> None:
    """Check that a compression keeps its contract.

    Messages have the documented size; all ranks get bit-identical results and send as many bytes as promised; every
    rank detects non-finite values, which are gone at the next step; a restored state repeats bit for bit. With error
    feedback, the sum of the sent values follows the sum of the values to send: their distance does not grow.

    Args:
        compression: With its parameters, not bound.
        sizes: Numbers of ranks.
        conserves: Whether to check error feedback; None: if the compression declares it.
        steps: Half the number of steps of that check.

    Raises:
        Deep5Error: A check fails.
    """
    check_initialised(compression, Compression, "_scratch")
    json.dumps(compression.describe(), allow_nan=False)
    for dtype in (np.float32, np.float64):
        for count in _COUNTS:
            _check_messages(compression, count, np.dtype(dtype))
            for size in sizes:
                _check_ranks(compression, size, count, np.dtype(dtype))
        for size in sizes:
            _check_not_finite(compression, size, np.dtype(dtype))
        _check_state(compression, np.dtype(dtype))
    if compression.feedback if conserves is None else conserves:
        _check_conserved(compression, steps)


def drawn(count: int, dtype: np.dtype, *purpose: str | int) -> np.ndarray:
    """Elements distributed like gradients: over several magnitudes."""
    random = generator(0, "check", count, *purpose)
    values = random.standard_normal(count) * np.exp(random.standard_normal(count))
    result: np.ndarray = values.astype(dtype)
    return result


def _check_messages(compression: Compression, count: int, dtype: np.dtype) -> None:
    sender, receiver = compression.bound(1), compression.bound(2)
    out = np.empty(count, dtype)
    for step in range(3):
        values = drawn(count, dtype, step)
        before = values.copy()
        message = sender.encode(values, key="a", step=step)
        if (wanted := sender.message_bytes(count, dtype, step=step)) != message.nbytes:
            raise Deep5Error(
                f"{compression!r}: a message of {message.nbytes} bytes for {dtype}[{count}]; allowed: {wanted}, by "
                "message_bytes"
            )
        if not np.array_equal(values, before):
            raise Deep5Error(f"{compression!r}: encode changed the values; allowed: unchanged values")
        out[...] = np.nan
        receiver.decode(message, out)
        if not np.isfinite(out).all():
            raise Deep5Error(
                f"{compression!r}: finite values became NaN or infinite in {dtype}[{count}] at step {step}"
            )


def _check_ranks(compression: Compression, size: int, count: int, dtype: np.dtype) -> None:
    def work(communicator: CountedCommunicator) -> tuple[bytes, int]:
        own, found = compression.bound(3), b""
        for step in range(3):
            for key in ("a", "b"):
                buffer = drawn(count, dtype, step, key, communicator.rank)
                own.all_reduce(communicator, buffer, key=key, step=step)
                found += buffer.tobytes()
        return found, communicator.sent_bytes

    results = run_in_threads(size, work)
    for rank, (found, sent) in enumerate(results):
        if found != results[0][0]:
            raise Deep5Error(f"{compression!r}: rank {rank} of {size} has another sum of {dtype}[{count}] than rank 0")
        one = [compression.all_reduce_bytes(count, dtype, step=step) for step in range(3)]
        # Two keys per step; a single rank sends nothing.
        wanted = [2 * each if size > 1 else 0 for each in one if each is not None]
        if len(wanted) == len(one) and sent != sum(wanted):
            raise Deep5Error(
                f"{compression!r}: rank {rank} of {size} handed over {sent} bytes for {dtype}[{count}]; allowed: "
                f"{sum(wanted)}, by all_reduce_bytes"
            )


def _check_not_finite(compression: Compression, size: int, dtype: np.dtype) -> None:
    count = 1000
    for wrong in (np.nan, np.inf, -np.inf):

        def work(communicator: CountedCommunicator, wrong: float = wrong) -> tuple[bool, bool]:
            own, seen = compression.bound(4), []
            for step in range(2):
                buffer = drawn(count, dtype, step, communicator.rank)
                if step == 0 and communicator.rank == size - 1:
                    buffer[617] = wrong
                own.all_reduce(communicator, buffer, key="a", step=step)
                seen.append(bool(np.isnan(buffer).any() if np.isnan(wrong) else not np.isfinite(buffer).all()))
            return seen[0], seen[1]

        for rank, (first, second) in enumerate(run_in_threads(size, work)):
            if not first:
                raise Deep5Error(f"{compression!r}: rank {rank} of {size} does not see the {wrong} of rank {size - 1}")
            if second:
                raise Deep5Error(f"{compression!r}: rank {rank} of {size} sees a {wrong} that was there a step before")


def _check_state(compression: Compression, dtype: np.dtype) -> None:
    count = 1000
    whole = compression.bound(5)
    for step in range(3):
        whole.encode(drawn(count, dtype, step), key="a", step=step)
    state = whole.state_dict()
    # The kept state is a copy: the original does not change it when it continues.
    expected = [whole.encode(drawn(count, dtype, step), key="a", step=step) for step in range(3, 6)]
    resumed = compression.bound(5)
    resumed.load_state_dict(state)
    for step, message in enumerate(expected, 3):
        if resumed.encode(drawn(count, dtype, step), key="a", step=step).tobytes() != message.tobytes():
            raise Deep5Error(f"{compression!r}: from a restored state, step {step} gives another message")


def _check_conserved(compression: Compression, steps: int) -> None:
    count, dtype = 400, np.dtype(np.float64)
    own = compression.bound(6)
    wanted, sent, part = np.zeros(count), np.zeros(count), np.empty(count)
    distances = []
    mean = drawn(count, dtype, "mean")
    for step in range(2 * steps):
        values = mean + drawn(count, dtype, "noise", step)
        own.decode(own.encode(values, key="a", step=step), part)
        wanted += values
        # A diverging distance overflows to infinity and may become NaN.
        with np.errstate(all="ignore"):
            sent += part
            distances.append(float(np.linalg.norm(wanted - sent)))
    # A bounded distance is as large in the second half as in the first; a dropped residual at least doubles it.
    first, second = float(np.max(distances[:steps])), float(np.max(distances[steps:]))
    if not (np.isfinite(second) and second <= 1.5 * first + 1e-9 * float(np.linalg.norm(wanted))):
        raise Deep5Error(
            f"{compression!r}: after {steps} steps the sum of what was sent is within {first:.3g} of the sum of what "
            f"was to be sent, after {2 * steps} within {second:.3g}; allowed: a distance that does not grow; remedy: "
            "keep what a message leaves out"
        )
