"""Operators that move elements, and those that tell or make shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import attribute, axis, call, computed, fixed, operator, rank
from deep5.networks.constants import constant_value
from deep5.networks.nodes import outside, poisonless

if TYPE_CHECKING:
    from deep5.frameworks.jax.emit import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Nothing: whoever reads it binds it."""


@operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> None:
    value, last = node.inputs[0], emitter.is_last(node.inputs[0])
    text = emitter.last(value, rank(node)) if last else emitter.plain(value)
    emitter.assign(node.outputs[0], text, last=last)


@operator("Transpose")
def _transpose(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jnp.transpose, repr(tuple(attribute(node, "perm", range(rank(node))[::-1]))))


def _axes_of(emitter: Emitter, node: ir.Node) -> tuple[bool, list[int]]:
    """Whether the inputs have their channels last, and where each of ONNX's axes then is."""
    last, axes = any(emitter.is_last(value) for value in node.inputs), list(range(rank(node)))
    return last, [axes[0], axes[-1], *axes[1:-1]] if last else axes


@operator("Concat")
def _concat(emitter: Emitter, node: ir.Node) -> None:
    last, places = _axes_of(emitter, node)
    inputs = [emitter.last(value, len(places)) if last else emitter.plain(value) for value in node.inputs]
    text = f"{emitter.bind(jnp.concatenate)}(({', '.join(inputs)},), {places[axis(node, 0)]})"
    emitter.assign(node.outputs[0], text, last=last)


def _check_second(node: ir.Node) -> str | None:
    return computed(node, 1)


def _parts(x: Any, sizes: tuple[int, ...] | int, along: int) -> tuple[Any, ...]:
    """Parts of these sizes, or this many parts, of which all but the last are equal."""
    extent = x.shape[along]
    if isinstance(sizes, int):
        size = -(-extent // sizes)
        sizes = tuple(min(size, extent - begin * size) for begin in range(sizes))
    ends = np.cumsum(sizes).tolist()
    return tuple(lax.slice_in_dim(x, end - size, end, axis=along) for size, end in zip(sizes, ends, strict=True))


@operator("Split", _check_second)
def _split(emitter: Emitter, node: ir.Node) -> None:
    sizes, x = fixed(node, 1), emitter.plain(node.inputs[0])
    how = len(node.outputs) if sizes is None else tuple(sizes.tolist())
    parts = emitter.new()
    emitter.line(f"{parts} = {emitter.bind(_parts)}({x}, {how}, {axis(node, 0)})")
    for index, value in enumerate(node.outputs):
        emitter.assign(value, f"{parts}[{index}]")


def _flattened(x: Any, first: int) -> Any:
    return x.reshape(int(np.prod(x.shape[:first])), int(np.prod(x.shape[first:])))


@operator("Flatten")
def _flatten(emitter: Emitter, node: ir.Node) -> None:
    if node.outputs[0].name in emitter.flat:
        x = emitter.last(node.inputs[0], rank(node))
        emitter.assign(node.outputs[0], f"{emitter.bind(_flattened)}({x}, 1)")
        return
    call(emitter, node, _flattened, str(axis(node, 1)))


def _reshaped(x: Any, shape: tuple[int, ...], copies: bool) -> Any:
    return x.reshape([x.shape[at] if extent == 0 and copies else extent for at, extent in enumerate(shape)])


@operator("Reshape", _check_second)
def _reshape(emitter: Emitter, node: ir.Node) -> None:
    x, shape, copies = (
        emitter.plain(node.inputs[0]),
        tuple(fixed(node, 1).tolist()),
        not attribute(node, "allowzero", 0),
    )
    emitter.assign(node.outputs[0], f"{emitter.bind(_reshaped)}({x}, {shape}, {copies})")


@operator("Squeeze", _check_second)
def _squeeze(emitter: Emitter, node: ir.Node) -> None:
    x, axes = emitter.plain(node.inputs[0]), fixed(node, 1)
    chosen = None if axes is None else tuple(axes.tolist())
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.squeeze)}({x}, {chosen})")


@operator("Unsqueeze", _check_second)
def _unsqueeze(emitter: Emitter, node: ir.Node) -> None:
    x, axes = emitter.plain(node.inputs[0]), tuple(fixed(node, 1).tolist())
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.expand_dims)}({x}, {axes})")


def _expanded(x: Any, shape: tuple[int, ...]) -> Any:
    return jnp.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


@operator("Expand", _check_second)
def _expand(emitter: Emitter, node: ir.Node) -> None:
    x, shape = emitter.plain(node.inputs[0]), tuple(fixed(node, 1).tolist())
    emitter.assign(node.outputs[0], f"{emitter.bind(_expanded)}({x}, {shape})")


@operator("Tile", _check_second)
def _tile(emitter: Emitter, node: ir.Node) -> None:
    x, repeats = emitter.plain(node.inputs[0]), tuple(fixed(node, 1).tolist())
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.tile)}({x}, {repeats})")


def _shape_of(x: Any, first: int, behind: int | None) -> Any:
    return np.array(x.shape[first:behind], np.int64)


@operator("Shape")
def _shape(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _shape_of, str(attribute(node, "start", 0)), str(attribute(node, "end", None)))


def _check_filled(node: ir.Node) -> str | None:
    return computed(node, 0)


@operator("ConstantOfShape", _check_filled)
def _constant_of_shape(emitter: Emitter, node: ir.Node) -> None:
    value, shape = attribute(node, "value", None), tuple(fixed(node, 0).tolist())
    fill = emitter.bind(np.zeros((), np.float32) if value is None else value.numpy().reshape(()))
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.full)}({shape}, {fill})")


def _check_slice(node: ir.Node) -> str | None:
    return computed(node, 1, 2, 3, 4)


@operator("Slice", _check_slice)
def _slice(emitter: Emitter, node: ir.Node) -> None:
    starts, ends = fixed(node, 1).tolist(), fixed(node, 2).tolist()
    axes, steps = fixed(node, 3), fixed(node, 4)
    axes = [entry % rank(node) for entry in (range(len(starts)) if axes is None else axes.tolist())]
    steps = [1] * len(starts) if steps is None else steps.tolist()
    last, places = _axes_of(emitter, node)
    parts = ["slice(None)"] * rank(node)
    for along, start, end, step in zip(axes, starts, ends, steps, strict=True):
        parts[places[along]] = f"slice({start}, {end}, {step})"
    x = emitter.last(node.inputs[0], len(places)) if last else emitter.plain(node.inputs[0])
    emitter.assign(node.outputs[0], f"{x}[{', '.join(parts)}]" if parts else x, last=last)


_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _padded(x: Any, pads: tuple[tuple[int, int], ...], mode: str, fill: Any) -> Any:
    """Negative padding takes away."""
    parts = tuple(slice(-min(low, 0), extent + min(high, 0)) for (low, high), extent in zip(pads, x.shape, strict=True))
    more = tuple((max(low, 0), max(high, 0)) for low, high in pads)
    keywords = {"constant_values": jnp.asarray(fill, x.dtype)} if mode == "constant" else {}
    return jnp.pad(x[parts], more, mode, **keywords)


def _check_pad(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "constant")
    return computed(node, 1, 2, 3) if mode in _MODES else f"mode={mode}"


@operator("Pad", _check_pad)
def _pad(emitter: Emitter, node: ir.Node) -> None:
    pads, fill, axes = fixed(node, 1).tolist(), fixed(node, 2), fixed(node, 3)
    axes = [entry % rank(node) for entry in (range(rank(node)) if axes is None else axes.tolist())]
    last, places = _axes_of(emitter, node)
    both = [(0, 0)] * rank(node)
    for index, along in enumerate(axes):
        both[places[along]] = (pads[index], pads[index + len(axes)])
    x = emitter.last(node.inputs[0], len(places)) if last else emitter.plain(node.inputs[0])
    value = "0" if fill is None or not fill.size else emitter.bind(fill.reshape(()))
    mode = _MODES[attribute(node, "mode", "constant")]
    emitter.assign(node.outputs[0], f"{emitter.bind(_padded)}({x}, {tuple(both)}, {mode!r}, {value})", last=last)


def _gathered(x: Any, indices: Any, along: int) -> Any:
    indices, size = jnp.asarray(indices), x.shape[along]
    # Looked at before JAX cuts them to 32 bits, where 2**33 would be 0.
    inside = (indices >= -size) & (indices < size)
    rows = jnp.take(x, jnp.where(inside, jnp.where(indices < 0, indices + size, indices), 0), axis=along, mode="clip")
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return rows  # of indices that are known, and inside
    # What is outside is NaN times a row, so that the gradient is NaN, too: JAX's own filling gives it zeros.
    poison = jnp.where(inside, x.dtype.type(1), x.dtype.type(jnp.nan))
    return rows * poison.reshape(*indices.shape, *(1,) * (x.ndim - along - 1))


@operator("Gather", lambda node: outside(node) or poisonless(node))
def _gather(emitter: Emitter, node: ir.Node) -> None:
    along, indices = axis(node, 0), fixed(node, 1)
    if indices is not None and not indices.shape:
        x, select = emitter.plain(node.inputs[0]), emitter.bind(lax.index_in_dim)
        emitter.assign(node.outputs[0], f"{select}({x}, {indices.item()}, {along}, False)")
    else:
        call(emitter, node, _gathered, str(along))
