"""`MPICommunicator`: ranks started by MPI, over mpi4py, on buffers."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import queue
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S, Reduction, Request
from deep5.core.errors import MissingDependency, UsageError, brief
from deep5.core.plugins import install_command, missing_dependency
from deep5.distributed.communicators.base_communicator import CountedCommunicator
from deep5.distributed.communicators.mpi_agreement import REMEMBERED, Channel
from deep5.distributed.communicators.mpi_requests import Errors, Letter, Posted, Started
from deep5.distributed.communicators.mpi_waiting import OPEN, finish, leave

__all__ = ["MEET_S", "MPICommunicator"]

MEET_S = 120.0
"""Time limit for all MPI ranks to meet: all load Python and the frameworks from the same disk."""

# Up to this size a non-blocking operation is faster than an agreement plus the blocking operation.
SMALL_BYTES = 4096
# A module-level name: its lookup is faster than `np.ndarray`.
_ARRAY = np.ndarray
_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
# Dtypes reduced by MPI's own operations: its float16 sums are not reliable, and its bool sums differ from NumPy's.
_NATIVE = {"b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "f", "d"}


class MPICommunicator(CountedCommunicator):
    """A rank of a job that `mpiexec` started; implements `Communicator`.

    MPI cannot interrupt an operation. Small operations are therefore started and polled until their time limit. A large
    operation blocks, because the non-blocking form takes twice the time. Before the first one of each kind, dtype and
    size, all ranks exchange, by a small operation, the call they are about to make. If the calls differ, every rank
    raises; if a rank does not arrive, the others raise in time; otherwise the blocking operation follows. Later calls
    of the same kind start at once: the exchange takes more than 2 % of the time of a megabyte. A rank lost during a
    blocking operation, or late for it, ends the process with status 3, some seconds after the limit. A thread executes
    started collectives in the same way, on a separate MPI communicator.

    A process that exits while a timed-out operation is still open ends the whole job, also with status 3: otherwise MPI
    could wait forever for the other end.

    Args:
        comm: An mpi4py communicator, which is duplicated; every rank of it calls this.

    Raises:
        MissingDependency: mpi4py or the MPI library is not installed.
    """

    def __init__(self, comm: Any) -> None:
        self._mpi = _library()
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._now, self._later = Channel(comm.Dup(), self._mpi), Channel(comm.Dup(), self._mpi)
        # MPI does not report when an operation that it progresses itself ended, unless it is polled at that time.
        self._threads = self.tells_ends = self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE
        self._queue: queue.SimpleQueue[Started | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        # By dtype, size and reduction, cached calls that all ranks made before: size, whether it blocks, the call,
        # types.
        self._usual: dict[tuple[np.dtype, int, str], tuple[int, bool, Any, Any, Any, Any]] = {}

    @classmethod
    def world(cls, *, timeout_s: float = MEET_S) -> MPICommunicator:
        """The communicator of all ranks of the job; without `mpiexec`, of one rank.

        Args:
            timeout_s: Time limit for all ranks to meet. MPI cannot be interrupted while it initializes and blocks all
                other Python threads: after the limit this process prints its stack and exits with status 1.

        Raises:
            MissingDependency: mpi4py or the MPI library is not installed.
        """
        return _meet_all_other_ranks_or_end(cls, timeout_s)

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks in place; see `Communicator.all_reduce`."""
        usual = self._usual.get((buffer.dtype, buffer.nbytes, op)) if type(buffer) is _ARRAY else None
        if usual is None or not buffer.flags.carray:
            super().all_reduce(buffer, op=op, timeout_s=timeout_s)
            if self.size > 1 and buffer.nbytes and buffer.dtype.char in _NATIVE and buffer.dtype.isnative:
                self._remember(buffer, op)
            return
        # `_block` inlined: with few bytes each call counts, and after a megabyte the processor's cache is cold, so that
        # each object not accessed saves about a tenth of a microsecond.
        size_bytes, blocks, run, in_place, datatype, operation = usual
        begin, channel = perf_counter_ns(), self._now
        if self._under_way:
            self._come_in(begin)
        self.sent_bytes += size_bytes
        self.messages += 1
        try:
            if blocks:
                channel.blocked = begin, timeout_s, "all_reduce"
                run(in_place, [buffer, datatype], operation)
            else:
                request = run(in_place, [buffer, datatype], operation)
                if not request.Test():
                    finish(request, "all_reduce", timeout_s)
        except self._mpi.Exception as error:
            raise self._errors("all_reduce").error(error) from error
        finally:
            channel.blocked = None
        self._left_ns = end = perf_counter_ns()
        self.waited_ns += end - begin

    def _remember(self, buffer: np.ndarray, op: str) -> None:
        if len(self._usual) >= REMEMBERED:
            self._usual.clear()
        comm, blocks = self._now.comm, buffer.nbytes > SMALL_BYTES
        run = comm.Allreduce if blocks else comm.Iallreduce
        spec = buffer.nbytes, blocks, run, self._mpi.IN_PLACE, *_operation(buffer.dtype, op)
        self._usual[buffer.dtype, buffer.nbytes, op] = spec

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        if name in ("send", "receive"):
            self._letter(name, *given).wait(timeout_s)
        else:
            self._carry_out(self._now, name, given, timeout_s)

    def _call_start(self, name: str, *given: Any) -> Request:
        if name in ("send", "receive"):
            return self._letter(name, *given)
        if not self._threads:
            with self._errors(name):
                method, arguments = self._prepared(name, given)
                return Posted(self._errors(name), name, _start(self._later.comm, method, arguments))
        started = Started(name, given, self.rank)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="deep5-mpi", daemon=True)
            self._worker.start()
        OPEN.append(started)
        self._queue.put(started)
        return started

    def _work(self) -> None:
        while (started := self._queue.get()) is not None:
            try:
                # The wait, in another thread, enforces the limit.
                self._carry_out(self._later, started.name, started.given, None)
            except Exception as error:
                started.error = error
            started.finished_ns = perf_counter_ns()
            OPEN.remove(started)
            started.finished.set()

    def _letter(self, name: str, buffer: np.ndarray, other: int, tag: int) -> Letter:
        with self._errors(f"{name} between rank {self.rank} and {other}"):
            post = self._now.comm.Isend if name == "send" else self._now.comm.Irecv
            return Letter(self._mpi, self.rank, name, buffer.nbytes, other, post(self._bytes(buffer), other, tag))

    def _carry_out(self, channel: Channel, name: str, given: tuple[Any, ...], timeout_s: float | None) -> None:
        # Inlined instead of a context manager: small operations take microseconds.
        try:
            method, arguments = self._prepared(name, given)
            part = None if name == "barrier" else given[1] if name == "scatter" else given[0]
            if part is None or part.nbytes <= SMALL_BYTES:
                finish(_start(channel.comm, method, arguments), name, timeout_s)
                return
            rest = given[1:] if name in ("all_reduce", "reduce", "broadcast") else given[2:]
            channel.agree((name, part.dtype, part.size, *rest), timeout_s)
            channel.blocked = None if timeout_s is None else (perf_counter_ns(), timeout_s, name)
            try:
                getattr(channel.comm, method)(*arguments)
            finally:
                channel.blocked = None
        except self._mpi.Exception as error:
            raise self._errors(name).error(error) from error

    def _prepared(self, name: str, given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """The mpi4py method and its arguments; the non-blocking method takes the same."""
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
        # Element types that are not NumPy's own lack the buffer protocol: all are passed as bytes.
        return [buffer.reshape(-1).view(np.uint8), self._mpi.BYTE]

    def _errors(self, what: str) -> Errors:
        return Errors(self._mpi, what, self.rank)

    def split(self, color: int, *, key: int | None = None) -> MPICommunicator:
        """The ranks of one color; see `Communicator.split`."""
        if not is_whole(color) or not 0 <= color < 2**31:
            raise UsageError(f"split: got color {brief(color)}; allowed: an integer of at least 0")
        with self._errors("split"):
            self._now.agree(("split",), TIMEOUT_S)
            self._now.blocked = perf_counter_ns(), TIMEOUT_S, "split"
            try:
                part = self._now.comm.Split(color, self.rank if key is None else key)
                split = MPICommunicator(part)
                part.Free()
            finally:
                self._now.blocked = None
        return split

    def close(self) -> None:
        """End the thread and free MPI's resources, unless an operation is still open; see `Communicator.close`."""
        if self._worker is not None:
            self._queue.put(None)
            self._worker.join(TIMEOUT_S)
            self._worker = None
        if not any(OPEN):
            self._now.free()
            self._later.free()


def _meet_all_other_ranks_or_end(kind: type[MPICommunicator], timeout_s: float) -> MPICommunicator:
    """The communicator of all ranks; the stack of a process that exits here shows this function's name."""
    with nullcontext(sys.__stderr__) if sys.__stderr__ else Path(os.devnull).open("w") as stream:
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=stream)
        try:
            return kind(_library().COMM_WORLD)
        finally:
            faulthandler.cancel_dump_traceback_later()


_STARTING = {
    method: "I" + method.lower()
    for method in (
        *("Allreduce", "Reduce", "Reduce_scatter_block", "Barrier", "Bcast"),
        *("Allgather", "Alltoall", "Gather", "Scatter"),
    )
}


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
    # Registered to run before mpi4py's exit handler, which calls MPI_Finalize.
    atexit.register(leave, MPI)
    return MPI


@functools.cache
def _operation(dtype: np.dtype, op: str) -> tuple[Any, Any]:
    """The MPI types for elements and their reduction; where MPI has none, NumPy reduces."""
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


def _start(comm: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(comm, _STARTING[method])(*arguments)
