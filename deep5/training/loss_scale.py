"""`LossScale`: automatic loss scaling, on the host and inside compiled steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo, check_info
from deep5.core.tensors import Array

__all__ = [
    "KEYS",
    "CompiledScale",
    "LossScale",
    "check_scaling",
    "fitting",
    "initial_scaling",
    "next_scaling",
    "scaling_state",
]

KEYS = ("loss_scale", "good_steps", "skipped_steps")
"""Their keys in a step's `state_dict`: no slash, unlike a rule's `"<state>/<parameter>"`."""

_INITIAL, _INTERVAL, _FACTOR = 2.0**16, 2000.0, 2.0
# Below 1 it would scale down; above the maximum, its reciprocal would leave float32's range.
_SMALLEST, _LARGEST = 1.0, 2.0**100
# The largest power of two of the loss's element type.
_OF_TYPE = {"float16": 2.0**15}


def _bound(dtype: str) -> float:
    return _OF_TYPE.get(dtype, _LARGEST)


def initial_scaling(dtype: str) -> np.ndarray:
    """Scale, good steps since its last change, skipped steps: float64, shape (3,).

    Args:
        dtype: Element type of the loss.
    """
    return np.array([min(_INITIAL, _bound(dtype)), 0.0, 0.0])


def next_scaling(scaling: Array, finite: Array, dtype: str, where: Callable[..., Array]) -> list[Array]:
    """The scaling after a step, three scalars; traceable.

    The scale halves when the gradient was not finite, and doubles after 2000 good steps.

    Args:
        scaling: Before the step: three float64 scalars.
        finite: Whether the gradient was finite; a boolean of shape ().
        dtype: Element type of the loss.
        where: The framework's function, for float64 scalars.

    References:
        Micikevicius et al., Mixed precision training, ICLR 2018, section 3.2.
    """
    scale, good, skipped = scaling[0], scaling[1] + 1.0, scaling[2]
    one = scaling[1] * 0.0 + 1.0
    doubled, halved = scale * _FACTOR, scale / _FACTOR
    full, large, small = good >= _INTERVAL, doubled > _bound(dtype), halved < _SMALLEST
    raised = where(full, where(large, scale, doubled), scale)
    return [
        where(finite, raised, where(small, one * _SMALLEST, halved)),
        where(finite, where(full, one * 0.0, good), one * 0.0),
        where(finite, skipped, skipped + 1.0),
    ]


def check_scaling(state: Mapping[str, Any]) -> np.ndarray:
    """The scaling in a `state_dict`; other entries are ignored.

    Raises:
        ShapeError: An entry is missing, or its number is invalid.
    """
    if missing := [key for key in KEYS if key not in state]:
        raise ShapeError(f"the optimizer's state has no {missing[0]!r}; allowed: that of a step with a dynamic scale")
    values = [np.asarray(state[key]) for key in KEYS]
    for key, value, least in zip(KEYS, values, (_SMALLEST, 0, 0), strict=True):
        if value.shape != () or value.dtype.kind not in "fiu" or not least <= float(value) < math.inf:
            raise ShapeError(f"state {key!r}: got {value!r:.60}; allowed: a finite number of at least {least:g}")
    return np.array([float(value) for value in values])


class LossScale:
    """A dynamic loss scale on the host, which has access to every gradient.

    Args:
        dtype: Element type of the loss.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype, self._values = dtype, initial_scaling(dtype)

    @property
    def scale(self) -> float:
        """The factor of the next step's loss."""
        return float(self._values[0])

    @property
    def skipped(self) -> int:
        """Number of skipped updates."""
        return int(self._values[2])

    def update(self, *, finite: bool) -> None:
        """Update the scale after a step, given whether its gradient was finite."""
        self._values = np.array(next_scaling(self._values, finite, self._dtype, lambda c, a, b: a if c else b))

    def state_dict(self) -> dict[str, Any]:
        """The state for an exact resume."""
        return scaling_state(self._values)

    def load(self, scaling: np.ndarray) -> None:
        """Continue from this scaling; see `initial_scaling`."""
        self._values = scaling

    def values(self) -> np.ndarray:
        """The scaling after the last step."""
        return self._values


def scaling_state(values: Any) -> dict[str, Any]:
    """The `state_dict` entries of the three numbers."""
    scale, good, skipped = (float(value) for value in values)
    return dict(zip(KEYS, (np.array(scale), np.array(int(good)), np.array(int(skipped))), strict=True))


class CompiledScale:
    """The host's part of a dynamic loss scale in a compiled step.

    A rule counts updates, and only the device knows the number of skipped steps: reading it would wait for the step in
    progress. The host reads the count of the step before that one and passes the rule's numbers for this count and for
    one more; the device selects the matching set.

    Args:
        given: Returns the numbers of a step: float64, shape (width,).
        dtype: Element type of the loss.
    """

    def __init__(self, given: Callable[[StepInfo], np.ndarray], dtype: str) -> None:
        self._given = given
        self.load(initial_scaling(dtype))

    def load(self, scaling: np.ndarray) -> None:
        """Start from this scaling; see `initial_scaling`."""
        self._recent: tuple[Any, Any] = (scaling, scaling)

    def done(self, scaling: Array) -> None:
        """Register the scaling after a step that was started."""
        self._recent = (self._recent[1], scaling)

    def vector(self, info: StepInfo) -> np.ndarray:
        """Two sets of numbers, and the count of skipped steps for the first: float64, shape (2 width + 1,)."""
        check_info(info)
        skipped = int(np.asarray(self._recent[0])[2])
        counts = [max(info.step - skipped - more, 0) for more in (0, 1)]
        return np.concatenate([*(self._given(info._replace(step=count)) for count in counts), [float(skipped)]])

    def values(self) -> np.ndarray:
        """The scaling after the last step; waits for it."""
        return np.array(self._recent[1])

    def state_dict(self) -> dict[str, Any]:
        """The state for an exact resume; waits for the last step."""
        return scaling_state(self.values())


def fitting(vector: Array, scaling: Array, width: int, where: Callable[..., Array]) -> Array:
    """Select the numbers of a step from `CompiledScale.vector`; traced.

    Args:
        vector: The step's argument.
        scaling: Before the step.
        width: The size of one set.
        where: The framework's function.
    """
    return where(scaling[2] == vector[2 * width], vector[:width], vector[width : 2 * width])
