"""TensorFlow's settings, read back from it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from deep5.core.tensors import Device
from deep5.frameworks.tensorflow.threads import inter_threads, intra_threads

__all__ = ["read_settings"]


def read_settings(device: Device, *, xla: bool) -> dict[str, Any]:
    """The process's threads, TF32 and determinism; see `GraphExecutor.settings`.

    Args:
        device: The device to run on.
        xla: Whether XLA compiles.
    """
    on_host = device.kind == "cpu"
    return {
        "framework": "tensorflow",
        "version": tf.__version__,
        "device": str(device),
        "threads": intra_threads(),
        "inter_threads": inter_threads(),
        "tf32": not on_host and bool(tf.config.experimental.tensor_float_32_execution_enabled()),
        "deterministic": on_host or _deterministic(),
        "xla": xla,
    }


def _deterministic() -> bool:
    from tensorflow.python.framework.config import is_op_determinism_enabled

    return bool(is_op_determinism_enabled())
