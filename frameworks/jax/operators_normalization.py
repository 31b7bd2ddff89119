"""Normalisations beyond those of layers in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import attribute, call, number, operator

if TYPE_CHECKING:
    from deep5.frameworks.jax.emit import Emitter

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
    """x over its norm along an axis; zeros stay, and so does their gradient."""
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
