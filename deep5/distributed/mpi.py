"""`MPICommunicator`: ranks that MPI started, over mpi4py, on buffers."""

from __future__ import annotations

import atexit
import functools
import os
import queue
import sys
import threading
import zlib
from array import array
from time import monotonic, sleep
from typing import Any

import numpy as np

from deep5.arguments import is_whole
from deep5.communicator import TIMEOUT_S, Request
from deep5.distributed.counted import CountedCommunicator
from deep5.errors import CommunicationError, MissingDependency, UsageError, brief
from deep5.plugins import install_command, missing_dependency

__all__ = ["MPICommunicator"]

# Up to here a non-blocking operation takes less than a look at what the others do and the blocking one.
SMALL_BYTES = 4096
# How long after its limit a blocking operation in the middle of which a rank was lost ends the process.
GRACE_S = 5.0
_TOLD_BYTES = 96
_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
# What has an operation of MPI's own: there, sums of float16 are not sure, and those of bool are others than NumPy's.
_NATIVE = {"b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "f", "d"}
_SAME = "remedy: every rank has to call the same collectives in the same order, on buffers of the same size"


class MPICommunicator(CountedCommunicator):
    """A rank of a job that `mpiexec` started; implements `Communicator`.

    MPI cannot interrupt an operation. Small ones are therefore started and asked after until their time is over. Before
    a larger one, of which the non-blocking form takes twice the time, all ranks tell each other in the same way what
    they are about to do: where that differs, every rank raises; where one does not come, the others raise in time;
    where all are there, the blocking operation follows. A rank lost in the middle of that one ends the process with
    status 3, some seconds after the limit. Collectives that were started are carried out like this by a thread, on a
    communicator of MPI of their own.

    A process that ends while an operation which was out of time is still open ends the whole job, also with status 3:
    MPI could otherwise wait forever for its other end.

    Args:
        comm: The communicator of mpi4py, of which copies are made; every rank of it calls this.

    Raises:
        MissingDependency: mpi4py, or the library of MPI, is not installed.
    """

    def __init__(self, comm: Any) -> None:
        self._mpi = _library()
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._now, self._later = _Channel(comm.Dup(), self._mpi), _Channel(comm.Dup(), self._mpi)
        self._threads = self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE
        self._queue: queue.SimpleQueue[_Started | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    @classmethod
    def world(cls) -> MPICommunicator:
        """The communicator of all ranks of the job; without `mpiexec`, of one.

        Raises:
            MissingDependency: mpi4py, or the library of MPI, is not installed.
        """
        return cls(_library().COMM_WORLD)

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        if name in ("send", "receive"):
            self._letter(name, *given).wait(timeout_s)
        else:
            self._carry_out(self._now, name, given, timeout_s)

    def _call_start(self, name: str, *given: Any) -> Request:
        if name in ("send", "receive"):
            return self._letter(name, *given)
        if not self._threads:
            with self._told(name):
                method, arguments = self._prepared(name, given)
                return _Posted(self, name, _start(self._later.comm, method, arguments))
        started = _Started(name, given, self.rank)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="deep5-mpi", daemon=True)
            self._worker.start()
        _OPEN.append(started)
        self._queue.put(started)
        return started

    def _work(self) -> None:
        while (started := self._queue.get()) is not None:
            try:
                # The limit is that of the wait, which is another thread's.
                self._carry_out(self._later, started.name, started.given, None)
            except Exception as error:
                started.error = error
            _OPEN.remove(started)
            started.finished.set()

    def _letter(self, name: str, buffer: np.ndarray, other: int, tag: int) -> _Letter:
        with self._told(f"{name} between rank {self.rank} and {other}"):
            post = self._now.comm.Isend if name == "send" else self._now.comm.Irecv
            return _Letter(self, name, buffer.nbytes, other, post(self._bytes(buffer), other, tag))

    def _carry_out(self, channel: _Channel, name: str, given: tuple[Any, ...], timeout_s: float | None) -> None:
        # Here and not in `_Told`: what is small takes microseconds.
        try:
            method, arguments = self._prepared(name, given)
            part = None if name == "barrier" else given[1] if name == "scatter" else given[0]
            if part is None or part.nbytes <= SMALL_BYTES:
                _finish(_start(channel.comm, method, arguments), name, timeout_s)
                return
            begin = monotonic()
            rest = given[1:] if name in ("all_reduce", "reduce", "broadcast") else given[2:]
            channel.agree((name, part.dtype, part.size, *rest), timeout_s)
            if timeout_s is None:
                getattr(channel.comm, method)(*arguments)
            else:
                with _Watched(name, begin + timeout_s, timeout_s):
                    getattr(channel.comm, method)(*arguments)
        except self._mpi.Exception as error:
            raise self._told(name).error(error) from error

    def _prepared(self, name: str, given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """The method of mpi4py and its arguments; the non-blocking one takes the same."""
        mpi = self._mpi
        if name == "all_reduce":
            spec, op = self._reducible(*given)
            return "Allreduce", (mpi.IN_PLACE, spec, op)
        if name == "reduce":
            buffer, root, op = given
            spec, op = self._reducible(buffer, op)
            return "Reduce", ((mpi.IN_PLACE, spec) if root == self.rank else (spec, None)) + (op, root)
        if name == "reduce_scatter":
            buffer, out, op = given
            return "Reduce_scatter_block", (self._reducible(buffer, op)[0], *self._reducible(out, op))
        if name == "barrier":
            return "Barrier", ()
        if name == "broadcast":
            return "Bcast", (self._bytes(given[0]), given[1])
        first, second = (None if each is None else self._bytes(each) for each in given[:2])
        if name == "gather" and given[2] != self.rank:
            second = None
        if name == "scatter" and given[2] != self.rank:
            first = None
        return {"all_gather": "Allgather", "all_to_all": "Alltoall", "gather": "Gather", "scatter": "Scatter"}[name], (
            first,
            second,
            *given[2:],
        )

    def _reducible(self, buffer: np.ndarray, op: str) -> tuple[list[Any], Any]:
        datatype, operation = _operation(buffer.dtype, op)
        if buffer.dtype.char in _NATIVE and buffer.dtype.isnative:
            return [buffer, datatype], operation
        return [buffer.reshape(-1).view(np.uint8), datatype], operation

    def _bytes(self, buffer: np.ndarray) -> list[Any]:
        # Element types that are no part of NumPy have no buffer protocol: as bytes they all do.
        return [buffer.reshape(-1).view(np.uint8), self._mpi.BYTE]

    def _told(self, what: str) -> _Told:
        return _Told(self._mpi.Exception, what, self.rank)

    def split(self, color: int, *, key: int | None = None) -> MPICommunicator:
        """The ranks of one color; see `Communicator.split`."""
        if not is_whole(color) or not 0 <= color < 2**31:
            raise UsageError(f"split: got color {brief(color)}; allowed: a whole number of at least 0")
        deadline = monotonic() + TIMEOUT_S
        with self._told("split"):
            self._now.agree(("split",), TIMEOUT_S)
            with _Watched("split", deadline, TIMEOUT_S):
                part = self._now.comm.Split(color, self.rank if key is None else key)
                split = MPICommunicator(part)
                part.Free()
        return split

    def close(self) -> None:
        """End the thread and free what MPI holds, unless an operation is still open; see `Communicator.close`."""
        if self._worker is not None:
            self._queue.put(None)
            self._worker.join(TIMEOUT_S)
            self._worker = None
        if not any(_OPEN):
            self._now.free()
            self._later.free()


class _Channel:
    """A communicator of MPI with the few bytes in which its ranks tell what they are about to do."""

    def __init__(self, comm: Any, mpi: Any) -> None:
        self.comm, self._mpi = comm, mpi
        self._renew()

    def _renew(self) -> None:
        self._hash = array("q", [0, 0, 0])
        self._spec = [self._hash, self._mpi.INT64_T]

    def agree(self, call: tuple[Any, ...], timeout_s: float | None) -> None:
        """Return when all ranks are here with the same: their numbers h are equal where n sum h^2 is (sum h)^2.

        Raises:
            CommunicationError: They are not within the limit, or one does something else.
        """
        said, number = _said(call)
        own, size = self._hash, self.comm.size
        # The third tells that it was this operation of all the others that the numbers came from.
        own[0], own[1], own[2] = number, number * number, 1
        try:
            _finish(self.comm.Iallreduce(self._mpi.IN_PLACE, self._spec, self._mpi.SUM), call[0], timeout_s)
        except CommunicationError:
            # What is out of time still writes there.
            self._renew()
            raise
        if own[0] != size * number or own[1] != size * number * number or own[2] != size:
            told = np.zeros((size, _TOLD_BYTES), np.uint8)
            mine = np.frombuffer(said.encode()[:_TOLD_BYTES].ljust(_TOLD_BYTES), np.uint8)
            _finish(self.comm.Iallgather(mine, told), call[0], timeout_s)
            texts = [bytes(row).decode(errors="replace").strip() for row in told]
            rank = next((rank for rank, text in enumerate(texts) if text != texts[0]), 0)
            raise CommunicationError(f"rank 0 calls {texts[0]} and rank {rank} {texts[rank]}; allowed: the same")

    def free(self) -> None:
        if self.comm:
            self.comm.Free()


class _Told:
    """Turns errors of MPI into `CommunicationError`."""

    __slots__ = ("_error", "_rank", "_what")

    def __init__(self, error: type[Exception], what: str, rank: int) -> None:
        self._error, self._what, self._rank = error, what, rank

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, self._error):
            raise self.error(error) from error

    def error(self, error: Exception) -> CommunicationError:
        return CommunicationError(f"{self._what} failed on rank {self._rank}: {error}; {_SAME}")


class _Posted:
    """A request of MPI."""

    def __init__(self, communicator: MPICommunicator, name: str, request: Any) -> None:
        self._communicator, self._name, self._request, self._over = communicator, name, request, False

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        if not self._over:
            with self._communicator._told(self._name):
                _finish(self._request, self._name, timeout_s)
            self._over = True

    def done(self) -> bool:
        with self._communicator._told(self._name):
            self._over = self._over or self._request.Test()
        return self._over


class _Letter:
    """A message under way."""

    def __init__(self, communicator: MPICommunicator, name: str, size_bytes: int, other: int, request: Any) -> None:
        self._communicator, self._size_bytes, self._request = communicator, size_bytes, request
        self._receives, self._over = name == "receive", False
        self._what = f"{name} {'from' if self._receives else 'to'} rank {other}"
        self._status = communicator._mpi.Status()

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        if self._over:
            return
        try:
            with self._communicator._told(self._what):
                _finish(self._request, self._what, timeout_s, self._status, keep=not self._receives)
        except CommunicationError:
            if self._receives and self._request:
                # The buffer is the caller's again.
                self._request.Cancel()
                self._request.Wait()
            self._over = True
            raise
        self._arrive()

    def done(self) -> bool:
        if not self._over:
            with self._communicator._told(self._what):
                finished = self._request.Test(self._status)
            if finished:
                self._arrive()
        return self._over

    def _arrive(self) -> None:
        self._over = True
        if self._receives and (got := self._status.Get_count(self._communicator._mpi.BYTE)) != self._size_bytes:
            raise CommunicationError(
                f"{self._what}: a message of {got} bytes; allowed: {self._size_bytes}, the size of the buffer"
            )


class _Started:
    """A collective in the queue of the thread."""

    def __init__(self, name: str, given: tuple[Any, ...], rank: int) -> None:
        self.name, self.given, self._rank = name, given, rank
        self.finished = threading.Event()
        self.error: Exception | None = None

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        if not self.finished.wait(timeout_s):
            raise CommunicationError(_late(self.name, timeout_s))
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return self.finished.is_set()

    def Test(self) -> bool:  # noqa: N802 - as a request of MPI, for who asks both
        return self.finished.is_set()


_STARTING = {
    method: "I" + method.lower()
    for method in (
        *("Allreduce", "Reduce", "Reduce_scatter_block", "Barrier", "Bcast"),
        *("Allgather", "Alltoall", "Gather", "Scatter"),
    )
}
# What is under way in the thread, or out of time and still under way in MPI.
_OPEN: list[Any] = []
# What blocks, by thread: until when, how it is called, and its limit in seconds.
_BLOCKED: dict[int, tuple[float, str, float]] = {}


@functools.cache
def _library() -> Any:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise missing_dependency("MPICommunicator", error) from error
    except (ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"MPICommunicator needs a library of MPI, which mpi4py does not find ({error}); remedy: "
            f"{install_command('mpi4py')}"
        ) from error
    # Before mpi4py's own end, which calls MPI_Finalize.
    atexit.register(_leave, MPI)
    return MPI


def _leave(mpi: Any) -> None:
    """End the job where an operation is still open after a second; MPI_Finalize might wait for it forever."""
    deadline = monotonic() + 1.0
    while left := [each for each in _OPEN if not each.Test()]:
        if monotonic() > deadline:
            _print(f"rank {mpi.COMM_WORLD.Get_rank()} ends with {len(left)} operations of MPI open: the job is ended")
            mpi.COMM_WORLD.Abort(3)
        sleep(0.01)


@functools.cache
def _operation(dtype: np.dtype, op: str) -> tuple[Any, Any]:
    """The types of MPI for elements and for their reduction; where it has none, NumPy reduces."""
    mpi, combine = _library(), _COMBINE[op]
    if dtype.char in _NATIVE and dtype.isnative:
        return mpi.Datatype.fromcode(dtype.char), getattr(mpi, op.upper())
    try:
        combine(np.zeros(1, dtype), np.zeros(1, dtype), out=np.zeros(1, dtype))
    except TypeError as error:
        raise UsageError(f"got a buffer of {dtype}, which has no {op} in NumPy; allowed: numbers") from error

    def reduce(source: Any, target: Any, _: Any) -> None:
        result = np.frombuffer(target, dtype)
        combine(np.frombuffer(source, dtype), result, out=result)

    return mpi.BYTE.Create_contiguous(dtype.itemsize).Commit(), mpi.Op.Create(reduce, commute=True)


@functools.lru_cache(maxsize=4096)
def _said(call: tuple[Any, ...]) -> tuple[str, int]:
    if len(call) == 1:
        text = call[0]
    else:
        name, dtype, size, *rest = call
        text = " ".join(map(str, (name, f"{dtype}[{size}]", *rest)))
    # 24 bits: the sum of the squares of those of 32768 ranks is one of 63.
    return text, zlib.crc32(text.encode()) & 0xFFFFFF


def _start(comm: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(comm, _STARTING[method])(*arguments)


def _finish(request: Any, what: str, timeout_s: float | None, status: Any = None, keep: bool = True) -> None:
    """Ask after a request until it is done: at first without a pause, later with one of a hundredth of the wait."""
    test = request.Test
    for _ in range(200):
        if test(status):
            return
    begin = monotonic()
    while not test(status):
        waited_s = monotonic() - begin
        if timeout_s is not None and waited_s > timeout_s:
            if keep:
                _OPEN.append(request)
            raise CommunicationError(_late(what, timeout_s))
        if waited_s < 0.02:
            # Ranks may be more than processors.
            os.sched_yield()
        else:
            sleep(min(waited_s / 100, 0.001))


def _late(what: str, timeout_s: float) -> str:
    return f"{what} was not finished within {timeout_s:g} s; {_SAME}"


class _Watched:
    """Has the thread that watches know of an operation that blocks."""

    __slots__ = ("_entry",)

    def __init__(self, name: str, deadline: float, timeout_s: float) -> None:
        self._entry = (deadline, name, timeout_s)

    def __enter__(self) -> None:
        _watch()
        _BLOCKED[threading.get_ident()] = self._entry

    def __exit__(self, *_: object) -> None:
        del _BLOCKED[threading.get_ident()]


@functools.cache
def _watch() -> threading.Thread:
    """The thread that ends the process where a blocking operation does not return."""
    thread = threading.Thread(target=_look, name="deep5-mpi-watch", daemon=True)
    thread.start()
    return thread


def _look() -> None:
    while True:
        sleep(min(1.0, GRACE_S))
        for deadline, name, timeout_s in list(_BLOCKED.values()):
            if monotonic() > deadline + GRACE_S:
                _print(
                    f"{name}, which every rank had begun, was not finished within {timeout_s:g} s: another rank is "
                    "lost; MPI cannot be interrupted, so that this process ends"
                )
                os._exit(3)


def _print(line: str) -> None:
    # Not print: another thread may hold its lock.
    os.write(sys.stderr.fileno() if sys.stderr is not None else 2, f"deep5: {line}\n".encode())
