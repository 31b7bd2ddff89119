"""MPI ranks exchange the call they are about to make, in a few bytes, before a large operation."""

from __future__ import annotations

import zlib
from array import array
from typing import Any

import numpy as np

from deep5.core.errors import CommunicationError
from deep5.distributed.communicators.mpi_waiting import Watched, finish

__all__ = ["REMEMBERED", "Channel"]

_CALL_BYTES = 96
REMEMBERED = 4096
"""Number of calls remembered; at the limit all are forgotten, on every rank after the same call."""


class Channel(Watched):
    """An MPI communicator, with a small exchange in which its ranks agree on their next call.

    Args:
        comm: An mpi4py communicator.
        mpi: The module `MPI` of mpi4py.

    Calls with a buffer are exchanged once per dtype and size.

    Attributes:
        comm: As given.
    """

    def __init__(self, comm: Any, mpi: Any) -> None:
        super().__init__()
        self.comm, self._mpi = comm, mpi
        # The same on all ranks, because each has taken part in every agreement.
        self._agreed: set[tuple[Any, ...]] = set()
        self._renew()

    def _renew(self) -> None:
        self._hash = array("q", [0, 0, 0])
        self._spec = [self._hash, self._mpi.INT64_T]

    def agree(self, call: tuple[Any, ...], timeout_s: float | None) -> None:
        """Return when all ranks have arrived with the same call, at once for a remembered one.

        Their numbers h are equal if n sum h^2 = (sum h)^2.

        Args:
            call: Name of the operation, the dtype and size of its buffer (except for some operations), and its other
                arguments.
            timeout_s: Time limit; None: unlimited.

        Raises:
            CommunicationError: The ranks do not arrive within the limit, or one calls a different operation.
        """
        if call in self._agreed:
            return
        said, number = _said(call)
        own, size = self._hash, self.comm.size
        # The third number confirms that the numbers came from this operation on all other ranks.
        own[0], own[1], own[2] = number, number * number, 1
        try:
            finish(self.comm.Iallreduce(self._mpi.IN_PLACE, self._spec, self._mpi.SUM), call[0], timeout_s)
        except CommunicationError:
            # A timed-out operation still writes to this buffer.
            self._renew()
            raise
        if own[0] != size * number or own[1] != size * number * number or own[2] != size:
            calls = np.zeros((size, _CALL_BYTES), np.uint8)
            mine = np.frombuffer(said.encode()[:_CALL_BYTES].ljust(_CALL_BYTES), np.uint8)
            finish(self.comm.Iallgather(mine, calls), call[0], timeout_s)
            texts = [bytes(row).decode(errors="replace").strip() for row in calls]
            rank = next((rank for rank, text in enumerate(texts) if text != texts[0]), 0)
            raise CommunicationError(f"rank 0 calls {texts[0]} and rank {rank} {texts[rank]}; allowed: the same")
        if len(call) > 1:
            if len(self._agreed) >= REMEMBERED:
                self._agreed.clear()
            self._agreed.add(call)

    def free(self) -> None:
        """Return the communicator to MPI; every rank calls it."""
        if self.comm:
            self.comm.Free()


def _said(call: tuple[Any, ...]) -> tuple[str, int]:
    if len(call) == 1:
        text = call[0]
    else:
        name, dtype, size, *rest = call
        text = " ".join(map(str, (name, f"{dtype}[{size}]", *rest)))
    # 24 bits: the sum of squares over 32768 ranks then fits 63 bits.
    return text, zlib.crc32(text.encode()) & 0xFFFFFF
