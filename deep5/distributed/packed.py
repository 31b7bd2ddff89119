"""`Packed`: an executor's parameters of one dtype as one flat buffer, for messages between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.executors import GraphExecutor
from deep5.core.tensors import aligned_empty, numpy_dtype

__all__ = ["Packed"]


class Packed:
    """Parameters or buffers of one dtype, concatenated.

    Args:
        executor: Holds the live values.
        names: Names of parameters or buffers of one dtype.
        dtype: Name of the dtype.
    """

    def __init__(self, executor: GraphExecutor, names: Sequence[str], dtype: str) -> None:
        self._executor, self.names, self.dtype = executor, tuple(names), dtype
        specs = {**executor.network.parameter_specs, **executor.network.buffer_specs}
        self._memory: np.ndarray = aligned_empty((sum(specs[name].size for name in names),), numpy_dtype(dtype))

    @classmethod
    def of(cls, executor: GraphExecutor, *, buffers: bool = False) -> list[Packed]:
        """All parameters, or all buffers, one `Packed` per dtype, in the network's order."""
        specs: dict[str, Any] = dict(executor.network.buffer_specs if buffers else executor.network.parameter_specs)
        groups: dict[str, list[str]] = {}
        for name, spec in specs.items():
            groups.setdefault(spec.dtype, []).append(name)
        return [cls(executor, names, dtype) for dtype, names in groups.items()]

    @property
    def floating(self) -> bool:
        """Whether the dtype is floating-point, so that a mean is meaningful."""
        return "float" in self.dtype

    def read(self) -> np.ndarray:
        """The current values, in memory that the next call reuses."""
        self._executor.read(self.names, self._memory)
        return self._memory

    def write(self, values: np.ndarray) -> None:
        """Set the values."""
        self._executor.write(self.names, values)
