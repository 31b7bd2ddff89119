"""Selects this rank's GPU where several ranks share one machine."""

from __future__ import annotations

import os

from deep5.core.errors import Unsupported, UsageError
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import Device, device
from deep5.distributed.launch.launcher import launched

__all__ = ["rank_device", "use_device"]

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def rank_device(named: str | Device) -> Device:
    """The device that a name refers to on this rank.

    `cuda` is one GPU per rank of a machine: the one with the rank's local number, taken from the launcher's
    environment, or the only GPU if the launcher makes just one visible. `cuda:N` or a `Device` is the same GPU on every
    rank. Without a launcher, `cuda` is the first GPU. The framework reports it if a GPU does not exist.

    Args:
        named: The device as given in a recipe.

    Raises:
        UsageError: The name is not a device, or `cuda` where the launcher does not provide the local rank.
    """
    place = device(named)
    if named != "cuda":
        return place
    rank = launched()
    if rank is None or any(_is_one(os.environ.get(variable)) for variable in _VISIBLE):
        return place
    if rank.local_rank is None:
        raise UsageError(
            f"device 'cuda' gives each rank of a machine its own GPU, but {rank.by} does not report this rank's number "
            "on its machine; allowed: cuda:N"
        )
    return Device(kind="cuda", index=rank.local_rank)


def use_device(named: str | Device) -> None:
    """Make the device that a name refers to on this rank PyTorch's current device, which NCCL uses.

    Args:
        named: As for `rank_device`.

    Raises:
        MissingDependency: PyTorch is not installed.
        Unsupported: PyTorch does not see the device.
        UsageError: As for `rank_device`.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise missing_dependency("NCCL", error) from error
    place, found = rank_device(named), torch.cuda.device_count()
    if place.kind != "cuda" or place.index >= found:
        names = ", ".join(f"cuda:{index}" for index in range(found)) or "none"
        raise Unsupported(f"no device {place} for NCCL here; allowed: {names}; remedy: one rank per device")
    torch.cuda.set_device(place.index)


def _is_one(visible: str | None) -> bool:
    """Whether a list of GPUs has one entry."""
    return visible is not None and len([each for each in visible.split(",") if each.strip()]) == 1
