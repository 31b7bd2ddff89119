"""Operators that gather elements from computed indices, or scatter to them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.core.errors import ShapeError
from deep5.frameworks.jax.kernels.host import check_indices, host_array, is_known, on_host
from deep5.frameworks.jax.table import attribute, call, given, operator
from deep5.networks.constants import FLOATS

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any


def _looked_at(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Indices into integers, which have no NaN to mark out-of-range elements: they must be checked on the host."""
    return () if node.inputs[0] is not None and node.inputs[0].dtype in FLOATS else (node.inputs[1],)


def _within(indices: Array, extent: int, dtype: Any) -> tuple[Array, Array | None]:
    """Nonnegative indices, and a factor for elements whose index may be out of range: 1, or NaN.

    Raises:
        ShapeError: An index is known to be out of range.
    """
    known = is_known(indices)
    if isinstance(indices, np.ndarray) or (known and not jnp.issubdtype(dtype, jnp.inexact)):
        check_indices(indices, extent)
        return jnp.where(indices < 0, indices + extent, indices), None
    inside = (indices >= -extent) & (indices < extent)
    return (
        jnp.where(inside, jnp.where(indices < 0, indices + extent, indices), 0),
        jnp.where(inside, dtype.type(1), dtype.type(jnp.nan)),
    )


def _grid(shape: tuple[int, ...], axis: int, indices: Array) -> tuple[Array, ...]:
    """The coordinates of all elements of an array of this shape, with the given indices along one axis."""
    places = [lax.broadcasted_iota("int32", shape, number) for number in range(len(shape))]
    places[axis] = indices
    return tuple(places)


def _gather_elements(x: Array, indices: Array, axis: int) -> Array:
    where, poison = _within(indices, x.shape[axis], x.dtype)
    found = x[_grid(indices.shape, axis, where)]
    return found if poison is None else found * poison


@operator("GatherElements", host=_looked_at)
def _gather_elements_of(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _gather_elements, str(attribute(node, "axis", 0)))


def _rows(x: Array, indices: Array, batch: int) -> tuple[tuple[Array, ...], Array | None]:
    """The coordinates in the last axis of the indices, after batch axes."""
    count = indices.shape[-1]
    if is_known(indices) and not jnp.issubdtype(x.dtype, jnp.inexact):
        indices = host_array(indices)
    places = [
        jnp.arange(x.shape[axis]).reshape(*(1,) * axis, -1, *(1,) * (indices.ndim - 2 - axis)) for axis in range(batch)
    ]
    poison = None
    for number in range(count):
        where, own = _within(indices[..., number], x.shape[batch + number], x.dtype)
        places.append(where)
        poison = own if poison is None else poison * own
    return tuple(places), poison


def _gather_nd(x: Array, indices: Array, batch: int) -> Array:
    places, poison = _rows(x, indices, batch)
    found = x[places]
    return found if poison is None else found * poison.reshape(*poison.shape, *(1,) * (found.ndim - poison.ndim))


@operator("GatherND", host=_looked_at)
def _gather_nd_of(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _gather_nd, str(attribute(node, "batch_dims", 0)))


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


def _put(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    x, updates = jnp.asarray(x), jnp.asarray(updates)
    if reduction == "mul":
        return _multiplied(x, tuple(map(jnp.asarray, places)), updates)
    return getattr(x.at[places], {"none": "set"}.get(reduction, reduction))(updates)


def _poisoned(y: Array, poison: Array | None) -> Array:
    """Sets the whole result to NaN if an index is out of range, because such an index has no target element."""
    return y if poison is None else y * jnp.min(poison, initial=1)


def _scatter_elements(x: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    where, poison = _within(indices, x.shape[axis], x.dtype)
    return _poisoned(_put(x, _grid(indices.shape, axis, where), updates, reduction), poison)


def _scatter_nd(x: Array, indices: Array, updates: Array, reduction: str) -> Array:
    places, poison = _rows(x, indices, 0)
    return _poisoned(_put(x, places, updates, reduction), poison)


_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _check_reduction(node: ir.Node) -> str | None:
    chosen = attribute(node, "reduction", "none")
    return None if chosen in _REDUCTIONS else f"reduction={chosen}; allowed: {', '.join(_REDUCTIONS)}"


@operator("ScatterElements", _check_reduction, _looked_at)
def _scatter_elements_of(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _scatter_elements, f"{attribute(node, 'axis', 0)}, {attribute(node, 'reduction', 'none')!r}")


@operator("ScatterND", _check_reduction, _looked_at)
def _scatter_nd_of(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _scatter_nd, repr(attribute(node, "reduction", "none")))


def _tensor_scatter(past: Array, update: Array, begins: Array | None, axis: int, circular: bool) -> Array:
    axis, batch, extent = axis % past.ndim, past.shape[0], past.shape[axis]
    first = np.zeros(batch, np.int64) if begins is None else host_array(begins) if is_known(begins) else begins
    along = first[:, None] + np.arange(update.shape[axis])
    poison = None
    if circular:
        along = along % extent
    else:
        along, poison = _within(along, extent, past.dtype)
    places = [lax.broadcasted_iota("int32", update.shape, number) for number in range(update.ndim)]
    shape = [1] * update.ndim
    shape[0], shape[axis] = batch, update.shape[axis]
    places[axis] = jnp.broadcast_to(along.reshape(shape), update.shape)
    return _poisoned(_put(past, tuple(places), update, "none"), poison)


def _tensor_scatter_looks(node: ir.Node) -> tuple[ir.Value | None, ...]:
    whole = node.inputs[0] is None or node.inputs[0].dtype not in FLOATS
    return (given(node, 2),) if whole and attribute(node, "mode", "linear") != "circular" else ()


@operator("TensorScatter", host=_tensor_scatter_looks)
def _tensor_scatter_of(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.plain(given(node, position)) for position in range(3))
    how = f"{attribute(node, 'axis', -2)}, {attribute(node, 'mode', 'linear') == 'circular'}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_tensor_scatter)}({inputs}, {how})")


def _kept(x: Array, condition: tuple[Any, ...], axis: int | None) -> Array:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= x.shape[axis]:
        raise ShapeError(f"a condition that takes element {places[-1]}; allowed: up to {x.shape[axis] - 1}")
    return jnp.take(x, places, axis=axis)


@operator("Compress", host=(1,))
def _compress(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _kept, str(attribute(node, "axis", None)), settings=(1,))


def _places_of(x: Array) -> Array:
    x = lax.stop_gradient(jnp.asarray(x))
    if not x.ndim:
        return jnp.zeros((0, int(bool(x))), "int64")
    return jnp.stack(jnp.nonzero(x)).astype("int64")


@operator("NonZero", host=(0,))
def _non_zero(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _places_of)


def _unique(x: Array, axis: int | None, ordered: bool) -> tuple[Array, ...]:
    """Unique rows, the index of each one's first occurrence, the inverse index of every row, and the counts."""
    known = lax.stop_gradient(jnp.asarray(x))
    _, first, which, counts = jnp.unique(known, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    which = which.reshape(-1)
    if not ordered:
        order = jnp.argsort(first)
        first, counts, which = first[order], counts[order], jnp.argsort(order)[which]
    rows = jnp.take(x.reshape(-1) if axis is None else x, first, axis=0 if axis is None else axis)
    return rows, first.astype("int64"), which.astype("int64"), counts.astype("int64")


@operator("Unique", host=(0,))
def _unique_of(emitter: Emitter, node: ir.Node) -> None:
    how = f"{attribute(node, 'axis', None)}, {bool(attribute(node, 'sorted', 1))}"
    call(emitter, node, _unique, how, several=True)


def _top_k(x: Array, k: tuple[int, ...], axis: int, largest: bool) -> tuple[Array, Array]:
    x = jnp.moveaxis(jnp.asarray(x), axis, -1)
    if k[0] > x.shape[-1]:
        raise ShapeError(f"k = {k[0]}; allowed: up to {x.shape[-1]}, the size of the axis")
    # Integers are reversed by complement: the minimum has no negative.
    turned = jnp.invert if jnp.issubdtype(x.dtype, jnp.integer) else jnp.negative
    values, places = lax.top_k(x if largest else turned(x), k[0])
    return jnp.moveaxis(values if largest else turned(values), -1, axis), jnp.moveaxis(places, -1, axis).astype("int64")


@operator("TopK", host=(1,))
def _top_k_of(emitter: Emitter, node: ir.Node) -> None:
    how = f"{attribute(node, 'axis', -1)}, {bool(attribute(node, 'largest', 1))}"
    call(emitter, node, _top_k, how, settings=(1,), several=True)


def _range(first: Array, behind: Array, step: Array, dtype: Any) -> Array:
    """first + n step, for all values before `behind`; differentiable with respect to first and step."""
    (low,), (high,), (by,) = (on_host(value) for value in (first, behind, step))
    places = np.arange(max(int(np.ceil((high - low) / by)), 0)).astype(dtype)
    if is_known(first) and is_known(step):
        return places * np.asarray(by, dtype) + np.asarray(low, dtype)
    return places * jnp.reshape(step, ()) + jnp.reshape(first, ())


@operator("Range", host=(0, 1, 2))
def _range_of(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    call(emitter, node, _range, dtype)
