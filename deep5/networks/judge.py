"""`Judge`: what a conformance suite says of one subject, in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.core.tensors import to_numpy

__all__ = ["ConformanceError", "Judge"]


class ConformanceError(Deep5Error):
    """A component that does not keep the contract of its interface."""


class Judge:
    """Comparisons that raise `ConformanceError`, with what was got and what is allowed.

    Args:
        subject: Who is judged, for the messages.
        tolerance: Of `close`, relative to the norm of what is wanted.
    """

    def __init__(self, subject: str, tolerance: float) -> None:
        self.subject, self.tolerance = subject, tolerance

    def require(self, holds: bool, what: str, allowed: Any) -> None:
        """Refuse the subject where something does not hold; `what` says what was got."""
        if not holds:
            raise ConformanceError(f"{self.subject}: {what}; allowed: {allowed}")

    def close(self, got: Any, want: Any, what: str) -> None:
        """The same shape and dtype, and the same values within the tolerance."""
        got, want = np.asarray(to_numpy(got)), np.asarray(to_numpy(want))
        same = (got.shape, got.dtype) == (want.shape, want.dtype)
        self.require(same, f"{what} is {got.dtype}{got.shape}", f"{want.dtype}{want.shape}")
        error = float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))
        self.require(error <= self.tolerance, f"{what} is off by {error:.2g} of the reference's", f"{self.tolerance:g}")

    def alike(self, got: Any, want: Any, what: str, least: float = 0.0) -> None:
        """Every element within the tolerance, relative to the largest of what is wanted; NaN and infinities alike.

        Args:
            got: An array.
            want: What it should be.
            what: What it is, for the message, which also says where the first element differs and by how much.
            least: What the tolerance is relative to at least: the size of what this was computed from, where it may be
                nothing but a remainder of roundings.
        """
        got, want = np.asarray(to_numpy(got)), np.asarray(to_numpy(want))
        same = (got.shape, got.dtype) == (want.shape, want.dtype)
        self.require(same, f"{what} is {got.dtype}{got.shape}", f"{want.dtype}{want.shape}")
        finite = np.isfinite(want)
        scale = max(float(np.max(np.abs(want[finite]), initial=0.0)), least)
        with np.errstate(invalid="ignore"):
            distance = np.abs(got - want)
            same_kind = (got == want) | (np.isnan(got) & np.isnan(want))
            wrong = ~np.where(finite, distance <= self.tolerance * scale, same_kind)
        if wrong.any():
            first = tuple(int(index) for index in np.argwhere(wrong)[0])
            self.require(
                False,
                f"{what} differs in {int(wrong.sum())} of {wrong.size} elements, first at {list(first)}: "
                f"{got[first]!s}, where {want[first]!s} is wanted, {distance[first]:.3g} away",
                f"{self.tolerance * scale:.3g} ({self.tolerance:g} of {scale:.3g})",
            )

    def identical(self, got: Mapping[str, Any], want: Mapping[str, Any], what: str) -> None:
        """The same bits for every name in `want`."""
        for name, value in want.items():
            same = name in got and np.array_equal(to_numpy(got[name]), to_numpy(value), equal_nan=True)
            self.require(same, f"{what} {name!r}", "the same bits")

    def refuses(self, kind: type[Exception], call: Callable[[], Any], what: str) -> None:
        """The call raises an error of this kind, and no other."""
        try:
            call()
        except kind:
            return
        except Exception as error:
            raise ConformanceError(
                f"{self.subject}: {what} raised {type(error).__name__}: {error}; allowed: {kind.__name__}"
            ) from error
        raise ConformanceError(f"{self.subject}: {what} was accepted; allowed: it raises {kind.__name__}")
