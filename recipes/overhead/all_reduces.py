"""All-reduce over several ranks: through deep5's communicator, and by the bare library below it.

Each function takes the communicator of all ranks and is called on every rank. It returns a function that sums a float32
buffer over the ranks in place, `steps` times, and returns the buffer.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import UsageError

__all__ = ["by_communicator", "by_gloo", "by_mpi4py", "by_process_groups", "gloo_group"]

Work = Callable[[], object]
_PAGE = 2 << 20
_GROUPS = 8


def by_communicator(*, steps: int, size_bytes: int, communicator: Communicator) -> Work:
    """Through `Communicator.all_reduce`.

    Args:
        steps: All-reduces per call.
        size_bytes: Size of the buffer.
        communicator: The communicator of all ranks.
    """
    buffer = _buffer(size_bytes, communicator)

    def work() -> np.ndarray:
        for _ in range(steps):
            communicator.all_reduce(buffer)
        return buffer

    return work


def by_mpi4py(*, steps: int, size_bytes: int, communicator: Communicator) -> Work:
    """By mpi4py's `Allreduce` on all ranks of the job, in place; arguments as in `by_communicator`.

    Raises:
        UsageError: The ranks do not use MPI.
    """
    from mpi4py import MPI

    world, buffer = MPI.COMM_WORLD, _buffer(size_bytes, communicator)
    if world.size != communicator.size:
        raise UsageError(f"MPI knows of {world.size} ranks and there are {communicator.size}; remedy: mpiexec")

    def work() -> np.ndarray:
        for _ in range(steps):
            world.Allreduce(MPI.IN_PLACE, buffer, op=MPI.SUM)
        return buffer

    return work


def by_process_groups(*, steps: int, size_bytes: int, communicator: Communicator) -> Work:
    """Through `ProcessGroupCommunicator.all_reduce`, on the groups of `by_gloo`; arguments as in `by_communicator`.

    The times of two equal groups differ by up to a fifth throughout their lives, depending on the cores of their
    threads. Separate groups for each side would measure the groups.
    """
    import torch

    from deep5.distributed.communicators.process_group import ProcessGroupCommunicator

    buffer, cpu = _buffer(size_bytes, communicator), torch.device("cpu")
    made = [ProcessGroupCommunicator.of_group(group) for group in _groups(communicator.size)]
    for each, group in zip(made, _groups(communicator.size), strict=True):
        # A communicator makes its own group, of the same kind.
        each._now = group._get_backend(cpu)
    turns = _turns(made, steps)

    def work() -> np.ndarray:
        for each in turns:
            each.all_reduce(buffer)
        return buffer

    return work


def by_gloo(*, steps: int, threads: int, size_bytes: int, communicator: Communicator) -> Work:
    """By `torch.distributed.all_reduce` on gloo groups, used in turn.

    Args:
        steps: All-reduces per call.
        threads: Threads of PyTorch.
        size_bytes: Size of the buffer.
        communicator: The communicator of all ranks.
    """
    import torch
    from torch import distributed

    torch.set_num_threads(threads)
    buffer = _buffer(size_bytes, communicator)
    tensor, turns = torch.from_numpy(buffer), _turns(_groups(communicator.size), steps)

    def work() -> np.ndarray:
        for group in turns:
            distributed.all_reduce(tensor, group=group)
        return buffer

    return work


@cache
def _groups(ranks: int) -> list[Any]:
    return [gloo_group(ranks) for _ in range(_GROUPS)]


def gloo_group(ranks: int) -> Any:
    """A new group of all of torchrun's `ranks`; every rank must call this.

    Raises:
        UsageError: The ranks are not torchrun's, or their number differs.
    """
    from torch import distributed

    if not distributed.is_torchelastic_launched():
        raise UsageError("torch.distributed knows of no ranks; allowed: those that torchrun started; remedy: torchrun")
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
        atexit.register(_leave)
    if distributed.get_world_size() != ranks:
        raise UsageError(
            f"torchrun started {distributed.get_world_size()} ranks and there are {ranks}; allowed: the same number"
        )
    return distributed.new_group(backend="gloo")


def _leave() -> None:
    """Release torch's groups: their threads abort a process that ends before them, see `ProcessGroupCommunicator`."""
    from torch import distributed

    _groups.cache_clear()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _turns(groups: list[Any], steps: int) -> list[Any]:
    # The same order in each call: the threads of a group that was idle for a while are asleep at its next use.
    return [groups[step % len(groups)] for step in range(steps)]


def _buffer(size_bytes: int, communicator: Communicator) -> np.ndarray:
    """A different positive value on each rank: sums that grow to infinity take no longer, unlike NaN.

    The buffer starts at a 2 MiB page, in memory for which NumPy requests huge pages. Buffers of small pages, or that
    start within a huge page, collide in the CPU caches at random, and their times differ throughout their lives.
    """
    memory = np.empty(size_bytes + 2 * _PAGE, np.uint8)
    begin = -memory.ctypes.data % _PAGE
    buffer = memory[begin : begin + size_bytes].view(np.float32)
    buffer[...] = communicator.rank + 1
    return buffer
