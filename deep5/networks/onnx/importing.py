"""The only entry point for ONNX models: read, check, upgrade, inline, fold, infer shapes, name nodes."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.core.errors import Deep5Error, NetworkError
from deep5.networks.diagnostics.failures import reported_by
from deep5.networks.diagnostics.refusals import check_output_shapes, first_line
from deep5.networks.onnx.axes import check_axes, check_widths
from deep5.networks.onnx.element_types import check_element_types
from deep5.networks.onnx.exported import forget_statements, stated_by_file
from deep5.networks.onnx.folding import fold_constants, lift_constants
from deep5.networks.onnx.overrides import Overrides
from deep5.networks.onnx.parameters import Decision, decide
from deep5.networks.onnx.placing import lift_statistics, place
from deep5.networks.onnx.reading import NOT_UTF8, check_external, nodes_of, read_model
from deep5.networks.onnx.shapes import SMALL_BYTES, infer_shapes
from deep5.networks.onnx.versions import IR_VERSION, OPSET

__all__ = ["Imported", "import_model"]

# An older Scan has other semantics, which onnx's version converter ignores.
_OLDEST_SCAN = 9
# In older versions the slope of PRelu is per channel.
_BROADCAST_SLOPE = 7
# Before this opset, Resize and Upsample had one fixed coordinate rule, which the converter does not write out.
_FIRST_CHOICE = 11


class Imported(NamedTuple):
    """A model in the form that back-ends rely on, and what each tensor of its file is."""

    model: ir.Model
    decisions: tuple[Decision, ...]


def import_model(
    source: str | Path | onnx.ModelProto, overrides: Overrides = MappingProxyType({}), *, strict: bool = True
) -> Imported:
    """Read a model and bring it into the form that back-ends rely on.

    The result has opset 20 or newer. Functions are inlined, constants folded (`fold_constants`), shapes and dtypes
    inferred. Every node has a unique name. Initial values are not inputs. Weights are read from the file, and external
    ones mapped, only when requested.

    Args:
        source: An ONNX file, or a model in memory (copied).
        overrides: Which tensors of the file are trained, by name or pattern.
        strict: Whether each name in `overrides` must exist and be trainable.

    Raises:
        NetworkError: A missing file, invalid ONNX, versions that the installed onnx does not know, a cycle, an
            unknown operator, element types or an axis that an operator does not accept, weights that are missing,
            have another size, or are outside the model's folder, or a name in `overrides` that does not fit.
    """
    what, proto, folder = read_model(source)
    try:
        return _imported(what, proto, folder, overrides, strict)
    except Deep5Error:
        raise
    except Exception as error:  # from onnx, onnx-ir and protobuf, for contradictory files
        raise NetworkError(f"{what} is not valid ONNX: {reported_by(error)}") from error


def _imported(what: str, proto: onnx.ModelProto, folder: Path | None, overrides: Overrides, strict: bool) -> Imported:
    stated = stated_by_file(proto)
    heavy = _take_weights(what, proto)
    check_widths(what, nodes_of(proto))
    check_output_shapes(what, proto)
    try:
        onnx.checker.check_model(proto)
        model = _upgraded(proto)
    except UnicodeDecodeError as error:  # in a string that no check before this reads
        raise NetworkError(f"{what} is not valid ONNX: {NOT_UTF8}") from error
    except Exception as error:  # onnx raises its own private classes
        raise NetworkError(f"{what} is not valid ONNX: {first_line(error)}") from error
    _put_weights(what, model, heavy, folder)
    infer_shapes(model, what)
    check_element_types(model, what)
    check_axes(model, what)
    passes.RemoveUnusedNodesPass()(model)
    tensors = decide(model, stated, overrides, str(model.producer_name or ""), strict=strict)
    place(model, tensors)
    forget_statements(model)
    fold_constants(model, what)
    lift_constants(model)
    lift_statistics(model)
    passes.RemoveUnusedNodesPass()(model)
    _name_nodes(model.graph)
    return Imported(model, tuple(decision for tensor in tensors for decision in tensor.decisions))


def _take_weights(what: str, proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Take large and external initial values out of the graph; they become inputs of the same shape."""
    graph = proto.graph
    name, count = max(Counter(tensor.name for tensor in graph.initializer).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise NetworkError(f"{what} is not valid ONNX: {count} initial values are named {name!r}; allowed: one")
    heavy = [tensor for tensor in graph.initializer if not _small(tensor)]
    light = [tensor for tensor in graph.initializer if _small(tensor)]
    del graph.initializer[:]
    graph.initializer.extend(light)
    inputs = {value.name: value for value in graph.input}
    for tensor in heavy:
        value = inputs[tensor.name] if tensor.name in inputs else graph.input.add(name=tensor.name)
        value.type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
    return heavy


def _small(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= SMALL_BYTES)


def _upgraded(proto: onnx.ModelProto) -> ir.Model:
    """The model in a new enough opset and IR version, with its functions inlined."""
    if proto.functions:
        # onnx-ir's inliner searches linearly for free names: 200 s for 40,000 nodes, here 0.05 s.
        proto = onnx.inliner.inline_local_functions(proto)
    # The oldest IR version that supports the opset: some engines do not read the newest.
    proto.ir_version = max(onnx.helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True), IR_VERSION)
    opset = next((entry.version for entry in proto.opset_import if not entry.domain), None)
    if opset is None:
        proto.opset_import.add(domain="", version=OPSET)
    elif opset < OPSET:
        if opset < _OLDEST_SCAN and any(node.op_type == "Scan" for node in nodes_of(proto)):
            raise NetworkError(f"Scan in opset {opset}, which has a batch axis; allowed: {_OLDEST_SCAN} and newer")
        proto = onnx.version_converter.convert_version(_slopes_of_channels(proto, opset), OPSET)
        for node in nodes_of(proto) if opset < _FIRST_CHOICE else ():
            if node.op_type == "Resize":
                given = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
                node.attribute.extend(onnx.helper.make_attribute(name, text) for name, text in given.items())
    raised: ir.Model = ir.from_proto(proto)
    return raised


def _slopes_of_channels(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with PRelu's slopes reshaped to the channel axis, which onnx's version converter does not do."""
    if opset >= _BROADCAST_SLOPE or all(node.op_type != "PRelu" for node in proto.graph.node):
        return proto
    known = onnx.shape_inference.infer_shapes(proto).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*known.input, *known.value_info)
        if value.type.tensor_type.HasField("shape")
    } | {tensor.name: len(tensor.dims) for tensor in known.initializer}
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for number, node in enumerate(nodes):
        if node.op_type == "PRelu" and ranks.get(node.input[1]) == 1 and ranks.get(node.input[0], 0) > 2:
            shaped = f"{node.output[0]}/slope_{number}"
            axes = list(range(1, ranks[node.input[0]] - 1))
            proto.graph.node.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [shaped], axes=axes))
            node.input[1] = shaped
        proto.graph.node.append(node)
    return proto


def _put_weights(what: str, model: ir.Model, heavy: list[onnx.TensorProto], folder: Path | None) -> None:
    """Put the weights back, before the small ones; initial values are no longer inputs."""
    graph = model.graph
    values = {value.name: value for value in graph.inputs}
    small = list(graph.initializers.values())
    graph.initializers.clear()
    for proto in heavy:
        try:
            tensor = ir.from_proto(proto)
        except Exception as error:  # an offset that is not a number
            given = ", ".join(f"{entry.key} {entry.value!r}" for entry in proto.external_data)
            raise NetworkError(
                f"{what}: the initial value {proto.name!r} lies at {given}; allowed: a location, and integers of "
                "at least 0 as offset and length"
            ) from error
        if isinstance(tensor, ir.ExternalTensor):
            check_external(what, tensor, folder)
            tensor.base_dir = str(folder)
        values[proto.name].const_value = tensor
        graph.initializers[proto.name] = values[proto.name]
    graph.initializers.update((str(value.name), value) for value in small)
    fed = [value for value in graph.inputs if value.name not in graph.initializers]
    graph.inputs.clear()
    graph.inputs.extend(fed)


def _name_nodes(graph: ir.Graph) -> None:
    """Give every node a unique name, which depends only on its operator and position."""
    taken: set[str] = set()
    counts = Counter[str]()
    for node in graph.all_nodes():
        name = base = node.name or node.op_type
        while name in taken:
            counts[base] += 1
            name = f"{base}_{counts[base] + 1}"
        taken.add(name)
        node.name = name
