"""Decides which tensors of an ONNX file are parameters, which are statistics, and which are constants.

A tensor is an initial value, or the output of a Constant or ConstantOfShape node, in the graph or in the body of an If,
Loop or Scan. The same rules apply to all of them and to every exporter. For each use of a tensor, the first rule that
applies decides:

1. The caller states it: `Network.from_onnx(…, parameters=…)`.
2. The file states it: torch's signature, values that torch folded, the list that deep5 writes.
3. The slot decides (`deep5.networks.slots`), also after operators that pass numbers on (`reaching`): a weight is
   trained at any size, a statistic is a buffer, a setting is never trained, nor is what only reaches settings.
4. Several elements are trained, unless they are a mask or named as a setting (`evidence`, `surroundings`).
5. One element is trained only if its name belongs to the exporter's parameters, or it is added directly to the output
   of MatMul, Gemm or Conv.

Rules 4 and 5 are guesses.

The uses of one tensor may disagree, because exporters store equal values once: the zeros of a bias and of a running
mean. Rules 1 and 2 hold for all uses together. By the other rules each use gets what it needs, a separate parameter,
buffer or constant; but a tensor that some use shows to be a constant is not trained on a guess, except as a bias:
half of its uses would change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.core.tensors import TensorSpec
from deep5.networks.constants import FLOATS, constant_tensor
from deep5.networks.onnx.element_types import element_type
from deep5.networks.onnx.evidence import mask_in, names_a_constant, parameter_in_name, setting_in_name
from deep5.networks.onnx.exported import Stated
from deep5.networks.onnx.overrides import Overrides, check_names, stated_for
from deep5.networks.onnx.reaching import End, Reach, numbers_of
from deep5.networks.onnx.surroundings import excludes, is_bias, scales_integers
from deep5.networks.slots import Slot, slot_of

__all__ = ["Decision", "Outcome", "Tensor", "decide"]

Outcome = Literal["trained", "statistic", "constant", "unused"]
Use = tuple[ir.Node, int]

_OUTCOMES: tuple[Outcome, ...] = ("trained", "statistic", "constant")

# No bias and no learned number is as low.
_NO_NUMBER = -1e4


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a tensor of a file is, for all its uses or for some.

    Attributes:
        name: The tensor's name in the file.
        spec: Its shape and element type.
        outcome: `"trained"`, `"statistic"` (changed by training without a gradient), `"constant"` or `"unused"` (only a
            branch that never runs reads it, so the network does not have it).
        rule: The number of the rule that decided.
        reason: Why.
        operators: The operators that use it so.
    """

    name: str
    spec: TensorSpec
    outcome: Outcome
    rule: int
    reason: str
    operators: tuple[str, ...]

    @property
    def guessed(self) -> bool:
        """Whether the decision is a guess: rules 4 and 5."""
        return self.rule >= 4


class _Verdict(NamedTuple):
    outcome: Outcome
    rule: int
    reason: str
    firm: bool = True  # not revised when other uses disagree


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of a file with its uses.

    Attributes:
        value: The initial value, or the output of its node.
        content: The numbers, read or filled on first use.
        uses: By outcome, the nodes and positions that use it so.
        decisions: One for each outcome.
    """

    value: ir.Value
    content: ir.TensorProtocol
    uses: dict[Outcome, list[Use]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)


def decide(
    model: ir.Model, stated: Stated, overrides: Overrides, producer: str, *, strict: bool = True
) -> list[Tensor]:
    """The floating-point tensors of a model that nodes use, each with its decisions.

    Args:
        model: The model, with inferred shapes; not changed.
        stated: What the file states.
        overrides: What the caller states, by name.
        producer: The exporter's name.
        strict: Whether the caller's names must all exist and be trainable.

    Raises:
        NetworkError: A name of the caller is unknown, or is of a tensor that cannot be trained.
    """
    values = {value.name for value in ir.convenience.create_value_mapping(model.graph).values()}
    reach = Reach(model.graph)
    tensors = list(_tensors(model.graph, reach))
    names = [str(tensor.value.name) for tensor in tensors]
    if strict and overrides:
        check_names(overrides, names, dict(_other_types(model.graph)))
    rules = _Rules(stated, overrides, producer, frozenset(map(str, values)), reach)
    for tensor in tensors:
        rules.apply(tensor)
        name = str(tensor.value.name)
        if strict and overrides.get(name) and (reason := _untrainable(tensor, reach)) is not None:
            raise NetworkError(
                f"parameters: {name!r} cannot be trained: it {reason}; allowed: tensors that a gradient reaches; "
                f"remedy: leave {name!r} out"
            )
    return tensors


def _untrainable(tensor: Tensor, reach: Reach) -> str | None:
    if "trained" not in tensor.uses:
        return f"is the {tensor.decisions[0].reason}"
    uses = tensor.value.uses()
    return "only reaches settings" if all(reach.reaches_nothing(use.node, use.idx) for use in uses) else None


@dataclass(frozen=True)
class _Rules:
    stated: Stated
    overrides: Overrides
    producer: str
    names: frozenset[str]
    reach: Reach

    def apply(self, tensor: Tensor) -> None:
        """Set the uses and decisions of a tensor."""
        name = str(tensor.value.name)
        whole = self._stated(name)
        uses = [(use.node, use.idx) for use in tensor.value.uses()]
        verdicts = [self._by_slot_or(whole, tensor, *use) for use in uses]
        if any(verdict.outcome == "constant" for verdict in verdicts):
            verdicts = [
                _Verdict("constant", verdict.rule, f"{verdict.reason}, but another use is a setting")
                if verdict.outcome == "trained" and not verdict.firm
                else verdict
                for verdict in verdicts
            ]
        shape = tuple(int(extent) for extent in tensor.content.shape.numpy())
        spec = TensorSpec(shape=shape, dtype=element_type(tensor.content.dtype))
        for outcome in _OUTCOMES:
            own = [number for number, verdict in enumerate(verdicts) if verdict.outcome == outcome]
            if not own:
                continue
            first = min((verdicts[number] for number in own), key=lambda verdict: verdict.rule)
            tensor.uses[outcome] = [uses[number] for number in own]
            operators = dict.fromkeys(uses[number][0].op_type for number in own)
            tensor.decisions.append(
                Decision(
                    name=name,
                    spec=spec,
                    outcome=outcome,
                    rule=first.rule,
                    reason=first.reason,
                    operators=tuple(operators),
                )
            )

    def _stated(self, name: str) -> _Verdict | None:
        """Rules 1 and 2."""
        asked = stated_for(name, self.overrides)
        if asked is not None:
            return _Verdict("trained" if asked else "constant", 1, "stated by the caller")
        if name in self.stated.learned:
            return _Verdict("trained", 2, self.stated.learned[name])
        if name in self.stated.fixed:
            return _Verdict("constant", 2, self.stated.fixed[name])
        if self.stated.names_all and names_a_constant(name):
            return _Verdict("constant", 2, "not in torch's signature")
        return None

    def _by_slot_or(self, whole: _Verdict | None, tensor: Tensor, node: ir.Node, position: int) -> _Verdict:
        """The verdict on one use. A statistic, and a setting without a gradient, is never a parameter."""
        slot = slot_of(node, position)
        if slot is not None and slot.kind == "statistic":
            return _Verdict("statistic", 3, _called(slot, node))
        if slot is not None and slot.constant and (slot.dead or whole is None):
            return _Verdict("constant", 3, _called(slot, node))
        if whole is not None:
            return whole
        ends = self.reach.ends(node, position)
        return self._by_slots(ends, node, position) or self._guess(tensor, ends)

    def _by_slots(self, ends: Sequence[End], node: ir.Node, position: int) -> _Verdict | None:
        """Rule 3."""
        known = [(end.slot, end.node) for end in ends if end.slot is not None and end.node is not None]
        for slot, reader in known:
            if slot.kind == "weight":
                return _Verdict("trained", 3, _called(slot, reader))
        for slot, reader in known:
            if slot.kind == "statistic":
                return _Verdict("statistic", 3, _called(slot, reader))
        if known and len(known) == len(ends):
            return _Verdict("constant", 3, _called(*known[0]))
        if self.reach.reaches_nothing(node, position):
            return _Verdict("constant", 3, "only reaches settings")
        return None

    def _guess(self, tensor: Tensor, ends: Sequence[End]) -> _Verdict:
        """Rules 4 and 5."""
        rule = 5 if tensor.content.size == 1 else 4
        elements = "one element" if rule == 5 else "several elements" if tensor.content.size else "no elements"
        against = setting_in_name(str(tensor.value.name), self.names)
        if against is None and any(map(scales_integers, ends)):
            against = "scales integers"
        if against is None:
            against = self._low(tensor) if rule == 5 else self._mask(tensor, ends)
        if against is None and any(end.slot is not None for end in ends) and not self._biases(tensor, ends):
            against = next(_called(end.slot, end.node) for end in ends if end.slot is not None and end.node is not None)
        if against is not None:
            return _Verdict("constant", rule, f"{elements}: {against}")
        if rule == 4:
            return _Verdict("trained", 4, elements, firm=self._biases(tensor, ends))
        named = None if self.stated.names_all else parameter_in_name(str(tensor.value.name), self.producer)
        if named is not None:
            return _Verdict("trained", 5, f"{elements}: {named}", firm=self._biases(tensor, ends))
        if self._biases(tensor, ends):
            return _Verdict("trained", 5, f"{elements}: added directly to a layer's output")
        return _Verdict("constant", 5, f"{elements}: no parameter's name")

    def _biases(self, tensor: Tensor, ends: Sequence[End]) -> bool:
        return any(is_bias(end, tensor.value) for end in ends)

    def _low(self, tensor: Tensor) -> str | None:
        numbers = _sample(tensor)
        if numbers is None or not numbers.size or np.isnan(numbers).any():
            return None
        low, high = float(numbers.min()), float(numbers.max())
        return f"the number {low:g}" if low <= _NO_NUMBER or np.isinf(high) else None

    def _mask(self, tensor: Tensor, ends: Sequence[End]) -> str | None:
        numbers = _sample(tensor)
        found = None if numbers is None else mask_in(numbers)
        if found is not None:
            return found
        if any(excludes(end, self.reach) for end in ends):
            return "a mask that is multiplied by a low number"
        for _, array in self.reach.consequences(tensor.value):
            if array.dtype.kind == "f" and array.size > 1 and (found := mask_in(array)) is not None:
                return f"makes a mask, which {found}"
        return None


def _called(slot: Slot, node: ir.Node) -> str:
    return f"{slot.what} of {node.op_type}"


def _tensors(graph: ir.Graph, reach: Reach) -> Iterator[Tensor]:
    """The floating-point tensors of a graph and the graphs inside it that some node uses."""
    for own in (graph, *graph.subgraphs()):
        for value in own.initializers.values():
            if value.const_value is not None and value.const_value.dtype in FLOATS and value.uses():
                yield Tensor(value=value, content=value.const_value)
    for node in graph.all_nodes():
        if node.domain or node.op_type not in ("Constant", "ConstantOfShape") or not node.outputs[0].uses():
            continue
        content = constant_tensor(node.outputs[0]) if node.op_type == "Constant" else _filled(node, reach)
        if content is not None and content.dtype in FLOATS:
            yield Tensor(value=node.outputs[0], content=content)


def _other_types(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    for value in graph.initializers.values():
        if value.dtype is not None and value.dtype not in FLOATS:
            yield str(value.name), value.dtype.name.lower()


def _fill(node: ir.Node) -> np.ndarray:
    given = node.attributes.get("value")
    return np.zeros(1, np.float32) if given is None else given.as_tensor().numpy().reshape(1)


def _filled(node: ir.Node, reach: Reach) -> ir.TensorProtocol | None:
    """The output of a ConstantOfShape node whose shape the file determines, computed on first use."""
    goal = reach.known(node.inputs[0])
    if goal is None:
        return None
    fill, shape = _fill(node), ir.Shape(goal.tolist())
    kind = ir.DataType.from_numpy(fill.dtype)
    return ir.LazyTensor(lambda: ir.Tensor(np.full(goal, fill[0], fill.dtype)), kind, shape)


def _sample(tensor: Tensor) -> np.ndarray | None:
    """The numbers, or the one that fills the tensor; None if they cannot be read."""
    node = tensor.value.producer()
    if node is not None and node.op_type == "ConstantOfShape":
        return _fill(node)
    return numbers_of(tensor.value)
