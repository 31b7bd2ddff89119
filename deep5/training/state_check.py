"""Checks an optimizer's state: entries, shapes, element types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError

__all__ = ["check_entries", "checked_state"]


def check_entries(state: Mapping[str, Any], expected: Collection[str]) -> None:
    """Reject a state with other entries.

    Raises:
        ShapeError: An entry is missing or unknown.
    """
    if odd := sorted(state.keys() ^ set(expected)):
        raise ShapeError(
            f"the optimizer's state has missing or unknown entries: {odd}; allowed: "
            f"{', '.join(sorted(expected)) or 'none'}"
        )


def checked_state(
    state: Mapping[str, Any], expected: Mapping[str, tuple[tuple[int, ...], str]]
) -> dict[str, np.ndarray]:
    """The entries of a state as arrays.

    Args:
        state: The argument of `load_state_dict`.
        expected: Shape and element type of each entry.

    Raises:
        ShapeError: An entry is missing, unknown, or of another shape or dtype.
    """
    check_entries(state, expected)
    found = {key: np.asarray(state[key]) for key in expected}
    for key, (shape, dtype) in expected.items():
        value = found[key]
        if value.shape != shape or str(value.dtype) != dtype:
            raise ShapeError(f"the optimizer's state {key!r}: got {value.dtype}{value.shape}, expected {dtype}{shape}")
    return found
