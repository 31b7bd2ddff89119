"""Instructions of this machine's processor, and its GPUs, as each framework lists them."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

AVX512 = "avx512bw" in Path("/proc/cpuinfo").read_text(errors="replace")
"""Whether this machine's processor has the instructions that only some engines' kernels are written for."""

FRAMEWORKS = ("pytorch", "tensorflow", "jax", "onnxruntime")


@functools.cache
def listed(framework: str) -> int:
    """The number of GPUs that the framework lists; 0 if it is not installed."""
    if not driver() or not installed(framework):
        return 0
    if framework == "pytorch":
        import torch

        return torch.cuda.device_count()
    if framework == "tensorflow":
        import tensorflow

        return len(tensorflow.config.list_physical_devices("GPU"))
    if framework == "onnxruntime":
        import onnxruntime

        return int("CUDAExecutionProvider" in onnxruntime.get_available_providers())
    import jax

    try:
        return len(jax.devices("gpu"))
    except RuntimeError:  # its only answer without one
        return 0


def installed(framework: str) -> bool:
    """Whether the framework's package is there."""
    return importlib.util.find_spec("torch" if framework == "pytorch" else framework) is not None


def any_listed() -> bool:
    """Whether any framework lists a GPU; none is imported if the system has no driver for one."""
    return any(listed(framework) for framework in FRAMEWORKS)


def driver() -> bool:
    """Whether the system shows a GPU: NVIDIA's, AMD's, or that of a Windows host."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or Path("/dev/dxg").exists()
