"""Control flow: If, Loop and Scan, whose subgraphs become nested functions.

If JAX traces the network, they become JAX's control flow (`lax.cond`, `lax.scan`), which JAX differentiates. If the
network runs operator by operator, they become Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.core.time_limit import check_length
from deep5.frameworks.jax.composites import emit_of
from deep5.frameworks.jax.host import graphs_of
from deep5.frameworks.jax.support import supports
from deep5.frameworks.jax.table import attribute, given, operator, results
from deep5.networks.kernels.drawing import OPERATORS as DRAWING
from deep5.networks.kernels.operators import COMPOSITES
from deep5.networks.transforms.control_flow import never_stops

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any
Body = Callable[..., tuple[Array, ...]]
_TRACED = "JAX compiles lax.cond and lax.scan with values that are not known, and differentiates them"


def _check_nested(node: ir.Node) -> str | None:
    for graph in graphs_of(node):
        for inner in graph:
            if inner.op_type in DRAWING and node.op_type != "If":
                return f"{inner.name} ({inner.op_type}) in it would draw the same numbers in every iteration"
            if not (answer := supports(inner)):
                return f"{inner.name} ({inner.op_type}) in it: {answer.reason}"
    return None


def _kind(value: ir.Value) -> tuple[Any, tuple[Any, ...]] | None:
    """Dtype and dimensions; None if a dimension is unknown."""
    if value.shape is None or value.dtype is None:
        return None
    extents = tuple(extent if isinstance(extent, int) else extent.value for extent in value.shape)
    return None if None in extents else (value.dtype, extents)


def _distinguished(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """The condition of an If must be known unless both branches return arrays of the same dtypes and shapes."""
    first, second = (graph.outputs for graph in graphs_of(node))
    same = all(_kind(a) is not None and _kind(a) == _kind(b) for a, b in zip(first, second, strict=True))
    return () if same else (node.inputs[0],)


def _traced_choice(condition: Array, then: Body, otherwise: Body, dtypes: tuple[Any, ...]) -> tuple[Array, ...]:
    def typed(body: Body) -> Body:
        return lambda: tuple(jnp.asarray(value, dtype) for value, dtype in zip(body(), dtypes, strict=True))

    found: tuple[Array, ...] = lax.cond(jnp.reshape(condition, ()), typed(then), typed(otherwise))
    return found


def _dtypes(emitter: Emitter, values: Any) -> str:
    return "".join(f"{emitter.bind(value.dtype.numpy())}, " for value in values)


@operator("If", _check_nested, _distinguished, override=_TRACED)
def _if(emitter: Emitter, node: ir.Node) -> None:
    if emitter.eager or bool(_distinguished(node)) or emitter.is_traced(node.inputs[0]):
        emit_of(COMPOSITES["If"])(emitter, node)
        return
    condition = emitter.plain(node.inputs[0])
    then, otherwise = (emitter.nested(node.attributes[f"{name}_branch"].as_graph()) for name in ("then", "else"))
    dtypes = _dtypes(emitter, node.outputs)
    results(emitter, node, f"{emitter.bind(_traced_choice)}({condition}, {then}, {otherwise}, ({dtypes}))")


def _same_kinds(inside: Any, outside: Any) -> bool:
    """Whether the state of a loop has the same dtypes and shapes before and after an iteration."""
    kinds = [(_kind(before), _kind(after)) for before, after in zip(outside, inside, strict=True)]
    return all(before is not None and before == after for before, after in kinds)


def _loop_settings(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """The iteration count must be known; so must the condition after each iteration, unless it is always true."""
    body = node.attributes["body"].as_graph()
    states = len(node.inputs) - 2
    if given(node, 0) is not None and never_stops(node) and _same_kinds(body.outputs[1 : 1 + states], node.inputs[2:]):
        return (node.inputs[0],)
    return (given(node, 0), given(node, 1), body.inputs[0])


def _parted(found: Any, carried: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The result of an iteration: the state, with its previous dtypes, and a row of each of the other outputs."""
    count = len(carried)
    states = (jnp.asarray(value, old.dtype) for value, old in zip(found[:count], carried, strict=True))
    return tuple(states), tuple(map(jnp.asarray, found[count:]))


def _traced_loop(trips: Any, states: tuple[Array, ...], body: Body) -> tuple[Array, ...]:
    """All iterations, as a JAX loop."""

    def iteration(carried: tuple[Array, ...], step: Array) -> tuple[Any, Any]:
        _, *found = body(step, np.array(True), *carried)
        return _parted(found, carried)

    check_length(int(trips[0]), "a compiled Loop")
    states, rows = lax.scan(iteration, tuple(map(jnp.asarray, states)), jnp.arange(trips[0], dtype="int64"))
    return (*states, *rows)


@operator("Loop", _check_nested, _loop_settings, override=_TRACED)
def _loop(emitter: Emitter, node: ir.Node) -> None:
    if emitter.eager:
        emit_of(COMPOSITES["Loop"])(emitter, node)
        return
    body = emitter.nested(node.attributes["body"].as_graph())
    states = "".join(f"{emitter.plain(value)}, " for value in node.inputs[2:])
    trips = emitter.setting(given(node, 0))
    results(emitter, node, f"{emitter.bind(_traced_loop)}({trips}, ({states}), {body})")


def _scanned(
    states: tuple[Array, ...],
    rows: tuple[Array, ...],
    body: Body,
    ways: tuple[tuple[int, ...], ...],
) -> tuple[Array, ...]:
    """ONNX's Scan; `ways` are the axes and directions of the inputs and outputs."""
    axes, backwards, out_axes, out_backwards = ways
    given_rows = tuple(
        jnp.flip(jnp.moveaxis(row, axis, 0), 0) if back else jnp.moveaxis(row, axis, 0)
        for row, axis, back in zip(rows, axes, backwards, strict=True)
    )
    states = tuple(map(jnp.asarray, states))
    check_length(int(given_rows[0].shape[0]), "Scan")

    def step(carried: tuple[Array, ...], own: tuple[Array, ...]) -> tuple[Any, Any]:
        found = body(*carried, *own)
        return _parted(found, carried)

    states, stacks = lax.scan(step, states, given_rows)
    turned = (
        jnp.moveaxis(jnp.flip(stack, 0) if back else stack, 0, axis)
        for stack, axis, back in zip(stacks, out_axes, out_backwards, strict=True)
    )
    return (*states, *turned)


@operator("Scan", _check_nested, override=_TRACED)
def _scan(emitter: Emitter, node: ir.Node) -> None:
    if emitter.eager:
        emit_of(COMPOSITES["Scan"])(emitter, node)
        return
    body, count = node.attributes["body"].as_graph(), attribute(node, "num_scan_inputs", 1)
    held = len(node.inputs) - count
    made = len(node.outputs) - held
    ways = (
        tuple(attribute(node, "scan_input_axes", (0,) * count)),
        tuple(attribute(node, "scan_input_directions", (0,) * count)),
        tuple(attribute(node, "scan_output_axes", (0,) * made)),
        tuple(attribute(node, "scan_output_directions", (0,) * made)),
    )
    states, rows = (
        "".join(f"{emitter.plain(value)}, " for value in part) for part in (node.inputs[:held], node.inputs[held:])
    )
    text = f"{emitter.bind(_scanned)}(({states}), ({rows}), {emitter.nested(body)}, {ways})"
    results(emitter, node, text)
