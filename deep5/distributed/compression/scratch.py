"""`Scratch`: memory reused between calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.tensors import aligned_empty

__all__ = ["Scratch"]


class Scratch:
    """Buffers by name, each as large as the largest request."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}

    def take(self, name: str, count: int, dtype: Any) -> np.ndarray:
        """A flat array of `count` elements, aligned to 64 bytes, with undefined contents.

        The next call with this name returns the same memory.
        """
        size_bytes = count * np.dtype(dtype).itemsize
        memory = self._memory.get(name)
        if memory is None or memory.size < size_bytes:
            memory = self._memory[name] = aligned_empty((size_bytes,), np.uint8)
        return memory[:size_bytes].view(dtype)
