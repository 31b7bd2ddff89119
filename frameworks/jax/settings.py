"""Devices of JAX, and its settings as read back."""

from __future__ import annotations

import os
from typing import Any

import jax

from deep5.errors import Unsupported
from deep5.frameworks.jax.threads import count_threads
from deep5.tensors import Device

__all__ = ["find_device", "read_settings"]


def find_device(device: Device) -> Any:
    """JAX's own object for a device.

    Raises:
        Unsupported: JAX does not see it.
    """
    if device.kind == "cpu":
        return jax.devices("cpu")[0]
    try:
        found = jax.devices("gpu")
    except RuntimeError:
        found = []
    if device.index >= len(found):
        names = ", ".join(["cpu", *(f"cuda:{index}" for index in range(len(found)))])
        raise Unsupported(f"no device {device} for jax here; allowed: {names}")
    return found[device.index]


def read_settings(device: Device) -> dict[str, Any]:
    """What decides speed and rounding.

    `x64` is the process's own setting: executors switch 64-bit types on for their calls, whatever it is.
    """
    precision = jax.config.jax_default_matmul_precision
    host = device.kind == "cpu"
    return {
        "framework": "jax",
        "version": jax.__version__,
        "device": str(device),
        "threads": count_threads(),
        "tf32": not host and precision in (None, "default", "tensorfloat32"),
        "matmul_precision": "default" if precision is None else str(precision),
        "deterministic": host or "--xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", ""),
        "x64": bool(jax.config.jax_enable_x64),
    }
