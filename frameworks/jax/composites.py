"""Registers the operators that are written once, except those that the table overrides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.core import python_source
from deep5.frameworks.jax.kernels.host import host_array
from deep5.frameworks.jax.primitives import PRIMITIVES
from deep5.frameworks.jax.table import OPERATORS, OVERRIDES, RANKED, attribute, given, operator, rank, ranked, results
from deep5.networks.constants import FLOATS
from deep5.networks.kernels.operators import COMPOSITES, check_overrides
from deep5.networks.kernels.table import Composite, keywords_of
from deep5.networks.nodes import extents, inside
from deep5.networks.transforms.recurrent_node import batch_first
from deep5.networks.transforms.unrolling import RECURRENT, is_plain
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = ["emit_of", "register"]

# A loop takes as long as cells at 8 steps, and up to 1.2 times less at 12; at 4 steps it takes up to 1.3 times more. A
# GRU that resets before the product: as long at 12, up to 1.4 times more at 8 (training steps, 32 and 128 hidden). A
# loop compiles 2 to 3 times faster.
_LOOPED = 10


def _on_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """A composite as a function of JAX's arrays."""

    @functools.wraps(function)
    def run(*inputs: Any, **attributes: Any) -> Any:
        return function(PRIMITIVES, *inputs, **attributes)

    return run


def _literal(emitter: Emitter, value: Any) -> str:
    """An attribute as source."""
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, float):
        return python_source.number(value)
    if isinstance(value, (list, tuple)) and not any(isinstance(entry, str) for entry in value):
        return f"({''.join(f'{_literal(emitter, entry)}, ' for entry in value)})"
    return emitter.bind(value)


def emit_of(entry: Composite) -> Callable[[Emitter, ir.Node], None]:
    """The function of the operator table that writes the call of a composite."""
    run = getattr(PRIMITIVES, entry.native) if entry.native else _on_jax(entry.function)
    keywords = entry.keywords

    def emit(emitter: Emitter, node: ir.Node) -> None:
        last = _is_last(emitter, node, entry)
        numbers = entry.numbers(node)
        inputs = [
            _literal(emitter, numbers[at])
            if at in numbers
            else emitter.setting(value)
            if at in entry.settings
            else _named(emitter, node, at, entry, last)
            for at, value in enumerate(node.inputs)
        ]
        if _must_know_indices(node, entry):  # JAX would trace what is computed from them
            inputs[entry.bounded] = f"{emitter.bind(host_array)}({inputs[entry.bounded]})"
        inputs += keywords_of(
            keywords,
            node,
            lambda name, value: _literal(
                emitter, _last_axes(value, rank(node)) if last and name == entry.layout else value
            ),
            dtype=lambda value: emitter.bind(value.dtype.numpy()),  # type: ignore[union-attr]  # types were inferred
            nested=emitter.nested,
            channels=lambda: "-1" if last else "1",
            checked=lambda: "False",
            place=lambda: "None",
            stream=lambda: emitter.key(attribute(node, "seed", None)),
            window=lambda: emitter.bind(Window.at(node)),
        )
        text = f"{emitter.bind(run)}({', '.join(inputs)})"
        # A loss has no axis of channels.
        order = [last and (entry.layout != "image" or _same_rank(node, value)) for value in node.outputs]
        if "outputs" in keywords:
            results(emitter, node, text, order)
        else:
            emitter.assign(node.outputs[0], text, last=order[0])

    return emit


def _same_rank(node: ir.Node, value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == rank(node)


def _is_last(emitter: Emitter, node: ir.Node, entry: Composite) -> bool:
    """Whether the node is computed with its channels last."""
    if entry.layout == "elementwise":
        return any(map(emitter.is_last, node.inputs)) and node.outputs[0].shape is not None
    if entry.layout == "image":  # windows are computed with channels last, others in the order of the input
        return ranked(node) and rank(node) > 2 and ("window" in entry.keywords or emitter.is_last(node.inputs[0]))
    if entry.layout == "channels last":
        return rank(node) > 2
    if entry.layout in ("onnx", "reduced"):
        return False
    return ranked(node) and any(map(emitter.is_last, node.inputs if entry.alike else node.inputs[:1]))


def _named(emitter: Emitter, node: ir.Node, at: int, entry: Composite, last: bool) -> str:
    value = node.inputs[at]
    if emitter.is_stored(value):  # of a recurrent layer, which turns it back
        return f"{emitter.bind(_turned)}({emitter.weight(value)[0]})"
    if entry.layout == "elementwise":
        return emitter.last(value, len(node.outputs[0].shape or ())) if last else emitter.plain(value)
    return emitter.last(value, rank(node)) if last and (at == 0 or entry.alike) else emitter.plain(value)


def _turned(weight: Any) -> Any:
    """The weight of a recurrent layer from storage: (directions, in, gates) to (directions, gates, in)."""
    return PRIMITIVES.permute_dims(weight, (0, 2, 1))


def _last_axes(axes: Any, count: int) -> Any:
    """Axes of an image with its channels last."""
    if axes is None:
        return [_last_axes(axis, count) for axis in range(count)]
    if isinstance(axes, int):
        axis = axes % count
        return axis if axis == 0 else count - 1 if axis == 1 else axis - 1
    return [_last_axes(axis, count) for axis in axes]


def _must_know_indices(node: ir.Node, entry: Composite) -> bool:
    """Whether the host reads the indices: integers have no NaN to mark elements out of bounds."""
    if not entry.bounded or len(node.inputs) <= entry.bounded or node.inputs[entry.bounded] is None:
        return False
    marked = node.inputs[0] is not None and node.inputs[0].dtype in FLOATS
    return not marked and not (node.op_type == "Gather" and inside(node))


def _host(entry: Composite) -> Callable[[ir.Node], list[ir.Value | None]]:
    def known(node: ir.Node) -> list[ir.Value | None]:
        read = () if entry.reads is None else entry.reads(node)
        if _must_know_indices(node, entry):
            read = (*read, entry.bounded)
        return [given(node, at) for at in (*entry.settings, *read)]

    return known


def _check_recurrent(node: ir.Node) -> str | None:
    """Short layers of known length are cells."""
    steps = extents(node.inputs[0])[batch_first(node) :][:1]
    if is_plain(node) and steps and isinstance(steps[0], int) and steps[0] >= _LOOPED:
        return None
    check = COMPOSITES[node.op_type].check
    return None if check is None else check(node)


def register() -> None:
    """Add the operators to the table; call it after the overrides are in the table."""
    check_overrides(OPERATORS, OVERRIDES)
    for name, entry in COMPOSITES.items():
        if name not in OVERRIDES:
            read = bool(entry.settings or entry.bounded) or entry.reads is not None
            check = _check_recurrent if name in RECURRENT else entry.check
            operator(name, check, _host(entry) if read else ())(emit_of(entry))
            if entry.layout == "channels last" or entry.product:
                RANKED.add(name)
