"""What this machine's processor has, and which graphics processors there are, by what each framework itself lists."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

AVX512 = "avx512bw" in Path("/proc/cpuinfo").read_text(errors="replace")
"""Whether this machine's processor has the instructions that some engines' kernels are written for, and others not."""

FRAMEWORKS = ("pytorch", "tensorflow", "jax", "onnxruntime")


@functools.cache
def listed(framework: str) -> int:
    """How many graphics processors the framework lists; 0 where it is not installed."""
    if not driver() or importlib.util.find_spec("torch" if framework == "pytorch" else framework) is None:
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
    except RuntimeError:  # its only answer where there is none
        return 0


def any_listed() -> bool:
    """Whether any framework lists one; none is asked, and imported, where the system has no driver for one."""
    return any(listed(framework) for framework in FRAMEWORKS)


def driver() -> bool:
    """Whether the system shows a graphics processor: NVIDIA's, AMD's, or that of a Windows below."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or Path("/dev/dxg").exists()
