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

from deep5.frameworks.jax.host import graphs_of
from deep5.frameworks.jax.kernels.host import host_array
from deep5.frameworks.jax.support import supports
from deep5.frameworks.jax.table import attribute, given, operator, results
from deep5.networks.constants import constant_value
from deep5.networks.kernels.drawing import OPERATORS as DRAWING

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any
Body = Callable[..., tuple[Array, ...]]
Kinds = tuple[tuple[Any, tuple[int, ...]], ...]


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


def _truth(value: Array) -> bool:
    return bool(host_array(value).reshape(()))


def _chosen(condition: Array, then: Body, otherwise: Body) -> tuple[Array, ...]:
    return then() if _truth(condition) else otherwise()


def _traced_choice(condition: Array, then: Body, otherwise: Body, dtypes: tuple[Any, ...]) -> tuple[Array, ...]:
    def typed(body: Body) -> Body:
        return lambda: tuple(jnp.asarray(value, dtype) for value, dtype in zip(body(), dtypes, strict=True))

    found: tuple[Array, ...] = lax.cond(jnp.reshape(condition, ()), typed(then), typed(otherwise))
    return found


def _dtypes(emitter: Emitter, values: Any) -> str:
    return "".join(f"{emitter.bind(value.dtype.numpy())}, " for value in values)


@operator("If", _check_nested, _distinguished)
def _if(emitter: Emitter, node: ir.Node) -> None:
    condition = emitter.plain(node.inputs[0])
    then, otherwise = (emitter.nested(node.attributes[f"{name}_branch"].as_graph()) for name in ("then", "else"))
    known = emitter.eager or bool(_distinguished(node)) or emitter.is_traced(node.inputs[0])
    how = "" if known else f", ({_dtypes(emitter, node.outputs)})"
    function = emitter.bind(_chosen if known else _traced_choice)
    results(emitter, node, f"{function}({condition}, {then}, {otherwise}{how})")


def _endless(node: ir.Node) -> bool:
    """Whether a Loop always runs all its iterations."""
    body = node.attributes["body"].as_graph()
    go, condition = given(node, 1), body.outputs[0]
    while (made := condition.producer()) is not None and made.op_type == "Identity" and made.inputs[0] is not None:
        condition = made.inputs[0]
    held = constant_value(condition)
    goes_on = condition is body.inputs[1] or (held is not None and bool(held.all()))
    known = constant_value(go)
    return given(node, 0) is not None and goes_on and (go is None or (known is not None and bool(known.all())))


def _same_kinds(inside: Any, outside: Any) -> bool:
    """Whether the state of a loop has the same dtypes and shapes before and after an iteration."""
    kinds = [(_kind(before), _kind(after)) for before, after in zip(outside, inside, strict=True)]
    return all(before is not None and before == after for before, after in kinds)


def _loop_settings(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """The iteration count must be known; so must the condition after each iteration, unless it is always true."""
    body = node.attributes["body"].as_graph()
    states = len(node.inputs) - 2
    if _endless(node) and _same_kinds(body.outputs[1 : 1 + states], node.inputs[2:]):
        return (node.inputs[0],)
    return (given(node, 0), given(node, 1), body.inputs[0])


def _stacked(rows: list[Array], dtype: Any, shape: tuple[int, ...], axis: int = 0) -> Array:
    return jnp.stack(rows, axis) if rows else jnp.zeros((0, *shape), dtype)


def _repeated(trips: Any, go: Any, states: tuple[Array, ...], body: Body, kinds: Kinds) -> tuple[Array, ...]:
    """Runs iteration by iteration while the condition holds."""
    count, step = len(states), 0
    rows: list[list[Array]] = [[] for _ in kinds]
    going = go is None or _truth(go)
    while going and (trips is None or step < trips[0]):
        going_on, *found = body(np.array(step, np.int64), np.array(True), *states)
        going, states = _truth(going_on), tuple(found[:count])
        for row, value in zip(rows, found[count:], strict=True):
            row.append(value)
        step += 1
    return (*states, *(_stacked(row, *kind) for row, kind in zip(rows, kinds, strict=True)))


def _parted(found: Any, carried: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The result of an iteration: the state, with its previous dtypes, and a row of each of the other outputs."""
    count = len(carried)
    states = (jnp.asarray(value, old.dtype) for value, old in zip(found[:count], carried, strict=True))
    return tuple(states), tuple(map(jnp.asarray, found[count:]))


def _traced_loop(trips: Any, go: Any, states: tuple[Array, ...], body: Body, kinds: Kinds) -> tuple[Array, ...]:
    """All iterations, as a JAX loop."""

    def iteration(carried: tuple[Array, ...], step: Array) -> tuple[Any, Any]:
        _, *found = body(step, np.array(True), *carried)
        return _parted(found, carried)

    states, rows = lax.scan(iteration, tuple(map(jnp.asarray, states)), jnp.arange(trips[0], dtype="int64"))
    return (*states, *rows)


@operator("Loop", _check_nested, _loop_settings)
def _loop(emitter: Emitter, node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    trips, go = emitter.setting(given(node, 0)), emitter.plain(given(node, 1))
    states = "".join(f"{emitter.plain(value)}, " for value in node.inputs[2:])
    kinds = "".join(
        f"({emitter.bind(value.dtype.numpy())}, {_extents(value)}), "  # type: ignore[union-attr]  # were inferred
        for value in body.outputs[len(node.inputs) - 1 :]
    )
    function = emitter.bind(_repeated if emitter.eager else _traced_loop)
    results(emitter, node, f"{function}({trips}, {go}, ({states}), {emitter.nested(body)}, ({kinds}))")


def _extents(value: ir.Value) -> str:
    """The dimensions of rows if there are no iterations; unknown ones count as 0."""
    return repr(tuple(extent if isinstance(extent, int) else 0 for extent in value.shape or ()))


def _scanned(
    states: tuple[Array, ...],
    rows: tuple[Array, ...],
    body: Body,
    ways: tuple[tuple[int, ...], ...],
    eager: bool,
) -> tuple[Array, ...]:
    """ONNX's Scan; `ways` are the axes and directions of the inputs and outputs."""
    axes, backwards, out_axes, out_backwards = ways
    given_rows = tuple(
        jnp.flip(jnp.moveaxis(row, axis, 0), 0) if back else jnp.moveaxis(row, axis, 0)
        for row, axis, back in zip(rows, axes, backwards, strict=True)
    )
    states = tuple(map(jnp.asarray, states))

    def step(carried: tuple[Array, ...], own: tuple[Array, ...]) -> tuple[Any, Any]:
        found = body(*carried, *own)
        return _parted(found, carried)

    if eager and given_rows[0].shape[0]:
        made = []
        for number in range(given_rows[0].shape[0]):
            states, found = step(states, tuple(row[number] for row in given_rows))
            made.append(found)
        stacks = tuple(jnp.stack(each) for each in zip(*made, strict=True))
    else:
        states, stacks = lax.scan(step, states, given_rows)
    turned = (
        jnp.moveaxis(jnp.flip(stack, 0) if back else stack, 0, axis)
        for stack, axis, back in zip(stacks, out_axes, out_backwards, strict=True)
    )
    return (*states, *turned)


@operator("Scan", _check_nested)
def _scan(emitter: Emitter, node: ir.Node) -> None:
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
    text = f"{emitter.bind(_scanned)}(({states}), ({rows}), {emitter.nested(body)}, {ways}, {emitter.eager})"
    results(emitter, node, text)
