"""Collectives of torch.distributed's process groups on NumPy buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from deep5.core.errors import MissingDependency, UsageError
from deep5.core.plugins import missing_dependency

__all__ = ["STARTED_S", "Collectives", "Staged", "all_reduce_options", "is_tensor", "libraries", "limit", "raw"]

STARTED_S = 86400.0
"""Time limit of started operations: each wait has its own limit."""

_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
_OPERATIONS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}
# Dtypes that gloo and NCCL reduce; bfloat16 is not a NumPy dtype and is passed as bits.
_REDUCED = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bfloat16"}


class Collectives:
    """Passes operations to a process group.

    Args:
        rank: This process.
        size: Number of ranks.
        device: The device on which the back-end needs tensors; None: host memory.
    """

    def __init__(self, rank: int, size: int, device: Any) -> None:
        self.rank, self.size, self._device = rank, size, device
        self._c10d = libraries()[1]

    def post(
        self, group: Any, name: str, given: tuple[Any, ...], timeout_s: float
    ) -> tuple[Any, Callable[[], None] | None]:
        """Start an operation.

        Args:
            group: A torch process group.
            name: The operation, as for `CountedCommunicator`.
            given: Its arguments.
            timeout_s: Its time limit.

        Returns:
            The torch work object, and a function to call after it, or None.
        """
        c10d, within = self._c10d, limit(timeout_s)
        if name == "all_reduce" and self._device is None and _known(given[0].dtype):
            return group.allreduce(_tensor(given[0]), _operation(given[1]), within), None
        if name in ("all_reduce", "reduce", "reduce_scatter") and not _known(given[0].dtype):
            return self._by_numpy(group, name, given, timeout_s)
        staged = Staged(self._device)
        arguments: tuple[Any, ...]
        if name == "barrier":
            options, call, arguments = c10d.BarrierOptions(), group.barrier, ()
        elif name == "all_reduce":
            buffer, op = given
            options, call = c10d.AllreduceOptions(), group.allreduce
            options.reduceOp = _operation(op)
            arguments = ([staged.take(_tensor(buffer))],)
        elif name == "reduce":
            buffer, root, op = given
            options, call = c10d.ReduceOptions(), group.reduce
            options.rootRank, options.reduceOp = root, _operation(op)
            # gloo writes partial results into the other ranks' buffers.
            arguments = ([staged.take(_tensor(buffer if root == self.rank else buffer.copy()))],)
        elif name == "broadcast":
            buffer, root = given
            options, call = c10d.BroadcastOptions(), group.broadcast
            options.rootRank = root
            arguments = ([staged.give(raw(buffer)) if root == self.rank else staged.take(raw(buffer))],)
        elif name == "reduce_scatter":
            buffer, out, op = given
            options, call = c10d.ReduceScatterOptions(), group._reduce_scatter_base
            options.reduceOp = _operation(op)
            arguments = (staged.take(_tensor(out)), staged.give(_tensor(buffer)))
        elif name == "all_gather":
            options, call = c10d.AllgatherOptions(), group._allgather_base
            arguments = (staged.take(raw(given[1])), staged.give(raw(given[0])))
        elif name == "all_to_all":
            options, call = c10d.AllToAllOptions(), group.alltoall_base
            arguments = (staged.take(raw(given[1])), staged.give(raw(given[0])), [], [])
        elif name == "gather":
            buffer, out, root = given
            options, call = c10d.GatherOptions(), group.gather
            options.rootRank = root
            places = [] if root != self.rank else [list(staged.take(raw(out)).view(self.size, -1))]
            arguments = (places, [staged.give(raw(buffer))])
        else:
            buffer, out, root = given
            options, call = c10d.ScatterOptions(), group.scatter
            options.rootRank = root
            parts = [] if root != self.rank else [list(staged.give(raw(buffer)).view(self.size, -1))]
            arguments = ([staged.take(raw(out))], parts)
        options.timeout = within
        return call(*arguments, options), staged.fetch

    def _by_numpy(
        self, group: Any, name: str, given: tuple[Any, ...], timeout_s: float
    ) -> tuple[Any, Callable[[], None]]:
        """Reductions that no back-end has: all ranks gather all buffers and combine them in the same order."""
        buffer, op, combine = given[0], given[-1], _COMBINE[given[-1]]
        try:
            combine(np.zeros(1, buffer.dtype), np.zeros(1, buffer.dtype), out=np.zeros(1, buffer.dtype))
        except TypeError as error:
            raise UsageError(f"got a buffer of {buffer.dtype}, which has no {op} in NumPy; allowed: numbers") from error
        every = np.empty((self.size, buffer.size), buffer.dtype)
        work, fetch = self.post(group, "all_gather", (buffer, every), timeout_s)

        def after() -> None:
            if fetch is not None:
                fetch()
            total = every[0]
            for each in every[1:]:
                combine(total, each, out=total)
            if name == "reduce_scatter":
                given[1].reshape(-1)[...] = total.reshape(self.size, -1)[self.rank]
            elif name == "all_reduce" or given[1] == self.rank:
                buffer.reshape(-1)[...] = total

        return work, after


class Staged:
    """Tensors on the back-end's device: unchanged on the CPU, or copies on a device."""

    __slots__ = ("_device", "_pairs")

    def __init__(self, device: Any) -> None:
        self._device = device
        self._pairs: list[tuple[Any, Any]] = []

    def give(self, tensor: Any) -> Any:
        """The tensor to send, on the back-end's device."""
        return tensor if self._device is None else tensor.to(self._device)

    def take(self, tensor: Any) -> Any:
        """Like `give`; `fetch` copies its contents back afterwards."""
        if self._device is None:
            return tensor
        self._pairs.append((tensor, tensor.to(self._device)))
        return self._pairs[-1][1]

    def fetch(self) -> None:
        """Copy received values back."""
        for host, copy in self._pairs:
            host.copy_(copy)


@functools.cache
def libraries() -> tuple[Any, Any]:
    """PyTorch, and the C++ part of torch.distributed.

    Raises:
        MissingDependency: PyTorch is not installed, or was built without it.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise missing_dependency("ProcessGroupCommunicator", error) from error
    try:
        from torch._C import _distributed_c10d
    except ImportError as error:
        raise MissingDependency(
            f"ProcessGroupCommunicator needs torch.distributed, which this build of PyTorch lacks ({error}); remedy: a "
            "build with it"
        ) from error
    return torch, _distributed_c10d


@functools.lru_cache(maxsize=256)
def limit(timeout_s: float) -> timedelta:
    """A time limit in torch's form."""
    # To torch, 0 means unlimited.
    return timedelta(seconds=min(max(timeout_s, 0.001), STARTED_S))


def all_reduce_options(op: str, timeout_s: float) -> Any:
    """Options of torch for an all-reduce."""
    options = libraries()[1].AllreduceOptions()
    options.reduceOp, options.timeout = _operation(op), limit(timeout_s)
    return options


def is_tensor(dtype: np.dtype) -> bool:
    """Whether gloo reduces this dtype and torch can share the array's memory directly."""
    return _known(dtype) and dtype.kind != "V"


@functools.cache
def _operation(op: str) -> Any:
    return getattr(libraries()[1].ReduceOp, _OPERATIONS[op])


@functools.lru_cache(maxsize=256)
def _known(dtype: np.dtype) -> bool:
    """Whether gloo and NCCL reduce this dtype. Cached, because NumPy takes microseconds for a dtype's name."""
    return dtype.name in _REDUCED and dtype.isnative


def _tensor(buffer: np.ndarray) -> Any:
    """The same memory as a one-dimensional tensor of the matching dtype."""
    torch = libraries()[0]
    if not buffer.flags.writeable:
        # Only sent: `CountedCommunicator` rejects read-only results.
        buffer = buffer.copy()
    # Element types that are not NumPy's own have kind V; only bfloat16 gets here.
    if buffer.dtype.kind == "V":
        return torch.from_numpy(buffer.reshape(-1).view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(buffer.reshape(-1))


def raw(buffer: np.ndarray) -> Any:
    """The same memory as a tensor of bytes."""
    return _tensor(buffer.reshape(-1).view(np.uint8))
