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
"""Where a step's `state_dict` has them: no slash, unlike a rule's `"<state>/<parameter>"`."""

_INITIAL, _INTERVAL, _FACTOR = 2.0**16, 2000.0, 2.0
# Below 1 it would no longer scale up; above the second, its reciprocal would leave float32.
_SMALLEST, _LARGEST = 1.0, 2.0**100
# The largest power of two of the loss's element type.
_OF_TYPE = {"float16": 2.0**15}


def _bound(dtype: str) -> float:
    return _OF_TYPE.get(dtype, _LARGEST)


def initial_scaling(dtype: str) -> np.ndarray:
    """Scale, good steps since it changed, steps skipped: float64, shape (3,).

    Args:
        dtype: Element type of the loss.
    """
    return np.array([min(_INITIAL, _bound(dtype)), 0.0, 0.0])


def next_scaling(scaling: Array, finite: Array, dtype: str, where: Callable[..., Array]) -> list[Array]:
    """Scaling after a step, of three scalars; may be traced.

    The scale halves when the gradient was not finite, and doubles after 2000 good steps.

    Args:
        scaling: Before the step: three float64 scalars.
        finite: Whether the gradient was; a truth value of shape ().
        dtype: Element type of the loss.
        where: The framework's function, of float64 scalars.

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
    """Scaling out of a `state_dict`; what else it holds is not looked at.

    Raises:
        ShapeError: An entry is missing, or no number that it could be.
    """
    if missing := [key for key in KEYS if key not in state]:
        raise ShapeError(f"the optimizer's state has no {missing[0]!r}; allowed: that of a step with a dynamic scale")
    values = [np.asarray(state[key]) for key in KEYS]
    for key, value, least in zip(KEYS, values, (_SMALLEST, 0, 0), strict=True):
        if value.shape != () or value.dtype.kind not in "fiu" or not least <= float(value) < math.inf:
            raise ShapeError(f"state {key!r}: got {value!r:.60}; allowed: a finite number of at least {least:g}")
    return np.array([float(value) for value in values])


class LossScale:
    """A dynamic loss scale where the host sees every gradient.

    Args:
        dtype: Element type of the loss.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype, self._values = dtype, initial_scaling(dtype)

    @property
    def scale(self) -> float:
        """What the loss of the next step is multiplied by."""
        return float(self._values[0])

    @property
    def skipped(self) -> int:
        """Steps whose update was left out."""
        return int(self._values[2])

    def update(self, *, finite: bool) -> None:
        """After a step whose gradient was, or was not, finite."""
        self._values = np.array(next_scaling(self._values, finite, self._dtype, lambda c, a, b: a if c else b))

    def state_dict(self) -> dict[str, Any]:
        """For an exact resume."""
        return scaling_state(self._values)

    def load(self, scaling: np.ndarray) -> None:
        """Continue from this scaling; see `initial_scaling`."""
        self._values = scaling

    def values(self) -> np.ndarray:
        """Scaling after the last step."""
        return self._values


def scaling_state(values: Any) -> dict[str, Any]:
    """The entries of a `state_dict`, from three numbers."""
    scale, good, skipped = (float(value) for value in values)
    return dict(zip(KEYS, (np.array(scale), np.array(int(good)), np.array(int(skipped))), strict=True))


class CompiledScale:
    """The host's half of a dynamic loss scale that lives within a compiled step.

    A rule counts updates, and how many steps were skipped only the device knows: reading it would wait for the step
    that is on its way. The host reads the count of the step before that one, so the device gets the rule's numbers
    for this count and for one more, and takes those that fit.

    Args:
        given: The numbers of a step: float64, shape (width,).
        dtype: Element type of the loss.
    """

    def __init__(self, given: Callable[[StepInfo], np.ndarray], dtype: str) -> None:
        self._given = given
        self.load(initial_scaling(dtype))

    def load(self, scaling: np.ndarray) -> None:
        """Start from this scaling; see `initial_scaling`."""
        self._recent: tuple[Any, Any] = (scaling, scaling)

    def done(self, scaling: Array) -> None:
        """A step was started that ends with this scaling."""
        self._recent = (self._recent[1], scaling)

    def vector(self, info: StepInfo) -> np.ndarray:
        """Two sets of numbers, and the count of skipped steps that the first is for: float64, shape (2 width + 1,)."""
        check_info(info)
        skipped = int(np.asarray(self._recent[0])[2])
        counts = [max(info.step - skipped - more, 0) for more in (0, 1)]
        return np.concatenate([*(self._given(info._replace(step=count)) for count in counts), [float(skipped)]])

    def values(self) -> np.ndarray:
        """Scaling after the last step; waits for it."""
        return np.array(self._recent[1])

    def state_dict(self) -> dict[str, Any]:
        """For an exact resume; waits for the last step."""
        return scaling_state(self.values())


def fitting(vector: Array, scaling: Array, width: int, where: Callable[..., Array]) -> Array:
    """The numbers of a step out of `CompiledScale.vector`; traced.

    Args:
        vector: As given to the step.
        scaling: Before the step.
        width: Of one set.
        where: The framework's function.
    """
    return where(scaling[2] == vector[2 * width], vector[:width], vector[width : 2 * width])
