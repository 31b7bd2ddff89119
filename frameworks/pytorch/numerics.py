"""What torch does to the bits on a graphics processor: set for the process, and read back."""

from __future__ import annotations

import os

import torch

__all__ = ["deterministic", "set_numerics", "tf32"]


def set_numerics(deterministic: bool, tf32: bool) -> None:
    """See `Framework.set_numerics`."""
    if deterministic:
        # cuBLAS reads it at its first product (torch.use_deterministic_algorithms, in PyTorch's documentation).
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # deep5 reads no memory before it has written to it; to fill new memory costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def deterministic() -> bool:
    """Whether only kernels run that give the same bits again."""
    return bool(torch.are_deterministic_algorithms_enabled())


def tf32() -> bool:
    """Whether products or cuDNN's layers of float32 may use TF32; cuDNN's do where nobody says."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # somebody has set one kind of layer by itself, which these two cannot tell
        return True
