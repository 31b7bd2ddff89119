"""Compressed gradients under a loss scale: what a compression keeps is in units of the gradient, and of steps taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["finite", "skips", "unscaled"]


@contextmanager
def unscaled(compression: Any, buffer: np.ndarray, scale: float) -> Iterator[None]:
    """While inside, the buffer is divided by the loss scale, where the compression keeps something of it.

    What is left out of one step is sent in another one, whose scale may differ. A compression that keeps nothing
    gets the buffer as it is: small numbers survive in half precision by their scale.

    Args:
        compression: A `Compression`, bound.
        buffer: Gradients, in place.
        scale: What they were multiplied by.
    """
    if scale == 1.0 or not getattr(compression, "feedback", True):
        yield
        return
    # The usual scales are powers of two, for which both products are exact.
    with np.errstate(all="ignore"):
        buffer *= buffer.dtype.type(1.0 / scale)
        yield
        buffer *= buffer.dtype.type(scale)


def skips(compression: Any, optimizer: Any) -> bool:
    """Whether a step may be left out under a dynamic loss scale, and the compression has to take back what it sent."""
    return (
        bool(getattr(getattr(optimizer, "pipeline", None), "dynamic", False))
        and getattr(compression, "feedback", False)
        and hasattr(compression, "take_back")
    )


def finite(buffers: Sequence[np.ndarray]) -> bool:
    """Whether all elements of all buffers are finite."""
    return all(bool(np.isfinite(buffer).all()) for buffer in buffers)
