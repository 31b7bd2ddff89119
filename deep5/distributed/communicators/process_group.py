"""`ProcessGroupCommunicator`: ranks that meet at an address, over the torch.distributed back-ends."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import weakref
import zlib
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter_ns
from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S, Reduction, Request
from deep5.core.errors import CommunicationError, MissingDependency, OperationTimeout, Unsupported, UsageError, brief
from deep5.distributed.communicators.base_communicator import CountedCommunicator
from deep5.distributed.communicators.process_collectives import (
    STARTED_S,
    Collectives,
    Staged,
    all_reduce_options,
    is_tensor,
    libraries,
    limit,
    raw,
)

__all__ = ["ProcessGroupCommunicator"]

REMEMBERED = 256
"""Number of reductions whose torch options a rank caches."""

_CALL_BYTES = 96
# How long the end of the process waits for gloo's threads.
_LEAVE_S = 20.0
_SAME = "remedy: every rank has to call the same collectives in the same order, on buffers of the same size"


class ProcessGroupCommunicator(CountedCommunicator):
    """A rank of a process group of torch.distributed; implements `Communicator`.

    Buffers are passed to gloo directly. For NCCL they are copied to this process's current GPU and back. Element types
    that the back-ends do not reduce (bool, int16, complex, and unsigned types of more than a byte) are gathered and
    combined by NumPy in rank order.

    gloo ends a process that receives more bytes in a collective than its buffer has, and does not check the other
    ranks' calls: with `checked`, all ranks agree on their call before each blocking collective, which takes some extra
    time. After an operation has timed out, the group is unusable.

    Args:
        store: Where the ranks meet, a `torch.distributed.Store`.
        rank: This process.
        size: Number of ranks.
        backend: gloo or nccl.
        checked: Whether mismatched collectives raise `CommunicationError`.
        timeout_s: Time limit for the ranks to meet.

    Raises:
        CommunicationError: The ranks do not meet in time.
        MissingDependency: PyTorch is not installed, or was built without the back-end.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        backend: str = "gloo",
        checked: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if backend not in ("gloo", "nccl"):
            raise UsageError(f"unknown back-end {backend!r} of torch.distributed; allowed: gloo, nccl")
        torch, self._c10d = libraries()
        super().__init__(rank, size)
        self._from_numpy = torch.from_numpy
        # torch's options of earlier reductions, by dtype, reduction and time limit.
        self._usual: dict[tuple[np.dtype, str, float], Any] = {}
        self._backend, self._checked, self._splits = backend, checked, 0
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
        # NCCL reports completion once an operation is enqueued on the device.
        self.tells_ends = self._device is None
        self._collectives = Collectives(rank, size, self._device)
        try:
            # The same on all ranks, which create their communicators in the same order.
            number = store.add(f"deep5/{rank}/made", 1)
            self._store = self._c10d.PrefixStore(f"deep5/{number}", store)
            # Two threads, torch's default: with one, a megabyte takes up to a third longer. Started operations need
            # exactly one, to execute in order.
            self._now = _group(backend, self._c10d.PrefixStore("now", self._store), rank, size, 2, timeout_s)
            self._later = _group(backend, self._c10d.PrefixStore("later", self._store), rank, size, 1, timeout_s)
            if self._device is None:
                _closed_at_exit().add(self)
                # gloo ends a process that accepts a connection whose other end is already closed (pytorch/gloo, issue
                # 514): no rank continues, or may exit, before all have accepted theirs.
                for group in (self._now, self._later):
                    group.barrier().wait()
        except RuntimeError as error:
            raise CommunicationError(
                f"rank {rank} of {size} did not meet the others within {timeout_s:g} s: {_first(error)}"
            ) from error

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        *,
        address: str = "127.0.0.1",
        port: int,
        backend: str = "gloo",
        checked: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> ProcessGroupCommunicator:
        """Meet at an address, where rank 0 listens.

        Args:
            rank: This process.
            size: Number of ranks.
            address: Address of rank 0's machine.
            port: A free port there.
            backend: gloo or nccl.
            checked: Whether mismatched collectives raise `CommunicationError`.
            timeout_s: Time limit for the ranks to meet.

        Raises:
            CommunicationError: The ranks do not meet in time.
            MissingDependency: PyTorch is not installed.
        """
        c10d = libraries()[1]
        try:
            store = c10d.TCPStore(address, port, size, rank == 0, timedelta(seconds=timeout_s), False)
        except RuntimeError as error:
            raise CommunicationError(f"rank {rank} found no store at {address}:{port}: {_first(error)}") from error
        return cls(store, rank, size, backend=backend, checked=checked, timeout_s=timeout_s)

    @classmethod
    def of_group(
        cls, group: Any = None, *, backend: str = "gloo", checked: bool = False, timeout_s: float = TIMEOUT_S
    ) -> ProcessGroupCommunicator:
        """The ranks of a process group that torch.distributed made, over separate connections.

        Args:
            group: Result of `torch.distributed.new_group`; None: the group of all processes.
            backend: gloo or nccl.
            checked: Whether mismatched collectives raise `CommunicationError`.
            timeout_s: Time limit for the ranks to meet.

        Raises:
            UsageError: torch.distributed is not initialized.
        """
        libraries()
        from torch import distributed
        from torch.distributed import distributed_c10d

        if not distributed.is_initialized():
            raise UsageError(
                "torch.distributed is not initialized; remedy: torch.distributed.init_process_group, or "
                "ProcessGroupCommunicator.connect"
            )
        group = distributed.group.WORLD if group is None else group
        store = distributed_c10d._world.pg_map[group][1]
        return cls(store, group.rank(), group.size(), backend=backend, checked=checked, timeout_s=timeout_s)

    def all_reduce(self, buffer: np.ndarray, *, op: Reduction = "sum", timeout_s: float = TIMEOUT_S) -> None:
        """Combine the buffers of all ranks in place; see `Communicator.all_reduce`."""
        options = self._usual.get((buffer.dtype, op, timeout_s)) if type(buffer) is np.ndarray else None
        if options is None or not buffer.flags.carray or not buffer.nbytes:
            super().all_reduce(buffer, op=op, timeout_s=timeout_s)
            if self._device is None and not self._checked and is_tensor(buffer.dtype):
                if len(self._usual) >= REMEMBERED:
                    self._usual.clear()
                self._usual[buffer.dtype, op, timeout_s] = all_reduce_options(op, timeout_s)
            return
        # `_block` inlined: between two gloo operations the processor's cache is cold.
        begin = perf_counter_ns()
        if self._under_way:
            self._come_in(begin)
        if self.size > 1:
            self.sent_bytes += buffer.nbytes
            self.messages += 1
        try:
            self._now.allreduce([self._from_numpy(buffer)], options).wait()
        except RuntimeError as error:
            raise self._reported(error, "all_reduce", timeout_s) from error
        self._left_ns = end = perf_counter_ns()
        self.waited_ns += end - begin

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        if name in ("send", "receive"):
            self._letter(name, *given).wait(timeout_s)
            return
        if self._checked:
            self._agree(name, given, timeout_s)
        try:
            work, after = self._collectives.post(self._now, name, given, timeout_s)
            work.wait()
        except RuntimeError as error:
            raise self._reported(error, name, timeout_s) from error
        if after is not None:
            after()

    def _call_start(self, name: str, *given: Any) -> Request:
        if name in ("send", "receive"):
            return self._letter(name, *given)
        try:
            started = _Started(self, name, *self._collectives.post(self._later, name, given, STARTED_S))
            if self.counts_hidden:
                # Only when needed: the callback delays the end of a small collective.
                started.listen()
            return started
        except RuntimeError as error:
            raise self._reported(error, name, STARTED_S) from error

    def _letter(self, name: str, buffer: np.ndarray, other: int, tag: int) -> _Letter:
        staged = Staged(self._device)
        tensor = staged.give(raw(buffer)) if name == "send" else staged.take(raw(buffer))
        if self._device is not None and tag != 0:
            raise Unsupported(f"got tag {tag}; allowed: 0, since NCCL has no tags")
        # gloo ends a process that receives a longer message than its buffer. With the size in the tag, messages of
        # different sizes do not match.
        what = f"{name} of {buffer.nbytes} bytes {'to' if name == 'send' else 'from'} rank {other}"
        wire = tag << 16 | zlib.crc32(buffer.nbytes.to_bytes(8, "little")) & 0xFFFF
        try:
            work = (self._now.send if name == "send" else self._now.recv)([tensor], other, wire)
        except RuntimeError as error:
            raise self._reported(error, what, TIMEOUT_S) from error
        return _Letter(self, what, work, staged)

    def _agree(self, name: str, given: tuple[Any, ...], timeout_s: float) -> None:
        part = None if name == "barrier" else given[1] if name == "scatter" else given[0]
        rest = [each for each in given if not isinstance(each, np.ndarray) and each is not None]
        said = " ".join(map(str, (name, "" if part is None else f"{part.dtype}[{part.size}]", *rest)))
        mine = np.frombuffer(said.encode()[:_CALL_BYTES].ljust(_CALL_BYTES), np.uint8)
        calls = np.empty((self.size, _CALL_BYTES), np.uint8)
        try:
            self._collectives.post(self._now, "all_gather", (mine, calls), timeout_s)[0].wait()
        except RuntimeError as error:
            raise self._reported(error, name, timeout_s) from error
        texts = [bytes(row).decode(errors="replace").strip() for row in calls]
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise CommunicationError(f"rank 0 calls {texts[0]} and rank {rank} {text}; allowed: the same")

    def _reported(self, error: Exception, what: str, timeout_s: float) -> CommunicationError:
        text = _first(error)
        if "imed out" in text or "imeout" in text:
            # Its threads are still running, and the end of the process would wait for them.
            _keep(self._now)
            _keep(self._later)
            return OperationTimeout(f"{what} was not finished on rank {self.rank} within {timeout_s:g} s; {_SAME}")
        return CommunicationError(f"{what} failed on rank {self.rank}: {text}")

    def split(self, color: int, *, key: int | None = None) -> ProcessGroupCommunicator:
        """The ranks of one color; see `Communicator.split`."""
        if not is_whole(color) or color < 0:
            raise UsageError(f"split: got color {brief(color)}; allowed: an integer of at least 0")
        every = np.empty((self.size, 2), np.int64)
        self._call("all_gather", TIMEOUT_S, np.array([color, self.rank if key is None else key]), every)
        self._splits += 1
        order = sorted((int(place), rank) for rank, (other, place) in enumerate(every) if other == color)
        store = self._c10d.PrefixStore(f"split/{self._splits}/{color}", self._store)
        rank = [rank for _, rank in order].index(self.rank)
        return ProcessGroupCommunicator(store, rank, len(order), backend=self._backend, checked=self._checked)

    def close(self) -> None:
        """Close the connections; see `Communicator.close`."""
        self._now = self._later = self._store = None


class _Started:
    """A collective that torch executes in a thread."""

    def __init__(
        self, communicator: ProcessGroupCommunicator, name: str, work: Any, after: Callable[[], None] | None
    ) -> None:
        self._communicator, self._name, self._work, self._after = communicator, name, work, after
        self._over = False
        self.finished_ns: int | None = None

    def listen(self) -> None:
        """Register a callback in torch's thread that records the end, successful or not."""
        self._work.get_future().add_done_callback(self._end)

    def _end(self, _: Any) -> None:
        self.finished_ns = perf_counter_ns()

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        if not self._over:
            try:
                self._work.wait(limit(timeout_s))
            except RuntimeError as error:
                raise self._communicator._reported(error, self._name, timeout_s) from error
            self._over = True
            if self._after is not None:
                self._after()

    def done(self) -> bool:
        if not self._over and self._work.is_completed():
            self.wait()
        return self._over


class _Letter:
    """A message in flight. gloo makes progress on it only during a wait, so polling uses a waiting thread."""

    def __init__(self, communicator: ProcessGroupCommunicator, what: str, work: Any, staged: Staged) -> None:
        self._communicator, self._what, self._work, self._staged = communicator, what, work, staged
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._over = False

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        if self._over:
            return
        if self._thread is None:
            try:
                self._work.wait(limit(timeout_s))
            except RuntimeError as error:
                raise self._communicator._reported(error, self._what, timeout_s) from error
        else:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise self._communicator._reported(TimeoutError("timed out"), self._what, timeout_s)
            if self._error is not None:
                raise self._communicator._reported(self._error, self._what, timeout_s) from self._error
        self._over = True
        self._staged.fetch()

    def done(self) -> bool:
        if not self._over:
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="deep5-letter", daemon=True)
                self._thread.start()
            elif not self._thread.is_alive():
                self.wait()
        return self._over

    def _look(self) -> None:
        try:
            self._work.wait(limit(STARTED_S))
        except RuntimeError as error:
            self._error = error


@functools.cache
def _closed_at_exit() -> weakref.WeakSet[ProcessGroupCommunicator]:
    """The communicators that the end of the process closes, to join gloo's threads while Python still runs.

    A thread of gloo that releases an operation's tensors later than that aborts the process (pytorch/pytorch, pull
    request 179291).
    """
    communicators: weakref.WeakSet[ProcessGroupCommunicator] = weakref.WeakSet()
    ending = threading.Event()

    def close() -> None:
        ending.wait()
        for communicator in list(communicators):
            communicator.close()

    # A thread, as an operation that another rank never joins would keep the process forever; started now, as Python
    # 3.12 starts none while it ends.
    closing = threading.Thread(target=close, name="deep5-close", daemon=True)
    closing.start()

    def leave() -> None:
        ending.set()
        closing.join(_LEAVE_S)

    atexit.register(leave)
    return communicators


def _group(backend: str, store: Any, rank: int, size: int, threads: int, timeout_s: float) -> Any:
    c10d = libraries()[1]
    if backend == "nccl":
        if not hasattr(c10d, "ProcessGroupNCCL"):
            raise MissingDependency("this build of PyTorch has no NCCL; remedy: a build for NVIDIA GPUs")
        return c10d.ProcessGroupNCCL(store, rank, size, timedelta(seconds=timeout_s))
    gloo = c10d.ProcessGroupGloo
    options = gloo._Options()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    options._devices = [gloo.create_device(interface=interface) if interface else gloo.create_default_device()]
    options._threads, options._timeout = threads, timedelta(seconds=timeout_s)
    return gloo(store, rank, size, options)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].partition(" This is typically")[0]


def _keep(group: Any) -> None:
    """Never destroy the group: that would wait for its threads."""
    if group is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
