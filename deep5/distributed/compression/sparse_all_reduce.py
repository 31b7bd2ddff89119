"""`SparseAllReduce`: sparse streams merged by recursive doubling, dense where that is smaller."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import CommunicationError
from deep5.distributed.compression.compression import Compression
from deep5.distributed.compression.sparse import (
    INDEX,
    add_stream,
    check_share,
    chosen,
    pack_stream,
    share_of,
    stream_bytes,
    unpack_stream,
)

__all__ = ["SparseAllReduce"]

# A tag that no other message between two ranks uses.
_TAG = 1973
_SIZE = np.dtype(np.int64)


class SparseAllReduce(Compression):
    """Merges streams of each rank's k elements of largest magnitude between pairs of ranks, in ⌈log₂ N⌉ rounds.

    The first 2^⌊log₂ N⌋ of N ranks take part; each other rank first sends its stream to one of them and receives the
    sum at the end. In round r = 0, 1, … the ranks p and p xor 2^r exchange their streams and add them in the same
    order, so that the result is bit-identical on all ranks. A merged stream that would take no fewer bytes than all
    elements becomes dense and stays dense, without loss.

    A rank's stream of n elements of w bytes has min(k · (4 + w), n · w) bytes, with k = max(1, round(ratio · n)), like
    the message of `TopKSparsification`; in round r it has at most 2^r times as many, and fewer if ranks chose the same
    elements.

    Each stream is preceded by its size, 8 bytes. Non-finite elements are sent first, as in `TopKSparsification`.

    Args:
        ratio: Share of the elements to send, in (0, 1]; default 0.01.
        k: Number of elements, instead of a share.
        feedback: See `Compression`; without it the elements left out are lost.

    Raises:
        UsageError: An argument is out of range.

    References:
        Renggli et al., SparCML: high-performance sparse communication for machine learning, SC'19, section 5.3.1
        (SSAR_Recursive_double), and section 5.1 for the switch to a dense stream.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> def total(communicator):
    ...     buffer = np.zeros(1000)
    ...     buffer[communicator.rank] = 1.0 + communicator.rank  # each rank has another element
    ...     compression = d5.SparseAllReduce(k=1).bound(seed=0)
    ...     compression.all_reduce(communicator, buffer, key="weights", step=0)
    ...     return buffer[:3].tolist(), communicator.sent_bytes
    >>> run_in_threads(2, total)  # a size of 8 bytes, an index of 4 and a value of 8
    [([1.0, 2.0, 0.0], 20), ([1.0, 2.0, 0.0], 20)]
    """

    def __init__(self, ratio: float | None = None, *, k: int | None = None, feedback: bool = True) -> None:
        super().__init__(feedback=feedback)
        self.ratio, self.k = check_share("SparseAllReduce", ratio, k)

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """min(k · (4 + w), n · w): a rank's own stream; see `Compression.message_bytes`."""
        return stream_bytes(count, share_of(count, self.ratio, self.k), dtype)

    def all_reduce_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int | None:
        """None: it depends on how many chosen elements ranks have in common."""
        return None

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        pack_stream(values, message, share_of(values.size, self.ratio, self.k), self._scratch)

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        unpack_stream(message, out)

    def _exchange(self, communicator: Communicator, message: np.ndarray, buffer: np.ndarray, timeout_s: float) -> None:
        rank, size = communicator.rank, communicator.size
        core = 1 << (size.bit_length() - 1)
        link = _Link(communicator, buffer, timeout_s)
        with np.errstate(all="ignore"):
            if rank >= core:
                link.give(message, rank - core)
                message = link.take(rank - core)
            else:
                if rank + core < size:
                    message = self._joined(message, link.take(rank + core), buffer)
                distance = 1
                while distance < core:
                    partner = rank ^ distance
                    other = link.swap(message, partner)
                    # Addition is commutative except for which of two NaNs results, so both ranks use one order.
                    pair = (message, other) if rank < partner else (other, message)
                    message = self._joined(*pair, buffer)
                    distance *= 2
                if rank + core < size:
                    link.give(message, rank + core)
            unpack_stream(message, buffer)

    def _joined(self, first: np.ndarray, second: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """The stream of the sum of two streams, for a buffer of this size and dtype."""
        count, dtype = buffer.size, buffer.dtype
        # Each element once; not in the memory of a stream that is still read.
        total = self._scratch.take("total", count, dtype)
        if buffer.nbytes not in (first.size, second.size):
            (left, left_values), (right, right_values) = chosen(first, count, dtype), chosen(second, count, dtype)
            union = np.union1d(left, right)
            size_bytes = stream_bytes(count, union.size, dtype)
            if size_bytes < buffer.nbytes:
                total[union] = 0
                total[left] = left_values
                total[right] += right_values
                joined = np.empty(size_bytes, np.uint8)
                head = union.size * INDEX.itemsize
                joined[:head].view(INDEX)[...] = union
                joined[head:].view(dtype)[...] = total[union]
                return joined
        # If the first stream is already in this memory, it stays there.
        if first.ctypes.data == total.ctypes.data:
            add_stream(second, total)
        elif second.ctypes.data == total.ctypes.data:
            own = self._scratch.take("own", count, dtype)
            own[...] = total
            unpack_stream(first, total)
            total += own
        else:
            unpack_stream(first, total)
            add_stream(second, total)
        return total.view(np.uint8)


class _Link:
    """Exchanges streams of any size between two ranks: the size is sent first."""

    def __init__(self, communicator: Communicator, buffer: np.ndarray, timeout_s: float = TIMEOUT_S) -> None:
        self._communicator, self._buffer, self._timeout_s = communicator, buffer, timeout_s

    def give(self, stream: np.ndarray, to: int) -> None:
        size = np.array([stream.size], _SIZE)
        self._communicator.send(size, to, tag=_TAG, timeout_s=self._timeout_s)
        self._communicator.send(stream, to, tag=_TAG, timeout_s=self._timeout_s)

    def take(self, source: int) -> np.ndarray:
        size = np.zeros(1, _SIZE)
        self._communicator.receive(size, source, tag=_TAG, timeout_s=self._timeout_s)
        stream = self._room(int(size[0]), source)
        self._communicator.receive(stream, source, tag=_TAG, timeout_s=self._timeout_s)
        return stream

    def swap(self, stream: np.ndarray, other: int) -> np.ndarray:
        communicator, timeout_s = self._communicator, self._timeout_s
        sizes = np.array([stream.size, 0], _SIZE)
        sending = communicator.send_start(sizes[:1], other, tag=_TAG)
        communicator.receive(sizes[1:], other, tag=_TAG, timeout_s=timeout_s)
        sending.wait(timeout_s)
        arrived = self._room(int(sizes[1]), other)
        sending = communicator.send_start(stream, other, tag=_TAG)
        communicator.receive(arrived, other, tag=_TAG, timeout_s=timeout_s)
        sending.wait(timeout_s)
        return arrived

    def _room(self, size_bytes: int, source: int) -> np.ndarray:
        whole, entry = self._buffer.nbytes, INDEX.itemsize + self._buffer.itemsize
        if size_bytes != whole and not (0 < size_bytes < whole and size_bytes % entry == 0):
            raise CommunicationError(
                f"rank {source} has a stream of {size_bytes} bytes; allowed: {whole}, a buffer of "
                f"{self._buffer.dtype}[{self._buffer.size}], or fewer and a multiple of {entry}; remedy: buffers of "
                "the same size on all ranks"
            )
        return np.empty(size_bytes, np.uint8)
