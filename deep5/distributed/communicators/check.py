"""`check_communicator`: what every communicator has to do, run by all of its ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from time import monotonic, sleep
from typing import Any, get_args

import ml_dtypes
import numpy as np

from deep5.core.communicator import Communicator, Reduction
from deep5.core.errors import CommunicationError, UsageError

__all__ = ["check_communicator"]

_DTYPES: tuple[Any, ...] = (np.float32, np.float64, np.int64, np.float16, ml_dtypes.bfloat16, np.uint8)
_SIZES = (0, 1, 7, 40_001)
_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
# What a call that has to succeed may take, and one that has to fail; the machine may have more ranks than processors.
_ENOUGH_S, _SHORT_S, _SLACK_S = 60.0, 0.25, 5.0


def check_communicator(communicator: Communicator, *, mismatches: bool = True) -> None:
    """Run the conformance suite of communicators; all ranks call it together, when nothing else is under way.

    Every collective, blocking and started, on several dtypes and sizes, with every reduction and different roots;
    messages, exchanges, groups, the bytes and messages counted, the limits of time, and what is to be refused.

    Args:
        communicator: This rank's; it is not closed. Up to 36 ranks, or small numbers would not be exact.
        mismatches: Whether ranks that call different collectives are to be told. Some libraries cannot.

    Raises:
        CommunicationError: The communicator does something wrong; the message says what.
    """
    for check in (_check_start, _check_reductions, _check_bits, _check_moves, _check_queue, _check_refusals):
        check(communicator)
    if communicator.size > 1:
        for check in (_check_barrier, _check_hidden, _check_messages, _check_done, _check_exchange):
            check(communicator)
    _check_split(communicator)
    if communicator.size > 1:
        _check_late(communicator)
        if mismatches:
            _check_mismatches(communicator)
    communicator.barrier(timeout_s=_ENOUGH_S)


def _check_start(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    if not isinstance(communicator, Communicator) or not 0 <= rank < size:
        raise CommunicationError(f"{type(communicator).__name__} of rank {rank!r} in {size!r} is no Communicator")
    ranks = np.empty(size, np.int64)
    communicator.all_gather(np.array([rank]), ranks, timeout_s=_ENOUGH_S)
    _same(communicator, "the ranks that all_gather tells", ranks, np.arange(size))


def _check_reductions(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for number, (dtype, count, op) in enumerate(product(_DTYPES, _SIZES, get_args(Reduction))):
        # Each size and each reduction both ways, on half of the dtypes each.
        started = (number // 16 + number // 4 + number) % 2 == 1
        what = f"{op} of {np.dtype(dtype)}[{count}]{', started' if started else ''}"
        root = number % size
        every = [_small(dtype, count, each, op, size) for each in range(size)]
        total = _COMBINE[op].reduce([each.astype(np.int64) for each in every]).astype(dtype)
        buffer = every[rank].copy()
        with _counts(communicator, f"all_reduce, {what}", buffer.nbytes):
            _run(communicator, "all_reduce", started, buffer, op=op)
        _same(communicator, f"all_reduce, {what}", buffer, total)
        if not started:
            # What a communicator remembers of the first time must serve the second, in another shape, too.
            again = every[rank].reshape(1, count).copy()
            _run(communicator, "all_reduce", False, again, op=op)
            _same(communicator, f"all_reduce once more, {what}", again.reshape(-1), total)
        buffer = every[rank].copy()
        with _counts(communicator, f"reduce to {root}, {what}", 0 if rank == root else buffer.nbytes):
            _run(communicator, "reduce", started, buffer, root=root, op=op)
        _same(communicator, f"reduce to {root}, {what}", buffer, total if rank == root else every[rank])
        parts = [_small(dtype, size * count, each, op, size) for each in range(size)]
        total = _COMBINE[op].reduce([each.astype(np.int64) for each in parts]).astype(dtype)
        out = np.zeros(count, dtype)
        with _counts(communicator, f"reduce_scatter, {what}", parts[rank].nbytes):
            _run(communicator, "reduce_scatter", started, parts[rank].reshape(size, count), out, op=op)
        _same(communicator, f"reduce_scatter, {what}", out, total.reshape(size, count)[rank])


def _check_bits(communicator: Communicator) -> None:
    """Sums of numbers that round are near the exact one and the same on all ranks."""
    for count in (3, 40_001):
        every = np.random.default_rng(5).standard_normal((communicator.size, count)).astype(np.float32)
        buffer = every[communicator.rank].copy()
        communicator.all_reduce(buffer, timeout_s=_ENOUGH_S)
        exact, magnitude = every.sum(0, dtype=np.float64), np.abs(every).sum(0, dtype=np.float64)
        # Each of size - 1 additions rounds by at most half a unit of what is below the sum of the magnitudes.
        if np.any(np.abs(buffer - exact) > communicator.size * np.finfo(np.float32).eps * magnitude):
            raise CommunicationError(f"all_reduce: a sum of float32[{count}] is off by more than its rounding")
        results = np.empty((communicator.size, count), np.float32)
        communicator.all_gather(buffer, results, timeout_s=_ENOUGH_S)
        _same(communicator, f"all_reduce: the bits of rank 0's sum of float32[{count}]", buffer, results[0])


def _check_moves(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for number, (dtype, count, started) in enumerate(product(_DTYPES, _SIZES, (False, True))):
        what = f"of {np.dtype(dtype)}[{count}]{', started' if started else ''}"
        root = number % size
        every = np.stack([_small(dtype, count, each, "sum", size) for each in range(size)])
        mine = every[rank].copy()
        size_bytes = mine.nbytes

        buffer = mine.copy()
        with _counts(communicator, f"broadcast {what}", size_bytes if rank == root else 0):
            _run(communicator, "broadcast", started, buffer, root=root)
        _same(communicator, f"broadcast from {root} {what}", buffer, every[root])

        out = np.zeros((size, count), dtype)
        with _counts(communicator, f"all_gather {what}", size_bytes):
            _run(communicator, "all_gather", started, mine, out)
        _same(communicator, f"all_gather {what}", out, every)

        out = np.zeros((size, count), dtype)
        with _counts(communicator, f"gather {what}", 0 if rank == root else size_bytes):
            _run(communicator, "gather", started, mine, out if rank == root else None, root=root)
        _same(communicator, f"gather to {root} {what}", out, every if rank == root else np.zeros_like(out))

        part = np.zeros(count, dtype)
        with _counts(communicator, f"scatter {what}", size * size_bytes if rank == root else 0):
            _run(communicator, "scatter", started, every if rank == root else None, part, root=root)
        _same(communicator, f"scatter from {root} {what}", part, every[rank])

        parts = np.stack([_small(dtype, count, rank + 2 * other, "sum", size) for other in range(size)])
        out = np.zeros((size, count), dtype)
        with _counts(communicator, f"all_to_all {what}", parts.nbytes):
            _run(communicator, "all_to_all", started, parts, out)
        expected = np.stack([_small(dtype, count, other + 2 * rank, "sum", size) for other in range(size)])
        _same(communicator, f"all_to_all {what}", out, expected)
        _same(communicator, f"what {what} was sent", mine, every[rank])


def _check_queue(communicator: Communicator) -> None:
    """Those that were started are in order, whatever blocks between, and may be waited for in another order."""
    rank, size = communicator.rank, communicator.size
    first, second, third = np.full(5000, 1.0), np.full(3, float(rank)), np.full(5000, 2.0)
    waiting = [communicator.all_reduce_start(first), communicator.broadcast_start(second, root=size - 1)]
    between = np.ones(4, np.float32)
    communicator.all_reduce(between, timeout_s=_ENOUGH_S)
    waiting += [communicator.all_reduce_start(third), communicator.barrier_start()]
    for request in reversed(waiting):
        request.wait(_ENOUGH_S)
        request.wait(_ENOUGH_S)
    got = np.array([first[0], second[0], third[0], between[0]])
    expected = np.array([size, size - 1.0, 2.0 * size, size])
    _same(communicator, "collectives that were started around a blocking one", got, expected)


def _check_refusals(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    buffer, other = np.zeros(4 * size), (rank + 1) % size
    calls: dict[str, Callable[[], Any]] = {
        "a buffer that is not contiguous": lambda: communicator.all_reduce(buffer[::2]),
        "an unknown reduction": lambda: communicator.all_reduce(buffer, op="mean"),  # type: ignore[arg-type]
        "a list as a buffer": lambda: communicator.all_reduce([1.0]),  # type: ignore[arg-type]
        "a root that is no rank": lambda: communicator.broadcast(buffer, root=size),
        "a sum that cannot be written": lambda: communicator.all_reduce(_read_only(buffer)),
        "parts that cannot be written": lambda: communicator.all_gather(np.zeros(4), _read_only(buffer)),
        "a part of the wrong size": lambda: communicator.all_gather(buffer, np.zeros(1)),
        "a part of another dtype": lambda: communicator.all_gather(buffer, np.zeros(4 * size**2, np.float32)),
        "a message to itself": lambda: communicator.send(buffer, rank),
        "a message to nobody": lambda: communicator.send(buffer, size),
        "a neighbour twice": lambda: communicator.exchange(buffer, np.zeros(8 * size), [other, other]),
    }
    for what, call in calls.items():
        with _counts(communicator, what, 0):
            try:
                call()
            except UsageError:
                continue
        raise CommunicationError(f"{what} was not refused with UsageError on rank {rank}")


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_barrier(communicator: Communicator) -> None:
    late_s, last = 0.2, communicator.rank == communicator.size - 1
    for started in (False, True):
        communicator.barrier(timeout_s=_ENOUGH_S)
        if last:
            sleep(late_s)
        begin, before_ns = monotonic(), communicator.waited_ns
        with _counts(communicator, "barrier", 0):
            _run(communicator, "barrier", started)
        took_s, waited_s = monotonic() - begin, (communicator.waited_ns - before_ns) / 1e9
        # Half: how far apart the ranks left the barrier before is not known.
        if not last and took_s < late_s / 2:
            raise CommunicationError(f"barrier: over in {took_s:.3f} s, before rank {communicator.size - 1} had come")
        if not last and not late_s / 2 < waited_s <= took_s:
            raise CommunicationError(f"waited_ns: {waited_s:.3f} s more after a barrier of {took_s:.3f} s")


def _check_hidden(communicator: Communicator) -> None:
    """What was started ends when the last rank comes, and not when somebody waits for it."""
    late_s, busy_s = 0.15, 0.6
    part = communicator.split(0)
    counts, last = part.count_hidden(), part.rank == part.size - 1
    part.barrier(timeout_s=_ENOUGH_S)
    if last:
        sleep(late_s)
    request = part.barrier_start()
    sleep(busy_s)
    before_ns, waited_ns = part.hidden_ns, part.waited_ns
    request.wait(_ENOUGH_S)
    hidden_s, waited_s = (part.hidden_ns - before_ns) / 1e9, (part.waited_ns - waited_ns) / 1e9
    # A third: how far apart the ranks left the barrier before is not known. Who sees an end only in the wait for it has
    # all of the time.
    low_s, high_s = ((0.0 if last else late_s / 3), 0.95 * busy_s) if counts else (0.0, 0.0)
    if not low_s <= hidden_s <= high_s:
        raise CommunicationError(
            f"hidden_ns: {hidden_s:.3f} s more on rank {part.rank} behind {busy_s:g} s in which a barrier that was "
            f"started waited {late_s:g} s for rank {part.size - 1}, and {waited_s:.3f} s of waiting"
        )
    part.barrier(timeout_s=_ENOUGH_S)
    part.close()


def _check_messages(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    to, source = (rank + 1) % size, (rank - 1) % size
    for dtype, count in product(_DTYPES, (0, 1, 7, 300_001)):
        what = f"a message of {np.dtype(dtype)}[{count}] around the ring"
        buffer, out = _small(dtype, count, rank, "sum", size), np.zeros(count, dtype)
        with _counts(communicator, what, buffer.nbytes):
            request = communicator.send_start(buffer, to, tag=9)
            communicator.receive(out, source, tag=9, timeout_s=_ENOUGH_S)
            request.wait(_ENOUGH_S)
        _same(communicator, what, out, _small(dtype, count, source, "sum", size))
    # Two of one tag keep their order; another tag does not wait for them.
    values = [np.array([float(value)]) for value in (1, 2, 3)]
    sends = [communicator.send_start(value, to, tag=tag) for value, tag in zip(values, (5, 5, 32767), strict=True)]
    got = np.zeros(3)
    for place, tag in ((got[2:], 32767), (got[:1], 5), (got[1:2], 5)):
        communicator.receive(place, source, tag=tag, timeout_s=_ENOUGH_S)
    for request in sends:
        request.wait(_ENOUGH_S)
    _same(communicator, "messages of two tags", got, np.array([1.0, 2.0, 3.0]))


def _check_done(communicator: Communicator) -> None:
    """What was started says whether it is done, without anybody waiting for it."""
    if communicator.rank < 2:
        other = 1 - communicator.rank
        buffer = np.zeros(3)
        if communicator.rank == 0:
            request = communicator.receive_start(buffer, other, tag=2)
            if request.done():
                raise CommunicationError("receive_start: done before there was a message")
            communicator.send(np.ones(1), other, tag=1, timeout_s=_ENOUGH_S)
            _poll(request, "receive_start")
            _same(communicator, "a message that was asked after", buffer, np.full(3, 4.0))
        else:
            communicator.receive(np.ones(1), other, tag=1, timeout_s=_ENOUGH_S)
            _poll(communicator.send_start(np.full(3, 4.0), other, tag=2), "send_start")
    last = communicator.rank == communicator.size - 1
    communicator.barrier(timeout_s=_ENOUGH_S)
    if last:
        sleep(0.1)
    total = np.ones(5000)
    request = communicator.all_reduce_start(total)
    _poll(request, "all_reduce_start")
    _same(communicator, "all_reduce_start, asked after", total, np.full(5000, float(communicator.size)))


def _check_exchange(communicator: Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    ring = list(dict.fromkeys([(rank - 1) % size, (rank + 1) % size]))
    everybody = [other for other in reversed(range(size)) if other != rank]
    pair = [1 - rank] if rank < 2 else []
    for neighbours, count, started in product((ring, everybody, pair), (0, 3, 40_001), (False, True)):
        _check_one_exchange(communicator, neighbours, count, started)


def _check_one_exchange(communicator: Communicator, neighbours: Sequence[int], count: int, started: bool) -> None:
    what = f"{'exchange_start' if started else 'exchange'} of {count} numbers with the ranks {list(neighbours)}"
    buffer, out = np.arange(count) + 100.0 * communicator.rank, np.zeros((len(neighbours), count))
    sent_bytes = len(neighbours) * buffer.nbytes
    with _counts(communicator, what, sent_bytes, len(neighbours) if sent_bytes else 0):
        if started:
            communicator.exchange_start(buffer, out, neighbours).wait(_ENOUGH_S)
        else:
            communicator.exchange(buffer, out, neighbours, timeout_s=_ENOUGH_S)
    expected = np.array([np.arange(count) + 100.0 * other for other in neighbours]).reshape(out.shape)
    _same(communicator, what, out, expected)


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
        _same(communicator, "split: rank and size", place, np.array([members.index(rank), len(members)]))
        every = np.zeros(len(members), np.int64)
        with _counts(communicator, "what is done in a part, for the whole,", 0):
            part.all_gather(np.array([rank]), every, timeout_s=_ENOUGH_S)
        _same(communicator, "split: the members", every, np.array(members))
        if part.sent_bytes != (8 if part.size > 1 else 0):
            raise CommunicationError(f"split: {part.sent_bytes} bytes counted after the first 8")
        part.close()


def _check_late(communicator: Communicator) -> None:
    """Who waits for a rank that does not come is told in time."""
    last = communicator.size - 1
    late = communicator.rank == last
    waits: dict[str, Callable[[Communicator], Any]] = {
        "barrier": lambda part: part.barrier(timeout_s=_SHORT_S),
        "all_reduce": lambda part: part.all_reduce(np.ones(3), timeout_s=_SHORT_S),
        "all_reduce_start": lambda part: part.all_reduce_start(np.ones(3)).wait(_SHORT_S),
        "receive": lambda part: part.receive(np.ones(3), last, timeout_s=_SHORT_S),
        "receive_start": lambda part: part.receive_start(np.ones(3), last).wait(_SHORT_S),
    }
    for name, wait in waits.items():
        # One of its own each: it may be of no more use after this.
        part = communicator.split(0)
        if not late:
            _fails(part, f"{name} while rank {last} does not come", wait)
        communicator.barrier(timeout_s=_ENOUGH_S)
        if late and not name.startswith("receive"):
            # It comes, so that nothing stays open; whether that helps is up to the library.
            with suppress(CommunicationError):
                wait(part)
        communicator.barrier(timeout_s=_ENOUGH_S)
        part.close()


def _check_mismatches(communicator: Communicator) -> None:
    other = communicator.rank == communicator.size - 1
    large = np.zeros(40_000 * communicator.size)
    calls: dict[str, Callable[[Communicator], Any]] = {
        "buffers of two sizes": lambda part: part.all_reduce(large[: 30_000 + other], timeout_s=_SHORT_S),
        "two dtypes": lambda part: part.all_reduce(large.view(np.int64) if other else large, timeout_s=_SHORT_S),
        "two reductions": lambda part: part.all_reduce(large, op="max" if other else "sum", timeout_s=_SHORT_S),
        "two roots": lambda part: part.broadcast(large, root=int(other), timeout_s=_SHORT_S),
        "two collectives": lambda part: (
            part.all_to_all(large, large.copy(), timeout_s=_SHORT_S)
            if other
            else part.all_reduce(large, timeout_s=_SHORT_S)
        ),
    }
    for what, call in calls.items():
        part = communicator.split(0)
        _fails(part, what, call)
        communicator.barrier(timeout_s=_ENOUGH_S)
        part.close()
    # A message of another size than the buffer it comes to.
    part = communicator.split(0)
    if part.rank == 0:
        part.send_start(np.zeros(5), part.size - 1)
    elif other:
        _fails(part, "a message of another size", lambda part: part.receive(np.zeros(3), 0, timeout_s=_SHORT_S))
    communicator.barrier(timeout_s=_ENOUGH_S)
    part.close()


def _fails(part: Communicator, what: str, call: Callable[[Communicator], Any]) -> None:
    begin = monotonic()
    try:
        call(part)
    except CommunicationError:
        if (took_s := monotonic() - begin) > _SHORT_S + _SLACK_S:
            raise CommunicationError(
                f"{what}: rank {part.rank} was told in {took_s:.1f} s; allowed: {_SHORT_S:g} s"
            ) from None
        return
    raise CommunicationError(f"{what}: rank {part.rank} was not told; allowed: CommunicationError")


def _small(dtype: Any, count: int, rank: int, op: str, size: int) -> np.ndarray:
    """Whole numbers of which every result is exact in every dtype; another row for every rank."""
    places = np.arange(count)
    if op == "prod":
        return np.where(places % size == rank, 3, 1).astype(dtype)
    return ((3 * places + 5 * rank) % 7).astype(dtype)


def _run(communicator: Communicator, name: str, started: bool, *given: Any, **named: Any) -> None:
    if not started:
        getattr(communicator, name)(*given, timeout_s=_ENOUGH_S, **named)
        return
    request = getattr(communicator, name + "_start")(*given, **named)
    request.wait(_ENOUGH_S)
    if not request.done():
        raise CommunicationError(f"{name}_start: not done after its wait on rank {communicator.rank}")


def _poll(request: Any, what: str) -> None:
    deadline = monotonic() + _ENOUGH_S
    while not request.done():
        if monotonic() > deadline:
            raise CommunicationError(f"{what}: not done in {_ENOUGH_S:g} s of asking")
        sleep(0.001)
    request.wait(_ENOUGH_S)


@contextmanager
def _counts(communicator: Communicator, what: str, sent_bytes: int, messages: int | None = None) -> Iterator[None]:
    """What is done inside has to be counted as so many bytes, in one message unless another number is given."""
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


def _same(communicator: Communicator, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    if got.dtype == expected.dtype and got.tobytes() == expected.tobytes():
        return
    wrong = np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
    place = int(wrong[0]) if len(wrong) else 0
    raise CommunicationError(
        f"{what}: on rank {communicator.rank}, {len(wrong)} of {got.size} numbers are wrong; the one at {place} is "
        f"{got.reshape(-1)[place]}; allowed: {expected.reshape(-1)[place]}"
    )
