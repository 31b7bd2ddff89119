"""Operators that move elements, and those that tell or make shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import attribute, axis, call, computed, fixed, number, operator, rank
from deep5.networks.constants import constant_value

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emit import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Nothing: whoever reads it binds it."""


@operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, emitter.name(node.inputs[0]))


@operator("Transpose")
def _transpose(emitter: Emitter, node: ir.Node) -> None:
    call(emitter, node, torch.permute, repr(tuple(attribute(node, "perm", range(rank(node))[::-1]))))


@operator("Concat")
def _concat(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in node.inputs)
    emitter.assign(node, f"{emitter.function(torch.cat)}(({inputs},), {node.attributes['axis'].value})")


def _check_split(node: ir.Node) -> str | None:
    return computed(node, 1)


@operator("Split", _check_split)
def _split(emitter: Emitter, node: ir.Node) -> None:
    x, along, sizes = emitter.name(node.inputs[0]), axis(node, 0), fixed(node, 1)
    # Without sizes, all parts but the last are equal.
    count = len(node.outputs)
    size = f"-(-{x}.shape[{along}] // {count})" if sizes is None else repr(sizes.tolist())
    outputs = ", ".join(emitter.name(value) for value in node.outputs)
    emitter.line(f"{outputs}, = {emitter.function(torch.split)}({x}, {size}, {along})")


@operator("Flatten")
def _flatten(emitter: Emitter, node: ir.Node) -> None:
    first, x = axis(node, 1), emitter.name(node.inputs[0])
    if first == 1 and rank(node) > 1:
        emitter.assign(node, f"{x}.flatten(1)")
    else:
        rows = " * ".join([f"{x}.shape[{index}]" for index in range(first)] or ["1"])
        emitter.assign(node, f"{x}.reshape({rows}, -1)")


def _check_shape(node: ir.Node) -> str | None:
    return computed(node, 1)


@operator("Reshape", _check_shape)
def _reshape(emitter: Emitter, node: ir.Node) -> None:
    x = emitter.name(node.inputs[0])
    copies = not attribute(node, "allowzero", 0)
    shape = [
        f"{x}.shape[{index}]" if extent == 0 and copies else str(extent)
        for index, extent in enumerate(fixed(node, 1).tolist())
    ]
    emitter.assign(node, f"{x}.reshape({', '.join(shape) or '()'})")


@operator("Squeeze", _check_shape)
def _squeeze(emitter: Emitter, node: ir.Node) -> None:
    axes = fixed(node, 1)
    emitter.assign(
        node, f"{emitter.name(node.inputs[0])}.squeeze({'' if axes is None else repr(tuple(axes.tolist()))})"
    )


@operator("Unsqueeze", _check_shape)
def _unsqueeze(emitter: Emitter, node: ir.Node) -> None:
    axes = fixed(node, 1).tolist()
    text = emitter.name(node.inputs[0])
    for position in sorted(entry % (rank(node) + len(axes)) for entry in axes):
        text += f".unsqueeze({position})"
    emitter.assign(node, text)


def _expanded(x: Any, shape: tuple[int, ...]) -> Any:
    return x.expand(torch.broadcast_shapes(x.shape, shape))


@operator("Expand", _check_shape)
def _expand(emitter: Emitter, node: ir.Node) -> None:
    x, expand = emitter.name(node.inputs[0]), emitter.function(_expanded)
    emitter.assign(node, f"{expand}({x}, {tuple(fixed(node, 1).tolist())})")


@operator("Tile", _check_shape)
def _tile(emitter: Emitter, node: ir.Node) -> None:
    emitter.assign(node, f"{emitter.name(node.inputs[0])}.repeat({tuple(fixed(node, 1).tolist())})")


@operator("Shape")
def _shape(emitter: Emitter, node: ir.Node) -> None:
    first, last = attribute(node, "start", 0), attribute(node, "end", None)
    x, tensor = emitter.name(node.inputs[0]), emitter.function(torch.tensor)
    part = f"{x}.shape[{first}:{'' if last is None else last}]"
    emitter.assign(node, f"{tensor}({part}, dtype={emitter.dtype(node.outputs[0])}, device={emitter.place()})")


def _check_filled(node: ir.Node) -> str | None:
    return computed(node, 0)


@operator("ConstantOfShape", _check_filled)
def _constant_of_shape(emitter: Emitter, node: ir.Node) -> None:
    value = attribute(node, "value", None)
    text = "0.0" if value is None else number(value.numpy().reshape(-1)[0].item())
    shape, dtype = tuple(fixed(node, 0).tolist()), emitter.dtype(node.outputs[0])
    full = emitter.function(torch.full)
    emitter.assign(node, f"{full}({shape}, {text}, dtype={dtype}, device={emitter.place()})")


def _check_slice(node: ir.Node) -> str | None:
    return computed(node, 1, 2, 3, 4)


def _stepped(x: Any, along: int, start: int, end: int, step: int) -> Any:
    """A slice with a negative step, which torch's tensors do not have."""
    positions = range(x.shape[along])[start:end:step]
    return x.index_select(along, torch.tensor(positions, dtype=torch.int64, device=x.device))


@operator("Slice", _check_slice)
def _slice(emitter: Emitter, node: ir.Node) -> None:
    starts, ends = fixed(node, 1).tolist(), fixed(node, 2).tolist()
    axes, steps = fixed(node, 3), fixed(node, 4)
    axes = [entry % rank(node) for entry in (range(len(starts)) if axes is None else axes.tolist())]
    steps = [1] * len(starts) if steps is None else steps.tolist()
    parts, text = ["slice(None)"] * rank(node), emitter.name(node.inputs[0])
    for along, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step > 0:
            parts[along] = f"slice({start}, {end}, {step})"
        else:
            text = f"{emitter.function(_stepped)}({text}, {along}, {start}, {end}, {step})"
    emitter.assign(node, f"{text}[{', '.join(parts)}]" if parts else text)


def _check_pad(node: ir.Node) -> str | None:
    if attribute(node, "mode", "constant") != "constant":
        return "padding other than constant"
    return computed(node, 1, 2, 3)


@operator("Pad", _check_pad)
def _pad(emitter: Emitter, node: ir.Node) -> None:
    pads, fill, axes = fixed(node, 1).tolist(), fixed(node, 2), fixed(node, 3)
    value = 0.0 if fill is None or not fill.size else float(fill.reshape(-1)[0])
    axes = [entry % rank(node) for entry in (range(rank(node)) if axes is None else axes.tolist())]
    both = {along: (pads[index], pads[index + len(axes)]) for index, along in enumerate(axes)}
    # torch counts from the last axis.
    flat = [extent for along in reversed(range(rank(node))) for extent in both.get(along, (0, 0))]
    pad = emitter.function(F.pad)
    emitter.assign(node, f"{pad}({emitter.name(node.inputs[0])}, {flat}, 'constant', {number(value)})")


_VECTORS = ("FLOAT", "DOUBLE")


def _rows(table: Any, indices: Any) -> Any:
    """Rows of a table of vectors: its gradient adds up row by row, several times faster than indexing's."""
    return F.embedding(torch.where(indices < 0, indices + table.shape[0], indices), table)


def _gathered(x: Any, indices: Any, along: int) -> Any:
    extent = x.shape[along]
    flat = torch.where(indices < 0, indices + extent, indices).reshape(-1)
    if torch.compiler.is_compiling():  # what torch compiles counts a second time from the end
        flat = torch.where(flat < 0, extent, flat)
    return x.index_select(along, flat).reshape(x.shape[:along] + indices.shape + x.shape[along + 1 :])


@operator("Gather")
def _gather(emitter: Emitter, node: ir.Node) -> None:
    along, indices = axis(node, 0), fixed(node, 1)
    if indices is not None and not indices.shape:
        emitter.assign(node, f"{emitter.name(node.inputs[0])}.select({along}, {indices.item()})")
    elif along == 0 and rank(node) == 2 and str(node.inputs[0].dtype) in _VECTORS:  # type: ignore[union-attr]
        call(emitter, node, _rows)
    else:
        call(emitter, node, _gathered, str(along))
