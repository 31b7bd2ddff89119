"""Operators that move elements, and those that read or compute shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.frameworks.jax.table import attribute, axis, call, fixed, given, operator, rank, ranked
from deep5.networks.constants import constant_value
from deep5.networks.slicing import slice_of

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Emits nothing: each reader binds the constant."""


@operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> None:
    value, last = node.inputs[0], emitter.is_last(node.inputs[0])
    text = emitter.last(value, rank(node)) if last else emitter.plain(value)
    emitter.assign(node.outputs[0], text, last=last)


@operator("Transpose")
def _transpose(emitter: Emitter, node: ir.Node) -> None:
    order = attribute(node, "perm", None)
    call(emitter, node, jnp.transpose, repr(None if order is None else tuple(order)))


def _axes_of(emitter: Emitter, node: ir.Node) -> tuple[bool, list[int]]:
    """Whether the inputs have their channels last, and the position of each of ONNX's axes."""
    last = ranked(node) and any(emitter.is_last(value) for value in node.inputs)
    axes = list(range(rank(node))) if ranked(node) else []
    return last, [axes[0], axes[-1], *axes[1:-1]] if last else axes


@operator("Concat")
def _concat(emitter: Emitter, node: ir.Node) -> None:
    last, places = _axes_of(emitter, node)
    inputs = [emitter.last(value, len(places)) if last else emitter.plain(value) for value in node.inputs]
    along = places[axis(node, 0)] if last else axis(node, 0)
    text = f"{emitter.bind(jnp.concatenate)}(({', '.join(inputs)},), {along})"
    emitter.assign(node.outputs[0], text, last=last)


def _parts(x: Any, sizes: tuple[int, ...] | int, along: int) -> tuple[Any, ...]:
    """Parts of these sizes, or this number of parts, all equal except the last."""
    extent = x.shape[along]
    if isinstance(sizes, int):
        size = -(-extent // sizes)
        sizes = tuple(max(0, min(size, extent - begin * size)) for begin in range(sizes))
    ends = np.cumsum(sizes).tolist()
    return tuple(lax.slice_in_dim(x, end - size, end, axis=along) for size, end in zip(sizes, ends, strict=True))


@operator("Split", host=(1,))
def _split(emitter: Emitter, node: ir.Node) -> None:
    sizes = given(node, 1)
    how = str(len(node.outputs)) if sizes is None else emitter.setting(sizes)
    parts = emitter.new()
    emitter.line(f"{parts} = {emitter.bind(_parts)}({emitter.plain(node.inputs[0])}, {how}, {axis(node, 0)})")
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


@operator("Reshape", host=(1,))
def _reshape(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _reshaped, str(not attribute(node, "allowzero", 0)), settings=(1,))


@operator("Squeeze", host=(1,))
def _squeeze(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jnp.squeeze, settings=(1,))


@operator("Unsqueeze", host=(1,))
def _unsqueeze(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jnp.expand_dims, settings=(1,))


def _expanded(x: Any, shape: tuple[int, ...]) -> Any:
    return jnp.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


@operator("Expand", host=(1,))
def _expand(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _expanded, settings=(1,))


@operator("Tile", host=(1,))
def _tile(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, jnp.tile, settings=(1,))


def _shape_of(x: Any, first: int, behind: int | None) -> Any:
    return np.array(x.shape[first:behind], np.int64)


@operator("Shape")
def _shape(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _shape_of, str(attribute(node, "start", 0)), str(attribute(node, "end", None)))


def _size_of(x: Any) -> Any:
    return np.array(x.size, np.int64)


@operator("Size")
def _size(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, _size_of)


@operator("ConstantOfShape", host=(0,))
def _constant_of_shape(emitter: Emitter, node: ir.Node) -> None:
    value, shape = attribute(node, "value", None), emitter.setting(node.inputs[0])
    fill = emitter.bind(np.zeros((), np.float32) if value is None else value.numpy().reshape(()))
    emitter.assign(node.outputs[0], f"{emitter.bind(jnp.full)}({shape}, {fill})")


def _ranges(
    shape: tuple[int | None, ...], starts: tuple[int, ...], ends: tuple[int, ...], along: Any = None, steps: Any = None
) -> list[slice]:
    """ONNX's Slice as Python slices, one per axis."""
    parts = [slice(None)] * len(shape)
    along = range(len(starts)) if along is None else along
    for place, start, end, step in zip(along, starts, ends, steps or (1,) * len(starts), strict=True):
        parts[place] = slice_of(start, end, step, shape[place])
    return parts


def _sliced(x: Any, *given: Any) -> Any:
    return x[tuple(_ranges(x.shape, *given))]


@operator("Slice", host=(1, 2, 3, 4))
def _slice(emitter: Emitter, node: ir.Node) -> None:
    settings = [fixed(node, position) for position in range(1, len(node.inputs))]
    if (
        not ranked(node)
        or any(known is None and value is not None for known, value in zip(settings, node.inputs[1:], strict=True))
        or (len(settings) > 3 and settings[3] is not None and settings[3].min(initial=1) < 0)
    ):  # reversed slices use dimensions, which are known while JAX traces
        call(emitter, node, _sliced, settings=(1, 2, 3, 4))
        return
    last, places = _axes_of(emitter, node)
    texts: list[Any] = [None if known is None else tuple(known.tolist()) for known in settings]
    chosen = _ranges((None,) * len(places), *texts)
    parts = ["slice(None)"] * len(places)
    for part, place in zip(chosen, places, strict=True):
        if part != slice(None):
            parts[place] = f"slice({part.start}, {part.stop}, {part.step})"
    x = emitter.last(node.inputs[0], len(places)) if last else emitter.plain(node.inputs[0])
    emitter.assign(node.outputs[0], f"{x}[{', '.join(parts)}]" if parts else x, last=last)


_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _padded(x: Any, pads: tuple[tuple[int, int], ...], mode: str, fill: Any) -> Any:
    """Padding; negative padding crops."""
    parts = tuple(slice(-min(low, 0), extent + min(high, 0)) for (low, high), extent in zip(pads, x.shape, strict=True))
    more = tuple((max(low, 0), max(high, 0)) for low, high in pads)
    keywords = {"constant_values": jnp.asarray(fill, x.dtype)} if mode == "constant" else {}
    return jnp.pad(x[parts], more, mode, **keywords)


def _sides(axes: int, pads: tuple[int, ...], along: tuple[int, ...] | None) -> list[tuple[int, int]]:
    """ONNX's pads as pairs, one per axis."""
    both = [(0, 0)] * axes
    along = tuple(range(axes)) if along is None else along
    for index, place in enumerate(along):
        both[place] = pads[index], pads[index + len(along)]
    return both


def _padded_by(x: Any, mode: str, pads: tuple[int, ...], fill: Any = None, along: tuple[int, ...] | None = None) -> Any:
    fill = 0 if fill is None or not fill.size else fill.reshape(())
    return _padded(x, tuple(_sides(x.ndim, pads, along)), mode, fill)


def _check_pad(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "constant")
    return None if mode in _MODES else f"mode={mode}"


@operator("Pad", _check_pad, host=(1, 3))
def _pad(emitter: Emitter, node: ir.Node) -> None:
    mode, fill = _MODES[attribute(node, "mode", "constant")], fixed(node, 2)
    pads, axes = fixed(node, 1), fixed(node, 3)
    requested = (
        value is not None and known is None for value, known in ((given(node, 2), fill), (given(node, 3), axes))
    )
    if pads is None or not ranked(node) or any(requested):
        inputs = [emitter.plain(node.inputs[0]), repr(mode), emitter.setting(given(node, 1))]
        inputs += [emitter.plain(given(node, 2)), emitter.setting(given(node, 3))]
        emitter.assign(node.outputs[0], f"{emitter.bind(_padded_by)}({', '.join(inputs)})")
        return
    last, places = _axes_of(emitter, node)
    sides = _sides(len(places), pads.tolist(), None if axes is None else tuple(axes.tolist()))
    both = [(0, 0)] * len(places)
    for side, place in zip(sides, places, strict=True):
        both[place] = side
    x = emitter.last(node.inputs[0], len(places)) if last else emitter.plain(node.inputs[0])
    value = "0" if fill is None or not fill.size else emitter.bind(fill.reshape(()))
    emitter.assign(node.outputs[0], f"{emitter.bind(_padded)}({x}, {tuple(both)}, {mode!r}, {value})", last=last)
