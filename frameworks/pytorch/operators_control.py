"""Operators with subgraphs, and operators on sequences and optional values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from deep5.frameworks.pytorch import control, sequences
from deep5.frameworks.pytorch.table import attribute, kernel, operator
from deep5.networks.transforms.control_flow import never_stops

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []


def _write(emitter: Emitter, node: ir.Node, function: Callable[..., Any], arguments: Sequence[str]) -> None:
    outputs = ", ".join(emitter.name(value) if value.name else "_" for value in node.outputs)
    rest = ", *_" if len(node.outputs) == 0 else ","
    emitter.line(f"{outputs}{rest} = {emitter.function(function)}({', '.join(arguments)})")


def _empty(emitter: Emitter, values: Sequence[ir.Value]) -> str:
    """Shapes and element types of the stacked results of zero steps: unknown dimensions are 0."""
    pairs = []
    for value in values:
        extents = [extent if isinstance(extent, int) else 0 for extent in value.shape or ()]
        pairs.append(f"({extents}, {emitter.dtype(value)})")
    return f"empty=[{', '.join(pairs)}], place={emitter.place()}"


@operator("If")
def _if(emitter: Emitter, node: ir.Node) -> None:
    branches = [emitter.nested(attribute(node, name)) for name in ("then_branch", "else_branch")]
    _write(emitter, node, control.branch, [emitter.name(node.inputs[0]), *branches])


@operator("Loop")
def _loop(emitter: Emitter, node: ir.Node) -> None:
    body: ir.Graph = attribute(node, "body")
    inputs = [*(emitter.name(value) for value in node.inputs), *["None"] * (2 - len(node.inputs))]
    stacked = body.outputs[len(inputs) - 1 :]
    _write(
        emitter,
        node,
        control.loop,
        [emitter.nested(body), *inputs, f"{_empty(emitter, stacked)}, counted={never_stops(node)}"],
    )


@operator("Scan")
def _scan(emitter: Emitter, node: ir.Node) -> None:
    body: ir.Graph = attribute(node, "body")
    scanned = attribute(node, "num_scan_inputs")
    state = len(body.inputs) - scanned
    stacked = len(body.outputs) - state
    how = {
        "axes": attribute(node, "scan_input_axes", (0,) * scanned),
        "backward": attribute(node, "scan_input_directions", (0,) * scanned),
        "into": attribute(node, "scan_output_axes", (0,) * stacked),
        "reverse": attribute(node, "scan_output_directions", (0,) * stacked),
    }
    settings = [f"{name}={emitter.literal(value)}" for name, value in how.items()]
    inputs = [emitter.name(value) for value in node.inputs]
    empty = _empty(emitter, body.outputs[state:])
    _write(emitter, node, control.scan, [emitter.nested(body), *inputs, *settings, empty])


@operator("SequenceMap")
def _map(emitter: Emitter, node: ir.Node) -> None:
    inputs = [emitter.name(value) for value in node.inputs]
    body = emitter.nested(attribute(node, "body"))
    _write(emitter, node, control.over_lists, [body, *inputs, f"count={len(node.outputs)}"])


@operator("SequenceConstruct")
def _construct(emitter: Emitter, node: ir.Node) -> str:
    return f"[{', '.join(emitter.name(value) for value in node.inputs)}]"


@operator("SequenceEmpty")
def _none(emitter: Emitter, node: ir.Node) -> str:
    return "[]"


@operator("Optional")
def _optional(emitter: Emitter, node: ir.Node) -> str:
    return emitter.name(node.inputs[0]) if node.inputs else "None"


@kernel("OptionalHasElement", eager=True)
def _has(value: Any = None, *, place: Any) -> Any:
    return torch.tensor(value is not None, device=place)


@kernel("SequenceLength", eager=True)
def _length(values: Any, *, place: Any) -> Any:
    return torch.tensor(len(values), device=place)


kernel("ConcatFromSequence", eager=True)(sequences.concatenated)
kernel("OptionalGetElement", eager=True)(sequences.held)
kernel("SequenceAt", settings=(1,), eager=True)(sequences.element)
kernel("SequenceErase", settings=(1,), eager=True)(sequences.erased)
kernel("SequenceInsert", settings=(2,), eager=True)(sequences.inserted)
kernel("SplitToSequence", settings=(1,), eager=True)(sequences.split)
