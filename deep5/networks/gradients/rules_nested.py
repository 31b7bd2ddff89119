"""Gradients of If, Loop and Scan: their subgraphs run again, followed by the backward pass through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import FLOATS
from deep5.networks.gradients.backward import Backward, Gradients, Rule, refuse
from deep5.networks.gradients.sweep import differentiate, path_between
from deep5.networks.nodes import captures
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES", "declare_shapes"]


def declare_shapes(graph: ir.Graph) -> bool:
    """Declare the shapes of loops' inputs and outputs if they can be derived; ONNX's shape inference does not.

    A state has its initial shape, in a Loop if the body preserves it; a scan output has one more axis than its parts.

    Args:
        graph: A graph with inferred shapes; the declarations allow more to be inferred.

    Returns:
        Whether any shape was declared.
    """
    declared = False

    def declare(value: ir.Value, extents: Sequence[Any] | None) -> None:
        nonlocal declared
        if value.shape is None and extents is not None:
            value.shape, declared = ir.Shape(extents), True

    for node in graph.all_nodes():
        if node.domain or node.op_type not in ("Loop", "Scan"):
            continue
        body, skipped = node.attributes["body"].as_graph(), 2 if node.op_type == "Loop" else 0
        scanned = int(attribute(node, "num_scan_inputs", 0))
        held = len(node.inputs) - skipped - scanned
        results = body.outputs[1:] if skipped else body.outputs
        for index, (value, state, result) in enumerate(zip(node.outputs, body.inputs[skipped:], results, strict=False)):
            if index < held:
                begin = node.inputs[skipped + index]
                if not skipped and begin is not None:
                    declare(state, None if begin.shape is None else list(begin.shape))
                declare(value, _both(state.shape, result.shape))
        rows = results[held:]
        for value, part, axis in zip(
            node.outputs[held:], rows, _ways(node, "scan_output_axes", len(rows)), strict=True
        ):
            if part.shape is not None:
                at = axis % (len(part.shape) + 1)
                declare(value, [*part.shape[:at], None, *part.shape[at:]])
        wholes = zip(node.inputs[skipped + held :], _ways(node, "scan_input_axes", scanned), strict=True)
        for (whole, axis), part in zip(wholes, body.inputs[skipped + held :], strict=True):
            if whole is not None and whole.shape is not None:
                at = axis % len(whole.shape)
                declare(part, [*whole.shape[:at], *whole.shape[at + 1 :]])
    return declared


def _both(one: ir.Shape | None, other: ir.Shape | None) -> list[Any] | None:
    """The dimensions that two shapes have in common."""
    if one is None or other is None or not _alike(one, other):
        return None
    return [left if left == right else None for left, right in zip(one, other, strict=True)]


def _if(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """The gradient of the branch taken; values that this branch does not read have a zero gradient.

    References:
        ONNX, If-19 (the same in If-25).
    """
    read = captures(node)
    wanted = [value for value in read if b.wants(value)]
    branches: dict[str, ir.Graph] = {}
    for name in ("then_branch", "else_branch"):
        branch = node.attributes[name].as_graph().clone(allow_outer_scope_values=True)
        inner = Backward(branch, around=b, rules=b.rules)
        results = zip(branch.outputs, node.outputs, grads, strict=True)
        found = _back(inner, [(value, _in_rank(inner, grad, value, like)) for value, like, grad in results], wanted)
        branch.outputs.clear()
        branch.outputs.extend(found)
        branches[name] = branch
    then, other = (branches[name] for name in ("then_branch", "else_branch"))
    made = b.ops("If", len(wanted), node.inputs[0], then_branch=then, else_branch=other)
    for value, new in zip(wanted, made, strict=True):
        _declare(new, value)
    sent = dict(zip(wanted, made, strict=True))
    return [*[None] * len(node.inputs), *(sent.get(value) for value in read)]


def _in_rank(inner: Backward, grad: ir.Value | None, value: ir.Value, like: ir.Value) -> ir.Value | None:
    """The gradient of an If's result in a branch, whose rank may differ from that of the branch that runs."""
    known = value.shape is not None and like.shape is not None and len(value.shape) == len(like.shape)
    return grad if grad is None or known else inner.op("Reshape", grad, inner.op("Shape", value))


def _loop(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Backward through the executed iterations, each starting from a state that the loop has saved.

    References:
        ONNX, Loop-19 (the same in Loop-25).
    """
    body, initial = node.attributes["body"].as_graph(), node.inputs[2:]
    held = len(initial)
    flows = [(0, 0)] * (len(body.outputs) - 1 - held)
    stacks = _kept(b, node, body.inputs[2:], body.outputs[1 : 1 + held], initial)
    some = next((value for value in node.outputs[held:] if value.name), None)
    if some is None:
        raise refuse(node, "it gives nothing")
    copy = body.clone(allow_outer_scope_values=True)
    inner = Backward(copy, around=b, rules=b.rules)
    (step, going, *states), (_, *results) = list(copy.inputs), list(copy.outputs)
    given = [Scanned(*each, 0, 0) for each in zip(states, stacks, strict=True)]
    way = _way_back(b, node, inner, grads, states, (), results, given, flows, initial)

    count = b.op("Gather", b.shape(some), b.integer(0))
    last = b.op("Sub", count, b.integer(1))
    front = Backward(copy, before=copy[0], prefix=f"{b.prefix}/step", around=b)
    true = front.op("Constant", value=ir.tensor(np.array(True)))
    done, again = (ir.Value(name=inner.fresh(name)) for name in ("done", "again"))
    _declare(done, step)
    _declare(again, going)
    index = front.op("Sub", last, done)
    _declare(index, step)
    for value, new in (
        (step, index),
        (going, true),
        *((each.part, front.op("Gather", each.whole, index)) for each in way.given),
    ):
        _declare(new, value)
        value.replace_all_uses_with(new, replace_graph_outputs=True)  # a state may leave the body as it came
    copy.inputs.clear()
    copy.inputs.extend([done, again, *way.inputs])
    copy.outputs.clear()
    copy.outputs.extend([inner.op("Identity", true), *way.outputs])
    made = b.ops("Loop", len(way.inputs), count, None, *way.begin, body=copy)
    return [None, None, *way.sent(made)]


def _scan(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """Backward through the steps, each starting from a saved state.

    References:
        ONNX, Scan-19 (the same in Scan-25).
    """
    body, count = node.attributes["body"].as_graph(), int(attribute(node, "num_scan_inputs", 0))
    held = len(node.inputs) - count
    initial, wholes = node.inputs[:held], [value for value in node.inputs[held:] if value is not None]
    rows = len(body.outputs) - held
    flows = list(zip(*(_ways(node, f"scan_output_{key}", rows) for key in ("axes", "directions")), strict=True))
    ways = zip(*(_ways(node, f"scan_input_{key}", count) for key in ("axes", "directions")), strict=True)
    stacks = _kept(b, node, body.inputs[:held], body.outputs[:held], initial)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, [*attribute(node, name), *[0] * held])
    copy = body.clone(allow_outer_scope_values=True)
    inner = Backward(copy, around=b, rules=b.rules)
    states, parts, results = list(copy.inputs[:held]), list(copy.inputs[held:]), list(copy.outputs)
    given = [Scanned(*each, 0, 0) for each in zip(states, stacks, strict=True)]
    given += [Scanned(part, whole, *way) for part, whole, way in zip(parts, wholes, ways, strict=True)]
    way = _way_back(b, node, inner, grads, states, parts, results, given, flows, initial)

    copy.inputs.clear()
    copy.inputs.extend([*way.inputs, *(each.part for each in way.given)])
    copy.outputs.clear()
    copy.outputs.extend(way.outputs)
    turned = {each.part: (each.axis, 1 - each.backward) for each in way.given}
    settings: dict[str, Any] = {
        f"scan_{side}_{key}": [turned[value][which] for value in values]
        for side, values in (("input", [each.part for each in way.given]), ("output", way.passed))
        for which, key in enumerate(("axes", "directions"))
        if values
    }
    wanted = (each.whole for each in way.given)
    made = b.ops("Scan", len(way.outputs), *way.begin, *wanted, body=copy, num_scan_inputs=len(way.given), **settings)
    return way.sent(made)


class Scanned(NamedTuple):
    """An array of which each step of a loop receives a slice.

    Attributes:
        part: The step's input.
        whole: The array of all slices.
        axis: The axis of the steps.
        backward: 1 if the last slice comes first, else 0.
    """

    part: ir.Value
    whole: ir.Value
    axis: int
    backward: int


class Way(NamedTuple):
    """The backward pass through the steps of a loop, in a copy of its body.

    Attributes:
        begin: Initial values of the first backward step: gradients of the loop's results, and zero sums.
        inputs: The step's inputs for these.
        given: Further inputs of each step.
        outputs: Results of a step: the initial values of the next, then gradients of `passed`.
        passed: Floating-point inputs of the body that are slices of the loop's inputs.
        order: For each result of the rule, its position among the results of the backward pass, or None.
    """

    begin: list[ir.Value]
    inputs: list[ir.Value]
    given: list[Scanned]
    outputs: list[ir.Value]
    passed: list[ir.Value]
    order: list[int | None]

    def sent(self, made: Sequence[ir.Value]) -> list[ir.Value | None]:
        """The gradients, selected from the results of the backward pass."""
        return [None if position is None else made[position] for position in self.order]


def _way_back(
    b: Backward,
    node: ir.Node,
    inner: Backward,
    grads: Gradients,
    states: Sequence[ir.Value],
    parts: Sequence[ir.Value],
    results: Sequence[ir.Value],
    given: list[Scanned],
    flows: Sequence[tuple[int, int]],
    initial: Sequence[ir.Value | None],
) -> Way:
    """Write the backward pass through one step.

    Args:
        b: Writes to the graph of the loop.
        node: The loop.
        inner: Writes to a copy of its body.
        grads: Gradients of the loop's outputs.
        states: Inputs of the copy that a step passes to the next.
        parts: Inputs of the copy that are slices of the node's inputs.
        results: Outputs of the copy: states, then slices of the node's further outputs.
        given: All inputs of each step except gradients.
        flows: Axes and directions of the node's further outputs.
        initial: The node's inputs that the first step starts from.
    """
    held, read = len(states), captures(node)
    carried = [index for index, value in enumerate(states) if value.dtype in FLOATS]
    summed = [value for value in read if b.wants(value)]
    passed = [value for value in parts if value.dtype in FLOATS]
    begin: list[ir.Value] = []
    inputs = [_fresh(inner, value) for value in (*(states[index] for index in carried), *summed)]
    for index in carried:
        first, gradient = initial[index], grads[index]
        assert first is not None  # noqa: S101 - ONNX does not allow omitted states
        begin.append(b.zeros(first) if gradient is None else gradient)
    begin += [b.zeros(value) for value in summed]
    seeds: list[tuple[ir.Value, ir.Value]] = list(zip((results[index] for index in carried), inputs, strict=False))
    for result, gradient, (axis, backward) in zip(results[held:], grads[held:], flows, strict=False):
        if gradient is not None:
            given = [*given, Scanned(_fresh(inner, result), gradient, axis, backward)]
            seeds.append((result, given[-1].part))
    by = [*(states[index] for index in carried), *summed, *passed]
    found = _back(inner, seeds, by)
    many = len(carried)
    for number, total in enumerate(inputs[many:], many):
        found[number] = inner.op("Add", total, found[number])
    positions = {value: number for number, value in enumerate(by)}
    return Way(begin, inputs, given, found, passed, [positions.get(value) for value in (*states, *parts, *read)])


def _ways(node: ir.Node, name: str, count: int) -> list[int]:
    """Axes or directions of a Scan; 0 by default."""
    return list(attribute(node, name, None) or [0] * count)


def _back(
    inner: Backward, seeds: Sequence[tuple[ir.Value, ir.Value | None]], sources: Sequence[ir.Value]
) -> list[ir.Value]:
    """Write the backward pass of a graph after its nodes.

    Args:
        inner: Writes to the graph.
        seeds: Outputs of the graph and their gradients; None if the loss does not depend on the output.
        sources: Values to differentiate with respect to: inputs of the graph, and values of enclosing graphs that it
            reads.

    Returns:
        The gradients of `sources`, each a separate value.
    """
    roots = [value for value, seed in seeds if seed is not None]
    active, path = path_between(list(inner.graph), set(sources), roots)
    inner.want(active)
    gradients: dict[ir.Value, ir.Value] = {}
    for value, seed in seeds:
        if seed is not None and value in active:
            known = gradients.get(value)
            gradients[value] = seed if known is None else inner.op("Add", known, seed)
    for node in reversed(path):
        differentiate(inner, node, active, gradients)
    found = []
    for source in sources:
        gradient = gradients.get(source)
        found.append(inner.op("Identity", inner.zeros(source) if gradient is None else gradient))
        _declare(found[-1], source)
    return found


def _kept(
    b: Backward,
    node: ir.Node,
    states: Sequence[ir.Value],
    results: Sequence[ir.Value],
    initial: Sequence[ir.Value | None],
) -> list[ir.Value]:
    """Add outputs to a loop: the states that its steps start from.

    Args:
        b: Writes to the graph of the loop.
        node: The loop.
        states: Inputs of its body.
        results: Its body's outputs that are the states of the next step.
        initial: The states of the first step.
    """
    body, first = node.attributes["body"].as_graph(), len(node.outputs)
    node.resize_outputs(first + len(states))
    for state, result, begin, output in zip(states, results, initial, node.outputs[first:], strict=True):
        _declare(state, begin)
        if state.shape is not None and result.shape is not None and not _alike(state.shape, result.shape):
            raise refuse(node, f"its state {state.name!r} is of shape {state.shape} and then of {result.shape}")
        keep = ir.node("Identity", [state])
        keep.outputs[0].name = b.fresh(f"{state.name}_before")
        _declare(keep.outputs[0], state)
        body.append(keep)
        body.outputs.append(keep.outputs[0])
        output.name, output.type = b.fresh(f"{node.outputs[0].name or node.name}_{state.name}"), state.type
        output.shape = None if state.shape is None else ir.Shape([None, *state.shape])
    return list(node.outputs[first:])


def _alike(one: ir.Shape, other: ir.Shape) -> bool:
    pairs = zip(one, other, strict=True) if len(one) == len(other) else [(0, 1)]
    return all(left == right for left, right in pairs if isinstance(left, int) and isinstance(right, int))


def _fresh(inner: Backward, like: ir.Value) -> ir.Value:
    """An input of a step, for the gradient of a value."""
    made = ir.Value(name=inner.fresh(f"{like.name}_gradient"))
    _declare(made, like)
    return made


def _declare(value: ir.Value, like: ir.Value | None) -> None:
    """Copy shape and type of a similar value where the value's own are unknown."""
    if like is not None:
        value.type, value.shape = value.type or like.type, value.shape if value.shape is not None else like.shape


RULES: dict[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan}
