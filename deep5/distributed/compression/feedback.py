"""`Kept`: a compression's state from step to step, by buffer key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.errors import CheckpointError, UsageError

__all__ = ["Kept", "all_finite"]


class Kept:
    """Arrays by key, initially zero.

    Args:
        name: Name of the quantity: the prefix of the names in a state.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._arrays: dict[str, np.ndarray] = {}
        self._held: dict[str, np.ndarray] = {}

    def of(self, key: str, values: np.ndarray) -> np.ndarray:
        """The array of a key, with the size and dtype of the values; the caller modifies it in place.

        Raises:
            UsageError: The key was used with values of another size or dtype.
        """
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = np.zeros_like(values)
        if found.shape != values.shape or found.dtype != values.dtype:
            raise UsageError(
                f"the buffer {key!r} is {values.dtype}[{values.size}]; allowed: {found.dtype}[{found.size}], as "
                "before; remedy: one key per buffer"
            )
        return found

    def hold(self) -> None:
        """Save a copy of all arrays."""
        for key, array in self._arrays.items():
            if key in self._held:
                np.copyto(self._held[key], array)
            else:
                self._held[key] = array.copy()

    def take_back(self) -> None:
        """Restore all arrays from the last `hold`; arrays created since become zero."""
        for key, array in self._arrays.items():
            array[...] = self._held.get(key, 0)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies, by `name/key`."""
        return {f"{self._name}/{key}": array.copy() for key, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all arrays by copies from a state; entries with other prefixes are ignored.

        Raises:
            CheckpointError: An entry is not a flat array of float32 or float64.
        """
        arrays = {}
        for name, value in state.items():
            if name.startswith(f"{self._name}/"):
                array = np.array(value)
                if array.ndim != 1 or array.dtype not in (np.float32, np.float64):
                    raise CheckpointError(
                        f"{name} is {array.dtype}{list(array.shape)}; allowed: a flat array of float32 or float64"
                    )
                arrays[name.removeprefix(f"{self._name}/")] = array
        self._arrays, self._held = arrays, {}


def all_finite(values: np.ndarray) -> bool:
    """Whether no element is infinite or NaN; called with NumPy's warnings disabled."""
    # One BLAS pass is enough, unless squares overflow.
    return bool(np.isfinite(np.dot(values, values))) or bool(np.isfinite(values).all())
