"""Images read at the points of a grid, or of a moved kernel."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir

from deep5.frameworks.jax.primitives import PRIMITIVES
from deep5.frameworks.jax.table import attribute, call, given, operator
from deep5.networks.kernels.sampling import OPERATORS as COMPOSITES
from deep5.networks.kernels.sampling import check_grid, corners, places
from deep5.networks.kernels.unfolding import OPERATORS as UNFOLDING
from deep5.networks.kernels.unfolding import check_plane, moved_places, weighted

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any

_GRID = (
    "in ONNX's order of axes, 1.2 times at (2, 3, 16, 16), 1.9 at (8, 32, 56, 56); "
    "the gradient is the composite's, except for nearest (1.6 times)"
)
_COMPOSITE = COMPOSITES["GridSample"].function


def _by_images(x: Array, grid: Array, align_corners: int, mode: str, padding_mode: str) -> Array:
    """ONNX's GridSample: shapes (N, C, space …) and (N, out …, axes) give (N, C, out …)."""
    kind, space, grid = x.dtype, x.shape[2:], PRIMITIVES.wide(grid)
    x = PRIMITIVES.wide(x) if PRIMITIVES.is_floating(kind) else x.astype(grid.dtype)
    along = places(PRIMITIVES, grid, space, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
    y = _read(x.reshape(*x.shape[:2], -1), along, space)
    return y.astype(kind).reshape(*x.shape[:2], *grid.shape[1:-1])


def _read(images: Array, along: list[list[tuple[Array, Array]]], space: Any) -> Array:
    """Images (N, C, elements) at points, whose indices and shares along each axis are given: (N, C, points)."""
    along = [[(at.astype("int32"), share) for at, share in axis] for axis in along]
    parts, rows = [], (images.shape[0], 1, -1)
    for where, share in corners(along, space):
        # The indices exist: other modes would compare each with the size again.
        found = jnp.take_along_axis(images, where.reshape(rows), axis=2, mode="promise_in_bounds")
        parts.append(found * share.reshape(rows).astype(images.dtype))
    return functools.reduce(jnp.add, parts)


_grid_sampled = jax.custom_vjp(_by_images, nondiff_argnums=(2, 3, 4))


def _gathered(_: None, output_grad: Array) -> tuple[Array]:
    return (jnp.take(output_grad, jnp.arange(output_grad.shape[0]), axis=0, mode="clip"),)


# x, whose gradient is stored: XLA would compute what it consists of again for each neighbor.
_kept: Any = jax.custom_vjp(lambda x: x)
_kept.defvjp(lambda x: (x, None), _gathered)


def _recorded(x: Array, grid: Array, align_corners: int, mode: str, padding_mode: str) -> tuple[Array, Any]:
    """The same, and its gradient: where a point reads one element, moving the axis of channels would take longer."""

    def by_images(x: Array, grid: Array) -> Array:
        return _by_images(x, grid, align_corners, mode, padding_mode)

    def by_rows(x: Array, grid: Array) -> Array:
        x = jnp.moveaxis(x, 1, -1)
        y = _COMPOSITE(PRIMITIVES, x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
        return jnp.moveaxis(_kept(y.reshape(-1, y.shape[-1])).reshape(y.shape), -1, 1)

    made: tuple[Array, Any] = jax.vjp(by_images if mode == "nearest" else by_rows, x, grid)
    return made


def _pulled(align_corners: int, mode: str, padding_mode: str, pull: Any, output_grad: Array) -> Any:
    return pull(output_grad)


_grid_sampled.defvjp(_recorded, _pulled)


@operator("GridSample", check_grid, override=_GRID)
def _grid_sample(emitter: Emitter, node: ir.Node) -> None:
    mode, padding = attribute(node, "mode", "linear"), attribute(node, "padding_mode", "zeros")
    call(emitter, node, _grid_sampled, f"{attribute(node, 'align_corners', 0)}, {mode!r}, {padding!r}")


_DEFORMED = "in ONNX's order of axes, 1.35 times at (4, 16, 28, 28); the gradient is the composite's"
_WHOLE = UNFOLDING["DeformConv"].function
# Attributes in the order of `_deformed`'s last argument; the kernel's shape is that of the weight.
_SETTINGS = {"dilations": (1, 1), "group": 1, "offset_group": 1, "pads": (0, 0, 0, 0), "strides": (1, 1)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _deformed(
    x: Array, weight: Array, offset: Array, bias: Array | None, mask: Array | None, settings: tuple[Any, ...]
) -> Array:
    """ONNX's DeformConv, of two spatial axes."""
    how = dict(zip(_SETTINGS, settings, strict=True))
    (n, channels, *space), group, groups = x.shape, how.pop("group"), how["offset_group"]
    along = moved_places(PRIMITIVES, x, weight, offset, **how)
    sampled = _read(x.reshape(n * groups, channels // groups, -1), along, space)
    if mask is not None:
        sampled = sampled * mask.reshape(n * groups, 1, -1)
    return weighted(PRIMITIVES, sampled.reshape(n, channels, -1), weight, bias, offset.shape[2:], group)


def _deformed_recorded(*arrays: Any) -> tuple[Array, Any]:
    """The same, and its gradient."""
    *inputs, settings = arrays
    how = dict(zip(_SETTINGS, settings, strict=True))
    made: tuple[Array, Any] = jax.vjp(lambda *given: _WHOLE(PRIMITIVES, *given, **how), *inputs)
    return made


def _deformed_pulled(settings: tuple[Any, ...], pull: Any, output_grad: Array) -> Any:
    return pull(output_grad)


_deformed.defvjp(_deformed_recorded, _deformed_pulled)


@operator("DeformConv", check_plane, override=_DEFORMED)
def _deform_conv(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(5))
    given_settings = (attribute(node, name, default) for name, default in _SETTINGS.items())
    settings = tuple(each if isinstance(each, int) else tuple(each) for each in given_settings)  # hashable
    emitter.assign(node.outputs[0], f"{emitter.bind(_deformed)}({inputs}, {settings!r})")
