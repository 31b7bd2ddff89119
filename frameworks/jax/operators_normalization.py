"""Normalizations other than those of the layers in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import attribute, axis, call, number, operator

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any


def _instance_normalized(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    """Ulyanov et al., Instance normalization, arXiv 1607.08022, equation 3."""
    axes, channels = tuple(range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    wide = jnp.promote_types(x.dtype, "float32")
    values = x.astype(wide)
    centred = values - values.mean(axes, keepdims=True)
    normal = centred * lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + epsilon)
    return (normal * scale.reshape(channels) + bias.reshape(channels)).astype(x.dtype)


@operator("InstanceNormalization")
def _instance_normalization(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _instance_normalized, number(node, "epsilon", 1e-5))


def _lp_normalized(x: Array, p: int, axis: int) -> Array:
    """x divided by its norm along an axis; zeros stay zero, and so does their gradient."""
    total = jnp.sum(jnp.abs(x) if p == 1 else jnp.square(x), axis=axis, keepdims=True)
    some = total > 0
    safe = jnp.where(some, total, 1)
    return jnp.where(some, x / (safe if p == 1 else jnp.sqrt(safe)), 0)


def _check_norm(node: ir.Node) -> str | None:
    chosen = attribute(node, "p", 2)
    return None if chosen in (1, 2) else f"p={chosen}; allowed: 1, 2"


@operator("LpNormalization", _check_norm)
def _lp_normalization(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _lp_normalized, f"{attribute(node, 'p', 2)}, {attribute(node, 'axis', -1)}")


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, "float32"))


def _group_normalized(x: Array, scale: Array, bias: Array, groups: int, epsilon: float) -> Array:
    """Wu and He, Group normalization, ECCV 2018, equation 1."""
    values, channels = _wide(x).reshape(x.shape[0], groups, -1), (-1, *(1,) * (x.ndim - 2))
    centred = values - values.mean(2, keepdims=True)
    normal = centred * lax.rsqrt(jnp.square(centred).mean(2, keepdims=True) + epsilon)
    # Rounded to the input's dtype in between, as in ONNX's function definition.
    return normal.reshape(x.shape).astype(x.dtype) * scale.reshape(channels) + bias.reshape(channels)


@operator("GroupNormalization")
def _group_normalization(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _group_normalized, f"{attribute(node, 'num_groups')}, {number(node, 'epsilon', 1e-5)}")


def _root_normalized(x: Array, scale: Array, first: int, epsilon: float) -> Array:
    """Zhang and Sennrich, Root mean square layer normalization, NeurIPS 2019, equation 4."""
    values, axes = _wide(x), tuple(range(first % x.ndim, x.ndim))
    normal = values * lax.rsqrt(jnp.square(values).mean(axes, keepdims=True) + epsilon)
    return normal.astype(x.dtype) * scale


@operator("RMSNormalization")
def _rms_normalization(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _root_normalized, f"{axis(node, -1)}, {number(node, 'epsilon', 1e-5)}")


def _standardized(x: Array, axes: tuple[int, ...]) -> Array:
    """As in ONNX's function definition: the epsilon is added to the deviation, whose gradient at 0 is 0 here."""
    centred = x - x.mean(axes, keepdims=True)
    variance = jnp.square(centred).mean(axes, keepdims=True)
    some = variance > 0
    return centred / (jnp.where(some, jnp.sqrt(jnp.where(some, variance, 1)), 0) + 1e-9)


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _standardized, repr(tuple(attribute(node, "axes", (0, 2, 3)))))
