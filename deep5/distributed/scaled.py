"""Compressed gradients under a loss scale: a compression keeps state in units of the unscaled gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["finite", "skips", "unscaled"]


@contextmanager
def unscaled(compression: Any, buffer: np.ndarray, scale: float) -> Iterator[None]:
    """While inside, the buffer is divided by the loss scale if the compression keeps state from it.

    What one step leaves out is sent in a later step, whose scale may differ. A compression without state gets the
    scaled buffer: small numbers survive in half precision because of the scale.

    Args:
        compression: A bound `Compression`.
        buffer: Gradients, modified in place.
        scale: The loss scale by which they were multiplied.
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
    """Whether a dynamic loss scale may skip a step, so that the compression must take back what it sent."""
    return (
        bool(getattr(getattr(optimizer, "pipeline", None), "dynamic", False))
        and getattr(compression, "feedback", False)
        and hasattr(compression, "take_back")
    )


def finite(buffers: Sequence[np.ndarray]) -> bool:
    """Whether all elements of all buffers are finite."""
    return all(bool(np.isfinite(buffer).all()) for buffer in buffers)
