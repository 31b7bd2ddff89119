"""Operators that move elements, and operators that return or create shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import (
    attribute,
    axis,
    call,
    computed,
    fixed,
    kernel,
    number,
    operator,
    rank,
    writer,
)
from deep5.networks.constants import constant_value
from deep5.networks.slicing import slice_of

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Does nothing: readers bind the constant."""


@operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> str:
    return emitter.name(node.inputs[0])


def _transposed(x: Any, *, perm: Any = None) -> Any:
    return x.permute(tuple(range(x.ndim))[::-1] if perm is None else tuple(perm))


@operator("Transpose", otherwise=_transposed)
def _transpose(emitter: Emitter, node: ir.Node) -> str:
    return call(emitter, node, torch.permute, repr(tuple(attribute(node, "perm", range(rank(node))[::-1]))))


@operator("Concat")
def _concat(emitter: Emitter, node: ir.Node) -> str:
    inputs = ", ".join(emitter.name(value) for value in node.inputs)
    return f"{emitter.function(torch.cat)}(({inputs},), {node.attributes['axis'].value})"


def _parts(x: Any, sizes: Any = None, *, axis: int = 0, outputs: int) -> Any:
    if sizes is None:
        sizes = -(-x.shape[axis] // outputs)
    return x.split(sizes, axis)


@operator("Split", settings=(1,), otherwise=_parts)
def _split(emitter: Emitter, node: ir.Node) -> None:
    x, along, sizes = emitter.name(node.inputs[0]), axis(node, 0), fixed(node, 1)
    # Without sizes, all parts except the last are equal.
    count = len(node.outputs)
    size = f"-(-{x}.shape[{along}] // {count})" if sizes is None else repr(sizes.tolist())
    outputs = ", ".join(emitter.name(value) for value in node.outputs)
    emitter.line(f"{outputs}, = {emitter.function(torch.split)}({x}, {size}, {along})")


def _flattened(x: Any, *, axis: int = 1) -> Any:
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))  # torch cannot infer -1 for empty tensors


@operator("Flatten", otherwise=_flattened)
def _flatten(emitter: Emitter, node: ir.Node) -> str:
    first, x = axis(node, 1), emitter.name(node.inputs[0])
    if first == 1 and rank(node) > 1:
        return f"{x}.flatten(1)"
    parts = (range(first), range(first, rank(node)))
    sizes = [" * ".join([f"{x}.shape[{index}]" for index in part] or ["1"]) for part in parts]
    return f"{x}.reshape({', '.join(sizes)})"


def _reshaped(x: Any, shape: list[int], *, allowzero: int = 0) -> Any:
    return x.reshape([x.shape[at] if extent == 0 and not allowzero else extent for at, extent in enumerate(shape)])


@operator("Reshape", settings=(1,), otherwise=_reshaped)
def _reshape(emitter: Emitter, node: ir.Node) -> str:
    x = emitter.name(node.inputs[0])
    copies = not attribute(node, "allowzero", 0)
    shape = [
        f"{x}.shape[{index}]" if extent == 0 and copies else str(extent)
        for index, extent in enumerate(fixed(node, 1).tolist())
    ]
    return f"{x}.reshape({', '.join(shape) or '()'})"


def _squeezed(x: Any, axes: list[int] | None = None) -> Any:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@operator("Squeeze", settings=(1,), otherwise=_squeezed)
def _squeeze(emitter: Emitter, node: ir.Node) -> str:
    axes = fixed(node, 1)
    return f"{emitter.name(node.inputs[0])}.squeeze({'' if axes is None else repr(tuple(axes.tolist()))})"


def _unsqueezed(x: Any, axes: Any) -> Any:
    axes = axes if isinstance(axes, list) else [axes]
    for position in sorted(entry % (x.ndim + len(axes)) for entry in axes):
        x = x.unsqueeze(position)
    return x


@operator("Unsqueeze", settings=(1,), otherwise=_unsqueezed)
def _unsqueeze(emitter: Emitter, node: ir.Node) -> str:
    axes = fixed(node, 1).reshape(-1).tolist()
    text = emitter.name(node.inputs[0])
    for position in sorted(entry % (rank(node) + len(axes)) for entry in axes):
        text += f".unsqueeze({position})"
    return text


def _expanded(x: Any, shape: Any) -> Any:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


@operator("Expand", settings=(1,), otherwise=_expanded)
def _expand(emitter: Emitter, node: ir.Node) -> str:
    x, expand = emitter.name(node.inputs[0]), emitter.function(_expanded)
    return f"{expand}({x}, {tuple(fixed(node, 1).tolist())})"


def _tiled(x: Any, repeats: list[int]) -> Any:
    return x.repeat(repeats)


@operator("Tile", settings=(1,), otherwise=_tiled)
def _tile(emitter: Emitter, node: ir.Node) -> str:
    return f"{emitter.name(node.inputs[0])}.repeat({tuple(fixed(node, 1).tolist())})"


@operator("Shape")
def _shape(emitter: Emitter, node: ir.Node) -> str:
    first, last = attribute(node, "start", 0), attribute(node, "end", None)
    x, tensor = emitter.name(node.inputs[0]), emitter.function(torch.tensor)
    part = f"{x}.shape[{first}:{'' if last is None else last}]"
    return f"{tensor}({part}, dtype={emitter.dtype(node.outputs[0])}, device={emitter.place()})"


def _filled(shape: list[int], *, value: Any = None, kind: Any, place: Any) -> Any:
    fill = 0.0 if value is None else value.reshape(-1)[0].item()
    return torch.full(tuple(shape), fill, dtype=kind, device=place)


@operator("ConstantOfShape", settings=(0,), otherwise=_filled)
def _constant_of_shape(emitter: Emitter, node: ir.Node) -> str:
    value = attribute(node, "value", None)
    text = "0.0" if value is None else number(value.numpy().reshape(-1)[0].item())
    shape, dtype = tuple(fixed(node, 0).tolist()), emitter.dtype(node.outputs[0])
    full = emitter.function(torch.full)
    return f"{full}({shape}, {text}, dtype={dtype}, device={emitter.place()})"


def _stepped(x: Any, along: int, start: int, end: int, step: int) -> Any:
    """A slice with a negative step, which torch's tensors do not support."""
    positions = range(x.shape[along])[slice_of(start, end, step, x.shape[along])]
    return x.index_select(along, torch.tensor(positions, dtype=torch.int64, device=x.device))


def _sliced(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    parts = [slice(None)] * x.ndim
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        along, step = (at if axes is None else axes[at]) % x.ndim, 1 if steps is None else steps[at]
        if step > 0:
            parts[along] = slice_of(start, end, step, None)
        else:
            x = _stepped(x, along, start, end, step)
    return x[tuple(parts)] if parts else x


@operator("Slice", settings=(1, 2, 3, 4), otherwise=_sliced)
def _slice(emitter: Emitter, node: ir.Node) -> str:
    starts, ends = fixed(node, 1).tolist(), fixed(node, 2).tolist()
    axes, steps = fixed(node, 3), fixed(node, 4)
    axes = [entry % rank(node) for entry in (range(len(starts)) if axes is None else axes.tolist())]
    steps = [1] * len(starts) if steps is None else steps.tolist()
    parts, text = ["slice(None)"] * rank(node), emitter.name(node.inputs[0])
    for along, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step > 0:
            parts[along] = str(slice_of(start, end, step, None))
        else:
            text = f"{emitter.function(_stepped)}({text}, {along}, {start}, {end}, {step})"
    return f"{text}[{', '.join(parts)}]" if parts else text


def _padded(x: Any, pads: list[int], fill: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    axes = [entry % x.ndim for entry in (range(x.ndim) if axes is None else axes)]
    both = {along: (pads[index], pads[index + len(axes)]) for index, along in enumerate(axes)}
    if mode == "constant":
        # torch counts from the last axis.
        flat = [extent for along in reversed(range(x.ndim)) for extent in both.get(along, (0, 0))]
        if fill is None or not fill.numel():
            return F.pad(x.byte(), flat).bool() if x.dtype == torch.bool else F.pad(x, flat)
        # The fill value has a gradient, too.
        inside = F.pad(torch.ones_like(x, dtype=torch.uint8), flat).bool()
        around = F.pad(x.byte(), flat).bool() if x.dtype == torch.bool else F.pad(x, flat)
        return torch.where(inside, around, fill.reshape(()).to(x.dtype))
    for along, (before, behind) in both.items():
        if before or behind:
            places = _places(mode, x.shape[along], before, behind)
            x = x.index_select(along, torch.tensor(places, dtype=torch.int64, device=x.device))
    return x


def _places(mode: str, extent: int, before: int, behind: int) -> list[int]:
    """The source indices along an axis that is padded with its own elements."""
    places = range(-before, extent + behind)
    if mode == "edge":
        return [min(max(place, 0), extent - 1) for place in places]
    if mode == "wrap":
        return [place % extent for place in places]
    turn = max(2 * (extent - 1), 1)
    return [min(place % turn, turn - place % turn) if extent > 1 else 0 for place in places]


def _check_pad(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "constant")
    return None if mode in ("constant", "edge", "reflect", "wrap") else f"mode={mode}"


_WRITE_PAD = writer(_padded, (1, 3))


@operator("Pad", _check_pad, settings=(1, 3), otherwise=_padded)
def _pad(emitter: Emitter, node: ir.Node) -> str | None:
    boolean = node.inputs[0].dtype == ir.DataType.BOOL  # type: ignore[union-attr]
    if attribute(node, "mode", "constant") != "constant" or boolean or computed(node, 2):
        return _WRITE_PAD(emitter, node)
    pads, fill, axes = fixed(node, 1).tolist(), fixed(node, 2), fixed(node, 3)
    value = 0.0 if fill is None or not fill.size else fill.reshape(-1)[0].item()
    axes = [entry % rank(node) for entry in (range(rank(node)) if axes is None else axes.tolist())]
    both = {along: (pads[index], pads[index + len(axes)]) for index, along in enumerate(axes)}
    # torch counts from the last axis.
    flat = [extent for along in reversed(range(rank(node))) for extent in both.get(along, (0, 0))]
    pad = emitter.function(F.pad)
    return f"{pad}({emitter.name(node.inputs[0])}, {flat}, 'constant', {number(value)})"


@kernel("CenterCropPad", settings=(1,))
def _center_crop_pad(x: Any, shape: list[int], *, axes: Any = None) -> Any:
    pads = [0] * 2 * x.ndim
    for along, goal in zip(range(x.ndim) if axes is None else axes, shape, strict=True):
        along %= x.ndim  # noqa: PLW2901
        extra = goal - x.shape[along]
        if extra < 0:
            x = x.narrow(along, -extra // 2, goal)
        else:
            place = 2 * (x.ndim - 1 - along)
            pads[place], pads[place + 1] = extra // 2, extra - extra // 2
    return F.pad(x, pads) if any(pads) else x
