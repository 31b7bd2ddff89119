"""`check_communicator`: the conformance suite of communicators, run by all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from time import sleep
from typing import Any

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import CommunicationError, UsageError
from deep5.distributed.communicators.check_collectives import (
    check_moves,
    check_not_finite,
    check_reductions,
    check_rounding,
)
from deep5.distributed.communicators.check_parts import (
    DTYPES,
    ENOUGH_S,
    MORE_DTYPES,
    check_same,
    counted_as,
    exact_numbers,
    poll,
)
from deep5.distributed.communicators.check_waiting import check_barrier, check_hidden, check_late, check_mismatches

__all__ = ["check_communicator"]


def check_communicator(communicator: Communicator, *, mismatches: bool = True) -> None:
    """Run the conformance suite of communicators; all ranks call it together while no operation is pending.

    Covers every collective, blocking and started, on several dtypes, sizes and ranks of arrays, with every reduction
    and root, NaN and infinities, and the same in the parts of a split; messages, exchanges, byte and message counts,
    time limits, and the rejected arguments.

    Args:
        communicator: This rank's; it is not closed. At most 36 ranks, so that sums remain exact.
        mismatches: Whether ranks that call different collectives must get an error. Some libraries cannot detect this.

    Raises:
        CommunicationError: A check fails; the message describes it.
    """
    for check in (_check_start, check_reductions, check_rounding, check_moves, _check_queue, _check_refusals):
        check(communicator)
    check_reductions(communicator, MORE_DTYPES, (3, 64))
    check_moves(communicator, MORE_DTYPES, (3, 64))
    check_not_finite(communicator)
    for again in (_check_again, lambda every: _elsewhere(partial(_check_again, every))):
        again(communicator)
    if communicator.size > 1:
        for check in (check_barrier, check_hidden, _check_messages, _check_done, _check_exchange):
            check(communicator)
    _check_split(communicator)
    if communicator.size > 1:
        check_late(communicator)
        if mismatches:
            check_mismatches(communicator)
        _check_again(communicator)
    communicator.barrier(timeout_s=ENOUGH_S)


def _check_again(communicator: Communicator) -> None:
    """Every collective after calls that failed."""
    check_reductions(communicator, (np.float32, np.float64), (3, 17))
    check_moves(communicator, (np.float32, np.float64), (3, 17))
    if communicator.size > 1:
        _check_messages(communicator, (np.float32, np.float64), (3,))
        _check_exchange(communicator, (3,))


def _elsewhere(call: Callable[[], None]) -> None:
    """Make a call on another thread than the one that made the communicator."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def _check_start(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    if not isinstance(communicator, Communicator) or not 0 <= rank < size:
        raise CommunicationError(f"{type(communicator).__name__} of rank {rank!r} in {size!r} is not a Communicator")
    ranks = np.empty(size, np.int64)
    communicator.all_gather(np.array([rank]), ranks, timeout_s=ENOUGH_S)
    check_same(communicator, "the ranks that all_gather returns", ranks, np.arange(size))


def _check_queue(communicator: Communicator) -> None:
    """Started operations execute in order, whatever blocks in between, and may be waited for in any order."""
    rank, size = communicator.rank, communicator.size
    first, second, third = np.full(5000, 1.0), np.full(3, float(rank)), np.full(5000, 2.0)
    waiting = [communicator.all_reduce_start(first), communicator.broadcast_start(second, root=size - 1)]
    between = np.ones(4, np.float32)
    communicator.all_reduce(between, timeout_s=ENOUGH_S)
    waiting += [communicator.all_reduce_start(third), communicator.barrier_start()]
    for request in reversed(waiting):
        request.wait(ENOUGH_S)
        request.wait(ENOUGH_S)
    got = np.array([first[0], second[0], third[0], between[0]])
    expected = np.array([size, size - 1.0, 2.0 * size, size])
    check_same(communicator, "collectives that were started around a blocking one", got, expected)


def _check_refusals(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    buffer, other = np.zeros(4 * size), (rank + 1) % size
    # Every operation refuses something: each must give right results afterwards. What is written is not contiguous.
    part, strided = np.zeros(4), np.zeros(8 * size)[::2]
    written: dict[str, Callable[[Callable[..., Any]], Any]] = {
        "all_reduce": lambda call: call(strided),
        "reduce": lambda call: call(strided),
        "broadcast": lambda call: call(strided),
        "reduce_scatter": lambda call: call(buffer, strided[:4]),
        "all_gather": lambda call: call(part, strided),
        "gather": lambda call: call(part, strided, root=rank),
        "scatter": lambda call: call(buffer, strided[:4], root=rank),
        "all_to_all": lambda call: call(buffer, strided),
        "send": lambda call: call(strided, other),
        "receive": lambda call: call(strided, other),
        "exchange": lambda call: call(buffer, strided, [other]),
    }
    calls: dict[str, Callable[[], Any]] = {
        **{
            f"{name} of memory that is not contiguous": partial(call, getattr(communicator, name))
            for operation, call in written.items()
            for name in (operation, f"{operation}_start")
        },
        "an unknown reduction": lambda: communicator.all_reduce(buffer, op="mean"),  # type: ignore[arg-type]
        "a list as a buffer": lambda: communicator.all_reduce([1.0]),  # type: ignore[arg-type]
        "a root that is not a rank": lambda: communicator.broadcast(buffer, root=size),
        "a read-only buffer to reduce": lambda: communicator.all_reduce(_read_only(buffer)),
        "read-only parts": lambda: communicator.all_gather(np.zeros(4), _read_only(buffer)),
        "a part of the wrong size": lambda: communicator.all_gather(buffer, np.zeros(1)),
        "a part of another dtype": lambda: communicator.all_gather(buffer, np.zeros(4 * size**2, np.float32)),
        "a message to itself": lambda: communicator.send(buffer, rank),
        "a message to a rank that does not exist": lambda: communicator.send(buffer, size),
        "a neighbor twice": lambda: communicator.exchange(buffer, np.zeros(8 * size), [other, other]),
    }
    for what, call in calls.items():
        with counted_as(communicator, what, 0):
            try:
                call()
            except UsageError:
                continue
        raise CommunicationError(f"{what} was not refused with UsageError on rank {rank}")


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_messages(
    communicator: Communicator,
    dtypes: Sequence[Any] = DTYPES,
    sizes: Sequence[int] = (0, 1, 2, 3, 64, 17, 300_001),
) -> None:
    rank, size = communicator.rank, communicator.size
    to, source = (rank + 1) % size, (rank - 1) % size
    # Twice, with other numbers: what was received before must not be received again.
    for dtype, count, turn in product(dtypes, sizes, (0, 1)):
        what = f"a message of {np.dtype(dtype)}[{count}] around the ring{', once more' if turn else ''}"
        buffer, out = exact_numbers(dtype, count, rank + turn, "sum", size), np.zeros(count, dtype)
        with counted_as(communicator, what, buffer.nbytes):
            request = communicator.send_start(buffer, to, tag=9)
            communicator.receive(out, source, tag=9, timeout_s=ENOUGH_S)
            request.wait(ENOUGH_S)
        check_same(communicator, what, out, exact_numbers(dtype, count, source + turn, "sum", size))
    # Two messages of one tag keep their order; another tag does not wait for them.
    values = [np.array([float(value)]) for value in (1, 2, 3)]
    sends = [communicator.send_start(value, to, tag=tag) for value, tag in zip(values, (5, 5, 32767), strict=True)]
    got = np.zeros(3)
    for place, tag in ((got[2:], 32767), (got[:1], 5), (got[1:2], 5)):
        communicator.receive(place, source, tag=tag, timeout_s=ENOUGH_S)
    for request in sends:
        request.wait(ENOUGH_S)
    check_same(communicator, "messages of two tags", got, np.array([1.0, 2.0, 3.0]))


def _check_done(communicator: Communicator) -> None:
    """A started operation reports completion without a wait."""
    if communicator.rank < 2:
        other = 1 - communicator.rank
        buffer = np.zeros(3)
        if communicator.rank == 0:
            request = communicator.receive_start(buffer, other, tag=2)
            if request.done():
                raise CommunicationError("receive_start: done before there was a message")
            communicator.send(np.ones(1), other, tag=1, timeout_s=ENOUGH_S)
            poll(request, "receive_start")
            check_same(communicator, "a message whose completion was polled", buffer, np.full(3, 4.0))
        else:
            communicator.receive(np.ones(1), other, tag=1, timeout_s=ENOUGH_S)
            poll(communicator.send_start(np.full(3, 4.0), other, tag=2), "send_start")
    last = communicator.rank == communicator.size - 1
    communicator.barrier(timeout_s=ENOUGH_S)
    if last:
        sleep(0.1)
    total = np.ones(5000)
    request = communicator.all_reduce_start(total)
    poll(request, "all_reduce_start")
    check_same(communicator, "all_reduce_start, polled", total, np.full(5000, float(communicator.size)))


def _check_exchange(communicator: Communicator, sizes: Sequence[int] = (0, 1, 2, 3, 64, 17, 40_001)) -> None:
    rank, size = communicator.rank, communicator.size
    ring = list(dict.fromkeys([(rank - 1) % size, (rank + 1) % size]))
    everybody = [other for other in reversed(range(size)) if other != rank]
    pair = [1 - rank] if rank < 2 else []
    for neighbours, count, started in product((ring, everybody, pair), sizes, (False, True)):
        _check_one_exchange(communicator, neighbours, count, started)


def _check_one_exchange(communicator: Communicator, neighbours: Sequence[int], count: int, started: bool) -> None:
    # Twice: what was received before must not be received again. One type each, so that every size has several.
    dtypes = (np.float64, np.float32, np.float16, np.int64)
    for turn in (0, 1):
        dtype = dtypes[(count + len(neighbours) + started) % len(dtypes)]
        _check_numbers_exchanged(communicator, neighbours, count, started, dtype, turn)


def _check_numbers_exchanged(
    communicator: Communicator, neighbours: Sequence[int], count: int, started: bool, dtype: Any, turn: int
) -> None:
    what = f"{'exchange_start' if started else 'exchange'} of {count} numbers with the ranks {list(neighbours)}"
    size = communicator.size
    buffer = exact_numbers(dtype, count, communicator.rank + turn, "sum", size)
    out = np.zeros((len(neighbours), count), dtype)
    sent_bytes = len(neighbours) * buffer.nbytes
    with counted_as(communicator, what, sent_bytes, len(neighbours) if sent_bytes else 0):
        if started:
            communicator.exchange_start(buffer, out, neighbours).wait(ENOUGH_S)
        else:
            communicator.exchange(buffer, out, neighbours, timeout_s=ENOUGH_S)
    rows = [exact_numbers(dtype, count, other + turn, "sum", size) for other in neighbours]
    expected = np.array(rows, dtype).reshape(out.shape)
    check_same(communicator, what, out, expected)


def _check_split(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    ranks = range(size)
    cases: list[tuple[int, int | None, list[int]]] = [
        (rank % 2, None, [other for other in ranks if other % 2 == rank % 2]),
        (0, size - rank, [*reversed(ranks)]),
        (rank, 7, [rank]),
    ]
    for color, key, members in cases:
        part = communicator.split(color, key=key)
        place = np.array([part.rank, part.size])
        check_same(communicator, "split: rank and size", place, np.array([members.index(rank), len(members)]))
        every = np.zeros(len(members), np.int64)
        with counted_as(communicator, "the counts of a part, in the whole communicator,", 0):
            part.all_gather(np.array([rank]), every, timeout_s=ENOUGH_S)
        check_same(communicator, "split: the members", every, np.array(members))
        if part.sent_bytes != (8 if part.size > 1 else 0):
            raise CommunicationError(f"split: {part.sent_bytes} bytes counted after the first 8")
        check_reductions(part, (np.float64,), (3,))
        check_moves(part, (np.float64,), (3,))
        if part.size > 1:
            _check_messages(part, (np.float64,), (3,))
            _check_exchange(part, (3,))
        part.close()
