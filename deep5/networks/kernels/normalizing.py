"""Normalizations other than those over a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.nodes import extents, rank, spare
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS", "check_norm"]


def _centered(xp: Primitives, x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """x minus its mean over axes, and its variance."""
    centered = x - xp.mean(x, axis=tuple(axes), keepdims=True)
    return centered, xp.mean(xp.square(centered), axis=tuple(axes), keepdims=True)


def _instance_normalization(
    xp: Primitives, x: Array, scale: Array, bias: Array, *, apart: Sequence[int] = (0, 1), epsilon: float = 1e-5
) -> Array:
    """Each channel of each image with mean 0 and variance 1, scaled and shifted; `apart` are the axes of both.

    References:
        Ulyanov et al., Instance normalization, arXiv 1607.08022, equation 3.
    """
    channels = tuple(-1 if axis == apart[1] else 1 for axis in range(x.ndim))
    centered, variance = _centered(xp, xp.wide(x), [axis for axis in range(x.ndim) if axis not in apart])
    scale, bias = (xp.reshape(xp.astype(value, centered.dtype), channels) for value in (scale, bias))
    return xp.astype(centered * (scale * xp.rsqrt(variance + epsilon)) + bias, x.dtype)


def _group_normalization(
    xp: Primitives,
    x: Array,
    scale: Array,
    bias: Array,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
    channels: int,
) -> Array:
    """Each group of channels of an image with mean 0 and variance 1, scaled and shifted.

    References:
        Wu and He, Group normalization, ECCV 2018, equation 1.
    """
    size, axes = x.shape[channels] // num_groups, (1, 3) if channels < 0 else (2,)
    shape = (
        (math.prod(x.shape[1:-1]), num_groups, size) if channels < 0 else (num_groups, size * math.prod(x.shape[2:]))
    )
    centered, variance = _centered(xp, xp.reshape(xp.wide(x), (x.shape[0], *shape)), axes)
    normal = centered * xp.rsqrt(variance + epsilon)
    scale, bias = (xp.reshape(each, (-1,) if channels < 0 else (-1, *(1,) * (x.ndim - 2))) for each in (scale, bias))
    # Rounded to the input's type in between, as in ONNX's function definition.
    return xp.reshape(xp.astype(normal, x.dtype), x.shape) * scale + bias


def _check_groups(node: ir.Node) -> str | None:
    if rank(node) < 2:
        return "no channels"
    return None if isinstance(extents(node.inputs[0])[1], int) else "a number of channels that is not known"


def _layer_normalization(
    xp: Primitives,
    x: Array,
    scale: Array,
    bias: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Array:
    """x with mean 0 and variance 1 over the axes from one on, scaled and shifted.

    References:
        Ba, Kiros and Hinton, Layer normalization, arXiv 1607.06450, equation 4.
    """
    centered, variance = _centered(xp, xp.wide(x), range(axis % x.ndim, x.ndim))
    y = xp.astype(centered * xp.rsqrt(variance + epsilon), x.dtype) * scale
    return y if bias is None else y + bias


def _rms_normalization(
    xp: Primitives, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """x over the root of the mean of its squares.

    References:
        Zhang and Sennrich, Root mean square layer normalization, NeurIPS 2019, equation 4.
    """
    wide = xp.wide(x)
    square = xp.mean(xp.square(wide), axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return xp.astype(wide * xp.rsqrt(square + epsilon), x.dtype) * scale


def _lp_normalization(xp: Primitives, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """x over its norm along an axis; zeros stay zero, and so does their gradient."""
    total = xp.sum(xp.abs(x) if p == 1 else xp.square(x), axis=axis, keepdims=True, dtype=x.dtype)
    total = xp.where(total == 0, xp.full_like(total, math.inf), total)
    return x / (total if p == 1 else xp.sqrt(total))


def check_norm(node: ir.Node) -> str | None:
    """Why a node that divides by a norm cannot run."""
    chosen = attribute(node, "p", 2)
    return None if chosen in (1, 2) else f"p={chosen}; allowed: 1, 2"


def _mean_variance_normalization(xp: Primitives, x: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    """As in ONNX's function definition: the epsilon is added to the deviation, whose gradient at 0 is 0 here."""
    centered, variance = _centered(xp, x, axes)
    some = variance > 0
    deviation = xp.where(some, xp.sqrt(xp.where(some, variance, xp.ones_like(variance))), xp.zeros_like(variance))
    return centered / (deviation + 1e-9)


OPERATORS = {
    "GroupNormalization": Composite(function=_group_normalization, check=_check_groups, layout="image"),
    "InstanceNormalization": Composite(function=_instance_normalization, layout="apart"),
    "LayerNormalization": Composite(function=_layer_normalization, check=spare),
    "LpNormalization": Composite(function=_lp_normalization, check=check_norm, layout="axis"),
    "MeanVarianceNormalization": Composite(function=_mean_variance_normalization, layout="axes"),
    "RMSNormalization": Composite(function=_rms_normalization),
}
