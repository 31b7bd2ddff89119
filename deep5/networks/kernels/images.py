"""Operators of images' channels: blocks of pixels, and local response normalization; and the bits of numbers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.reducing import check_space
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS", "check_bits"]


def _rearranged(xp: Primitives, x: Array, split: Sequence[Any], order: Sequence[int], shape: Sequence[Any]) -> Array:
    return xp.reshape(xp.permute_dims(xp.reshape(x, tuple(split)), tuple(order)), tuple(shape))


def _depth_to_space(xp: Primitives, x: Array, *, blocksize: int, mode: str = "DCR", channels: int) -> Array:
    """Each block of channels as a block of pixels; the pixels' channels are adjacent if columns come first."""
    size, columns_first = blocksize, mode == "CRD"
    if channels == 1:
        n, depth, height, width = x.shape
        inner = depth // size**2
        split = (inner, size, size) if columns_first else (size, size, inner)
        order = (0, 1, 4, 2, 5, 3) if columns_first else (0, 3, 4, 1, 5, 2)
        return _rearranged(xp, x, (n, *split, height, width), order, (n, inner, height * size, width * size))
    n, height, width, depth = x.shape
    inner = depth // size**2
    split = (inner, size, size) if columns_first else (size, size, inner)
    order = (0, 1, 4, 2, 5, 3) if columns_first else (0, 1, 3, 2, 4, 5)
    return _rearranged(xp, x, (n, height, width, *split), order, (n, height * size, width * size, inner))


def _space_to_depth(xp: Primitives, x: Array, *, blocksize: int, mode: str = "DCR", channels: int) -> Array:
    """The inverse of `_depth_to_space`."""
    size, columns_first = blocksize, mode == "CRD"
    if channels == 1:
        n, depth, height, width = x.shape
        rows, columns = height // size, width // size
        order = (0, 1, 3, 5, 2, 4) if columns_first else (0, 3, 5, 1, 2, 4)
        return _rearranged(xp, x, (n, depth, rows, size, columns, size), order, (n, depth * size**2, rows, columns))
    n, height, width, depth = x.shape
    rows, columns = height // size, width // size
    order = (0, 1, 3, 5, 2, 4) if columns_first else (0, 1, 3, 2, 4, 5)
    return _rearranged(xp, x, (n, rows, size, columns, size, depth), order, (n, rows, columns, depth * size**2))


def _local_response_normalization(
    xp: Primitives,
    x: Array,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int,
    channels: int,
) -> Array:
    """x / (bias + alpha / size sum of x^2 over `size` channels around each) ^ beta.

    References:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional networks, NeurIPS 2012,
        section 3.3.
    """
    return x * (_squares_around(xp, x, channels % x.ndim, size) * (alpha / size) + bias) ** -beta


def _squares_around(xp: Primitives, x: Array, axis: int, size: int) -> Array:
    """The sum of `size` squares around each along an axis; of an even number, one more after it than before it."""
    pads = [((size - 1) // 2, size // 2) if at == axis else (0, 0) for at in range(x.ndim)]
    padded = xp.pad(xp.square(x), pads, 0.0)
    parts = (padded[(slice(None),) * axis + (slice(at, at + 1 - size or None),)] for at in range(size))
    return functools.reduce(operator.add, parts)


def _bit_cast(xp: Primitives, x: Array, *, kind: Any) -> Array:
    """The bits of numbers as another type; truth values are bytes of 0 and 1, and true where a byte is not 0."""
    x = xp.astype(x, xp.uint8) if x.dtype == xp.bool else x
    return xp.bits(x, xp.uint8) != 0 if kind == xp.bool else xp.bits(x, kind)


def check_bits(node: ir.Node) -> str | None:
    """Why a BitCast cannot run."""
    bits = [value.dtype.bitwidth for value in (node.inputs[0], node.outputs[0])]  # type: ignore[union-attr]  # inferred
    bits = [max(count, 8) for count in bits]
    return None if bits[0] == bits[1] else f"numbers of {bits[0]} bits as those of {bits[1]}"


OPERATORS = {
    "BitCast": Composite(function=_bit_cast, check=check_bits, layout="elementwise"),
    "DepthToSpace": Composite(function=_depth_to_space, layout="image"),
    "LRN": Composite(function=_local_response_normalization, check=check_space, layout="image"),
    "SpaceToDepth": Composite(function=_space_to_depth, layout="image"),
}
