"""The two forms in which a network runs: evaluation, and training.

Batch normalisation and dropout do something else in training. Both forms are networks themselves, pure functions of
their inputs: what training changes or draws enters and leaves by name. A back-end makes each runnable once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.framework import Framework, Support
from deep5.networks.constants import constant_value
from deep5.networks.custom import is_custom
from deep5.networks.masks import dropout_mask
from deep5.networks.network import Network
from deep5.networks.nodes import subgraphs
from deep5.networks.onnx.bounds import beyond_memory, without_end
from deep5.networks.transforms.lowering import lowered

__all__ = ["Forms", "Mask", "TrainingForm", "evaluation_form", "training_form"]

# Operators that do something else in training.
_SPECIAL = ("Dropout", "BatchNormalization")


class Mask(NamedTuple):
    """The mask of one dropout node.

    Attributes:
        name: Of the training form's input that takes it.
        shape: Of the value that is dropped from; symbolic extents are those of the network's inputs.
        ratio: Share that is dropped.
        dtype: Element type.
        node: Name of the node, which is what its random stream is named after.
    """

    name: str
    shape: tuple[int | str, ...]
    ratio: float
    dtype: str
    node: str


class TrainingForm(NamedTuple):
    """A network as it runs in training.

    Attributes:
        network: Dropout has become the product with a mask, which is an input behind the network's own. A
            BatchNormalization has `training_mode=1` and returns its new running statistics, which are outputs behind
            the network's own.
        masks: The masks, in the order of their inputs.
        statistics: Name of the output that is a buffer's new value, by the buffer's name.
    """

    network: Network
    masks: tuple[Mask, ...]
    statistics: Mapping[str, str]

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """The masks of a step.

        Args:
            extents: Symbolic extents of this batch, by name.
            info: Seed and number of the step.
        """
        return [
            dropout_mask(
                tuple(extents[extent] if isinstance(extent, str) else extent for extent in mask.shape),
                ratio=mask.ratio,
                seed=info.seed,
                step=info.step,
                node=mask.node,
                dtype=mask.dtype,
            )
            for mask in self.masks
        ]


class Forms:
    """A network as one back-end runs it.

    Args:
        network: The network; it is not changed.
        framework: The back-end; what it does not support is expanded, and refused where that does not help.

    Raises:
        Unsupported: Nodes that the back-end cannot run, each with its reason.
    """

    def __init__(self, network: Network, framework: Framework) -> None:
        self._framework = framework
        # Nodes with graphs inside that the back-end runs: to ask takes as long as there are nodes in them.
        self._known: set[ir.Node] = set()
        # Registered operators stay nodes here: their gradient is their own backward, not that of what they become.
        self._kept = lowered(network, lambda node: Support(is_custom(node)) or self._supports(node))
        self._lowered = self.lowered(self._kept) if any(map(is_custom, self._kept.nodes)) else self._kept
        self.evaluation: Network = self.checked(evaluation_form(self._lowered))

    @cached_property
    def training(self) -> TrainingForm:
        """The network in training; holds the very same network as `evaluation` where training makes no difference."""
        form = training_form(self._lowered)
        return form._replace(network=self.evaluation) if form.network is self._lowered else form

    @cached_property
    def differentiated(self) -> Network:
        """The network in training as its gradient is written down: registered operators are nodes."""
        return self.training.network if self._kept is self._lowered else training_form(self._kept).network

    def lowered(self, network: Network) -> Network:
        """A network made of one of the forms, with what the back-end does not support written in other operators."""
        return lowered(network, self._supports)

    def checked(self, network: Network) -> Network:
        """The network, all of whose nodes the back-end can run.

        Raises:
            Unsupported: It cannot; one line a node.
        """
        nodes = network.nodes
        asked = [node for node in nodes if node not in self._known]
        refused = [*self._framework.unsupported(asked), *beyond_memory(nodes), *without_end(nodes)]
        if refused:
            raise Unsupported(f"{self._framework.name} cannot run this network:\n  " + "\n  ".join(refused))
        return network

    def _supports(self, node: ir.Node) -> Support:
        # Dropout is no node of either form.
        if node in self._known or (node.op_type in _SPECIAL and node.domain == ""):
            return Support(True)
        answer = self._framework.supports(node)
        if answer and subgraphs(node):
            self._known.add(node)  # what runs is not changed any more
        return answer


def evaluation_form(network: Network) -> Network:
    """The network without dropout, batch normalisation by the running statistics.

    Returns:
        The network itself where it has neither.

    Raises:
        Unsupported: Somebody reads a batch normalisation's new statistics.
    """
    if not _special(network):
        return network
    model = network.model.clone()
    for node in _special_nodes(model.graph):
        if node.op_type == "Dropout":
            _keep_all(model.graph, node)
        else:
            _drop_outputs(node)
            node.attributes.pop("training_mode", None)
    return Network(model)


def training_form(network: Network) -> TrainingForm:
    """The network with masks and new statistics made visible.

    Returns:
        With the network itself where it has neither dropout nor batch normalisation.

    Raises:
        Unsupported: A dropout whose ratio or shape is not known before the network runs, or whose mask somebody reads;
            a batch normalisation whose statistics are computed.
    """
    if not _special(network):
        return TrainingForm(network, (), {})
    model = network.model.clone()
    graph, masks, statistics = model.graph, [], {}
    for node in _special_nodes(graph):
        if node.op_type == "Dropout":
            mask = _mask(network, node)
            if mask is None:
                _keep_all(graph, node)
                continue
            masks.append(mask)
            value = ir.Value(name=mask.name, shape=node.outputs[0].shape, type=node.outputs[0].type)
            graph.inputs.append(value)
            if _mask_is_read(node):
                _state_mask(graph, node, ir.node("Cast", [value], {"to": int(ir.DataType.BOOL)}))
            _replace(graph, node, "Mul", node.inputs[0], value)
        else:
            _drop_outputs(node)
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            node.resize_outputs(3)
            for buffer, value in zip(node.inputs[3:5], node.outputs[1:], strict=True):
                if buffer is None or buffer.name not in network.buffer_specs:
                    raise Unsupported(
                        f"node {node.name!r} (BatchNormalization) computes its running statistics; allowed: initial "
                        "values, which training updates"
                    )
                value.name, value.shape, value.type = f"new:{buffer.name}", buffer.shape, buffer.type
                graph.outputs.append(value)
                statistics[str(buffer.name)] = str(value.name)
    return TrainingForm(Network(model), tuple(masks), statistics)


def _special_nodes(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type in _SPECIAL and node.domain == ""]


def _special(network: Network) -> bool:
    return bool(_special_nodes(network.model.graph))


def _mask(network: Network, node: ir.Node) -> Mask | None:
    """The mask that a dropout node needs; None where it drops nothing."""
    ratio = 0.5
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        known = constant_value(node.inputs[1])
        if known is None:
            raise Unsupported(f"node {node.name!r} (Dropout) computes its ratio; allowed: a constant")
        ratio = float(known)
    if not 0.0 <= ratio < 1.0:
        raise Unsupported(
            f"node {node.name!r} (Dropout) has the ratio {ratio}; allowed: from 0 up to, not including, 1"
        )
    if ratio == 0.0:
        return None
    out = node.outputs[0]
    known_extents = {extent for spec in network.inputs.values() for extent in spec.shape if isinstance(extent, str)}
    shape = [extent if isinstance(extent, int) else extent.value for extent in out.shape or ()]
    if out.shape is None or any(not isinstance(extent, int) and extent not in known_extents for extent in shape):
        raise Unsupported(
            f"node {node.name!r} (Dropout): its shape {shape} is not known from the inputs'; allowed: numbers, and "
            f"{', '.join(sorted(known_extents)) or 'nothing else'}"
        )
    dtype = str(out.dtype.numpy()) if out.dtype is not None else ""
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"node {node.name!r} (Dropout) of {dtype}; allowed: float32, float64")
    return Mask(
        f"mask:{out.name}", tuple(extent for extent in shape if extent is not None), ratio, dtype, str(node.name)
    )


def _keep_all(graph: ir.Graph, node: ir.Node) -> None:
    """Make a dropout node one that drops nothing."""
    if _mask_is_read(node):  # else no node is made: one that is in no graph would still be a reader of its inputs
        # Whatever a value holds, this equals itself.
        absent = ir.node("IsNaN", node.inputs[:1])
        value = absent.outputs[0]
        value.name, value.type = f"{node.name}/absent", ir.TensorType(ir.DataType.BOOL)
        value.shape = node.outputs[0].shape
        _state_mask(graph, node, absent, ir.node("Equal", [value, value]))
    _replace(graph, node, "Identity", node.inputs[0])


def _mask_is_read(node: ir.Node) -> bool:
    return len(node.outputs) > 1 and (bool(node.outputs[1].uses()) or node.outputs[1].is_graph_output())


def _state_mask(graph: ir.Graph, node: ir.Node, *computing: ir.Node) -> None:
    """Let other nodes compute a dropout's mask, True where an element is kept."""
    old, new = node.outputs[1], computing[-1].outputs[0]
    new.shape, new.type = old.shape, old.type
    for number, other in enumerate(computing):
        other.name = f"{node.name}/mask" + (f"_{number}" if number else "")
    graph.insert_before(node, computing)
    name, old.name = old.name, None
    new.name = name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    node.resize_outputs(1)


def _replace(graph: ir.Graph, node: ir.Node, op_type: str, *inputs: ir.Value | None) -> None:
    """Put another node in a node's place, under its names."""
    other, old = ir.node(op_type, inputs, num_outputs=1, name=node.name), node.outputs[0]
    new = other.outputs[0]
    new.name, new.shape, new.type = old.name, old.shape, old.type
    ir.convenience.replace_nodes_and_values(graph, node, [node], [other], [old], [new])


def _drop_outputs(node: ir.Node) -> None:
    """Keep a batch normalisation's first output alone."""
    for value in node.outputs[1:]:
        if value.uses() or value.is_graph_output():
            raise Unsupported(
                f"node {node.name!r} (BatchNormalization): the statistics that it updates are an output, or read "
                f"({value.name!r}); allowed: its first output alone; remedy: leave the others out"
            )
    node.resize_outputs(1)
