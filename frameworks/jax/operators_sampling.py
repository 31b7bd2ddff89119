"""Images read at the points of a grid."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir

from deep5.frameworks.jax.primitives import PRIMITIVES
from deep5.frameworks.jax.table import attribute, call, operator
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
