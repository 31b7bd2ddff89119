"""`Judge`: the comparisons and error messages of a conformance suite for one subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.core.tensors import to_numpy

__all__ = ["ConformanceError", "Judge"]


class ConformanceError(Deep5Error):
    """A component violates the contract of its interface."""


class Judge:
    """Comparisons that raise `ConformanceError` with the actual and the allowed result.

    Args:
        subject: The component under test, for messages.
        tolerance: Tolerance of `close`, relative to the norm of the expected value.
    """

    def __init__(self, subject: str, tolerance: float) -> None:
        self.subject, self.tolerance = subject, tolerance

    def require(self, holds: bool, what: str, allowed: Any) -> None:
        """Raise unless a condition holds; `what` describes the actual result."""
        if not holds:
            raise ConformanceError(f"{self.subject}: {what}; allowed: {allowed}")

    def close(self, got: Any, want: Any, what: str) -> None:
        """Require the same shape and dtype, and the same values within the tolerance; NaN and infinities equal."""
        got, want = np.asarray(to_numpy(got)), np.asarray(to_numpy(want))
        same = (got.shape, got.dtype) == (want.shape, want.dtype)
        self.require(same, f"{what} is {got.dtype}{got.shape}", f"{want.dtype}{want.shape}")
        finite = np.isfinite(want)
        other = int((~_same_kind(got, want) & ~finite).sum())
        self.require(other == 0, f"{what} lacks {other} NaN or infinities", f"the reference's {int((~finite).sum())}")
        got, want = got[finite], want[finite]
        error = float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))
        self.require(error <= self.tolerance, f"{what} is off by {error:.2g} of the reference's", f"{self.tolerance:g}")

    def alike(self, got: Any, want: Any, what: str, least: float = 0.0) -> None:
        """Require every element within the tolerance, relative to the largest expected one; NaN and infinities equal.

        Args:
            got: An array.
            want: The expected array.
            what: Its name, for the message, which also contains the first difference and its position.
            least: The least value that the tolerance is relative to: the size of the terms, if the result may be a
                mere rounding error of their cancellation.
        """
        got, want = np.asarray(to_numpy(got)), np.asarray(to_numpy(want))
        same = (got.shape, got.dtype) == (want.shape, want.dtype)
        self.require(same, f"{what} is {got.dtype}{got.shape}", f"{want.dtype}{want.shape}")
        finite = np.isfinite(want)
        scale = max(float(np.max(np.abs(want[finite]), initial=0.0)), least)
        with np.errstate(invalid="ignore"):
            distance = np.abs(got - want) if want.dtype != bool else (got != want).astype(np.float64)
            wrong = ~np.where(finite, distance <= self.tolerance * scale, _same_kind(got, want))
        if wrong.any():
            first = tuple(int(index) for index in np.argwhere(wrong)[0])
            self.require(
                False,
                f"{what} differs in {int(wrong.sum())} of {wrong.size} elements, first at {list(first)}: "
                f"{got[first]!s}, expected {want[first]!s}, {distance[first]:.3g} away",
                f"{self.tolerance * scale:.3g} ({self.tolerance:g} of {scale:.3g})",
            )

    def identical(self, got: Mapping[str, Any], want: Mapping[str, Any], what: str) -> None:
        """Require the same bits, shape and dtype for every name in `want`; NaN may have any bits."""
        for name, value in want.items():
            self.require(
                name in got and _same_bits(to_numpy(got[name]), to_numpy(value)), f"{what} {name!r}", "the same bits"
            )

    def refuses(self, kind: type[Exception], call: Callable[[], Any], what: str) -> None:
        """Require that the call raises an error of this type, and no other."""
        try:
            call()
        except kind:
            return
        except Exception as error:
            raise ConformanceError(
                f"{self.subject}: {what} raised {type(error).__name__}: {error}; allowed: {kind.__name__}"
            ) from error
        raise ConformanceError(f"{self.subject}: {what} was accepted; allowed: it raises {kind.__name__}")


def _same_kind(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Where both are NaN, or equal."""
    return np.asarray((got == want) | (np.isnan(got) & np.isnan(want)))


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return first.tobytes() == second.tobytes() or (
        first.dtype.kind not in "biu" and bool(np.isnan(first).any()) and np.array_equal(first, second, equal_nan=True)
    )
