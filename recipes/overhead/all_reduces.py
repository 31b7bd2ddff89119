"""All-reduce of several ranks: through deep5's communicator, and by the bare library beneath it.

Each function takes the communicator of all ranks, is called on every one of them, and returns a function that adds a
buffer of float32 up over them, `steps` times, in place, and returns the buffer.
"""

from __future__ import annotations

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
        steps: All-reduces a call.
        size_bytes: Of the buffer.
        communicator: Of all ranks.
    """
    buffer = _buffer(size_bytes, communicator)

    def work() -> np.ndarray:
        for _ in range(steps):
            communicator.all_reduce(buffer)
        return buffer

    return work


def by_mpi4py(*, steps: int, size_bytes: int, communicator: Communicator) -> Work:
    """By mpi4py's `Allreduce` on all ranks of the job, in place; arguments as `by_communicator`.

    Raises:
        UsageError: The ranks are none of MPI's.
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
    """Through `ProcessGroupCommunicator.all_reduce`, on the groups of `by_gloo`; arguments as `by_communicator`.

    Two groups of one kind are up to a fifth apart for as long as they live, by the cores that their threads fell on:
    what each would measure on groups of its own is the groups.
    """
    import torch

    from deep5.distributed.communicators.process_group import ProcessGroupCommunicator

    buffer, cpu = _buffer(size_bytes, communicator), torch.device("cpu")
    made = [ProcessGroupCommunicator.of_group(group) for group in _groups(communicator.size)]
    for each, group in zip(made, _groups(communicator.size), strict=True):
        # A communicator makes a group of its own, of the same kind.
        each._now = group._get_backend(cpu)
    turns = _turns(made, steps)

    def work() -> np.ndarray:
        for each in turns:
            each.all_reduce(buffer)
        return buffer

    return work


def by_gloo(*, steps: int, threads: int, size_bytes: int, communicator: Communicator) -> Work:
    """By `torch.distributed.all_reduce` on groups of gloo, one after the other.

    Args:
        steps: All-reduces a call.
        threads: Of PyTorch.
        size_bytes: Of the buffer.
        communicator: Of all ranks.
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
    """A group of its own of all of torchrun's `ranks`, which every one of them makes.

    Raises:
        UsageError: The ranks are none of torchrun's, or not as many.
    """
    from torch import distributed

    if not distributed.is_torchelastic_launched():
        raise UsageError("torch.distributed knows of no ranks; allowed: those that torchrun started; remedy: torchrun")
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    if distributed.get_world_size() != ranks:
        raise UsageError(
            f"torchrun started {distributed.get_world_size()} ranks and there are {ranks}; allowed: the same number"
        )
    return distributed.new_group(backend="gloo")


def _turns(groups: list[Any], steps: int) -> list[Any]:
    # The same in each call: whoever comes first to a group that nobody used for a while finds its threads asleep.
    return [groups[step % len(groups)] for step in range(steps)]


def _buffer(size_bytes: int, communicator: Communicator) -> np.ndarray:
    """Another value on each rank, above zero: what grows to infinity takes no longer, unlike what is no number.

    It begins with a page of 2 MiB, in memory for which NumPy asks for such: two buffers of small pages, or that begin
    in the middle of a large one, meet in the processor's caches by chance, and differ for as long as they live.
    """
    memory = np.empty(size_bytes + 2 * _PAGE, np.uint8)
    begin = -memory.ctypes.data % _PAGE
    buffer = memory[begin : begin + size_bytes].view(np.float32)
    buffer[...] = communicator.rank + 1
    return buffer
