"""The axis order of a value in memory, and the orders that TensorFlow's kernels prefer.

An order is a permutation of ONNX's axes: a value in the order (0, 2, 3, 1) has its channels last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Order", "between", "channels_last", "keeps_memory", "kernel_order", "onnx_order", "without"]

Order = tuple[int, ...]


def onnx_order(rank: int) -> Order:
    """ONNX's axis order."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Batch, space, channels: the order of images.

    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def kernel_order(rank: int) -> Order:
    """Space, input channels, output channels: the order of convolution weights.

    >>> kernel_order(4)
    (2, 3, 1, 0)
    """
    return (*range(2, rank), 1, 0)


def between(have: Order, want: Order) -> Order:
    """The permutation that converts a value from one order to another.

    >>> between((0, 2, 3, 1), (0, 1, 2, 3))
    (0, 3, 1, 2)
    """
    return tuple(have.index(axis) for axis in want)


def without(order: Order, removed: Iterable[int]) -> Order:
    """The order of the remaining axes when some of ONNX's axes are removed.

    >>> without((0, 2, 3, 1), [2, 3])
    (0, 1)
    """
    gone = set(removed)
    left = [axis for axis in order if axis not in gone]
    return tuple(sorted(left).index(axis) for axis in left)


def keeps_memory(extents: Sequence[int | str | None], permutation: Order) -> bool:
    """Whether a permutation moves only dimensions of size 1: then it is a reshape without a copy.

    >>> keeps_memory(("N", 1, 28, 28), (0, 2, 3, 1))
    True
    """
    moved = [axis for axis in permutation if extents[axis] != 1]
    return moved == sorted(moved)
