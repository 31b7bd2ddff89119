"""Images read at the points of a grid, and non-maximum suppression of boxes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.primitives import PRIMITIVES
from deep5.frameworks.jax.table import attribute, call, given, operator
from deep5.networks.kernels.sampling import OPERATORS as COMPOSITES
from deep5.networks.kernels.sampling import check_grid, corners, places

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any

_GRID = "in ONNX's order of axes, 1.2 times at (2, 3, 16, 16), 1.9 at (8, 32, 56, 56); the gradient is the composite's"
_COMPOSITE = COMPOSITES["GridSample"].function


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _grid_sampled(x: Array, grid: Array, align_corners: int, mode: str, padding_mode: str) -> Array:
    """ONNX's GridSample: shapes (N, C, space …) and (N, out …, axes) give (N, C, out …)."""
    kind, space, grid = x.dtype, x.shape[2:], PRIMITIVES.wide(grid)
    x = PRIMITIVES.wide(x) if PRIMITIVES.is_floating(kind) else x.astype(grid.dtype)
    along = places(PRIMITIVES, grid, space, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
    along = [[(at.astype("int32"), share) for at, share in axis] for axis in along]
    images, rows = x.reshape(*x.shape[:2], -1), (x.shape[0], 1, -1)
    parts = []
    for where, share in corners(along, space):
        # The indices exist: other modes would compare each with the size again.
        found = jnp.take_along_axis(images, where.reshape(rows), axis=2, mode="promise_in_bounds")
        parts.append(found * share.reshape(rows).astype(x.dtype))
    return functools.reduce(jnp.add, parts).astype(kind).reshape(*x.shape[:2], *grid.shape[1:-1])


def _recorded(x: Array, grid: Array, align_corners: int, mode: str, padding_mode: str) -> tuple[Array, Any]:
    """The same, and its gradient."""

    def sampled(x: Array, grid: Array) -> Array:
        x = jnp.moveaxis(x, 1, -1)
        y = _COMPOSITE(PRIMITIVES, x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
        return jnp.moveaxis(y, -1, 1)

    made: tuple[Array, Any] = jax.vjp(sampled, x, grid)
    return made


def _pulled(align_corners: int, mode: str, padding_mode: str, pull: Any, output_grad: Array) -> Any:
    return pull(output_grad)


_grid_sampled.defvjp(_recorded, _pulled)


@operator("GridSample", check_grid, override=_GRID)
def _grid_sample(emitter: Emitter, node: ir.Node) -> None:
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    call(emitter, node, _grid_sampled, f"{attribute(node, 'align_corners', 0)}, {mode!r}, {padding!r}")


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
