"""`with_precision`: convert a network to another floating-point type, fully or mixed."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.errors import NetworkError, UnknownName, Unsupported, UsageError
from deep5.networks.constants import FLOATS
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.networks.onnx.element_types import check_element_types, type_name
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.transforms.mixed_precision import mixed_precision

__all__ = ["PRECISIONS", "with_precision"]

PRECISIONS = ("float32", "float64", "bfloat16", "float16")
"""The arguments of `with_precision`, and the values of the recipe key `precision`."""

_WHOLE = {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
# Attributes that name an element type.
_TYPES = ("to", "dtype", "output_dtype")


def with_precision(network: Network | NativeNetwork, precision: str) -> Network:
    """The network in one of `PRECISIONS`.

    Args:
        network: All its floating-point values are float32, or all are float64; or its parameters are float16 or
            bfloat16, and the rest is of these types or float32. It is not changed.
        precision: `"float32"` or `"float64"`: inputs, outputs, parameters, buffers, constants and intermediate values
            have that type, and initial values are rounded to it. `"bfloat16"` or `"float16"`: the result of
            `mixed_precision` for the float32 network.

    Returns:
        A network with the same names; the network itself if it already has that precision.

    Raises:
        UnknownName: Unknown precision.
        UsageError: The argument is not a network.
        Unsupported: Native code, whose author chose the types; several floating-point types in one network; as for
            `mixed_precision`.
        NetworkError: An operator does not accept the type, or a constant becomes infinite in it.

    >>> from deep5.networks import mlp
    >>> network = with_precision(mlp(features=4, hidden=3, classes=2), "float64")
    >>> str(network.inputs["input"]), str(network.parameter_specs["fc1.weight"])
    ('float64[N, 4]', 'float64[3, 4]')
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise UnknownName("precision", str(precision)[:60], PRECISIONS)
    if isinstance(network, NativeNetwork):
        return _native(network, precision)
    if not isinstance(network, Network):
        raise UsageError(f"precision {precision!r}: got {type(network).__name__}; allowed: a Network")
    if precision in _WHOLE:
        return _recast(network, precision)
    return mixed_precision(_recast(network, "float32"), precision)


def _native(network: NativeNetwork, precision: str) -> Network:
    """Always raises: native code has no graph to change."""
    found = sorted(
        {spec.dtype for spec in network.parameter_specs.values() if spec.dtype.startswith(("float", "bfloat"))}
    )
    raise Unsupported(
        f"precision {precision!r} of the network {network.name!r}, which is native code in "
        f"{', '.join(found) or 'no floating-point type'}; allowed: networks of ONNX's operators; remedy: leave the "
        "precision out, and write it into the code itself"
    )


def _recast(network: Network, precision: str) -> Network:
    """The network with float32 for float64, or vice versa, or with either for a short type."""
    goal, name = _WHOLE[precision], network.model.graph.name
    found = {value.dtype for value in _values(network.model.graph) if value.dtype in FLOATS and not _own(value)}
    if found <= {goal}:
        return network
    if _is_short(network) and ir.DataType.DOUBLE not in found:
        befores = found - {goal}
    elif len(found) == 1 and found <= set(_WHOLE.values()):
        befores = found
    else:
        listed = ", ".join(sorted(type_name(kind) for kind in found if kind is not None))
        raise Unsupported(
            f"precision {precision!r} of the network {name!r}: it has values of {listed}; allowed: one of float32 and "
            "float64 throughout; remedy: the network as it was built"
        )
    what = f"network {name!r} in {precision}"
    model = network.model.clone()
    for node in model.graph.all_nodes():
        for before in befores:
            _recast_attributes(node, before, goal, what)
    for value in _values(model.graph):
        if value.dtype not in befores or _own(value):
            continue
        value.type = ir.TensorType(goal)
        if value.const_value is not None and value.is_initializer():
            value.const_value = _later(value.const_value, goal)
        elif value.const_value is not None:
            value.const_value = None  # noted by an inference, in the previous type
    check_element_types(model, what)
    infer_shapes(model, what)
    return Network(model)


def _is_short(network: Network) -> bool:
    """Whether parameters are float16 or bfloat16, unlike those of a network in mixed precision."""
    return any(spec.dtype in ("float16", "bfloat16") for spec in network.parameter_specs.values())


def _recast_attributes(node: ir.Node, before: ir.DataType, goal: ir.DataType, what: str) -> None:
    for name in _TYPES:
        given = node.attributes.get(name)
        if not node.domain and given is not None and given.type == ir.AttributeType.INT and given.value == int(before):
            node.attributes[name] = ir.AttrInt64(name, int(goal))
    if node.op_type not in ("Constant", "ConstantOfShape") or node.domain:
        return
    value = node.attributes.get("value")
    if node.op_type == "Constant" and _own(node.outputs[0]):
        return
    for name in ("value_float", "value_floats"):
        if name in node.attributes and before == ir.DataType.FLOAT:
            value = ir.AttrTensor("value", ir.tensor(np.array(node.attributes.pop(name).value, np.float32)))
    if value is None and node.op_type == "ConstantOfShape" and before == ir.DataType.FLOAT:
        value = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float32)))
    if value is not None and value.value.dtype == before:
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(_rounded(value.value.numpy(), goal, node, what)))


def _rounded(array: np.ndarray, goal: ir.DataType, node: ir.Node, what: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        result: np.ndarray = array.astype(goal.numpy())
    if not np.array_equal(np.isfinite(array), np.isfinite(result)):
        raise NetworkError(
            f"{what}: the constant {node.outputs[0].name!r} becomes infinite; allowed: at most "
            f"{np.finfo(goal.numpy()).max:.3g}; remedy: another constant, or {type_name(ir.DataType.DOUBLE)}"
        )
    return result


def _later(tensor: ir.TensorProtocol, goal: ir.DataType) -> ir.LazyTensor:
    """An initial value in another type, drawn or read on demand."""

    def draw() -> ir.TensorProtocol:
        with np.errstate(all="ignore"):
            return ir.Tensor(np.asarray(tensor.numpy()).astype(goal.numpy()), name=tensor.name)

    return ir.LazyTensor(draw, goal, ir.Shape(tensor.shape.numpy()), name=tensor.name)


def _own(value: ir.Value) -> bool:
    """Whether operators require the value's type whatever the network's type is, such as the scales of a Resize."""
    uses = value.uses()
    return bool(uses) and all(_fixed(use.node, use.idx) for use in uses)


def _fixed(node: ir.Node, position: int) -> bool:
    versions = node.graph.opset_imports if node.graph is not None else {}
    return position in _fixed_positions(node.op_type, versions.get(node.domain), node.domain)


@functools.cache
def _fixed_positions(operator: str, version: int | None, domain: str) -> frozenset[int]:
    """The inputs of an operator whose floating-point type its schema fixes."""
    if version is None or not onnx.defs.has(operator, version, domain):
        return frozenset()
    schema = onnx.defs.get_schema(operator, version, domain)
    kinds = ({"tensor(float)"}, {"tensor(double)"})
    return frozenset(number for number, formal in enumerate(schema.inputs) if set(formal.types) in kinds)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """All values of a graph, including those of nested graphs."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _values(attribute.as_graph())
