"""`analyse`: what a network takes, layer by layer, without running it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.networks.analysis.arithmetic import Arithmetic, arithmetic
from deep5.networks.analysis.extents import chosen_extents
from deep5.networks.arguments import check_network
from deep5.networks.constants import constant_value
from deep5.networks.network import Network
from deep5.networks.onnx.shapes import infer_shapes

__all__ = ["Layer", "NetworkAnalysis", "analyse"]


# What is the same memory under another shape.
_VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
# What the gradient of an operator reads; of what is not listed, inputs and outputs.
_READS_NOTHING = frozenset((
    "Add", "AveragePool", "Cast", "Concat", "Expand", "GlobalAveragePool", "Neg", "Pad", "ReduceMean", "ReduceSum",
    "Slice", "Split", "Sub", "Sum", "Tile", "Transpose", *_VIEWS,
))  # fmt: skip
_READS_INPUTS = frozenset((
    "BatchNormalization", "Clip", "Conv", "ConvTranspose", "Gather", "Gelu", "Gemm", "GlobalMaxPool", "LRN",
    "LayerNormalization", "MatMul", "Mul", "Pow", "RMSNormalization", "Where",
))  # fmt: skip
_READS_OUTPUTS = frozenset(("Dropout", "Exp", "LogSoftmax", "Reciprocal", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh"))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A node, with what one forward pass of it takes.

    Attributes:
        name: The node's name.
        op_type: Its operator; of another domain than ONNX's own with that in front.
        outputs: Its outputs.
        parameters: Elements of the parameters that it is the first to use.
        arithmetic: Operations, multiply-adds and depth; None where deep5 knows no formula.
        parameter_bytes: Memory of those parameters.
        activation_bytes: Memory of its outputs, in bytes; 0 for a view of another value.
        moved_bytes: What it must read and write: inputs, weights among them, and outputs, once each.
        kept_bytes: Of the values that its gradient reads, those that no layer before keeps.
    """

    name: str
    op_type: str
    outputs: tuple[TensorSpec, ...]
    parameters: int
    arithmetic: Arithmetic | None
    parameter_bytes: int
    activation_bytes: int
    moved_bytes: int
    kept_bytes: int

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, operations a byte; None where no formula is known or nothing is moved."""
        if self.arithmetic is None or not self.moved_bytes:
            return None
        return self.arithmetic.flops / self.moved_bytes


@dataclass(frozen=True, kw_only=True)
class NetworkAnalysis:
    """What `analyse` found.

    Attributes:
        name: Of the network.
        extents: The symbolic extents of the inputs, as they were set.
        layers: Every node in the order of execution, constants left out.
        depth: Operations on the longest path, D; of nodes without a formula none are counted.
        parameters: Elements of all parameters.
        parameter_bytes: Their memory.
        buffer_bytes: Memory of running statistics.
        peak_training_bytes: See `analyse`.
        unknown: Operators without a formula, by the number of nodes.
    """

    name: str
    extents: Mapping[str, int]
    layers: tuple[Layer, ...]
    depth: int
    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    peak_training_bytes: int
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass, W; at least so many where operators are unknown."""
        return sum(layer.arithmetic.flops for layer in self.layers if layer.arithmetic is not None)

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass; at least so many where operators are unknown."""
        return sum(layer.arithmetic.macs for layer in self.layers if layer.arithmetic is not None)

    @property
    def activation_bytes(self) -> int:
        """Memory of all outputs of all layers."""
        return sum(layer.activation_bytes for layer in self.layers)

    @property
    def average_parallelism(self) -> float | None:
        """W / D; None where nothing is computed."""
        return self.flops / self.depth if self.depth else None

    @property
    def intensity(self) -> float | None:
        """Operations a byte, where every layer reads its inputs from memory and writes its outputs there."""
        moved = sum(layer.moved_bytes for layer in self.layers if layer.arithmetic is not None)
        return self.flops / moved if moved else None


def analyse(network: Network, batch: int | None = None, *, extents: Mapping[str, int] | None = None) -> NetworkAnalysis:
    """What a forward pass of each layer takes, and how much memory a step of training holds; nothing is run.

    The peak of training is that of a step which keeps every value that a gradient reads until it was read, holds a
    gradient from where it is computed to where it was used, and frees what is done with at once: parameters, their
    gradients and running statistics, and the most that there is of the rest. Workspaces of kernels, copies that a
    framework makes and the state of an optimizer (Adam: twice the parameters) come on top.

    Args:
        network: The network.
        batch: What the first extent of every input is set to, where it is symbolic and `extents` does not name it; to
            be left out where there is none.
        extents: Other symbolic extents by name, `{"length": 35}`; or all of them, `{"N": 32, "length": 35}`.

    Raises:
        UsageError: What stands for the network is none.
        NetworkError: A symbolic extent has no number, or is set and there is none of its name; a batch that there is
            no extent for; an extent that is no whole number from 1 to 2**31 - 1; or shapes that do not fit with these
            extents.

    References:
        Work, depth and average parallelism: Blelloch, Programming parallel algorithms, CACM 39(3), 1996.
    """
    check_network(network, "analyse")
    chosen = chosen_extents(network, batch, {} if extents is None else extents)
    model = _concrete(network, chosen)
    specs = _specs(model)
    parameters = network.parameter_specs
    nodes = [node for node in model.graph if node.op_type != "Constant" or node.domain]
    differentiated = _differentiated(nodes, network.trained_specs)
    layers: list[Layer] = []
    seen: set[str] = set()
    kept: set[ir.Value] = set()
    unknown: dict[str, int] = {}
    for node in nodes:
        own = [name for value in node.inputs if (name := _name(value)) in parameters and name not in seen]
        own = list(dict.fromkeys(own))
        seen.update(own)
        counted = _arithmetic(node, specs)
        op_type = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if counted is None:
            unknown[op_type] = unknown.get(op_type, 0) + 1
        fresh = {_root(value) for value in _kept(node)} - kept if node in differentiated else set()
        kept |= fresh
        layers.append(
            Layer(
                name=str(node.name),
                op_type=op_type,
                outputs=tuple(specs[_name(value)] for value in node.outputs if value.name),
                parameters=sum(parameters[name].size for name in own),
                arithmetic=counted,
                parameter_bytes=sum(_bytes(parameters[name]) for name in own),
                activation_bytes=0 if _is_view(node) else sum(_bytes(specs[_name(value)]) for value in node.outputs),
                moved_bytes=0 if _is_view(node) else _moved(node, specs),
                kept_bytes=sum(_bytes(specs[_name(value)]) for value in fresh),
            )
        )
    held = sum(map(_bytes, parameters.values()))
    buffers = sum(map(_bytes, network.buffer_specs.values()))
    trained = sum(map(_bytes, network.trained_specs.values()))
    return NetworkAnalysis(
        name=str(model.graph.name),
        extents=chosen,
        layers=tuple(layers),
        depth=_depth(nodes, layers),
        parameters=sum(spec.size for spec in parameters.values()),
        parameter_bytes=held,
        buffer_bytes=buffers,
        peak_training_bytes=held + trained + buffers + _peak(nodes, specs, differentiated),
        unknown=unknown,
    )


def _concrete(network: Network, extents: Mapping[str, int]) -> ir.Model:
    """A copy whose inputs have these extents, with all shapes inferred again."""
    model: ir.Model = network.model.clone()
    for value in model.graph.inputs:
        if value.name in network.inputs:
            value.shape = ir.Shape([extents.get(one, one) for one in network.inputs[str(value.name)].shape])  # type: ignore[arg-type]
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    infer_shapes(model, f"the network with {', '.join(f'{name} = {extent}' for name, extent in extents.items())}")
    return model


def _specs(model: ir.Model) -> dict[str, TensorSpec]:
    found: dict[str, TensorSpec] = {}
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in model.graph for value in node.outputs if value.name]
    for value in values:
        shape = None if value.shape is None else tuple(value.shape)
        if shape is None or value.dtype is None or not all(isinstance(extent, int) for extent in shape):
            node = value.producer()
            where = f"{node.op_type} node {node.name!r}" if node is not None else "the network"
            raise NetworkError(
                f"the shape of {value.name!r} ({where}) depends on numbers that only a run knows; remedy: analyse what "
                "comes before it, network.subnetwork"
            )
        extents = tuple(int(str(extent)) for extent in shape)
        found[_name(value)] = TensorSpec(shape=extents, dtype=str(value.dtype.numpy()))
    return found


def _arithmetic(node: ir.Node, specs: Mapping[str, TensorSpec]) -> Arithmetic | None:
    if node.domain or any(isinstance(each.value, (ir.Graph, ir.Function)) for each in node.attributes.values()):
        return None
    inputs = [specs[_name(value)] for value in node.inputs if value is not None]
    outputs = [specs[_name(value)] for value in node.outputs if value.name]
    return arithmetic(node.op_type, inputs, outputs, {key: each.value for key, each in node.attributes.items()})


def _moved(node: ir.Node, specs: Mapping[str, TensorSpec]) -> int:
    values = {_name(value) for value in (*node.inputs, *node.outputs) if value is not None and value.name}
    return sum(_bytes(specs[name]) for name in values)


def _is_view(node: ir.Node) -> bool:
    return not node.domain and node.op_type in _VIEWS


def _root(value: ir.Value) -> ir.Value:
    """The value whose memory this one is a view of, or itself."""
    while (node := value.producer()) is not None and _is_view(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _kept(node: ir.Node) -> list[ir.Value]:
    """The activations that the node's gradient reads."""
    reads = node.op_type if not node.domain else ""
    if reads in _READS_NOTHING:
        return []
    given: list[Any] = [] if reads in _READS_OUTPUTS else list(node.inputs)
    made: list[Any] = [] if reads in _READS_INPUTS else list(node.outputs)
    return [
        value
        for value in (*given, *made)
        if value is not None and value.name and not value.is_initializer() and constant_value(value) is None
    ]


def _depth(nodes: Sequence[ir.Node], layers: Sequence[Layer]) -> int:
    until: dict[str, int] = {}
    for node, layer in zip(nodes, layers, strict=True):
        own = layer.arithmetic.depth if layer.arithmetic is not None else 0
        begin = max((until.get(_name(value), 0) for value in node.inputs), default=0)
        until.update((_name(value), begin + own) for value in node.outputs)
    return max(until.values(), default=0)


def _differentiated(nodes: Sequence[ir.Node], trained: Collection[str]) -> set[ir.Node]:
    """The nodes that a gradient goes through: what they compute depends on a parameter that is trained."""
    depending: set[str] = set(trained)
    found = set()
    for node in nodes:
        if any(_name(value) in depending for value in node.inputs):
            found.add(node)
            depending.update(_name(value) for value in node.outputs)
    depending.discard("")
    return found


def _peak(nodes: Sequence[ir.Node], specs: Mapping[str, TensorSpec], differentiated: Collection[ir.Node]) -> int:
    """The most memory that activations and their gradients take at a time, in bytes."""

    def size(value: ir.Value) -> int:
        return _bytes(specs[_name(value)])

    def activations(values: Sequence[ir.Value | None]) -> list[ir.Value]:
        roots = [_root(value) for value in values if value is not None and value.name]
        return [value for value in dict.fromkeys(roots) if not value.is_initializer() and constant_value(value) is None]

    # Forward: a value lives until the last node that reads it, or to the backward pass where a gradient reads it.
    kept = {_root(value) for node in nodes if node in differentiated for value in _kept(node)}
    left: dict[ir.Value, int] = {}
    for node in nodes:
        for value in activations(node.inputs):
            left[value] = left.get(value, 0) + 1
    alive = {value for node in nodes for value in activations(node.inputs) if value.producer() is None}
    held = peak = sum(map(size, alive))
    for node in nodes:
        made = [value for value in activations(node.outputs) if value not in alive]
        alive.update(made)
        held += sum(map(size, made))
        peak = max(peak, held)
        for value in activations(node.inputs):
            left[value] -= 1
            if not left[value] and value not in kept and value in alive:
                alive.discard(value)
                held -= size(value)
    # Backward: the gradient of a value lives from its last reader's turn to its maker's.
    readers: dict[ir.Value, int] = {}
    backward = [node for node in nodes if node in differentiated]
    for node in backward:
        for value in {_root(one) for one in _kept(node)}:
            readers[value] = readers.get(value, 0) + 1
    gradients: set[ir.Value] = set()
    for node in reversed(backward):
        if _is_view(node):
            continue
        inputs = [value for value in activations(node.inputs) if _is_float(specs[_name(value)])]
        wanted = [value for value in inputs if value.producer() in differentiated]
        fresh = [value for value in (*activations(node.outputs), *wanted) if value not in gradients]
        gradients.update(fresh)
        held += sum(map(size, fresh))
        peak = max(peak, held)
        for value in activations(node.outputs):
            gradients.discard(value)
            held -= size(value)
        for value in {_root(one) for one in _kept(node)}:
            readers[value] -= 1
            if not readers[value] and value in alive:
                alive.discard(value)
                held -= size(value)
    return peak


def _is_float(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("float", "bfloat"))


def _bytes(spec: TensorSpec) -> int:
    return int(spec.size * numpy_dtype(spec.dtype).itemsize)


def _name(value: ir.Value | None) -> str:
    return str(value.name) if value is not None else ""
