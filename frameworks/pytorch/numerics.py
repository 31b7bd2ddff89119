"""torch's process-wide numerics settings on GPUs: set them and read them back."""

from __future__ import annotations

import os

import torch

__all__ = ["deterministic", "set_numerics", "tf32"]


def set_numerics(deterministic: bool, tf32: bool) -> None:
    """See `Framework.set_numerics`."""
    if deterministic:
        # cuBLAS reads this at its first product (torch.use_deterministic_algorithms, in PyTorch's documentation).
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # deep5 never reads uninitialized memory; filling new memory costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def deterministic() -> bool:
    """Whether only kernels with bit-identical results run."""
    return bool(torch.are_deterministic_algorithms_enabled())


def tf32() -> bool:
    """Whether products or cuDNN layers of float32 may use TF32; cuDNN's do by default."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # a single kind of layer was set separately, which these two cannot report
        return True
