"""What torch does to the bits on a graphics processor: set for the process, and read back."""

from __future__ import annotations

import os

import torch

__all__ = ["deterministic", "set_numerics", "tf32"]

# Each has a precision of its own; "none" is the default of its library.
_KINDS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def set_numerics(deterministic: bool, tf32: bool) -> None:
    """See `Framework.set_numerics`."""
    if deterministic:
        # cuBLAS reads it at its first product (torch.use_deterministic_algorithms, in PyTorch's documentation).
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # Nothing of deep5 reads memory before it has written to it; to fill new memory costs time on the host too.
    torch.utils.deterministic.fill_uninitialized_memory = False
    for kind in _KINDS:
        kind.fp32_precision = "tf32" if tf32 else "ieee"


def deterministic() -> bool:
    """Whether only kernels run that give the same bits again."""
    return bool(torch.are_deterministic_algorithms_enabled())


def tf32() -> bool:
    """Whether products, convolutions or recurrent layers of float32 may use TF32; cuDNN's do where nobody says."""
    found = [kind.fp32_precision for kind in _KINDS]
    return "tf32" in found or "none" in found[1:]
