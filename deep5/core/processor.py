"""What this machine's processor is able to do, where numbers depend on it."""

from __future__ import annotations

import functools
from pathlib import Path

__all__ = ["adds_bfloat16_in_float32"]

# x86's AVX-512, with or without instructions for bfloat16, and what Arm calls its own.
_ABLE = {"avx512bw", "amx_bf16", "bf16", "svebf16"}


@functools.cache
def adds_bfloat16_in_float32() -> bool:
    """Whether frameworks' kernels for bfloat16 add up in float32 on this processor.

    oneDNN, which PyTorch and TensorFlow call, has such kernels for x86 from AVX-512 on. Elsewhere a fallback adds a
    convolution's gradients up in bfloat16: of 6419 ones TensorFlow finds 2048, PyTorch 7040 (measured on AVX2).

    References:
        oneDNN, Developer guide, Data types: bf16 needs avx512_core, or emulates it from there on.
    """
    try:
        return _able(Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:
        return True


def _able(text: str) -> bool:
    """The same of a file /proc/cpuinfo; one that lists nothing is no reason to compute otherwise."""
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    words = {word for line in lines for word in line.split()}
    return not words or bool(words & _ABLE)
