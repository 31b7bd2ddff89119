"""Equations of JAX for which ONNX has an operator that jax2onnx does not write for them.

It writes the operators for the functions of JAX and Flax that contain the equations, which are called here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["known_operator"]

# Returns the value of an atom of an equation.
Read = Callable[[Any], Any]
# The equation that computes a variable.
Made = Mapping[Any, Any]


def known_operator(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """How to compute an equation by a function for which jax2onnx writes one operator; None: no such function.

    Args:
        equation: The equation.
        made: The equations of the function that contains it, by the variables that they compute.
    """
    find = _TABLE.get(equation.primitive.name)
    return None if find is None else find(equation, made)


def _maker(atom: Any, made: Made, kind: str) -> Any:
    """The equation that computes an atom, if it is of a kind."""
    equation = None if isinstance(atom, jax.extend.core.Literal) else made.get(atom)
    return equation if equation is not None and equation.primitive.name == kind else None


def _rectifier(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """max(x, 0) and min(max(x, 0), 6) with a derivative of 0 at the bounds, where that of `max` and `min` is 1/2."""
    body = equation.params["call_jaxpr"].jaxpr
    while len(body.eqns) == 1 and body.eqns[0].primitive.name == "jit":
        body = body.eqns[0].params["jaxpr"].jaxpr
    steps = [(step.primitive.name, getattr(step.invars[-1], "val", None)) for step in body.eqns]
    given = equation.invars[-1]
    if len(equation.invars) != 1 or [step.invars[0] for step in body.eqns][:1] != list(body.invars):
        return None
    if steps == [("max", 0.0)]:
        return lambda read: jax.nn.relu(read(given))
    if steps == [("max", 0.0), ("min", 6.0)]:
        return lambda read: jax.nn.relu6(read(given))
    return None


def _quotient(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """Softmax, which is a quotient; or the mean of windows."""
    return _softmax(equation, made) or _mean_of_windows(equation, made)


def _softmax(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """exp(x - c) / sum(exp(x - c)) with a constant c, whatever it is."""
    top, below = equation.invars
    spread, power = _maker(below, made, "broadcast_in_dim"), _maker(top, made, "exp")
    total = spread and _maker(spread.invars[0], made, "reduce_sum")
    shifted = power and _maker(power.invars[0], made, "sub")
    if not total or not shifted or total.invars[0] is not top or len(total.params["axes"]) != 1:
        return None
    (axis,) = map(int, total.params["axes"])
    source, shift = shifted.invars
    others = tuple(extent for place, extent in enumerate(top.aval.shape) if place != axis)
    one = (*top.aval.shape[:axis], 1, *top.aval.shape[axis + 1 :])
    kept = tuple(place for place in range(top.aval.ndim) if place != axis)
    same = spread.params["shape"] == one and spread.params["broadcast_dimensions"] == kept
    constant = _maker(shift, made, "stop_gradient") and shift.aval.shape == one
    if not same or not constant or total.outvars[0].aval.shape != others:
        return None
    return lambda read: jax.nn.softmax(read(source), axis=axis)


def _windows(equation: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]] | None:
    """Sizes, strides and padding of windows over the axes between the first and the last."""
    sizes, strides = equation.params["window_dimensions"], equation.params["window_strides"]
    padding = equation.params["padding"]
    dilated = any(each != 1 for key in ("base_dilation", "window_dilation") for each in equation.params[key])
    ends = {(sizes[at], strides[at], tuple(padding[at])) for at in (0, -1)}
    if len(sizes) < 3 or dilated or ends != {(1, 1, (0, 0))}:
        return None
    return sizes[1:-1], strides[1:-1], padding


def _padded(value: Any, fill: float, padding: Any) -> Any:
    return jnp.pad(value, padding, constant_values=fill) if any(map(any, padding)) else value


def _padding(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    given, fill = equation.invars
    config = equation.params["padding_config"]
    if not isinstance(fill, jax.extend.core.Literal) or any(
        low < 0 or high < 0 or inner for low, high, inner in config
    ):
        return None
    return lambda read: _padded(read(given), fill.val, [(low, high) for low, high, _ in config])


def _largest_of_windows(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    found, (given,) = _windows(equation), equation.invars
    if found is None or not jnp.issubdtype(given.aval.dtype, jnp.floating):
        return None
    sizes, strides, padding = found

    def of(read: Read) -> Any:
        from flax import linen

        padded = _padded(read(given), -np.inf, padding)
        return linen.max_pool(padded, window_shape=sizes, strides=strides, padding="VALID")

    return of


def _mean_of_windows(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    top, below = equation.invars
    total = _maker(top, made, "reduce_window_sum")
    found = total and _windows(total)
    if not found or not isinstance(below, jax.extend.core.Literal) or below.val != math.prod(found[0]):
        return None
    return lambda read: _mean(read(total.invars[0]), *found)


def _sum_of_windows(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    found, (given,) = _windows(equation), equation.invars
    if found is None or not jnp.issubdtype(given.aval.dtype, jnp.floating):
        return None
    return lambda read: _mean(read(given), *found) * math.prod(found[0])


def _mean(value: Any, sizes: Any, strides: Any, padding: Any) -> Any:
    from flax import linen

    return linen.avg_pool(_padded(value, 0.0, padding), window_shape=sizes, strides=strides, padding="VALID")


def _product(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """A product of the last axis with a matrix."""
    left, right = equation.invars
    (ours, theirs), batch = equation.params["dimension_numbers"]
    last = left.aval.ndim - 1
    if last < 2 or right.aval.ndim != 2 or (tuple(ours), tuple(theirs)) != ((last,), (0,)) or any(map(len, batch)):
        return None
    if equation.outvars[0].aval.dtype != left.aval.dtype or left.aval.dtype != right.aval.dtype:
        return None
    return lambda read: jnp.matmul(read(left), read(right))


def _lookup(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """Slices of one axis at given indices; an index outside gives NaN in JAX, and is an error in ONNX."""
    source, indices = equation.invars
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    if len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return None
    (axis,), whole = numbers.start_index_map, list(source.aval.shape)
    whole[axis] = 1
    outer = indices.aval.ndim - 1
    offsets = (*range(axis), *range(axis + outer, axis + outer + len(whole) - axis - 1))
    clips = "CLIP" in str(equation.params["mode"])
    plain = numbers.collapsed_slice_dims == (axis,) and tuple(sizes) == tuple(whole)
    if clips or not plain or tuple(numbers.offset_dims) != offsets or indices.aval.shape[-1] != 1:
        return None
    return lambda read: jnp.take(read(source), lax.squeeze(read(indices), (outer,)), axis=axis)


_TABLE: Mapping[str, Callable[[Any, Made], Callable[[Read], Any] | None]] = {
    "custom_jvp_call": _rectifier,
    "div": _quotient,
    "dot_general": _product,
    "gather": _lookup,
    "pad": _padding,
    "reduce_window_max": _largest_of_windows,
    "reduce_window_sum": _sum_of_windows,
}
