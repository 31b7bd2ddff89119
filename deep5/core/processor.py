"""Features of this machine's processor that affect numerical results."""

from __future__ import annotations

import functools
from pathlib import Path

__all__ = ["adds_bfloat16_in_float32"]

# x86's AVX-512, with or without bfloat16 instructions, and Arm's equivalents.
_ABLE = {"avx512bw", "amx_bf16", "bf16", "svebf16"}


@functools.cache
def adds_bfloat16_in_float32() -> bool:
    """Whether the frameworks' bfloat16 kernels accumulate in float32 on this processor.

    oneDNN, which PyTorch and TensorFlow call, has such kernels for x86 from AVX-512 on. Elsewhere a fallback
    accumulates a convolution's gradients in bfloat16: the sum of 6419 ones is 2048 in TensorFlow and 7040 in PyTorch
    (measured on AVX2).

    References:
        oneDNN, Developer guide, Data types: bf16 needs avx512_core, or emulates it from there on.
    """
    try:
        return _able(Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:
        return True


def _able(text: str) -> bool:
    """The same for the text of /proc/cpuinfo; true if it lists no features."""
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    words = {word for line in lines for word in line.split()}
    return not words or bool(words & _ABLE)
