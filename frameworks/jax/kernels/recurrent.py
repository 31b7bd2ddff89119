"""Recurrent layers whose steps multiply the state by one matrix."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from deep5.frameworks.jax.kernels.layers import channel_sums

__all__ = ["recurrent"]

Array = Any
States = tuple[Array, ...]
Cell = Callable[..., States]


def recurrent(
    cell: Cell,
    weight: Array,
    bias: Array | None,
    states: States,
    rows: Array,
    inside: Array | None,
    *,
    apart: bool,
    back: bool,
) -> tuple[States, Array]:
    """`Primitives.recurrent`."""
    found: tuple[States, Array] = _layer(cell, apart, back, _Given(weight, bias, states, rows, inside))
    return found


def _point(cell: Cell, apart: bool, here: Array | None, row: Array, whole: Array, held: States) -> tuple[States, Array]:
    """The states after a step and its result, where `row` is the row plus the product unless they are `apart`."""
    new = cell(row, whole, held) if apart else cell(row, held)
    if here is None:
        return new, new[0]
    kept = tuple(jnp.where(here, after, before) for after, before in zip(new, held, strict=True))
    return kept, jnp.where(here, new[0], jnp.zeros_like(new[0]))


_KEPT = {"erf", "exp", "log1p", "logistic", "split", "tanh"}


def _is_kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """Whether the backward pass reads a result of a cell's operation instead of computing it again."""
    return primitive.name in _KEPT


def _product(h: Array, weight: Array, bias: Array | None) -> Array:
    y = jnp.matmul(h, weight, precision=lax.Precision.HIGHEST)
    return y if bias is None else y + bias


class _Given(NamedTuple):
    """What a layer computes with, or its gradients; as in `Primitives.recurrent`."""

    weight: Array
    bias: Array | None
    states: States
    rows: Array
    inside: Array | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _layer(cell: Cell, apart: bool, back: bool, given: _Given) -> tuple[States, Array]:
    """The loop. Unless rows and product are `apart`, the gradient for the weight is one product after the loop."""

    def step(held: States, at_step: tuple[Array, Array | None]) -> tuple[States, Array]:
        row, here = at_step
        return _point(cell, apart, here, *_terms(given, apart, row, held), held)

    found: tuple[States, Array] = lax.scan(step, given.states, (given.rows, given.inside), reverse=back)
    return found


def _terms(given: _Given, apart: bool, row: Array, held: States) -> tuple[Array, Array | None]:
    """The row and the product of the state, or their sum."""
    whole = _product(held[0], given.weight, given.bias)
    return (row, whole) if apart else (row + whole, None)


def _forward(cell: Cell, apart: bool, back: bool, given: _Given) -> tuple[Any, Any]:
    """The loop, which also keeps each step's state and its derivative."""
    point = jax.checkpoint(functools.partial(_point, cell, apart), policy=_is_kept, prevent_cse=False)

    def step(held: States, at_step: tuple[Array, Array | None]) -> tuple[States, Any]:
        row, here = at_step
        terms = _terms(given, apart, row, held)
        (new, y), derivative = jax.vjp(functools.partial(point, here), *terms, held)
        return new, (y, held[0], derivative)

    last, (y, before, derivatives) = lax.scan(step, given.states, (given.rows, given.inside), reverse=back)
    return (last, y), (given.weight, given.bias, before, derivatives)


def _backward(cell: Cell, apart: bool, back: bool, kept: Any, grads: Any) -> tuple[_Given]:
    weight, bias, before, derivatives = kept
    turned = weight.T  # once for all steps

    def step(carried: tuple[States, Any], given: Any) -> tuple[Any, Array]:
        (dheld, sums), (dy, h, derivative) = carried, given
        drow, dwhole, dbefore = derivative((dheld, dy))
        dproduct = dwhole if apart else drow
        dheld = (dbefore[0] + _product(dproduct, turned, None), *dbefore[1:])
        if apart:
            sums = jax.tree.map(jnp.add, sums, _of_weight(h, dproduct, bias))
        return (dheld, sums), drow

    sums = jax.tree.map(jnp.zeros_like, (weight, bias)) if apart else None
    given = grads[1], before if apart else None, derivatives
    (dstates, sums), drows = lax.scan(step, (grads[0], sums), given, reverse=not back)
    if not apart:
        h, dproduct = (each.reshape(-1, each.shape[-1]) for each in (before, drows))
        sums = _of_weight(h, dproduct, bias)
    dweight, dbias = sums
    return (_Given(dweight, dbias, dstates, drows, None),)


def _of_weight(h: Array, dproduct: Array, bias: Array | None) -> tuple[Array, Array | None]:
    """The gradients of weight and bias."""
    return _product(h.T, dproduct, None), None if bias is None else _sums(dproduct)


def _sums(x: Array) -> Array:
    """Sums over all axes but the last; of short types, in float32: XLA would add them in their own."""
    return channel_sums(x.astype(jnp.promote_types(x.dtype, "float32"))).astype(x.dtype)


_layer.defvjp(_forward, _backward)
