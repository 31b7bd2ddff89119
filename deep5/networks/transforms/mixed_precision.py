"""Mixed precision: products in a short floating-point type, everything that a sum or an update needs in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported, UsageError
from deep5.networks.constants import FLOATS, constant_value
from deep5.networks.network import Network
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.transforms.unrolling import RECURRENT

if TYPE_CHECKING:
    from deep5.core.network_spec import NetworkSpec

__all__ = [
    "AS_FLOAT32",
    "FOLLOWING",
    "PRODUCTS",
    "SHORT_TYPES",
    "compute_dtype",
    "float16_gradients",
    "mixed_precision",
]

SHORT_TYPES = {
    "bfloat16": ir.DataType.BFLOAT16,
    "float16": ir.DataType.FLOAT16,
    # All casts are inserted and none changes a value: tests of the transformation use it.
    "float32": ir.DataType.FLOAT,
}
"""Element types that products can be computed in, by name."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that use the short type: they read every operand many times, and processors have units for them."""

# fmt: off
FOLLOWING = frozenset({
    # These move values or select among them: their results are exact, and so are their gradients.
    "Abs", "Clip", "Concat", "DepthToSpace", "Flatten", "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg",
    "Pad", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where",
    # These round once; none amplifies its operands' errors more than a sum or a product of two numbers does.
    "Add", "LeakyRelu", "Mul", "Sigmoid", "Sub", "Sum", "Tanh",
})
# fmt: on
"""Operators that compute in the short type if all their inputs are already in it; all other operators use float32."""

AS_FLOAT32 = "deep5.networks.with_precision(network, 'float32')"
"""The remedy of messages on element types that a back-end does not compute in."""

# Operators whose result does not depend on element values: they read any type.
_BLIND = frozenset({"Shape", "Size"})
_CAST = frozenset({"Cast"})
# From this opset on the operators of both lists accept bfloat16. Between opset 20, the oldest in use, and this one,
# operators only gained types; GroupNormalization changed, which opset 20 does not have.
_BFLOAT16_OPSET = 22


def mixed_precision(network: Network, dtype: str) -> Network:
    """The network with its products in bfloat16 or float16, its parameters, inputs and outputs in float32.

    Casts to the short type precede convolutions and matrix products (`PRODUCTS`), whose results keep that type through
    the operators that are safe in it (`FOLLOWING`). All others use float32, with a cast before them: normalizations,
    softmax and losses, exponentials, logarithms and powers, sums and means, average pooling, dropout (whose scale
    would be rounded for all elements alike), recurrent layers (whose state accumulates over the steps), operators that
    repeat a value, since their gradient is a sum, and nested graphs as a whole. A value has at most one cast to each
    type. An operator with a constant that the short type rounds to an infinity or to zero stays in float32.

    The gradient of a cast is a cast: gradients with respect to parameters are float32, so an update rule changes
    float32 master weights. In float16 gradients below 6e-8 become zero; `loss_scale` of `inference_and_backprop`
    prevents that.

    Args:
        network: Its floating-point values are float32; it is not changed.
        dtype: `"bfloat16"` or `"float16"`; `"float32"` inserts the same casts and changes no bit.

    Returns:
        A network with the same inputs, outputs, parameters and buffers and their names. For bfloat16 its opset is at
        least 22, the first in which convolutions and pooling accept it.

    Raises:
        UsageError: Another dtype, or the argument is not a `Network`.
        Unsupported: A network with floating-point types other than float32, or one without a product.

    References:
        Micikevicius et al., Mixed precision training, ICLR 2018, sections 3.1 (master weights), 3.2 (loss scaling) and
        3.3 (sums in float32). Kalamkar et al., A study of bfloat16 for deep learning training, arXiv:1905.12322.

    >>> from deep5.networks import mlp
    >>> mixed = mixed_precision(mlp(features=4, hidden=3, classes=2), "bfloat16")
    >>> [(node.op_type, str(node.outputs[0].dtype)) for node in mixed.nodes][3:6]
    [('Gemm', 'BFLOAT16'), ('Tanh', 'BFLOAT16'), ('Cast', 'BFLOAT16')]
    >>> mixed.parameter_specs["fc1.weight"].dtype, mixed.outputs["logits"].dtype
    ('float32', 'float32')
    """
    if not isinstance(network, Network):
        raise UsageError(f"mixed precision: got {type(network).__name__}; allowed: a Network of ONNX's operators")
    if not isinstance(dtype, str) or dtype not in SHORT_TYPES:
        raise UsageError(f"mixed precision: got {dtype!r:.60}; allowed: {', '.join(SHORT_TYPES)}")
    name = network.model.graph.name
    for value in _values(network.model.graph):
        if value.dtype in FLOATS and value.dtype != ir.DataType.FLOAT:
            raise Unsupported(
                f"mixed precision of the network {name!r}: {value.name!r} is {value.dtype.numpy()}; allowed: only "
                f"float32; remedy: the network in float32, {AS_FLOAT32}"
            )
    if not any(_is(node, PRODUCTS) for node in network.nodes):
        raise Unsupported(
            f"mixed precision of the network {name!r}: it has no product to compute in {dtype}; allowed: networks with "
            f"{', '.join(sorted(PRODUCTS))}; remedy: float32"
        )
    model = network.model.clone()
    if dtype == "bfloat16":
        model.graph.opset_imports[""] = max(network.opset, _BFLOAT16_OPSET)
    _Casts(model.graph, SHORT_TYPES[dtype]).run()
    infer_shapes(model, f"network {name!r} in {dtype}")
    return Network(model)


def compute_dtype(network: Network) -> str | None:
    """The element type of a network's products and recurrent layers; None if it has none.

    Several types are joined with commas.
    """
    kinds = {value.dtype for node in network.nodes if _is(node, PRODUCTS | RECURRENT) for value in node.outputs}
    return ", ".join(sorted(str(kind.numpy()) for kind in kinds if kind in FLOATS)) or None


def float16_gradients(network: NetworkSpec) -> list[str]:
    """The trained parameters whose gradients are computed in float16: they have this type, or are cast to it.

    >>> from deep5.networks import mlp
    >>> float16_gradients(mixed_precision(mlp(features=4, hidden=3, classes=2), "float16"))
    ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']
    """
    cast: set[str | None] = set()
    if isinstance(network, Network):
        cast = {
            node.inputs[0].name
            for node in network.nodes
            if _is(node, _CAST) and node.inputs[0] is not None and node.outputs[0].dtype == ir.DataType.FLOAT16
        }
    return [name for name, spec in network.trained_specs.items() if spec.dtype == "float16" or name in cast]


class _Casts:
    """Inserts the casts into a graph, from its first node to its last.

    Args:
        graph: Changed in place.
        low: The short type.
    """

    def __init__(self, graph: ir.Graph, low: ir.DataType) -> None:
        self._graph, self._low = graph, low
        self._suffix = str(low.numpy())
        # The short values, since `low` may be float32 too; then, for each value, its other form.
        self._short: set[ir.Value] = set()
        self._shortened: dict[ir.Value, ir.Value] = {}
        self._widened: dict[ir.Value, ir.Value] = {}
        self._taken = {str(value.name) for value in _values(graph)}
        self._named = {str(node.name) for node in graph.all_nodes()}

    def run(self) -> None:
        """Choose each node's type, and cast its inputs to it."""
        for node in list(self._graph):
            if _is(node, _BLIND):
                continue
            if self._is_short(node):
                self._shorten(node)
            else:
                self._widen(node, node)
        for position, value in enumerate(self._graph.outputs):
            if value in self._short:
                self._graph.outputs[position] = self._output(value)

    def _is_short(self, node: ir.Node) -> bool:
        operands = [value for value in node.inputs if value is not None and value.dtype in FLOATS]
        constants = [value for value in operands if constant_value(value) is not None]
        if not all(map(self._holds, constants)):
            return False
        if _is(node, PRODUCTS):
            return True
        varying = [value for value in operands if value not in constants]
        return (
            _is(node, FOLLOWING)
            and bool(varying)
            and all(value in self._short for value in varying)
            and not (node.op_type in _BROADCASTING and any(_repeated(value, node.outputs[0]) for value in varying))
        )

    def _holds(self, value: ir.Value) -> bool:
        """Whether the short type represents a constant without new infinities and new zeros."""
        array = constant_value(value)
        with np.errstate(all="ignore"):
            short = np.asarray(array).astype(self._low.numpy()).astype(np.float64)
        wide = np.asarray(array, dtype=np.float64)
        return bool(np.array_equal(np.isfinite(wide), np.isfinite(short)) and np.array_equal(wide == 0, short == 0))

    def _shorten(self, node: ir.Node) -> None:
        for position, value in enumerate(node.inputs):
            if value is None or value.dtype not in FLOATS or value in self._short:
                continue
            if value not in self._shortened:
                array = constant_value(value)
                self._shortened[value] = (
                    self._cast(value, self._low, self._suffix, node)
                    if array is None
                    else self._constant(value, array, node)
                )
            node.replace_input_with(position, self._shortened[value])
        for value in node.outputs:
            if value.dtype in FLOATS:
                value.type = ir.TensorType(self._low)
                self._short.add(value)

    def _widen(self, node: ir.Node, before: ir.Node) -> None:
        """Cast the short inputs of a node and its nested graphs to float32."""
        for position, value in enumerate(node.inputs):
            if value is not None and value in self._short:
                node.replace_input_with(position, self._wide(value, before))
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                nested = attribute.as_graph()
                for inner in nested:
                    self._widen(inner, before)
                for position, value in enumerate(nested.outputs):
                    if value in self._short:
                        nested.outputs[position] = self._wide(value, before)

    def _wide(self, value: ir.Value, before: ir.Node | None) -> ir.Value:
        if value not in self._widened:
            self._widened[value] = self._cast(value, ir.DataType.FLOAT, "float32", before)
        return self._widened[value]

    def _output(self, value: ir.Value) -> ir.Value:
        """The float32 form of an output, which takes over its name."""
        wide, name = self._wide(value, None), value.name
        value.name = self._fresh(f"{name}/{self._suffix}")
        wide.name = name
        return wide

    def _cast(self, value: ir.Value, to: ir.DataType, suffix: str, before: ir.Node | None) -> ir.Value:
        return self._insert(ir.node("Cast", [value], {"to": int(to)}), value, to, suffix, before)

    def _constant(self, value: ir.Value, array: np.ndarray, before: ir.Node) -> ir.Value:
        short = ir.tensor(np.asarray(array).astype(self._low.numpy()))
        return self._insert(ir.node("Constant", [], {"value": short}), value, self._low, self._suffix, before)

    def _insert(self, node: ir.Node, of: ir.Value, to: ir.DataType, suffix: str, before: ir.Node | None) -> ir.Value:
        made = node.outputs[0]
        made.name, made.shape, made.type = self._fresh(f"{of.name}/{suffix}"), of.shape, ir.TensorType(to)
        node.name = f"{made.name}/{node.op_type}"
        while node.name in self._named:
            node.name += "_"
        self._named.add(node.name)
        if before is None:
            self._graph.append(node)
        else:
            self._graph.insert_before(before, node)
        return made

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


# Members of `FOLLOWING` whose operands are broadcast to one shape.
_BROADCASTING = frozenset({"Add", "Max", "Min", "Mul", "Sub", "Sum", "Where"})


def _repeated(value: ir.Value, result: ir.Value) -> bool:
    """Whether an operand is repeated along an axis; True if the shapes are unknown."""
    if value.shape is None or result.shape is None:
        return True
    return [_extent(extent) for extent in value.shape] != [_extent(extent) for extent in result.shape]


def _extent(extent: int | ir.SymbolicDim) -> object:
    """A comparable form of a dimension; an unknown one equals no other."""
    if isinstance(extent, int):
        return extent
    return object() if extent.value is None else extent.value


def _is(node: ir.Node, kinds: frozenset[str]) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in kinds


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """All values of a graph, including those of nested graphs."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _values(attribute.as_graph())
