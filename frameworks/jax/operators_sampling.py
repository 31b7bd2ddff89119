"""Non-maximum suppression of boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import attribute, given, operator

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any


def _boxes_left(
    boxes: Array,
    scores: Array,
    most: tuple[int, ...] | None,
    overlap: Array | None,
    least: Array | None,
    centred: bool,
) -> Array:
    """ONNX's NonMaxSuppression: batch, class and box of each remaining box, the best of a class first."""
    boxes, scores = (lax.stop_gradient(jnp.asarray(value)) for value in (boxes, scores))
    if centred:
        low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    else:
        low, high = jnp.minimum(boxes[..., :2], boxes[..., 2:]), jnp.maximum(boxes[..., :2], boxes[..., 2:])
    common = jnp.minimum(high[:, :, None], high[:, None]) - jnp.maximum(low[:, :, None], low[:, None])
    shared, area = jnp.prod(jnp.maximum(common, 0), -1), jnp.prod(high - low, -1)
    union = area[:, :, None] + area[:, None] - shared
    similar = jnp.where(union > 0, shared / jnp.where(union > 0, union, 1), 0)
    close = similar > (0 if overlap is None else jnp.reshape(overlap, ()))
    good = jnp.ones(scores.shape, bool) if least is None else scores > jnp.reshape(least, ())
    order = jnp.argsort(-scores, axis=-1, stable=True)
    chosen = jax.vmap(jax.vmap(_left, (None, 0, 0)))(close, good, order)
    if most is None:
        return jnp.zeros((0, 3), "int64")
    chosen = chosen & (jnp.cumsum(chosen, axis=-1) <= most[0])
    batch, kind, rank = jnp.nonzero(chosen)
    return jnp.stack([batch, kind, order[batch, kind, rank]], axis=-1).astype("int64")


def _left(close: Array, good: Array, order: Array) -> Array:
    """Which boxes remain, in their order: good ones that are not close to a preceding remaining box."""
    close, good = close[order][:, order], good[order]

    def look(at: Array, left: Array) -> Array:
        return left.at[at].set(good[at] & ~jnp.any(left & close[at]))

    return lax.fori_loop(0, order.shape[0], look, jnp.zeros(order.shape, bool))


@operator("NonMaxSuppression", host=(0, 1, 2, 3, 4))
def _non_max_suppression(emitter: Emitter, node: ir.Node) -> None:
    boxes, scores, _, overlap, least = (emitter.plain(given(node, position)) for position in range(5))
    how = f"{emitter.setting(given(node, 2))}, {overlap}, {least}, {bool(attribute(node, 'center_point_box', 0))}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_boxes_left)}({boxes}, {scores}, {how})")
