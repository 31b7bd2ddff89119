"""Mutations of ONNX models: of the bytes of a file, and of what they mean. Every one is a function of its seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from deep5.errors import NetworkError
from deep5.networks.settings import check_settings

__all__ = ["FORM", "MEANING", "mutated_bytes", "mutated_model"]

_INTS = (0, 1, -1, 2, 3, 7, -3, 255, 1 << 31, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 - (1 << 63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 3e38, -3e38, 1e39, math.inf, -math.inf, math.nan)
_TEXTS = (
    "",
    "\0",
    "a\0b",
    "..",
    "../x",
    "x" * 5000,
    "NOTSET",
    "linear",
    "SAME_UPPER",
    "äöü\u202e",
    "import os",
    "%s{}",
)
_EXTENTS = (0, 1, 2, 3, 5, 17, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -1)
_DTYPES = sorted(set(TensorProto.DataType.values()) | {99})
_PATHS = (
    "../outside/secret.bin", "sub/../../outside/secret.bin", "link.bin", "linked/secret.bin", "{outside}/secret.bin",
    "/etc/passwd", "/dev/zero", "fifo", "hard.bin", "weights.bin\0", "a\0b", "\0", "", ".", "..", "sub",
    "~/x", "x" * 5000, "weights.bin/", "./weights.bin", "./sub/../weights.bin", "nothing.bin", "file://weights.bin",
)  # fmt: skip
_NUMBERS = ("0", "48", "-1", "-48", "1", "16", str(1 << 40), str(1 << 62), str(1 << 63), str(1 << 64), "1e3", "x", "",
            "0x10", " 4", "٣", "9" * 5000, "nan")  # fmt: skip

Mutation = Callable[[random.Random, onnx.ModelProto], None]


class Inapplicable(Exception):
    """The model has nothing that the mutation changes."""


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """A file with bytes flipped, cut off, taken out, put in or copied from elsewhere."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(found) + 1), rng.choice((1, 1, 2, 8, 64))
        match rng.choice(("flip", "set", "cut", "remove", "insert", "copy")):
            case "flip" if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case "set" if at < len(found):
                found[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case "cut" if rng.random() < 0.3:
                del found[at:]
            case "remove":
                del found[at : at + length]
            case "insert":
                found[at:at] = rng.randbytes(length)
            case "copy":
                start = rng.randrange(len(found) + 1)
                found[at:at] = found[start : start + length]
    return bytes(found)


def mutated_model(rng: random.Random, model: onnx.ModelProto) -> list[str]:
    """Change what a model means, in place; the names of the mutations.

    Of what ONNX's own checker refuses, which never comes to an executor, most is drawn again.
    """
    original = model.SerializeToString()
    for _ in range(rng.choice((1, 4, 4, 6))):
        model.ParseFromString(original)
        done = _mutated(rng, model)
        if _is_plausible(model):
            break
    return done


def _mutated(rng: random.Random, model: onnx.ModelProto) -> list[str]:
    done: list[str] = []
    wanted = rng.choice((1, 1, 1, 2, 2, 3))
    if rng.random() < 0.9:
        model.ir_version = max(model.ir_version, 8)
    for _ in range(40):
        mutation = rng.choice(MEANING if rng.random() < 0.8 else FORM)
        try:
            mutation(rng, model)
        except (Inapplicable, UnicodeError):
            continue
        done.append(mutation.__name__.lstrip("_"))
        if len(done) == wanted:
            break
    if rng.random() < 0.8:
        _declare(model)
    return done


def _is_harmless(model: onnx.ModelProto) -> bool:
    """Whether ONNX's own inference neither ends the process nor runs for ever."""
    if any(not 0 <= extent.dim_value <= 1 << 20 for own in _tensor_types(model) for extent in own.shape.dim):
        return False
    sparse = any(each.HasField("sparse_tensor") for each in _attributes(model))
    return not sparse and len(model.functions) < 8


def _is_plausible(model: onnx.ModelProto) -> bool:
    if not _is_harmless(model):
        return True
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except Exception:  # ONNX raises its own private classes
        return False
    return True


def _declare(model: onnx.ModelProto) -> None:
    """Declare of outputs what follows, where something does: what is declared otherwise is refused for that alone."""
    try:
        check_settings("the model", model)  # where something is missing, too
    except NetworkError:
        return
    if not _is_harmless(model):
        return
    free = onnx.ModelProto()
    free.CopyFrom(model)
    del free.graph.value_info[:]
    for info in free.graph.output:
        info.ClearField("type")
    try:
        free = onnx.shape_inference.infer_shapes(free)
    except Exception:  # ONNX raises its own private classes
        return
    del model.graph.value_info[:]
    for own, found in zip(model.graph.output, free.graph.output, strict=True):
        ranks = len(own.type.tensor_type.shape.dim)
        if found.type.WhichOneof("value"):
            own.type.CopyFrom(found.type)
        elif not own.type.WhichOneof("value"):
            own.type.tensor_type.elem_type = TensorProto.FLOAT
        if own.type.HasField("tensor_type") and not own.type.tensor_type.HasField("shape"):
            own.type.tensor_type.shape.SetInParent()
            for axis in range(ranks or 2):
                own.type.tensor_type.shape.dim.add(dim_param=f"{own.name}{axis}")


def _pick(rng: random.Random, things: Sequence[Any] | Any) -> Any:
    held = list(things)
    if not held:
        raise Inapplicable
    return rng.choice(held)


def _graphs(model: onnx.ModelProto) -> list[Any]:
    """The graph, those inside nodes, and functions."""
    found: list[Any] = [model.graph, *model.functions]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    found.append(attribute.g)
                found += attribute.graphs
    return found


def _opset(model: onnx.ModelProto) -> int:
    return next((each.version for each in model.opset_import if not each.domain), 20)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in _graphs(model):
        yield from graph.node


def _attributes(model: onnx.ModelProto) -> list[AttributeProto]:
    return [attribute for node in _nodes(model) for attribute in node.attribute]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    found = [tensor for graph in _graphs(model) for tensor in getattr(graph, "initializer", ())]
    return found + [each.t for each in _attributes(model) if each.type == AttributeProto.TENSOR]


def _infos(model: onnx.ModelProto) -> list[Any]:
    graphs = [graph for graph in _graphs(model) if isinstance(graph, onnx.GraphProto)]
    return [info for graph in graphs for info in (*graph.input, *graph.output, *graph.value_info)]


def _tensor_types(model: onnx.ModelProto) -> list[Any]:
    found = []
    for info in _infos(model):
        inner = info.type
        if inner.HasField("optional_type"):
            inner = inner.optional_type.elem_type
        if inner.HasField("sequence_type"):
            inner = inner.sequence_type.elem_type
        if inner.HasField("tensor_type"):
            found.append(inner.tensor_type)
    return found


def _names(model: onnx.ModelProto) -> list[str]:
    found = [name for node in _nodes(model) for name in (*node.input, *node.output)]
    return found + [info.name for info in _infos(model)] + [tensor.name for tensor in model.graph.initializer]


# Attributes.


def _attribute_dropped(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _pick(rng, [node for node in _nodes(model) if node.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


def _attribute_extreme(rng: random.Random, model: onnx.ModelProto) -> None:
    own = _pick(rng, [each for each in _attributes(model) if not each.HasField("g")])
    match own.type:
        case AttributeProto.INT:
            own.i = rng.choice(_INTS)
        case AttributeProto.FLOAT:
            own.f = rng.choice(_FLOATS)
        case AttributeProto.STRING:
            own.s = rng.choice(_TEXTS).encode()
        case AttributeProto.INTS if own.ints:
            _change_list(rng, own.ints, _INTS)
        case AttributeProto.FLOATS if own.floats:
            _change_list(rng, own.floats, _FLOATS)
        case AttributeProto.STRINGS if own.strings:
            _change_list(rng, own.strings, [text.encode() for text in _TEXTS])
        case _:
            raise Inapplicable


def _change_list(rng: random.Random, values: Any, extremes: Sequence[Any]) -> None:
    match rng.choice(("set", "set", "append", "remove", "clear", "many", "swap")):
        case "set":
            values[rng.randrange(len(values))] = rng.choice(extremes)
        case "append":
            values.append(rng.choice([*values, *extremes]))
        case "remove":
            del values[rng.randrange(len(values))]
        case "clear":
            del values[:]
        case "many":
            values.extend([values[0]] * rng.choice((1, 3, 100)))
        case "swap":
            held = list(values)
            rng.shuffle(held)
            del values[:]
            values.extend(held)


def _attribute_retyped(rng: random.Random, model: onnx.ModelProto) -> None:
    own = _pick(rng, _attributes(model))
    name = own.name
    value = rng.choice(
        (1, 1.5, "text", [1, 2], [1.5], ["a"], np.ones(2, np.float32), helper.make_graph([], "e", [], []))
    )
    made = helper.make_attribute(name, numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value)
    if rng.random() < 0.3:  # a type that does not say what it holds
        own.type = made.type
        return
    own.CopyFrom(made)


def _attribute_added(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _pick(rng, _nodes(model))
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = list(onnx.defs.get_schema(node.op_type, domain).attributes) if onnx.defs.has(node.op_type, domain) else []
    name = rng.choice([*known, *known, "unknown"])
    if known and name in known:
        kind = onnx.defs.get_schema(node.op_type, domain).attributes[name].type
        value: Any = {
            "AttrType.INT": rng.choice(_INTS),
            "AttrType.FLOAT": rng.choice(_FLOATS),
            "AttrType.STRING": rng.choice(_TEXTS),
            "AttrType.INTS": [rng.choice(_INTS) for _ in range(rng.randrange(1, 4))],
            "AttrType.FLOATS": [rng.choice(_FLOATS) for _ in range(rng.randrange(1, 4))],
        }.get(str(kind), 1)
    else:
        value = rng.choice((1, 1.5, "text", [1, 2]))
    if rng.random() < 0.8:
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
    node.attribute.append(helper.make_attribute(name, value))


def _attribute_refers(rng: random.Random, model: onnx.ModelProto) -> None:
    own = _pick(rng, _attributes(model))
    own.ref_attr_name = rng.choice(("", "scale", own.name, "nothing"))


# Types, shapes and dtypes.


def _extent_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    own = _pick(rng, [each for each in _tensor_types(model) if each.shape.dim])
    extent = _pick(rng, own.shape.dim)
    extent.Clear()
    match rng.choice(("value", "value", "name", "nothing", "same")):
        case "value":
            extent.dim_value = rng.choice(_EXTENTS)
        case "name":
            extent.dim_param = rng.choice(("N", "M", "k", *_TEXTS))
        case "same":
            extent.CopyFrom(_pick(rng, own.shape.dim))


def _rank_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    own = _pick(rng, _tensor_types(model))
    match rng.choice(("drop", "add", "clear", "none", "many")):
        case "drop" if own.shape.dim:
            del own.shape.dim[rng.randrange(len(own.shape.dim))]
        case "add":
            own.shape.dim.add(dim_value=rng.choice((1, 2, 3)))
        case "clear":
            del own.shape.dim[:]
            own.shape.SetInParent()
        case "none":
            own.ClearField("shape")
        case _:
            for _ in range(rng.choice((6, 33, 70))):
                own.shape.dim.add(dim_value=1)


def _type_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    _pick(rng, _tensor_types(model)).elem_type = rng.choice(_DTYPES)


def _types_all_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    """One element type for another everywhere: most operators take both."""
    kinds = [own.elem_type for own in _tensor_types(model)]
    old, new = _pick(rng, kinds), rng.choice((1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16, 8, 14))
    for own in _tensor_types(model):
        own.elem_type = new if own.elem_type == old else own.elem_type


def _kind_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    info = _pick(rng, _infos(model))
    own = onnx.TypeProto()
    own.CopyFrom(info.type)
    match rng.choice(("sequence", "optional", "nothing", "deep", "map", "sparse")):
        case "sequence":
            info.type.CopyFrom(helper.make_sequence_type_proto(own))
        case "optional":
            info.type.CopyFrom(helper.make_optional_type_proto(own))
        case "nothing":
            info.ClearField("type")
        case "deep":
            for _ in range(rng.choice((2, 40))):
                own = helper.make_sequence_type_proto(own)
            info.type.CopyFrom(own)
        case "map":
            info.type.CopyFrom(helper.make_map_type_proto(7, own))
        case _:
            info.type.CopyFrom(helper.make_sparse_tensor_type_proto(1, [2, 2]))


def _outputs_undeclared(rng: random.Random, model: onnx.ModelProto) -> None:
    """Outputs whose shape nobody declares contradict nothing."""
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            for extent in info.type.tensor_type.shape.dim:
                extent.Clear()
    del model.graph.value_info[:]
    _extent_changed(rng, model)


def _inputs_symbolic(rng: random.Random, model: onnx.ModelProto) -> None:
    for info in _pick(rng, (model.graph.input, [*model.graph.input, *model.graph.output])):
        if info.type.HasField("tensor_type"):
            for number, extent in enumerate(info.type.tensor_type.shape.dim):
                extent.Clear()
                extent.dim_param = f"d{number}" if rng.random() < 0.5 else rng.choice(("N", info.name))


# Names.


def _renamed(rng: random.Random, model: onnx.ModelProto) -> None:
    name = rng.choice((*_TEXTS, _pick(rng, _names(model))))
    match rng.choice(("node", "input", "output", "info", "initializer", "graph", "domain", "function")):
        case "node":
            _pick(rng, _nodes(model)).name = name
        case "input":
            node = _pick(rng, [node for node in _nodes(model) if node.input])
            node.input[rng.randrange(len(node.input))] = name
        case "output":
            node = _pick(rng, [node for node in _nodes(model) if node.output])
            node.output[rng.randrange(len(node.output))] = name
        case "info":
            _pick(rng, _infos(model)).name = name
        case "initializer":
            _pick(rng, [*model.graph.initializer, *_tensors(model)]).name = name
        case "graph":
            _pick(rng, [graph for graph in _graphs(model) if isinstance(graph, onnx.GraphProto)]).name = name
        case "domain":
            _pick(rng, _nodes(model)).domain = rng.choice((name, "ai.onnx", "ai.onnx.ml", "com.none", "deep5.compiled"))
        case "function":
            _pick(rng, model.functions).name = name


def _value_renamed_everywhere(rng: random.Random, model: onnx.ModelProto) -> None:
    """A name that is odd, but the same wherever the value stands."""
    old = _pick(rng, [name for name in _names(model) if name])
    new = rng.choice([text for text in _TEXTS if text] + ["a b", "notify", "def", "self", "v0", "grad:x", "-", "1"])
    for graph in _graphs(model):
        for node in graph.node:
            for names in (node.input, node.output):
                for number, name in enumerate(names):
                    names[number] = new if name == old else name
    for info in _infos(model):
        info.name = new if info.name == old else info.name
    for tensor in _tensors(model):
        tensor.name = new if tensor.name == old else tensor.name


# Initial values.


def _array(tensor: TensorProto) -> np.ndarray:
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as error:
        raise Inapplicable from error
    if array.dtype.kind not in "iuf" or not array.size:
        raise Inapplicable
    return array.copy()


def _values_extreme(rng: random.Random, model: onnx.ModelProto) -> None:
    """Numbers of an initial value: shapes, axes, indices and counts among them."""
    tensor = _pick(rng, [each for each in _tensors(model) if each.data_type in (1, 6, 7, 11)])
    array = _array(tensor)
    flat = array.reshape(-1)
    extremes = _FLOATS if array.dtype.kind == "f" else _INTS
    for _ in range(rng.choice((1, 1, 2, flat.size))):
        with np.errstate(all="ignore"):
            number = np.array(rng.choice(extremes)).astype(array.dtype)
        flat[rng.randrange(flat.size)] = number
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def _tensor_reshaped(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _pick(rng, _tensors(model))
    array = _array(tensor)
    match rng.choice(("longer", "shorter", "rank", "empty", "scalar", "transposed")):
        case "longer":
            array = np.concatenate([array.reshape(-1)] * 2)
        case "shorter":
            array = array.reshape(-1)[:-1]
        case "rank":
            array = array[None]
        case "empty":
            array = array.reshape(-1)[:0]
        case "scalar":
            array = array.reshape(-1)[0]
        case _:
            array = array.T
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name))


def _tensor_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _pick(rng, _tensors(model))
    match rng.choice(("bytes", "bytes", "dims", "dtype", "fields", "negative", "segment", "location")):
        case "bytes" if tensor.raw_data:
            raw = tensor.raw_data
            tensor.raw_data = rng.choice((raw[:-1], raw + b"\0", b"", raw * 2, raw[: len(raw) // 2]))
        case "dims":
            tensor.dims.append(rng.choice(_EXTENTS))
        case "negative" if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_EXTENTS)
        case "dtype":
            tensor.data_type = rng.choice(_DTYPES)
        case "fields":
            tensor.float_data.append(1.0)
            tensor.int64_data.append(1)
        case "segment":
            tensor.segment.begin, tensor.segment.end = 0, 1 << 40
        case _:
            tensor.data_location = TensorProto.EXTERNAL


def _initial_as_input(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _pick(rng, model.graph.initializer)
    kept = [each for each in model.graph.initializer if each.name != tensor.name]
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(info)


def _input_as_initial(rng: random.Random, model: onnx.ModelProto) -> None:
    """A fed value becomes one that the file holds: folding then follows it."""
    info = _pick(rng, [each for each in model.graph.input if each.type.HasField("tensor_type")])
    own = info.type.tensor_type
    shape = [extent.dim_value or 2 for extent in own.shape.dim]
    if own.elem_type not in (1, 6, 7, 9, 11) or not all(0 <= extent <= 64 for extent in shape):
        raise Inapplicable
    numbers = np.random.default_rng(rng.randrange(1 << 30)).integers(-2, 5, shape)
    array = numbers.astype(helper.tensor_dtype_to_np_dtype(own.elem_type))
    if array.nbytes > 1 << 20:
        raise Inapplicable
    name = info.name
    kept = [each for each in model.graph.input if each.name != name]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.append(numpy_helper.from_array(array, name))


def _initial_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    model.graph.initializer.append(_pick(rng, model.graph.initializer))


def _sparse(rng: random.Random, model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), _pick(rng, _names(model)))
    indices = numpy_helper.from_array(np.array([rng.choice(_INTS)], np.int64))
    made = helper.make_sparse_tensor(values, indices, [rng.choice(_EXTENTS)])
    if rng.random() < 0.3:
        model.graph.sparse_initializer.append(made)
        return
    node = model.graph.node.add(op_type="Constant", output=["sparse"])
    node.attribute.append(helper.make_attribute("sparse_value", made))
    _feed_into(rng, model, "sparse", node)


def _external(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _pick(rng, model.graph.initializer)
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=rng.choice(_PATHS) if rng.random() < 0.7 else "weights.bin")
    if rng.random() < 0.6:
        tensor.external_data.add(key="offset", value=rng.choice(_NUMBERS))
    if rng.random() < 0.6:
        tensor.external_data.add(key="length", value=rng.choice(_NUMBERS))
    if rng.random() < 0.2:
        tensor.external_data.add(key=rng.choice(("checksum", "basepath", "location", "\0")), value=rng.choice(_PATHS))
    if rng.random() < 0.2:
        tensor.dims.append(rng.choice(_EXTENTS))


def _external_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _pick(rng, [each.t for each in _attributes(model) if each.type == AttributeProto.TENSOR])
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=rng.choice(_PATHS))


# Nodes and edges.


def _input_removed(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _pick(rng, [node for node in _nodes(model) if node.input])
    at = rng.randrange(len(node.input))
    if rng.random() < 0.5:
        del node.input[at]
    else:
        node.input[at] = ""


def _input_added(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _pick(rng, _nodes(model))
    node.input.extend([_pick(rng, _names(model))] * rng.choice((1, 1, 2, 20)))


def _output_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _pick(rng, [node for node in _nodes(model) if node.output])
    match rng.choice(("remove", "empty", "add", "clear")):
        case "remove":
            del node.output[rng.randrange(len(node.output))]
        case "empty":
            node.output[rng.randrange(len(node.output))] = ""
        case "add":
            node.output.append(f"more{rng.randrange(9)}")
        case _:
            del node.output[:]


def _edge_rewired(rng: random.Random, model: onnx.ModelProto) -> None:
    """To another value, also one that comes later: a cycle."""
    node = _pick(rng, [node for node in _nodes(model) if node.input])
    node.input[rng.randrange(len(node.input))] = _pick(rng, _names(model))


def _inputs_swapped(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _pick(rng, [node for node in _nodes(model) if len(node.input) > 1])
    held = list(node.input)
    rng.shuffle(held)
    del node.input[:]
    node.input.extend(held)


def _cycle(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = _pick(rng, [graph for graph in _graphs(model) if graph.node])
    first, last = graph.node[0], graph.node[-1]
    if not first.input or not last.output:
        raise Inapplicable
    first.input[0] = last.output[0]


def _operator_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    """Another operator in its place, of as many inputs where there is one."""
    node = _pick(rng, _nodes(model))
    if rng.random() < 0.1:
        node.op_type = rng.choice(("Nonesuch", *_TEXTS))
        return
    count = len(node.input)
    fitting = [each for each in _SCHEMAS if each.min_input <= count <= each.max_input]
    schema = _pick(rng, fitting)
    node.op_type, node.domain = schema.name, schema.domain
    if rng.random() < 0.7:
        kept = [each for each in node.attribute if each.name in schema.attributes]
        del node.attribute[:]
        node.attribute.extend(kept)


def _node_added(rng: random.Random, model: onnx.ModelProto) -> None:
    """A node that changes some value, and whoever reads that value reads what it makes."""
    name = _pick(rng, [tensor for tensor in _readable(model) if tensor])
    if rng.random() < 0.4:
        node = helper.make_node(rng.choice(_UNARY), [name], ["added"])
    else:
        fitting = [each for each in _SCHEMAS if not each.domain and each.max_input >= 1 and each.min_input <= 3]
        schema = rng.choice(fitting)
        count = max(schema.min_input, min(schema.max_input, rng.randrange(1, 4)))
        others = [rng.choice((name, _pick(rng, _readable(model)))) for _ in range(count - 1)]
        node = helper.make_node(schema.name, [name, *others], ["added"])
        for key, attribute in schema.attributes.items():
            if attribute.required or rng.random() < 0.2:
                value = {1: 0.5, 2: 1, 3: "linear", 6: [0.5], 7: [1]}.get(int(attribute.type.value))
                if value is not None:
                    node.attribute.append(helper.make_attribute(key, value))
    _feed_into(rng, model, name, node)


def _readable(model: onnx.ModelProto) -> list[str]:
    """What the graph's nodes read of its inputs and initial values: a node in front of all may read it, too."""
    return [info.name for info in (*model.graph.input, *model.graph.initializer)]


def _feed_into(rng: random.Random, model: onnx.ModelProto, name: str, node: onnx.NodeProto) -> None:
    """Put a node in front, and have one reader of a value read its output instead."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    new = f"{made.output[0]}_{rng.randrange(1 << 30)}"
    made.output[0] = new
    readers = [other for other in model.graph.node if name in other.input] or [
        other for other in model.graph.node if other.input
    ]
    reader = _pick(rng, [other for other in readers if other is not node])
    at = list(reader.input).index(name) if name in reader.input else rng.randrange(len(reader.input))
    reader.input[at] = new
    rest = [other for other in model.graph.node if other is not node]
    copies = []
    for other in (made, *rest):
        copy = onnx.NodeProto()
        copy.CopyFrom(other)
        copies.append(copy)
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _huge(rng: random.Random, model: onnx.ModelProto) -> None:
    """A few bytes that ask for all memory: by a shape in the file, or by one that is fed."""
    extent = rng.choice((1 << 31, 1 << 36, 1 << 40, 1 << 62))
    kind = rng.choice(("ConstantOfShape", "Expand", "Range", "Tile", "Pad", "Resize", "Constant"))
    shape = rng.choice(([extent], [1 << 20, extent >> 20], [1, extent], [extent, 0]))
    number = rng.randrange(1 << 30)
    goal = f"goal_{number}"
    ints = numpy_helper.from_array(np.array(shape, np.int64), goal)
    one = numpy_helper.from_array(np.ones([1] * len(shape), np.float32), f"one_{number}")
    inputs = {"ConstantOfShape": [goal], "Expand": [one.name, goal], "Tile": [one.name, goal], "Range": [goal] * 3}
    name = _pick(rng, _readable(model))
    if kind in inputs:
        if kind == "Range":
            model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), f"zero_{number}"))
            model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), f"step_{number}"))
            ints = numpy_helper.from_array(np.array(extent, np.int64), goal)
            node = helper.make_node(kind, [f"zero_{number}", goal, f"step_{number}"], ["huge"])
        else:
            node = helper.make_node(kind, inputs[kind], ["huge"])
        model.graph.initializer.extend([one])
    elif kind == "Pad":
        pads = [0] * (2 * len(shape))
        pads[rng.randrange(len(pads))] = extent
        ints = numpy_helper.from_array(np.array(pads, np.int64), goal)
        model.graph.initializer.append(one)
        node = helper.make_node(kind, [one.name, goal], ["huge"])
    elif kind == "Resize":
        model.graph.initializer.append(one)
        node = helper.make_node(kind, [one.name, "", "", goal], ["huge"])
    else:
        tensor = TensorProto(data_type=1, dims=shape, raw_data=b"\0\0\0\0")
        node = helper.make_node("Constant", [], ["huge"], value=tensor)
    if rng.random() < 0.3:  # nobody knows before the run
        model.graph.input.append(helper.make_tensor_value_info(goal, ints.data_type, list(ints.dims)))
    elif kind != "Constant":
        model.graph.initializer.append(ints)
    _feed_into(rng, model, name, node)


def _node_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = _pick(rng, [graph for graph in _graphs(model) if graph.node])
    graph.node.append(_pick(rng, graph.node))
    for number, name in enumerate(graph.node[-1].output if rng.random() < 0.7 else ()):
        graph.node[-1].output[number] = f"{name}_again"


def _nodes_shuffled(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = _pick(rng, [graph for graph in _graphs(model) if len(graph.node) > 1])
    held = list(graph.node)
    rng.shuffle(held)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in held]
    del graph.node[:]
    graph.node.extend(copies)


def _outputs_more(rng: random.Random, model: onnx.ModelProto) -> None:
    """Values inside become outputs."""
    name = _pick(rng, [name for node in model.graph.node for name in (*node.output, *node.input) if name])
    model.graph.output.append(helper.make_empty_tensor_value_info(name))
    if rng.random() < 0.5:
        model.graph.output[-1].type.CopyFrom(_pick(rng, model.graph.output).type)


def _outputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = _pick(rng, [graph for graph in _graphs(model) if graph.output])
    del graph.output[rng.randrange(len(graph.output))]


def _inputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = _pick(rng, [graph for graph in _graphs(model) if graph.input])
    del graph.input[rng.randrange(len(graph.input))]


# Graphs inside nodes, functions and versions.


def _branches_doubled(rng: random.Random, model: onnx.ModelProto) -> None:
    """An If in both branches of an If, and so on: twice as many nodes each time."""
    depth = rng.choice((1, 2, 4, 5))
    node = _pick(rng, [node for node in model.graph.node if len(node.output) == 1 and node.output[0]])
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    flag = f"flag_{rng.randrange(1 << 30)}"
    fed = rng.random() < 0.5
    for level in range(depth):
        branches = []
        for side in ("then", "else"):
            own = onnx.NodeProto()
            own.CopyFrom(inner)
            own.output[0] = f"{side}_{level}"
            output = [helper.make_empty_tensor_value_info(own.output[0])]
            branches.append(helper.make_graph([own], side, [], output))
        then, other = branches
        inner = helper.make_node("If", [flag], [f"level_{level}"], then_branch=then, else_branch=other)
    inner.output[0] = node.output[0]
    node.CopyFrom(inner)
    if fed:
        model.graph.input.append(helper.make_tensor_value_info(flag, TensorProto.BOOL, []))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), flag))


def _in_loop(rng: random.Random, model: onnx.ModelProto) -> None:
    """A node becomes the body of a loop, whose count is fed or written in the file."""
    node = _pick(rng, [node for node in model.graph.node if len(node.output) == 1 and node.output[0]])
    number = rng.randrange(1 << 30)
    own = onnx.NodeProto()
    own.CopyFrom(node)
    own.output[0] = f"in_loop_{number}"
    body = helper.make_graph(
        [own, helper.make_node("Identity", [f"c_{number}"], [f"d_{number}"])],
        "body",
        [
            helper.make_tensor_value_info(f"i_{number}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c_{number}", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(f"d_{number}", TensorProto.BOOL, []),
            helper.make_empty_tensor_value_info(own.output[0]),
        ],
    )
    count, flag = f"count_{number}", f"yes_{number}"
    steps = rng.choice((0, 1, 3, 100, 1 << 40, -1))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), flag))
    if rng.random() < 0.4:
        model.graph.input.append(helper.make_tensor_value_info(count, TensorProto.INT64, []))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(min(steps, 100)), count))
    node.CopyFrom(helper.make_node("Loop", [count, flag], [node.output[0]], body=body))


def _recursive(rng: random.Random, model: onnx.ModelProto) -> None:
    """A function that calls itself, or one that calls it."""
    names = ["own_f", "own_g"][: rng.choice((1, 2))]
    for number, name in enumerate(names):
        called = names[(number + 1) % len(names)]
        body = [helper.make_node(called, ["a"], ["b"], domain="rec")]
        opsets = [helper.make_opsetid("", _opset(model)), helper.make_opsetid("rec", 1)]
        model.functions.append(helper.make_function("rec", name, ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("rec", 1))
    name = _pick(rng, _readable(model))
    _feed_into(rng, model, name, helper.make_node("own_f", [name], ["called"], domain="rec"))


def _functions_doubled(rng: random.Random, model: onnx.ModelProto) -> None:
    """Each function calls the one before twice: written out, it is two to the power of their number."""
    depth = rng.choice((3, 8, 14, 30))
    opsets = [helper.make_opsetid("", _opset(model)), helper.make_opsetid("dbl", 1)]
    for level in range(depth):
        call, domain = (f"f{level - 1}", "dbl") if level else ("Identity", "")
        body = [
            helper.make_node(call, ["a"], ["m"], domain=domain),
            helper.make_node(call, ["m"], ["b"], domain=domain),
        ]
        model.functions.append(helper.make_function("dbl", f"f{level}", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("dbl", 1))
    name = _pick(rng, _readable(model))
    _feed_into(rng, model, name, helper.make_node(f"f{depth - 1}", [name], ["called"], domain="dbl"))


def _as_function(rng: random.Random, model: onnx.ModelProto) -> None:
    """A node becomes the call of a function that holds it."""
    node = _pick(rng, [node for node in model.graph.node if not node.domain and node.output and all(node.input)])
    number = rng.randrange(1 << 30)
    name = f"wrapped_{number}"
    inputs = list(dict.fromkeys(node.input))
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    opset = _opset(model)
    opsets = [helper.make_opsetid("", rng.choice((opset, opset, opset, 13, 22)))]
    made = helper.make_function("wrap", name, inputs, list(node.output), [inner], opsets)
    model.functions.append(made)
    model.opset_import.append(helper.make_opsetid("wrap", 1))
    node.CopyFrom(helper.make_node(name, inputs, list(node.output), domain="wrap"))


def _version_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    match rng.choice(("opset", "opset", "opset", "ir", "none", "twice", "domain")):
        case "opset":
            entry = _pick(rng, model.opset_import)
            entry.version = rng.choice(
                (0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 18, 19, 21, 23, 25, 26, 27, 99, -1, 1 << 40)
            )
        case "ir":
            model.ir_version = rng.choice((0, 1, 3, 4, 7, 11, 99, 1 << 40))
        case "none":
            del model.opset_import[:]
        case "twice":
            model.opset_import.append(helper.make_opsetid("", rng.choice((7, 13, 22))))
        case _:
            _pick(rng, model.opset_import).domain = rng.choice(_TEXTS)


def _further_fields(rng: random.Random, model: onnx.ModelProto) -> None:
    match rng.choice(("metadata", "training", "doc", "quantization", "graph")):
        case "metadata":
            model.metadata_props.add(key=rng.choice(("deep5.frozen", "deep5", "", "\0")), value=rng.choice(_TEXTS))
            model.graph.metadata_props.add(key="deep5.frozen", value=rng.choice(_TEXTS))
        case "training":
            model.training_info.add().algorithm.CopyFrom(model.graph)
        case "doc":
            model.doc_string = model.graph.doc_string = rng.choice(_TEXTS)
        case "quantization":
            model.graph.quantization_annotation.add(tensor_name=_pick(rng, _names(model)))
        case _:
            model.graph.ClearField("name")


_SCHEMAS = sorted(
    (schema for schema in onnx.defs.get_all_schemas() if not schema.deprecated and schema.domain in ("", "ai.onnx.ml")),
    key=lambda schema: (schema.domain, schema.name),
)
_UNARY = ("Relu", "Neg", "Identity", "Shape", "Size", "NonZero", "Transpose", "Flatten", "Not", "Round", "Sqrt", "Cast",
          "Dropout", "Softmax", "Unique", "ReduceSum", "Squeeze", "Exp", "Det", "SequenceConstruct")  # fmt: skip

MEANING: tuple[Mutation, ...] = (
    *(_attribute_extreme,) * 4, *(_attribute_added,) * 3, *(_extent_changed,) * 2, *(_types_all_changed,) * 3,
    *(_outputs_undeclared,) * 2, *(_inputs_symbolic,) * 3, *(_value_renamed_everywhere,) * 2, *(_values_extreme,) * 5,
    *(_tensor_reshaped,) * 2, *(_initial_as_input,) * 3, *(_input_as_initial,) * 5, *(_inputs_swapped,) * 2,
    *(_operator_changed,) * 3, *(_node_added,) * 3, *(_huge,) * 2, *(_branches_doubled,) * 2, *(_in_loop,) * 3,
    *(_as_function,) * 2, _version_changed, _outputs_more, _edge_rewired,
)  # fmt: skip
"""What leaves most models valid, as often as it is drawn."""
FORM: tuple[Mutation, ...] = (
    _attribute_dropped, _attribute_retyped, _attribute_refers, _rank_changed, _type_changed, _kind_changed, _renamed,
    _tensor_contradicts, _initial_twice, _sparse, *(_external,) * 3, _external_attribute, _input_removed, _input_added,
    _output_changed, _edge_rewired, _cycle, _node_twice, _nodes_shuffled, _outputs_fewer, _inputs_fewer, _recursive,
    *(_version_changed,) * 2, _further_fields, _functions_doubled,
)  # fmt: skip
"""What makes most models invalid."""
