"""The rank of the values that a Loop or Scan passes from one iteration to the next.

ONNX's inference does not infer it, because a body may return another rank than it got. It holds by induction: the state
has the rank of its initial value if a body that gets this rank returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute

__all__ = ["set_state_ranks"]


def set_state_ranks(model: ir.Model, infer: Callable[[], bool]) -> bool:
    """Set the ranks of states that have none.

    Args:
        model: The model, with inferred shapes; changed in place.
        infer: Infers shapes again, with these ranks.

    Returns:
        What `infer` returned each time; true if there was nothing to infer.
    """
    propagated, refuted = True, set[ir.Value]()
    while assumed := _assumed(model, refuted):
        before = {value: value.shape for value in _computed(model)}
        for state, (rank, _) in assumed.items():
            state.shape = ir.Shape([None] * rank)
        found = infer()
        wrong = {state for state, (rank, made) in assumed.items() if made.shape is None or len(made.shape) != rank}
        refuted |= wrong
        if not wrong:
            propagated = propagated and found
            continue
        for value, shape in before.items():  # what follows from a wrong assumption may be wrong
            value.shape = shape
        for state in assumed:
            state.shape = None
    return propagated


def _assumed(model: ir.Model, refuted: Collection[ir.Value]) -> dict[ir.Value, tuple[int, ir.Value]]:
    """The states without a rank whose initial value has one: that rank, and what the body returns."""
    found = {}
    for node in model.graph.all_nodes():
        for initial, state, made in _states(node):
            if state.shape is None and state not in refuted and initial.shape is not None and state.dtype is not None:
                found[state] = len(initial.shape), made
    return found


def _computed(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        yield from node.outputs


def _states(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """The initial value of each state of a loop, and the input and output of the body."""
    if node.domain or node.op_type not in ("Loop", "Scan"):
        return
    body, first = node.attributes["body"].as_graph(), 2 * (node.op_type == "Loop")
    count = len(body.inputs) - (2 if first else int(attribute(node, "num_scan_inputs", 0)))
    for number in range(count):
        initial = node.inputs[first + number] if first + number < len(node.inputs) else None
        if initial is not None:
            yield initial, body.inputs[first + number], body.outputs[number + (node.op_type == "Loop")]
