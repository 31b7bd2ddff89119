"""JAX's devices, and its settings as read back."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import xla_bridge  # the only API that reports whether JAX has started

from deep5.core.errors import Unsupported, UsageError
from deep5.core.tensors import Device
from deep5.frameworks.jax.threads import count_threads

__all__ = ["find_device", "product_kernels", "read_settings", "set_numerics"]

_FLAG = "--xla_gpu_deterministic_ops"


def find_device(device: Device) -> Any:
    """JAX's object for a device.

    Raises:
        Unsupported: JAX does not find the device.
    """
    if device.kind == "cpu":
        place = jax.devices("cpu")[0]
        _flags_at_start()
        return place
    try:
        found = jax.devices("gpu")
    except RuntimeError:
        found = []
    if device.index >= len(found):
        names = ", ".join(["cpu", *(f"cuda:{index}" for index in range(len(found)))])
        raise Unsupported(f"no device {device} for jax here; allowed: {names}")
    return found[device.index]


def read_settings(device: Device) -> dict[str, Any]:
    """The settings that affect speed and rounding.

    `x64` is the process's own setting: executors enable 64-bit types for their calls regardless of it.
    """
    precision = jax.config.jax_default_matmul_precision
    host = device.kind == "cpu"
    return {
        "framework": "jax",
        "version": jax.__version__,
        "device": str(device),
        "threads": count_threads(),
        # Every type shorter than float32 counts, bfloat16 as well.
        "tf32": not host and precision not in ("highest", "float32"),
        "matmul_precision": "default" if precision is None else str(precision),
        "deterministic": host or _deterministic(),
        "x64": bool(jax.config.jax_enable_x64),
    }


@functools.cache
def product_kernels(dtype: str, place: Any) -> str:
    """The dtype of XLA's kernels for products of the given dtype, read from the compiled program of a small product.

    Args:
        dtype: Dtype of the product.
        place: JAX's object for a device.
    """
    with jax.default_device(place):
        x = jnp.ones((64, 64), dtype)
        made = jax.jit(jnp.matmul).lower(x, x).compile().as_text()
    found = re.search(r" = (\w+)\[[^=]*? dot\(", made or "")
    return {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}.get(found[1], dtype) if found else dtype


def set_numerics(deterministic: bool, tf32: bool) -> None:
    """See `Framework.set_numerics`.

    Raises:
        UsageError: JAX has started, and XLA has read flags that allow other kernels.
    """
    if deterministic != _deterministic():
        flag = f"{_FLAG}={str(deterministic).lower()}"
        if xla_bridge.backends_are_initialized() and any(place.platform != "cpu" for place in jax.devices()):
            raise UsageError(
                f"got deterministic={deterministic}, but JAX has started otherwise in this process and cannot change "
                f"that; remedy: set it before anything uses JAX, or start the process with XLA_FLAGS={flag}"
            )
        if not xla_bridge.backends_are_initialized():  # if JAX started on the host only, there is nothing to set
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".lstrip()
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if tf32 else "highest")


def _deterministic() -> bool:
    """The value in the flags that XLA has read, or will read when JAX starts; the last occurrence counts."""
    text = _flags_at_start() if xla_bridge.backends_are_initialized() else os.environ.get("XLA_FLAGS", "")
    found = [flag.partition("=")[2].lower() for flag in text.split() if flag.partition("=")[0] == _FLAG]
    return bool(found) and found[-1] in ("", "true", "1")


@functools.cache
def _flags_at_start() -> str:
    """The flags when deep5 first read them after JAX's start: XLA ignores later changes."""
    return os.environ.get("XLA_FLAGS", "")
