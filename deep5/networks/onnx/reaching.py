"""Where a tensor of a file goes: through operators that pass its numbers on, to those that compute with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import FLOATS, constant_tensor
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.folding import evaluated
from deep5.networks.slots import Slot, slot_of

__all__ = ["PASSING", "End", "Reach", "before", "is_tensor", "numbers_of"]

# Operators whose output has the numbers of their first input: moved, repeated, selected, bounded or rounded.
PASSING = frozenset({
    "Cast", "CastLike", "Clip", "DequantizeLinear", "Dropout", "Expand", "Flatten", "Identity", "Pad",
    "QuantizeLinear", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
})  # fmt: skip
_INITIAL = Slot(kind="setting", what="initial state")
_INTEGERS = Slot(kind="setting", what="conversion to integers", dead=True)
# Operators of these that may repeat one number: what comes out is no weight of the file.
_REPEATING = frozenset({"Expand", "Tile"})
# Nothing larger is computed, and no more nodes: importing must not cost more than running.
_MOST_ELEMENTS, _MOST_NODES = 1 << 20, 32


@dataclass(frozen=True, kw_only=True)
class End:
    """A node that computes with a tensor.

    Attributes:
        node: The node; None if the tensor is an output of the network.
        position: Index of the input.
        slot: What the operator does with it; None if the table of slots does not say.
    """

    node: ir.Node | None
    position: int = 0
    slot: Slot | None = None


@dataclass(frozen=True)
class Reach:
    """Answers for one graph, each computed once."""

    graph: ir.Graph
    _dead: dict[ir.Value, bool] = field(default_factory=dict)
    _known: dict[ir.Value, np.ndarray | None] = field(default_factory=dict)
    _owners: dict[ir.Graph, ir.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = list(self.graph.all_nodes())
        for node in nodes:
            self._owners.update((body, node) for body in subgraphs(node).values())
        for node in reversed(nodes):  # the nodes of a body follow their owner, readers follow producers
            for value in node.outputs:
                uses = value.uses()
                self._dead[value] = (
                    bool(uses)
                    and not value.is_graph_output()
                    and all(self.reaches_nothing(use.node, use.idx) for use in uses)
                )

    def ends(self, node: ir.Node, position: int) -> list[End]:
        """The nodes that compute with an input of a node: itself, or those that it passes the numbers on to."""
        found: list[End] = []
        waiting, seen = [(node, position, False)], {(node, position)}
        while waiting:
            node, position, repeated = waiting.pop()
            slot, values = self._slot(node, position), self._passed(node, position)
            if slot is not None or not values:
                weight = slot is not None and slot.kind == "weight"
                found.append(End(node=node, position=position, slot=None if weight and repeated else slot))
                continue
            repeated |= node.op_type in _REPEATING
            readers, ends = self._readers(values)
            found += ends
            waiting += [(*reader, repeated) for reader in readers if reader not in seen]
            seen.update(readers)
        return found

    def reaches_nothing(self, node: ir.Node, position: int) -> bool:
        """Whether no gradient returns from an input: everything computed from it only sets operators."""
        slot = self._slot(node, position)
        if slot is not None:
            return slot.dead
        if subgraphs(node):
            return False
        used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
        return bool(used) and all(self._dead.get(value, False) for value in used)

    def consequences(self, value: ir.Value) -> Iterator[tuple[ir.Value, np.ndarray]]:
        """The values that follow from this one and other constants only, with their numbers."""
        waiting, count = [value], 0
        while waiting and count < _MOST_NODES:
            for use in waiting.pop().uses():
                for made in use.node.outputs if count < _MOST_NODES else ():
                    count += 1
                    if (array := self.known(made)) is not None:
                        yield made, array
                        waiting.append(made)

    def known(self, value: ir.Value | None, depth: int = _MOST_NODES) -> np.ndarray | None:
        """The numbers of a small value that follows from tensors of the file only; None for others."""
        if value is None or value.shape is None or not value.shape.is_static() or depth == 0:
            return None
        if np.prod(value.shape.numpy(), dtype=float) > _MOST_ELEMENTS:
            return None
        if value not in self._known:
            self._known[value] = None  # also while it is computed
            self._known[value] = self._computed(value, depth)
        return self._known[value]

    def _slot(self, node: ir.Node, position: int) -> Slot | None:
        if node.domain == "" and node.op_type in ("Cast", "CastLike") and position == 0:
            return None if node.outputs[0].dtype in FLOATS else _INTEGERS
        if node.domain == "" and node.op_type == "Gather" and position == 0 and self._selects(node):
            return None
        if self._state(node, position) == []:
            return _INITIAL
        return slot_of(node, position)

    def _selects(self, node: ir.Node) -> bool:
        """Whether a Gather takes fixed elements of a vector, or one slice of a table; otherwise it looks rows up."""
        table, indices = node.inputs[0], node.inputs[1]
        if self.known(indices) is None or table is None or table.shape is None:
            return False
        return len(table.shape) < 2 or (indices is not None and indices.shape is not None and not len(indices.shape))

    def _passed(self, node: ir.Node, position: int) -> list[ir.Value]:
        """The values that have the numbers of this input; empty if the node computes with it."""
        if node.domain:
            return []
        if node.op_type in ("Loop", "Scan"):
            return self._state(node, position) or []
        if node.op_type == "Concat" and all(self._joined(value) for value in node.inputs):
            return list(node.outputs)
        passes = node.op_type in PASSING or (node.op_type == "Gather" and self._selects(node))
        return list(node.outputs) if passes and position == 0 else []

    def _joined(self, value: ir.Value | None) -> bool:
        return value is not None and is_tensor(before(value, PASSING))

    def _state(self, node: ir.Node, position: int) -> list[ir.Value] | None:
        """The values that a Loop or Scan passes an input on as; empty for the initial state that it changes."""
        if node.domain or node.op_type not in ("Loop", "Scan"):
            return None
        body, first = node.attributes["body"].as_graph(), 0
        if node.op_type == "Loop":
            if position < 2:
                return None
            states, first, position = len(body.inputs) - 2, 2, position - 2
        else:
            states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
        inner = body.inputs[first + position]
        if position >= states:
            return [inner]
        kept = before(body.outputs[position + (node.op_type == "Loop")], frozenset({"Identity"}))
        return [inner, node.outputs[position]] if kept is inner else []

    def _readers(self, values: Sequence[ir.Value]) -> tuple[list[tuple[ir.Node, int]], list[End]]:
        """The nodes that read some values, also after the If that returns them; and the outputs of the network."""
        readers, ends, waiting = list[tuple[ir.Node, int]](), list[End](), list(values)
        while waiting:
            value = waiting.pop()
            readers += [(use.node, use.idx) for use in value.uses()]
            if not value.is_graph_output() or not isinstance(value.graph, ir.Graph):
                continue
            owner = self._owners.get(value.graph)
            if owner is None or owner.op_type != "If":
                ends.append(End(node=None))
            else:
                waiting += [owner.outputs[place] for place, own in enumerate(value.graph.outputs) if own is value]
        return readers, ends

    def _computed(self, value: ir.Value, depth: int) -> np.ndarray | None:
        node = value.producer()
        if is_tensor(value) and (node is None or node.op_type == "Constant"):
            return numbers_of(value)
        if node is None or node.domain:
            return None
        inputs = [self.known(own, depth - 1) for own in node.inputs]
        if any(own is not None and array is None for own, array in zip(node.inputs, inputs, strict=True)):
            return None
        return evaluated(node, inputs, self.graph.opset_imports[""]).get(value)


def is_tensor(value: ir.Value) -> bool:
    """Whether a file stores a value: an initial value, or the output of a Constant or ConstantOfShape node."""
    node = value.producer()
    if node is None:
        return value.is_initializer() and value.const_value is not None
    return not node.domain and node.op_type in ("Constant", "ConstantOfShape")


def numbers_of(value: ir.Value) -> np.ndarray | None:
    """The numbers of an initial value or Constant node; None if they cannot be read."""
    tensor = constant_tensor(value)
    if tensor is None:
        return None
    try:
        array: np.ndarray = tensor.numpy()
    except (OSError, ValueError, MemoryError, TypeError):  # reported when the value is used
        return None
    return None if array.dtype.kind in "OSU" else array


def before(value: ir.Value, operators: frozenset[str]) -> ir.Value:
    """The value whose numbers these operators pass on."""
    while (node := value.producer()) is not None and not node.domain and node.op_type in operators:
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value
