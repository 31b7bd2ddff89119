"""Elements at indices, which JAX does not check: those out of bounds give NaN, or an error where they are known."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.kernels.host import check_indices, host_array, is_known, on_host
from deep5.frameworks.jax.table import attribute, call, operator

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = ["gathered", "picked", "placed"]

Array = Any


def gathered(x: Array, indices: Array, axis: int) -> Array:
    """The slices at indices along an axis; NaN where an index is out of range."""
    size = x.shape[axis]
    if isinstance(indices, np.ndarray) and not indices.ndim:
        return lax.index_in_dim(x, int(indices), axis, keepdims=False)
    if isinstance(indices, np.ndarray) or (is_known(indices) and not jnp.issubdtype(x.dtype, jnp.inexact)):
        check_indices(indices, size)
    indices = jnp.asarray(indices)
    # Checked before JAX truncates indices to 32 bits, where 2**33 would be 0.
    inside = (indices >= -size) & (indices < size)
    rows = jnp.take(x, jnp.where(inside, jnp.where(indices < 0, indices + size, indices), 0), axis=axis, mode="clip")
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return rows  # known indices, all in range
    # NaN times a row, so that the gradient is NaN as well: JAX's fill mode gives it zeros.
    poison = jnp.where(inside, x.dtype.type(1), x.dtype.type(jnp.nan))
    return rows * poison.reshape(*indices.shape, *(1,) * (x.ndim - axis - 1))


def _within(x: Array, places: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array | None]:
    """Nonnegative indices, and a factor for elements whose index may be out of range: 1, or NaN.

    Raises:
        ShapeError: An index is known to be out of range.
    """
    found, poison, floating = [], None, jnp.issubdtype(x.dtype, jnp.inexact)
    for place, extent in zip(places, x.shape, strict=False):
        if isinstance(place, np.ndarray) or (is_known(place) and not floating):
            check_indices(place, extent)
            place = host_array(place)  # noqa: PLW2901
            found.append(np.where(place < 0, place + extent, place))
            continue
        inside = (place >= -extent) & (place < extent)
        found.append(jnp.where(inside, jnp.where(place < 0, place + extent, place), 0))
        own = jnp.where(inside, x.dtype.type(1), x.dtype.type(jnp.nan))
        poison = own if poison is None else poison * own
    return tuple(found), poison


def picked(x: Array, places: tuple[Array, ...]) -> Array:
    """x[places]; NaN where an index is out of range."""
    where, poison = _within(x, places)
    found = jnp.asarray(x)[where]
    if poison is None:
        return found
    shape = np.broadcast_shapes(*(place.shape for place in where))
    return found * jnp.broadcast_to(poison, shape).reshape(*shape, *(1,) * (found.ndim - len(shape)))


def placed(x: Array, places: tuple[Array, ...], updates: Array, how: str) -> Array:
    """x with updates; all NaN if an index is out of range, because such an index has no element."""
    x, updates = jnp.asarray(x), jnp.asarray(updates)
    where, poison = _within(x, places)
    if poison is not None:
        x, updates = (value * jnp.min(poison, initial=1) for value in (x, updates))
    if how == "mul":
        return _multiplied(x, tuple(map(jnp.asarray, where)), updates)
    return getattr(x.at[where], {"none": "set"}.get(how, how))(updates)


@functools.partial(jax.custom_vjp)
def _multiplied(x: Array, places: tuple[Array, ...], updates: Array) -> Array:
    """x with updates multiplied into the given elements; indices may repeat.

    The gradient of an update is the gradient of the product times all other factors: if those contain a zero, division
    cannot compute it.
    """
    return x.at[places].multiply(updates)


def _multiplied_forward(x: Array, places: Any, updates: Array) -> tuple[Array, Any]:
    return _multiplied(x, places, updates), (x, places, updates)


def _multiplied_backward(kept: Any, dy: Array) -> tuple[Array, None, Array]:
    x, places, updates = kept
    factors = jnp.ones_like(x).at[places].multiply(updates)
    zero, one = updates == 0, jnp.ones((), x.dtype)
    zeros = (x == 0).astype("int32").at[places].add(zero.astype("int32"))[places]
    others = jnp.where(x == 0, one, x).at[places].multiply(jnp.where(zero, one, updates))[places]
    rest = jnp.where(zero, others, others / jnp.where(zero, one, updates))
    without = jnp.where(zeros == zero.astype("int32"), rest, 0)
    return dy * factors, None, dy[places] * without


_multiplied.defvjp(_multiplied_forward, _multiplied_backward)


def _eye(x: Array, dtype: Any, diagonal: int) -> Array:
    return jnp.eye(x.shape[0], x.shape[1], diagonal, dtype)


@operator("EyeLike", override="1.8 times at (2048, 512)")
def _eye_like(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    call(emitter, node, _eye, f"{dtype}, {attribute(node, 'k', 0)}")


def _range(first: Array, behind: Array, step: Array, dtype: Any) -> Array:
    """first + n step, for all values before `behind`; differentiable with respect to first and step."""
    (low,), (high,), (by,) = (on_host(value) for value in (first, behind, step))
    places = np.arange(max(int(np.ceil((high - low) / by)), 0)).astype(dtype, copy=False)
    if is_known(first) and is_known(step):
        places *= np.asarray(by, dtype)
        places += np.asarray(low, dtype)
        return places
    return places * jnp.reshape(step, ()) + jnp.reshape(first, ())


@operator("Range", host=(0, 1, 2))
def _range_of(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    call(emitter, node, _range, dtype)
