"""Read ONNX models from files and memory, and check them before any other step uses them."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from deep5.core.errors import Deep5Error, NetworkError
from deep5.core.files import exists, is_file, is_folder
from deep5.networks.diagnostics.refusals import check_operators, first_line
from deep5.networks.onnx.bodies import check_bodies
from deep5.networks.onnx.bounds import check_calls, check_declared, drop_uncalled
from deep5.networks.onnx.declarations import check_defaults, mark_unknown_sizes
from deep5.networks.onnx.element_types import called
from deep5.networks.onnx.foreign_files import not_onnx
from deep5.networks.onnx.settings import check_settings
from deep5.networks.onnx.sparse import make_dense
from deep5.networks.onnx.upgrading import checkable

__all__ = ["NOT_UTF8", "check_external", "nodes_of", "read_model"]

NOT_UTF8 = "it holds a string that is not UTF-8"
"""The reason where protobuf or ONNX cannot decode a string."""

_WHOLE = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "INT2", "INT4", "UINT2", "UINT4")
_SMALL = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1")
_ALLOWED = ", ".join(("BOOL", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE", *_WHOLE, *_SMALL, "STRING"))
# Element types that inputs and outputs may have.
_ELEMENTS = {onnx.TensorProto.DataType.Value(name) for name in _ALLOWED.split(", ")}
_NO_MAPS = (
    "; remedy for the ZipMap of skl2onnx, which makes a map of each row: to_onnx(…, options={'zipmap': False}), whose "
    "output is an array"
)
_Body = tuple[Iterable[onnx.NodeProto], Iterable[onnx.TensorProto]]


def read_model(source: str | Path | onnx.ModelProto) -> tuple[str, onnx.ModelProto, Path | None]:
    """Read a model and check what ONNX's own checker does not check or reports unclearly.

    Args:
        source: An ONNX file, or a model in memory (copied).

    Returns:
        Its name in messages; the model, in which ONNX's own domain is always called ""; and the folder that its
        weights may be in, None for a model in memory.

    Raises:
        NetworkError: A missing file; a file that is not ONNX; a version that the installed onnx does not know; weights
            whose size does not match their shape; a cycle, or a value that no earlier node computes; an unknown
            operator; an input without a shape; an input or output that is neither arrays nor strings.
    """
    what, proto, folder = _read(source)
    try:
        for entry in proto.opset_import:
            entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
        for node in nodes_of(proto):
            node.domain = "" if node.domain == "ai.onnx" else node.domain
            _complete(node)
            _check_texts(node)
        for described in (proto, proto.graph, *proto.functions, *_values(proto)):
            _check_texts(described)
        _check_versions(what, proto)
        mark_unknown_sizes(proto)
        check_operators(what, proto, nodes_of(proto))
        make_dense(what, proto)
        for tensor in _tensors(what, proto):
            _check_tensor(what, tensor)
        _check_order(what, proto)
        check_defaults(what, proto)
        check_settings(what, proto)
        check_bodies(what, proto, nodes_of(proto))
        drop_uncalled(proto)
        check_calls(what, proto)
        check_declared(what, proto)
        proto = _checkable(what, proto)
    except (UnicodeDecodeError, TypeError) as error:  # protobuf decodes strings lazily, or returns bytes instead
        raise NetworkError(f"{what} is not valid ONNX: {NOT_UTF8}") from error
    return what, proto, folder


def _checkable(what: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return checkable(proto)
    except Deep5Error as error:  # a node that cannot be converted
        raise NetworkError(f"{what}: {error}") from error
    except Exception as error:  # the inliner raises its own private classes
        raise NetworkError(f"{what} is not valid ONNX: {first_line(error)}") from error


def nodes_of(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of functions and nested graphs."""
    for nodes, _ in _bodies(proto):
        yield from nodes


def _read(source: str | Path | onnx.ModelProto) -> tuple[str, onnx.ModelProto, Path | None]:
    """A copy of the model; its name in messages; and the folder that its weights may be in."""
    proto = onnx.ModelProto()
    if isinstance(source, onnx.ModelProto):
        proto.CopyFrom(source)
        return "the model", proto, None
    if not isinstance(source, (str, Path)) or not str(source):
        got = "an empty path" if source == "" else f"an object of type {type(source).__name__}"
        remedy = "; remedy: onnx.load_from_string(content)" if isinstance(source, (bytes, bytearray)) else ""
        raise NetworkError(f"got {got}; allowed: an ONNX file or an onnx.ModelProto{remedy}")
    path, what = Path(source), f"the file {source}"
    if is_folder(path):
        raise NetworkError(f"{str(path)!r} is a folder; allowed: an ONNX file or an onnx.ModelProto")
    if not is_file(path):
        state = "is not a regular file" if exists(path) else "is not there"
        raise NetworkError(f"{what} {state}; allowed: an ONNX file or an onnx.ModelProto")
    content = _content(path, what)
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf raises its own private classes
        said = f"{what} {not_onnx(content, first_line(error))}"
        if "MaxDepth" in str(error):
            said = (
                f"{what} cannot be read: its graphs are nested too deeply ({first_line(error)}); allowed: about 30 "
                "levels of If, Loop or Scan, which protobuf reads; remedy: fewer levels"
            )
        raise NetworkError(said) from error
    if not content:
        raise NetworkError(f"{what} {not_onnx(content)}")
    return what, proto, path.parent


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise NetworkError(
            f"{what} cannot be read ({first_line(error)}); allowed: a file that may be read; remedy: its permissions"
        ) from error


def _check_versions(what: str, proto: onnx.ModelProto) -> None:
    if not proto.HasField("graph") or not proto.graph.output:
        raise NetworkError(f"{what} is not valid ONNX: it holds no graph with an output; allowed: a complete ONNX file")
    if proto.ir_version > onnx.IR_VERSION:
        raise NetworkError(
            f"{what} has IR version {proto.ir_version}; allowed: up to {onnx.IR_VERSION}, the newest that onnx "
            f"{onnx.__version__} supports; remedy: a newer onnx"
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if not entry.domain and entry.version > newest:
            raise NetworkError(
                f"{what} is written in opset {entry.version}; allowed: up to {newest}, the newest that onnx "
                f"{onnx.__version__} supports; remedy: a newer onnx, or onnx.version_converter.convert_version"
            )


def _bodies(proto: onnx.ModelProto) -> Iterator[_Body]:
    """Nodes and initial values of the graph and of every nested graph."""
    bodies: list[_Body] = [
        (proto.graph.node, proto.graph.initializer),
        *((function.node, ()) for function in proto.functions),
    ]
    while bodies:
        nodes, initial = bodies.pop()
        yield nodes, initial
        for node in nodes:
            for attribute in node.attribute:
                inner = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())]
                bodies += [(graph.node, graph.initializer) for graph in inner]


def _complete(node: onnx.NodeProto) -> None:
    """Write out a default that ONNX's own shape inference does not know."""
    if node.op_type == "MeanVarianceNormalization" and not node.domain and not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))


def _check_texts(described: Any) -> None:
    """Check that notes are UTF-8: otherwise protobuf returns bytes, which cannot be sorted among other keys."""
    for entry in described.metadata_props:
        if isinstance(entry.key, bytes) or isinstance(entry.value, bytes):
            raise TypeError("bytes")


def _values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto | onnx.TensorProto]:
    graph = proto.graph
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from values


def _called(node: onnx.NodeProto) -> str:
    return called(node.name, node.op_type, node.output)


def _tensors(what: str, proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for nodes, initial in _bodies(proto):
        for tensor in initial:
            if not tensor.name:
                raise NetworkError(f"{what} has an initial value without a name; remedy: name every initial value")
            yield tensor
        for node in nodes:
            for attribute in node.attribute:
                for tensor in (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else ())):
                    if tensor.data_location == onnx.TensorProto.EXTERNAL:
                        raise NetworkError(
                            f"{what}: {_called(node)} keeps an attribute in an external file; "
                            "allowed: only initial values"
                        )
                    yield tensor


def _check_tensor(what: str, tensor: onnx.TensorProto) -> None:
    """Check that a tensor's byte count matches its shape and dtype; external tensors are checked later."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if "location" not in {entry.key for entry in tensor.external_data if entry.value}:
            raise NetworkError(f"{what}: the initial value {tensor.name!r} is external, but says no location")
        return
    try:
        onnx.checker.check_tensor(tensor)
        read = ir.from_proto(tensor)
        if tensor.data_type == onnx.TensorProto.STRING:
            read.numpy()
            return
        size = read.nbytes
        if not tensor.HasField("raw_data"):
            read.numpy()
            return
    except Exception as error:  # as above
        raise NetworkError(
            f"{what} is not valid ONNX: the initial value {tensor.name!r}: {first_line(error)}"
        ) from error
    if len(tensor.raw_data) != size:
        raise NetworkError(
            f"{what} is not valid ONNX: the initial value {tensor.name!r} has {len(tensor.raw_data)} bytes; allowed: "
            f"{size}, as its shape {list(tensor.dims)} says"
        )


def _check_order(what: str, proto: onnx.ModelProto) -> None:
    """Check that nodes read only computed values, and inputs and outputs have shapes; ONNX checks nested graphs."""
    for nodes, _ in _bodies(proto):
        listed = list(nodes)
        producers = {name: index for index, node in enumerate(listed) for name in node.output if name}
        needs = {
            index: {producers[name] for name in node.input if name in producers} for index, node in enumerate(listed)
        }
        if all(max(earlier, default=-1) < index for index, earlier in needs.items()):
            continue  # in order, so without a cycle
        try:
            graphlib.TopologicalSorter(needs).prepare()
        except graphlib.CycleError as error:
            cycle = " <- ".join(
                f"{(listed[i].name or listed[i].output[0])!r} ({listed[i].op_type})" for i in error.args[1]
            )
            raise NetworkError(
                f"{what} is not valid ONNX: nodes feed themselves: {cycle}; allowed: a graph without a cycle"
            ) from error
    graph = proto.graph
    known = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        if unknown := [name for name in node.input if name and name not in known]:
            later = next((_called(other) for other in graph.node if unknown[0] in other.output), None)
            raise NetworkError(
                f"{what} is not valid ONNX: {_called(node)} reads {unknown[0]!r}, which nothing before it computes; "
                "allowed: inputs, initial values, and outputs of earlier nodes"
                + (f"; remedy: put {later} before it" if later else "")
            )
        known.update(node.output)
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            name = f"{what}: the {kind} {value.name!r}"
            inner = value.type
            if inner.HasField("optional_type"):
                inner = inner.optional_type.elem_type
            if kind == "output" and not inner.WhichOneof("value"):
                continue  # inferred
            if inner.HasField("sequence_type"):
                inner = inner.sequence_type.elem_type
            if not inner.HasField("tensor_type"):
                form = (inner.WhichOneof("value") or "nothing").removesuffix("_type").replace("_", " ")
                raise NetworkError(
                    f"{name} is a {form}; allowed: an array, a sequence of arrays, or one of them optionally"
                    + (_NO_MAPS if form == "map" and kind == "output" else "")
                )
            own = inner.tensor_type
            if own.elem_type and own.elem_type not in _ELEMENTS:
                raise NetworkError(f"{name} holds {_type_name(own.elem_type)}; allowed: {_ALLOWED}")
            if wrong := [extent.dim_value for extent in own.shape.dim if extent.dim_value < 0]:
                raise NetworkError(
                    f"{name} has the dimension {wrong[0]}; allowed: at least 0, or -1 if it is unknown; remedy: a "
                    "name, such as 'N', where a dimension varies"
                )
            if kind == "input" and value.type.HasField("tensor_type") and not own.HasField("shape"):
                raise NetworkError(f"{name} has no shape; remedy: declare it, with names for dimensions that vary")


def _type_name(kind: int) -> str:
    known = onnx.TensorProto.DataType
    return known.Name(kind) if kind in known.values() else f"the unknown type {kind}"


def check_external(what: str, tensor: ir.ExternalTensor, folder: Path | None) -> None:
    """Reject a weight whose external file is outside the model's folder or does not contain all of it.

    Args:
        what: Name of the model in messages.
        tensor: The weight, which is not read.
        folder: The model's folder, if it has one.

    Raises:
        NetworkError: Where the file is or what it lacks, and what is allowed.
    """
    name, location = f"{what}: the initial value {tensor.name!r}", Path(tensor.location)
    if folder is None:
        raise NetworkError(
            f"{name} lies in the file {str(location)!r}, but a model in memory has no folder; remedy: give the path of "
            "the model"
        )
    path = folder / location
    if location.is_absolute() or ".." in location.parts:
        raise NetworkError(f"{name} lies in {str(location)!r}; allowed: a file in the model's folder, {folder}")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise NetworkError(f"{name} lies in {path}, which leads to {path.resolve()}; allowed: a file in {folder}")
    if not is_file(path):
        raise NetworkError(f"{name} lies in {path}, which is not there; remedy: put the file beside the model")
    if (links := path.stat().st_nlink) > 1:
        raise NetworkError(f"{name} lies in {path}, a file with {links} names; allowed: one; remedy: copy the file")
    offset, length, size = tensor.offset or 0, tensor.length, path.stat().st_size
    if (length is not None and length != tensor.nbytes) or offset < 0 or offset + tensor.nbytes > size:
        raise NetworkError(
            f"{name} lies at offset {offset} of {path}, length {length}; allowed: {tensor.nbytes} bytes, as its shape "
            f"{list(tensor.shape)} says, within the file's {size}"
        )
