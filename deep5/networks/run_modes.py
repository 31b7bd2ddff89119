"""The two forms in which a network runs: evaluation and training.

Batch normalization and dropout behave differently in training. Both forms are networks, pure functions of their inputs:
state and random values enter and leave by name. A back-end makes each form runnable once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from deep5.networks.onnx.bounds import beyond_limits
from deep5.networks.transforms.lowering import lowered
from deep5.networks.transforms.omissions import without_omissions

__all__ = ["Forms", "Mask", "TrainingForm", "evaluation_form", "training_form"]

# Operators that behave differently in training.
_SPECIAL = ("Dropout", "BatchNormalization")


class Mask(NamedTuple):
    """The mask of one dropout node.

    Attributes:
        name: Name of the training form's input for it.
        shape: Shape of dropout's input; symbolic dimensions are those of the network's inputs.
        ratio: Fraction of dropped elements.
        dtype: Element type.
        node: Name of the node, which selects its random stream.
    """

    name: str
    shape: tuple[int | str, ...]
    ratio: float
    dtype: str
    node: str


class TrainingForm(NamedTuple):
    """A network as it runs in training.

    Attributes:
        network: Dropout is replaced by the product with a mask, which is an input after the network's own. A
            BatchNormalization has `training_mode=1` and returns its new running statistics, which are outputs after
            the network's own.
        masks: The masks, in the order of their inputs.
        statistics: For each buffer, the name of the output with its new value.
    """

    network: Network
    masks: tuple[Mask, ...]
    statistics: Mapping[str, str]

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """The masks of a step.

        Args:
            extents: Symbolic dimensions of this batch, by name.
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
    """A network in the forms that one back-end runs.

    Args:
        network: The network; it is not changed.
        framework: The back-end; unsupported nodes are expanded, and rejected if that does not help.

    Raises:
        Unsupported: Nodes that the back-end cannot run, each with its reason.
    """

    def __init__(self, network: Network, framework: Framework) -> None:
        self._framework = framework
        # Supported nodes with nested graphs: the time of a query grows with the number of nodes in them.
        self._known: set[ir.Node] = set()
        # The last network whose nodes were all found to be supported.
        self._accepted: Network | None = None
        if any(node.domain and None in node.inputs for node in network.nodes):
            network = without_omissions(network)
        # Registered operators stay nodes here: their gradient is their own backward, not that of their expansion.
        self._kept = self._expanded(network, kept=is_custom)
        self._lowered = self.lowered(self._kept) if any(map(is_custom, self._kept.nodes)) else self._kept
        self.evaluation: Network = self.checked(evaluation_form(self._lowered))

    @cached_property
    def training(self) -> TrainingForm:
        """The network in training; contains the same network object as `evaluation` if training makes no difference."""
        form = training_form(self._lowered)
        return form._replace(network=self.evaluation) if form.network is self._lowered else form

    @cached_property
    def differentiated(self) -> Network:
        """The network in training for gradient construction: registered operators are nodes."""
        return self.training.network if self._kept is self._lowered else training_form(self._kept).network

    def lowered(self, network: Network) -> Network:
        """A network derived from one of the forms, with unsupported nodes expanded into other operators."""
        return self._expanded(network)

    def _expanded(self, network: Network, kept: Callable[[ir.Node], bool] = lambda node: False) -> Network:
        open_questions = False

        def supports(node: ir.Node) -> Support:
            nonlocal open_questions
            unasked = kept(node)
            answer = Support(True) if unasked else self._supports(node)
            open_questions |= unasked or not answer.yes or _is_special(node)
            return answer

        made = lowered(network, supports)
        if made is network and not open_questions:
            self._accepted = network
        return made

    def checked(self, network: Network) -> Network:
        """The network, if the back-end can run all its nodes.

        Raises:
            Unsupported: It cannot; one line per node.
        """
        nodes = network.nodes
        requested = [] if network is self._accepted else [node for node in nodes if node not in self._known]
        refused = [*self._framework.unsupported(requested), *beyond_limits(nodes)]
        if refused:
            raise Unsupported(f"{self._framework.name} cannot run this network:\n  " + "\n  ".join(refused))
        return network

    def _supports(self, node: ir.Node) -> Support:
        # Neither form contains Dropout nodes.
        if node in self._known or _is_special(node):
            return Support(True)
        answer = self._framework.supports(node)
        if answer.yes and subgraphs(node):
            self._known.add(node)  # supported nodes do not change any more
        return answer


def evaluation_form(network: Network) -> Network:
    """The network without dropout, and with batch normalization by the running statistics.

    Returns:
        The network itself if it has neither.

    Raises:
        Unsupported: A node or output reads a batch normalization's new statistics.
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
    """The network with masks as inputs and new statistics as outputs.

    Returns:
        A form with the network itself if it has neither dropout nor batch normalization.

    Raises:
        Unsupported: A dropout whose ratio or shape is unknown before the run; a batch normalization whose statistics
            are computed or read.
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
    return [node for node in graph if _is_special(node)]


def _is_special(node: ir.Node) -> bool:
    return node.op_type in _SPECIAL and node.domain == ""


def _special(network: Network) -> bool:
    return bool(_special_nodes(network.model.graph))


def _mask(network: Network, node: ir.Node) -> Mask | None:
    """The mask of a dropout node; None if it drops nothing."""
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
    if dtype not in ("float32", "float64", "float16", "bfloat16"):
        raise Unsupported(
            f"node {node.name!r} (Dropout) of {dtype}; allowed: float32, float64, float16, bfloat16; remedy: a Cast "
            "before it"
        )
    return Mask(
        f"mask:{out.name}", tuple(extent for extent in shape if extent is not None), ratio, dtype, str(node.name)
    )


def _keep_all(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a dropout node by one that drops nothing."""
    if _mask_is_read(node):  # else create no node: one outside any graph would still be a reader of its inputs
        # This equals itself for every value, NaN included.
        absent = ir.node("IsNaN", node.inputs[:1])
        value = absent.outputs[0]
        value.name, value.type = f"{node.name}/absent", ir.TensorType(ir.DataType.BOOL)
        value.shape = node.outputs[0].shape
        _state_mask(graph, node, absent, ir.node("Equal", [value, value]))
    _replace(graph, node, "Identity", node.inputs[0])


def _mask_is_read(node: ir.Node) -> bool:
    return len(node.outputs) > 1 and (bool(node.outputs[1].uses()) or node.outputs[1].is_graph_output())


def _state_mask(graph: ir.Graph, node: ir.Node, *computing: ir.Node) -> None:
    """Let other nodes compute a dropout's mask, True for kept elements."""
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
    """Replace a node by another node with the same names."""
    other, old = ir.node(op_type, inputs, num_outputs=1, name=node.name), node.outputs[0]
    new = other.outputs[0]
    new.name, new.shape, new.type = old.name, old.shape, old.type
    ir.convenience.replace_nodes_and_values(graph, node, [node], [other], [old], [new])


def _drop_outputs(node: ir.Node) -> None:
    """Keep only the first output of a batch normalization."""
    for value in node.outputs[1:]:
        if value.uses() or value.is_graph_output():
            raise Unsupported(
                f"node {node.name!r} (BatchNormalization): the statistics that it updates are an output, or read "
                f"({value.name!r}); allowed: only its first output; remedy: leave the others out"
            )
    node.resize_outputs(1)
