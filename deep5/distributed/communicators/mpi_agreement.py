"""What ranks of MPI are about to do, told to each other in a few bytes before a large operation."""

from __future__ import annotations

import zlib
from array import array
from typing import Any

import numpy as np

from deep5.core.errors import CommunicationError
from deep5.distributed.communicators.mpi_waiting import Watched, finish

__all__ = ["REMEMBERED", "Channel"]

_TOLD_BYTES = 96
REMEMBERED = 4096
"""How many kinds of operation are remembered; then all are forgotten, on every rank behind the same call."""


class Channel(Watched):
    """A communicator of MPI with the few bytes in which its ranks tell what they are about to do.

    Args:
        comm: Of mpi4py.
        mpi: Its module `MPI`.

    What has a buffer is told once for each dtype and size.

    Attributes:
        comm: As given.
    """

    def __init__(self, comm: Any, mpi: Any) -> None:
        super().__init__()
        self.comm, self._mpi = comm, mpi
        # The same on all ranks, each of which has taken part in every agreement.
        self._agreed: set[tuple[Any, ...]] = set()
        self._renew()

    def _renew(self) -> None:
        self._hash = array("q", [0, 0, 0])
        self._spec = [self._hash, self._mpi.INT64_T]

    def agree(self, call: tuple[Any, ...], timeout_s: float | None) -> None:
        """Return when all ranks are here with the same, or at once where they have been before.

        Their numbers h are equal where n sum h^2 is (sum h)^2.

        Args:
            call: Name of the operation; but for some the dtype and the size of its buffer, and its other arguments.
            timeout_s: Limit; None: none.

        Raises:
            CommunicationError: They are not within the limit, or one does something else.
        """
        if call in self._agreed:
            return
        said, number = _said(call)
        own, size = self._hash, self.comm.size
        # The third tells that it was this operation of all the others that the numbers came from.
        own[0], own[1], own[2] = number, number * number, 1
        try:
            finish(self.comm.Iallreduce(self._mpi.IN_PLACE, self._spec, self._mpi.SUM), call[0], timeout_s)
        except CommunicationError:
            # What is out of time still writes there.
            self._renew()
            raise
        if own[0] != size * number or own[1] != size * number * number or own[2] != size:
            told = np.zeros((size, _TOLD_BYTES), np.uint8)
            mine = np.frombuffer(said.encode()[:_TOLD_BYTES].ljust(_TOLD_BYTES), np.uint8)
            finish(self.comm.Iallgather(mine, told), call[0], timeout_s)
            texts = [bytes(row).decode(errors="replace").strip() for row in told]
            rank = next((rank for rank, text in enumerate(texts) if text != texts[0]), 0)
            raise CommunicationError(f"rank 0 calls {texts[0]} and rank {rank} {texts[rank]}; allowed: the same")
        if len(call) > 1:
            if len(self._agreed) >= REMEMBERED:
                self._agreed.clear()
            self._agreed.add(call)

    def free(self) -> None:
        """Give the communicator back to MPI; every rank calls it."""
        if self.comm:
            self.comm.Free()


def _said(call: tuple[Any, ...]) -> tuple[str, int]:
    if len(call) == 1:
        text = call[0]
    else:
        name, dtype, size, *rest = call
        text = " ".join(map(str, (name, f"{dtype}[{size}]", *rest)))
    # 24 bits: the sum of the squares of those of 32768 ranks is one of 63.
    return text, zlib.crc32(text.encode()) & 0xFFFFFF
