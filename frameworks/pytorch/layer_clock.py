"""Times layers in eager torch, by stamps between steps of a program and between nodes of torch's backward pass."""

from __future__ import annotations

import torch

from deep5.core.framework import Framework
from deep5.core.tensors import Device
from deep5.frameworks.pytorch.executor import PyTorchExecutor
from deep5.frameworks.pytorch.gradient_stamps import GradientStamps
from deep5.networks.network import Network
from deep5.networks.stamps import StampedClock

__all__ = ["layer_clock"]


def layer_clock(network: Network, framework: Framework, *, device: Device, seed: int) -> StampedClock:
    """A clock of an eager executor, whose stamps wait for the device; arguments and errors as for `PyTorchExecutor`."""
    stamps = GradientStamps(network, torch.device(str(device)))
    return StampedClock(PyTorchExecutor(network, framework, device=device, seed=seed, stamps=stamps), stamps)
