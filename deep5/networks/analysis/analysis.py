"""`analyse`: compute the cost of a network, layer by layer, without running it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from deep5.core.notebook import render
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.networks.analysis.arithmetic import Arithmetic, arithmetic
from deep5.networks.analysis.extents import chosen_extents, missing_extents
from deep5.networks.analysis.sizes import concrete, is_sized, value_specs
from deep5.networks.arguments import check_network
from deep5.networks.constants import constant_value
from deep5.networks.network import Network

__all__ = ["Layer", "NetworkAnalysis", "analyse"]


# Operators whose output is the same memory with another shape.
_VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
# The values that an operator's gradient reads; for operators not listed, inputs and outputs.
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
    """A node and the cost of one forward pass through it.

    Attributes:
        name: The node's name.
        op_type: Its operator; with its domain as a prefix if that is not ONNX's own.
        outputs: Its outputs.
        parameters: Elements of the parameters that it is the first to use.
        arithmetic: Operations, multiply-adds and depth; None if deep5 has no formula, or a size is unknown.
        parameter_bytes: Memory of those parameters.
        activation_bytes: Memory of its outputs, in bytes; 0 for a view of another value.
        moved_bytes: Memory traffic: inputs, including weights, and outputs, once each.
        kept_bytes: Memory of the values that its gradient reads and that no earlier layer keeps.
        sized: Whether all sizes of its inputs and outputs are known. If not, memory counts only what is known: at least
            so many bytes.
        values: The names of `outputs`.

    >>> import deep5 as d5
    >>> layer = d5.networks.analyse(d5.networks.lenet(), batch=32).layers[0]
    >>> layer.name, layer.op_type, str(layer.outputs[0])
    ('Conv_1', 'Conv', 'float32[32, 6, 28, 28]')
    >>> layer.parameters, layer.arithmetic.macs, layer.activation_bytes
    (156, 3763200, 602112)
    >>> round(layer.intensity, 1)  # operations per byte
    10.9
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
    sized: bool = True
    values: tuple[str, ...] = ()

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, operations per byte; None if no formula is known or nothing is moved."""
        if self.arithmetic is None or not self.moved_bytes:
            return None
        return self.arithmetic.flops / self.moved_bytes


@dataclass(frozen=True, kw_only=True)
class NetworkAnalysis:
    """The result of `analyse`.

    Attributes:
        name: The network's name.
        extents: The values of the inputs' symbolic dimensions.
        layers: Every node in execution order, without constants.
        depth: Operations on the longest path, D; nodes whose operations are unknown count as 0.
        parameters: Elements of all parameters.
        parameter_bytes: Their memory.
        buffer_bytes: Memory of running statistics.
        peak_training_bytes: See `analyse`.
        unknown: Number of nodes per operator without a formula.
        unsized: Number of nodes per operator with a size that only a run determines, or an input's that was not given.
        missing: The symbolic dimensions of inputs that have no value.

    >>> import deep5 as d5
    >>> analysis = d5.networks.analyse(d5.networks.lenet(), batch=32)
    >>> analysis.parameters, analysis.flops, analysis.peak_training_bytes, analysis.exact
    (61706, 27277440, 2400336, True)
    >>> most = max(analysis.layers, key=lambda layer: layer.activation_bytes)
    >>> most.name, most.activation_bytes
    ('Conv_1', 602112)
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
    unsized: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)

    @property
    def exact(self) -> bool:
        """Whether sums are exact; else they are lower bounds."""
        return not self.unknown and not self.unsized

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass, W; a lower bound unless `exact`."""
        return sum(layer.arithmetic.flops for layer in self.layers if layer.arithmetic is not None)

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass; a lower bound unless `exact`."""
        return sum(layer.arithmetic.macs for layer in self.layers if layer.arithmetic is not None)

    @property
    def activation_bytes(self) -> int:
        """Memory of all outputs of all layers; a lower bound if `unsized` names a layer."""
        return sum(layer.activation_bytes for layer in self.layers)

    @property
    def average_parallelism(self) -> float | None:
        """W / D; None if nothing is computed."""
        return self.flops / self.depth if self.depth else None

    @property
    def intensity(self) -> float | None:
        """Operations per byte, if every layer reads its inputs from memory and writes its outputs to memory."""
        moved = sum(layer.moved_bytes for layer in self.layers if layer.arithmetic is not None)
        return self.flops / moved if moved else None


def analyse(
    network: Network,
    batch: int | None = None,
    *,
    extents: Mapping[str, int] | None = None,
    partial: bool = False,
    measured: Mapping[str, TensorSpec] | None = None,
) -> NetworkAnalysis:
    """Compute the cost of a forward pass per layer and the memory of a training step, without running anything.

    The training peak assumes a step that keeps every value until its last gradient has read it, holds a gradient from
    its computation to its use, and frees values at once. It is the sum of parameters, their gradients, running
    statistics, and the peak of all other values. Workspaces of kernels, copies made by a framework and the
    optimizer's state (Adam: twice the parameters) are not included.

    Args:
        network: The network.
        batch: The first dimension of every input, if it is symbolic and not in `extents`; omit it if there is none.
        extents: Other symbolic dimensions by name, `{"length": 35}`; or all of them, `{"N": 32, "length": 35}`.
        partial: Whether symbolic dimensions may lack a value; what depends on them is then unknown.
        measured: Shapes that only a run determines, by name: the result of `measured_specs`.

    Raises:
        UsageError: The argument is not a network.
        NetworkError: A symbolic dimension without a value, or a value for an unknown dimension; a batch that applies to
            no dimension; a dimension that is not an integer from 1 to 2**31 - 1; or shapes that do not fit these
            dimensions. One error names all dimensions without a value.

    References:
        Work, depth and average parallelism: Blelloch, Programming parallel algorithms, CACM 39(3), 1996.

    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=784, hidden=500)
    >>> for batch in (1, 64):
    ...     analysis = d5.networks.analyse(network, batch)
    ...     print(batch, analysis.parameters, analysis.flops, round(analysis.intensity, 2))
    1 397510 795060 0.5
    64 397510 50883840 22.04
    """
    check_network(network, "analyse")
    chosen = chosen_extents(network, batch, {} if extents is None else extents, partial=partial)
    model = concrete(network, chosen)
    specs = value_specs(model, measured)
    parameters = network.parameter_specs
    nodes = [node for node in model.graph if node.op_type != "Constant" or node.domain]
    differentiated = _differentiated(nodes, network.trained_specs)
    layers: list[Layer] = []
    seen: set[str] = set()
    kept: set[ir.Value] = set()
    unknown: dict[str, int] = {}
    unsized: dict[str, int] = {}
    for node in nodes:
        own = [name for value in node.inputs if (name := _name(value)) in parameters and name not in seen]
        own = list(dict.fromkeys(own))
        seen.update(own)
        sized = _is_sized(node, specs)
        counted = _arithmetic(node, specs) if sized else None
        op_type = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if not sized:
            unsized[op_type] = unsized.get(op_type, 0) + 1
        elif counted is None:
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
                activation_bytes=0
                if _is_view(node)
                else sum(_bytes(specs[_name(value)]) for value in node.outputs if value.name),
                moved_bytes=0 if _is_view(node) else _moved(node, specs),
                kept_bytes=sum(_bytes(specs[_name(value)]) for value in fresh),
                sized=sized,
                values=tuple(value.name for value in node.outputs if value.name),
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
        unsized=unsized,
        missing=tuple(missing_extents(network, chosen)),
    )


def _is_sized(node: ir.Node, specs: Mapping[str, TensorSpec]) -> bool:
    """Whether the sizes of all inputs and outputs are known."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    return all(is_sized(specs[_name(value)]) for value in values)


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
    """The activations that a node's gradient reads."""
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
    """The nodes that have a gradient: they depend on a trained parameter."""
    depending: set[str] = set(trained)
    found = set()
    for node in nodes:
        if any(_name(value) in depending for value in node.inputs):
            found.add(node)
            depending.update(_name(value) for value in node.outputs)
    depending.discard("")
    return found


def _peak(nodes: Sequence[ir.Node], specs: Mapping[str, TensorSpec], differentiated: Collection[ir.Node]) -> int:
    """The peak memory of activations and their gradients, in bytes."""

    def size(value: ir.Value) -> int:
        return _bytes(specs[_name(value)])

    def activations(values: Sequence[ir.Value | None]) -> list[ir.Value]:
        roots = [_root(value) for value in values if value is not None and value.name]
        return [value for value in dict.fromkeys(roots) if not value.is_initializer() and constant_value(value) is None]

    # Forward: a value lives until its last reader has run, or into the backward pass if a gradient reads it.
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
    # Backward: a value's gradient lives from its last reader's backward to its producer's backward.
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
    """Memory of a value; 0 if a size is unknown, which counts as at least nothing."""
    return int(spec.size * numpy_dtype(spec.dtype).itemsize) if is_sized(spec) else 0


def _name(value: ir.Value | None) -> str:
    return str(value.name) if value is not None else ""
