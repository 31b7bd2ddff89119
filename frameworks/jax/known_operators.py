"""Equations of JAX for which ONNX has an operator that jax2onnx does not write for them.

It writes the operators for the functions of JAX and Flax that contain the equations, which are called here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

from deep5.frameworks.jax.flax_layers import DROPOUT, NORMALIZATION

__all__ = ["known_operator"]

# Returns the value of an atom of an equation.
Read = Callable[[Any], Any]
# The equation that computes a variable.
Made = Mapping[Any, Any]

# A batch, one axis of space, and channels.
_LEAST_RANK = 3


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
    """max(x, 0) and min(max(x, 0), 6) with a derivative of 0 at 0, where that of `max` is 1/2."""
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
        return lambda read: lax.min(jax.nn.relu(read(given)), jnp.asarray(6.0, given.aval.dtype))
    return None


def _quotient(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """Softmax, the mean of windows, or another quotient."""
    return _softmax(equation, made) or _mean_of_windows(equation, made) or _arithmetic(equation, made)


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


def _normalized(equation: Any, made: Made) -> Callable[[Read], Any]:
    def normalized(read: Read) -> Any:
        from flax import nnx

        x, *vectors = map(read, equation.invars)
        layer = nnx.BatchNorm(x.shape[-1], use_running_average=True, **equation.params, rngs=nnx.Rngs(0))
        layer.scale, layer.bias = map(nnx.Param, vectors[:2])
        layer.mean, layer.var = map(nnx.BatchStat, vectors[2:])
        return layer(x)

    return normalized


def _dropped(equation: Any, made: Made) -> Callable[[Read], Any]:
    def dropped(read: Read) -> Any:
        from flax import nnx

        x, shared = read(equation.invars[0]), equation.params["shared"]
        layer = nnx.Dropout(equation.params["ratio"], deterministic=False, rngs=nnx.Rngs(0))
        if not shared:
            return layer(x)
        first = x
        for axis in shared:
            first = jnp.take(first, np.zeros(1, np.int32), axis=axis)
        return x * layer(jnp.ones_like(first))

    return dropped


def _padded(value: Any, fill: float, padding: Any) -> Any:
    return jnp.pad(value, padding, constant_values=fill) if any(map(any, padding)) else value


def _padding(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    given, fill = equation.invars
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        return None

    def padded(read: Read) -> Any:
        number = read(fill)
        if isinstance(number, jax.core.Tracer):  # jnp.pad takes a number
            return lax.pad(read(given), number, config)
        return _padded(read(given), np.asarray(number).item(), [(low, high) for low, high, _ in config])

    return padded


@dataclass(frozen=True)
class _Windows:
    """Windows over all axes but the first, and the last or the second, which has the channels."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    last: bool

    def pooled(self, value: Any, function: str, fill: float) -> Any:
        """The value of `flax.linen`'s function of this name, whose channels are last."""
        from flax import linen

        value = _padded(value, fill, self.padding)
        if self.last:
            return getattr(linen, function)(value, window_shape=self.sizes, strides=self.strides, padding="VALID")
        channels, rank = replace(self, padding=(), last=True), value.ndim
        pooled = channels.pooled(lax.transpose(value, (0, *range(2, rank), 1)), function, fill)
        return lax.transpose(pooled, (0, rank - 1, *range(1, rank - 1)))


def _windows(equation: Any) -> _Windows | None:
    """The windows of an equation, if a pool of ONNX has such ones."""
    sizes, strides = equation.params["window_dimensions"], equation.params["window_strides"]
    padding = tuple(map(tuple, equation.params["padding"]))
    dilated = any(each != 1 for key in ("base_dilation", "window_dilation") for each in equation.params[key])
    each = [one == (1, 1, (0, 0)) for one in zip(sizes, strides, padding, strict=True)]
    floats = jnp.issubdtype(equation.invars[0].aval.dtype, jnp.floating)
    if len(sizes) < _LEAST_RANK or dilated or not floats or not each[0] or not (each[-1] or each[1]):
        return None
    places = slice(1, -1) if each[-1] else slice(2, None)
    return _Windows(tuple(sizes[places]), tuple(strides[places]), padding, each[-1])


def _largest_of_windows(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    found = _windows(equation)
    if found is None:
        return None
    return lambda read: found.pooled(read(equation.invars[0]), "max_pool", -np.inf)


def _mean_of_windows(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    top, below = equation.invars
    total = _maker(top, made, "reduce_window_sum")
    found = _windows(total) if total else None
    if found is None or not isinstance(below, jax.extend.core.Literal) or below.val != math.prod(found.sizes):
        return None
    return lambda read: found.pooled(read(total.invars[0]), "avg_pool", 0.0)


def _sum_of_windows(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    found = _windows(equation)
    if found is None:
        return None
    return lambda read: found.pooled(read(equation.invars[0]), "avg_pool", 0.0) * math.prod(found.sizes)


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


def _arithmetic(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """Arithmetic with a smaller array, which ONNX spreads over the larger one by itself."""
    for place, (atom, other) in enumerate(zip(equation.invars, equation.invars[::-1], strict=True)):
        spread = _maker(atom, made, "broadcast_in_dim")
        if spread is None or len(spread.invars) != 1 or other.aval.shape != equation.outvars[0].aval.shape:
            continue
        source = spread.invars[0]
        sizes = [1] * atom.aval.ndim
        for extent, axis in zip(source.aval.shape, spread.params["broadcast_dimensions"], strict=True):
            sizes[axis] = extent
        if all(isinstance(extent, int) for extent in sizes):
            return partial(_spread, equation, place, source, sizes)
    return None


def _spread(equation: Any, place: int, source: Any, sizes: list[int], read: Read) -> Any:
    given = list(map(read, equation.invars))
    given[place] = lax.reshape(read(source), sizes)
    return getattr(lax, equation.primitive.name)(*given)


def _inserted(equation: Any, made: Made) -> Callable[[Read], Any] | None:
    """Axes of one element, which need no copy."""
    source, places = equation.invars[0], equation.params["broadcast_dimensions"]
    sizes = equation.params["shape"]
    rest = [extent for axis, extent in enumerate(sizes) if axis not in places]
    if len(equation.invars) != 1 or not source.aval.ndim or tuple(sizes[axis] for axis in places) != source.aval.shape:
        return None
    return (lambda read: lax.reshape(read(source), sizes)) if all(extent == 1 for extent in rest) else None


_TABLE: Mapping[str, Callable[[Any, Made], Callable[[Read], Any] | None]] = {
    **dict.fromkeys(("add", "max", "min", "mul", "sub"), _arithmetic),
    "broadcast_in_dim": _inserted,
    "custom_jvp_call": _rectifier,
    DROPOUT: _dropped,
    NORMALIZATION: _normalized,
    "div": _quotient,
    "dot_general": _product,
    "gather": _lookup,
    "pad": _padding,
    "reduce_window_max": _largest_of_windows,
    "reduce_window_sum": _sum_of_windows,
}
