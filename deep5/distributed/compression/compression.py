"""`Compression`: the base of gradient compressions for communication between ranks."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import CommunicationError, UsageError, brief
from deep5.distributed.compression.feedback import Kept, all_finite
from deep5.distributed.compression.scratch import Scratch
from deep5.distributed.schemes.check import check_initialised, check_method

__all__ = ["Compression"]

_ALLOWED = (np.dtype(np.float32), np.dtype(np.float64))


class Compression(ABC):
    """A lossy sum over ranks, and messages for one other rank.

    An object holds only parameters; `bound` returns one that works.

    A user-defined compression is a subclass with three methods, `message_bytes`, `_pack` and `_unpack`; its parameters
    are its public attributes. If it defines `__init__`, it calls `super().__init__()` there.

    With error feedback, the part that a message leaves out is added to the next buffer of the same key:
    acc = buffer + residual;  message = encode(acc);  residual = acc − decode(message).
    A non-finite element of the residual is dropped: it has been sent, and would corrupt every later step.

    Args:
        feedback: Whether to use error feedback.

    Raises:
        UsageError: `feedback` is not a bool, or one of the three methods has a different signature.

    References:
        Seide et al., 1-bit stochastic gradient descent and its application to data-parallel distributed training of
        speech DNNs, Interspeech 2014, section 3.2; Karimireddy et al., Error feedback fixes SignSGD and other gradient
        compression schemes, ICML 2019, algorithm 2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Signs(d5.Compression):  # the mean magnitude, and a byte for the sign of each element
    ...     def message_bytes(self, count, dtype, *, step=None): return 8 + count
    ...     def _pack(self, values, message, key, step):
    ...         message[:8].view(np.float64)[0] = np.abs(values).mean()
    ...         message[8:] = values >= 0
    ...     def _unpack(self, message, out):
    ...         out[...] = np.where(message[8:], 1.0, -1.0) * message[:8].view(np.float64)[0]
    >>> compression, out = Signs().bound(seed=0), np.empty(2)
    >>> compression.decode(compression.encode(np.array([3.0, -1.0]), key="weights", step=0), out); out.tolist()
    [2.0, -2.0]
    >>> compression.decode(compression.encode(np.array([3.0, -1.0]), key="weights", step=1), out); out.tolist()
    [2.0, 2.0]
    """

    def __init__(self, *, feedback: bool = True) -> None:
        if not isinstance(feedback, bool):
            raise UsageError(f"{type(self).__name__}: got feedback={brief(feedback)}; allowed: True or False")
        for method in ("message_bytes", "_pack", "_unpack"):
            check_method(self, method, Compression)
        self.feedback = feedback
        self._seed: int | None = None
        self._rank, self._size = 0, 1
        self._residual, self._scratch = Kept("residual"), Scratch()

    @abstractmethod
    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        """Exact size in bytes of the message that `encode` returns for this many elements.

        Args:
            count: Number of elements.
            dtype: Dtype of the elements, float32 or float64.
            step: Step, where the size depends on it; None: after any warm-up.
        """

    @abstractmethod
    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        """Fill the message, uint8 of size `message_bytes`; must not change the values.

        Parts of a message with wider elements may start at any offset: NumPy supports unaligned reads and writes.
        """

    @abstractmethod
    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        """Decode a message, whose size has been checked."""

    def bound(self, seed: int, *, rank: int = 0, size: int = 1) -> Self:
        """A copy without state for one rank's run.

        Args:
            seed: Random seed; the same on all ranks.
            rank: The encoding rank: ranks round independently. `all_reduce` uses its communicator's rank.
            size: Number of ranks that encode in the same way.

        Raises:
            UsageError: An argument is not an integer, or a user-defined class whose `__init__` does not call its
                base's.
        """
        check_initialised(self, Compression, "_scratch")
        name = type(self).__name__
        if not is_whole(seed) or not is_whole(rank) or not is_whole(size) or rank < 0 or size < 1:
            raise UsageError(
                f"{name}: got seed={brief(seed)}, rank={brief(rank)}, size={brief(size)}; allowed: integers, rank "
                "from 0, size from 1"
            )
        made = copy.copy(self)
        made._seed, made._rank, made._size = seed, rank, size
        made._residual, made._scratch = Kept("residual"), Scratch()
        made._start()
        return made

    def _start(self) -> None:  # noqa: B027 - most have nothing to do
        """Create the state that a copy must not share; called by `bound`."""

    def all_reduce(
        self, communicator: Communicator, buffer: np.ndarray, *, key: str, step: int, timeout_s: float = TIMEOUT_S
    ) -> None:
        """The lossy sum of a buffer over all ranks, in place and bit-identical on all ranks.

        Args:
            communicator: Connects all ranks that have a buffer.
            buffer: Flat, float32 or float64, of the same size on every rank.
            key: Name of the buffer; state is kept from step to step per key.
            step: Number of the step, for random draws and warm-ups.
            timeout_s: Time limit of each wait.

        Raises:
            UsageError: The buffer is invalid, or the compression is not bound.
            CommunicationError: See `Communicator`.
        """
        self._check(buffer, key)
        self._rank, self._size = communicator.rank, communicator.size
        message = self._scratch.take("message", self.message_bytes(buffer.size, buffer.dtype, step=step), np.uint8)
        self._encode(buffer, message, key, step)
        self._exchange(communicator, message, buffer, timeout_s)

    def all_reduce_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int | None:
        """Bytes that each rank's communicator counts in an `all_reduce`; None if they depend on the values.

        Args:
            count: Number of elements.
            dtype: Dtype of the elements, float32 or float64.
            step: As in `message_bytes`.
        """
        return self.message_bytes(count, dtype, step=step)

    def encode(self, values: np.ndarray, *, key: str, step: int) -> np.ndarray:
        """The message for one other rank; the residual stays on this rank.

        Args:
            values: Flat, float32 or float64; not modified.
            key: As in `all_reduce`; messages to several ranks need one key each.
            step: As in `all_reduce`.

        Returns:
            The message, uint8 of shape (message_bytes,), in newly allocated memory.

        Raises:
            UsageError: The values are invalid, or the compression is not bound.
        """
        self._check(values, key)
        message = np.empty(self.message_bytes(values.size, values.dtype, step=step), np.uint8)
        self._encode(values, message, key, step)
        return message

    def decode(self, message: np.ndarray, out: np.ndarray) -> None:
        """Decode a message.

        Args:
            message: Result of `encode` for an array of the size and dtype of `out`.
            out: Flat, float32 or float64; receives the values.

        Raises:
            CommunicationError: The message has another size or type.
            UsageError: `out` is not a valid buffer.
        """
        check_values(out)
        if not isinstance(message, np.ndarray) or message.dtype != np.uint8 or message.ndim != 1:
            raise CommunicationError(f"got {brief(message)} as a message; allowed: a flat NumPy array of uint8")
        if not self._fits(message.size, out):
            allowed = self.message_bytes(out.size, out.dtype)
            raise CommunicationError(
                f"a message of {message.size} bytes for {out.dtype}[{out.size}]; allowed: {allowed}, of "
                f"{self!r}; remedy: the same compression with the same parameters on both sides"
            )
        with np.errstate(all="ignore"):
            self._unpack(message, out)

    def _fits(self, size_bytes: int, out: np.ndarray) -> bool:
        return size_bytes == self.message_bytes(out.size, out.dtype)

    def check_optimizer(self, optimizer: Any) -> None:  # noqa: B027 - most go with any
        """Reject an optimizer that does not work with the compression.

        Args:
            optimizer: An update rule or a step optimizer, as passed to `DistributedOptimizer.wrap`.

        Raises:
            UsageError: The optimizer is not supported.
        """

    def hold(self) -> None:
        """Save the state kept from step to step, for `take_back`."""
        for kept in self._keeps():
            kept.hold()

    def take_back(self) -> None:
        """Restore the state saved by `hold`: this undoes the step summed since."""
        for kept in self._keeps():
            kept.take_back()

    def _keeps(self) -> tuple[Kept, ...]:
        """All state kept from step to step."""
        return (self._residual,)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state kept from step to step, by name, as copies."""
        return {name: array for kept in self._keeps() for name, array in kept.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`: later steps repeat bit for bit.

        Args:
            state: A result of `state_dict`, of the same compression with the same parameters.
        """
        for kept in self._keeps():
            kept.load_state_dict(state)

    def describe(self) -> dict[str, Any]:
        """The compression and its parameters, in JSON types."""
        return {"compression": type(self).__name__, **self._parameters()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._parameters().items())})"

    def _parameters(self) -> dict[str, Any]:
        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**{name: value for name, value in own.items() if name != "feedback"}, "feedback": self.feedback}

    def _corrected(self, values: np.ndarray, key: str) -> np.ndarray:
        """The input of error feedback, in place of the values."""
        return values

    def _sent(self, message: np.ndarray, key: str, acc: np.ndarray) -> None:  # noqa: B027 - most have nothing to do
        """Called when a message has been encoded from `acc`."""

    def _encode(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        """Error feedback around `_pack`, implemented only here."""
        # Non-finite values are sent without a warning, which many test suites turn into an error.
        with np.errstate(all="ignore"):
            acc = self._corrected(values, key)
            if not self.feedback:
                self._pack(acc, message, key, step)
                self._sent(message, key, acc)
                return
            residual = self._residual.of(key, values)
            acc = np.add(acc, residual, out=self._scratch.take("acc", values.size, values.dtype))
            self._pack(acc, message, key, step)
            self._sent(message, key, acc)
            # decode(message) overwrites the residual, which `acc` already includes.
            self._unpack(message, residual)
            np.subtract(acc, residual, out=residual)
            if not all_finite(residual):
                residual[~np.isfinite(residual)] = 0

    def _exchange(self, communicator: Communicator, message: np.ndarray, buffer: np.ndarray, timeout_s: float) -> None:
        """Sum the decoded messages of all ranks in rank order."""
        messages = self._scratch.take("messages", communicator.size * message.size, np.uint8)
        communicator.all_gather(message, messages, timeout_s=timeout_s)
        buffer[...] = 0
        with np.errstate(all="ignore"):
            for one in messages.reshape(communicator.size, message.size):
                self._add(one, buffer)

    def _add(self, message: np.ndarray, total: np.ndarray) -> None:
        """Add a decoded message."""
        part = self._scratch.take("part", total.size, total.dtype)
        self._unpack(message, part)
        total += part

    def _check(self, values: Any, key: str) -> None:
        name = type(self).__name__
        if self._seed is None:
            raise UsageError(f"{name} is not bound to a run; remedy: {self!r}.bound(seed)")
        if not isinstance(key, str) or not key:
            raise UsageError(f"{name}: got the key {brief(key)}; allowed: a string that names the buffer")
        check_values(values)


def check_values(values: Any) -> None:
    """Reject anything but a flat array of float32 or float64.

    Raises:
        UsageError: The values are something else.
    """
    if (
        not isinstance(values, np.ndarray)
        or values.ndim != 1
        or values.dtype not in _ALLOWED
        or not values.flags.c_contiguous
    ):
        got = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else type(values).__name__
        raise UsageError(
            f"got {got} to compress; allowed: a flat, contiguous NumPy array of float32 or float64; remedy: "
            "send integer and half-precision gradients uncompressed"
        )
