"""The test problem for update rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.errors import RuleError
from deep5.core.seeds import generator
from deep5.core.tensors import to_numpy

__all__ = ["Outcome", "Problem", "equal", "half", "require_same"]

Outcome = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A noisy quadratic per element: the gradient at x is 0.5 (x - target) + the step's noise."""

    start: Outcome
    target: Outcome
    noise: tuple[Outcome, ...]

    @classmethod
    def make(cls, shapes: Mapping[str, tuple[int, ...]], steps: int, seed: int) -> Problem:
        """A random problem of these shapes."""

        def draw(*purpose: str | int) -> Outcome:
            return {
                name: np.asarray(generator(seed, "check_optimizer", name, *purpose).standard_normal(shape))
                for name, shape in shapes.items()
            }

        return cls(start=draw("start"), target=draw("target"), noise=tuple(draw("noise", k) for k in range(steps)))

    def of(self, function: Callable[[Outcome], Outcome]) -> Problem:
        """The same problem with the function applied to every set of arrays."""
        return Problem(start=function(self.start), target=function(self.target), noise=tuple(map(function, self.noise)))

    def gradients(self, points: Mapping[str, Any], step: int, dtype: str) -> Outcome:
        """The gradients of a step at these points."""
        return {
            name: np.asarray(0.5 * (to_numpy(x) - self.target[name]) + 0.1 * self.noise[step][name], dtype)
            for name, x in points.items()
        }


def half(arrays: Outcome, part: int, *, rename: bool = True) -> Outcome:
    """One half of each array, flat; single-element arrays are omitted, or whole if names are kept."""
    return {
        f"{name}[{part}]" if rename else name: np.array_split(value.reshape(-1), 2)[part]
        for name, value in arrays.items()
        if value.size > 1
    }


def equal(got: Outcome, want: Outcome) -> bool:
    """Whether two outcomes are equal bit for bit."""
    return all(np.array_equal(got[key], value, equal_nan=True) for key, value in want.items())


def require_same(got: Outcome, want: Outcome, tolerance: float, what: str, remedy: str) -> None:
    """Compare two outcomes.

    Args:
        got: The outcome to check.
        want: The right one.
        tolerance: The largest allowed difference relative to the largest element.
        what: What is wrong if they differ, for the message.
        remedy: For the message.

    Raises:
        RuleError: They differ by more.
    """
    for key, value in want.items():
        if np.array_equal(got[key], value, equal_nan=True):
            continue
        with np.errstate(all="ignore"):
            scale = float(np.max(np.abs(value[np.isfinite(value)]), initial=1e-300))
            error = float(np.max(np.abs(got[key] - value) / scale))
        if not error <= tolerance:
            state, _, name = key.partition("/")
            raise RuleError(
                f"{what}; got a relative difference of {error:.2g} in {state!r} of the parameter {name!r} of shape "
                f"{value.shape}, allowed: {tolerance:g}; remedy: {remedy}"
            )
