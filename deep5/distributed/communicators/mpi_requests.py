"""Requests of started MPI operations: posted, messages in flight, queued for the thread; and their errors."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import CommunicationError, OperationTimeout
from deep5.distributed.communicators.mpi_waiting import SAME, finish, late

__all__ = ["Errors", "Letter", "Posted", "Started"]


# Time limit for the cancellation of a receive.
_CANCEL_S = 1.0


class Errors:
    """Context manager that converts MPI errors to `CommunicationError`.

    Args:
        mpi: The module `MPI` of mpi4py.
        what: The operation.
        rank: The rank that executes it.
    """

    __slots__ = ("_mpi", "_rank", "_what")

    def __init__(self, mpi: Any, what: str, rank: int) -> None:
        self._mpi, self._what, self._rank = mpi, what, rank

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, self._mpi.Exception):
            raise self.error(error) from error

    def error(self, error: Any) -> CommunicationError:
        """The exception raised for an MPI error."""
        why = str(error)
        if error.Get_error_class() == self._mpi.ERR_TRUNCATE:
            why = f"another rank's buffer has more bytes than this one's ({why})"
        return CommunicationError(f"{self._what} failed on rank {self._rank}: {why}; {SAME}")


class Posted:
    """An MPI request."""

    def __init__(self, errors: Errors, name: str, request: Any) -> None:
        self._errors, self._name, self._request, self._over = errors, name, request, False

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when it has completed; see `Request.wait`."""
        if not self._over:
            with self._errors:
                finish(self._request, self._name, timeout_s)
            self._over = True

    def done(self) -> bool:
        """Whether it has completed."""
        with self._errors:
            self._over = self._over or self._request.Test()
        return self._over


class Letter:
    """A message in flight."""

    def __init__(self, mpi: Any, rank: int, name: str, size_bytes: int, other: int, request: Any) -> None:
        self._mpi, self._size_bytes, self._request = mpi, size_bytes, request
        self._receives, self._over = name == "receive", False
        self._what = f"{name} {'from' if self._receives else 'to'} rank {other}"
        self._errors, self._status = Errors(mpi, self._what, rank), mpi.Status()

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when it has completed; see `Request.wait`."""
        if self._over:
            return
        try:
            with self._errors:
                finish(self._request, self._what, timeout_s, self._status, keep=not self._receives)
        except CommunicationError:
            if self._receives and self._request:
                # The caller owns the buffer again.
                self._request.Cancel()
                # A message that the sender has begun cannot be canceled before the sender continues; until then MPI
                # owns its memory.
                with suppress(CommunicationError):
                    finish(self._request, self._what, _CANCEL_S)
            self._over = True
            raise
        self._arrive()

    def done(self) -> bool:
        """Whether it has completed."""
        if not self._over:
            with self._errors:
                finished = self._request.Test(self._status)
            if finished:
                self._arrive()
        return self._over

    def _arrive(self) -> None:
        self._over = True
        if self._receives and (got := self._status.Get_count(self._mpi.BYTE)) != self._size_bytes:
            raise CommunicationError(
                f"{self._what}: a message of {got} bytes; allowed: {self._size_bytes}, the size of the buffer"
            )


class Started:
    """A collective in the thread's queue."""

    def __init__(self, name: str, given: tuple[Any, ...], rank: int) -> None:
        self.name, self.given, self._rank = name, given, rank
        self.finished = threading.Event()
        self.finished_ns: int | None = None
        self.error: Exception | None = None

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when it has completed; see `Request.wait`."""
        if not self.finished.wait(timeout_s):
            raise OperationTimeout(late(self.name, timeout_s))
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        """Whether it has completed."""
        return self.finished.is_set()

    def Test(self) -> bool:  # noqa: N802 - as a request of MPI, for who asks both
        """Whether it has completed."""
        return self.finished.is_set()
