"""Mutations of attributes, shapes, types, names and initial values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from fuzzing_parts import (
    DTYPES,
    EXTENTS,
    FLOATS,
    INTS,
    NUMBERS,
    PATHS,
    TEXTS,
    Inapplicable,
    attributes_of,
    feed_into,
    graphs_of,
    infos_of,
    names_of,
    nodes_of,
    pick,
    tensor_types_of,
    tensors_of,
)

__all__ = [
    "attribute_added",
    "attribute_dropped",
    "attribute_extreme",
    "attribute_refers",
    "attribute_retyped",
    "extent_changed",
    "external",
    "external_attribute",
    "initial_as_input",
    "initial_twice",
    "input_as_initial",
    "inputs_symbolic",
    "kind_changed",
    "outputs_undeclared",
    "rank_changed",
    "renamed",
    "sparse",
    "tensor_contradicts",
    "tensor_reshaped",
    "type_changed",
    "types_all_changed",
    "value_renamed_everywhere",
    "values_extreme",
]


def attribute_dropped(rng: random.Random, model: onnx.ModelProto) -> None:
    node = pick(rng, [node for node in nodes_of(model) if node.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


def attribute_extreme(rng: random.Random, model: onnx.ModelProto) -> None:
    own = pick(rng, [each for each in attributes_of(model) if not each.HasField("g")])
    match own.type:
        case AttributeProto.INT:
            own.i = rng.choice(INTS)
        case AttributeProto.FLOAT:
            own.f = rng.choice(FLOATS)
        case AttributeProto.STRING:
            own.s = rng.choice(TEXTS).encode()
        case AttributeProto.INTS if own.ints:
            _change_list(rng, own.ints, INTS)
        case AttributeProto.FLOATS if own.floats:
            _change_list(rng, own.floats, FLOATS)
        case AttributeProto.STRINGS if own.strings:
            _change_list(rng, own.strings, [text.encode() for text in TEXTS])
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


def attribute_retyped(rng: random.Random, model: onnx.ModelProto) -> None:
    own = pick(rng, attributes_of(model))
    name = own.name
    value = rng.choice(
        (1, 1.5, "text", [1, 2], [1.5], ["a"], np.ones(2, np.float32), helper.make_graph([], "e", [], []))
    )
    made = helper.make_attribute(name, numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value)
    if rng.random() < 0.3:  # a type that does not match the content
        own.type = made.type
        return
    own.CopyFrom(made)


def attribute_added(rng: random.Random, model: onnx.ModelProto) -> None:
    node = pick(rng, nodes_of(model))
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = list(onnx.defs.get_schema(node.op_type, domain).attributes) if onnx.defs.has(node.op_type, domain) else []
    name = rng.choice([*known, *known, "unknown"])
    if known and name in known:
        kind = onnx.defs.get_schema(node.op_type, domain).attributes[name].type
        value: Any = {
            "AttrType.INT": rng.choice(INTS),
            "AttrType.FLOAT": rng.choice(FLOATS),
            "AttrType.STRING": rng.choice(TEXTS),
            "AttrType.INTS": [rng.choice(INTS) for _ in range(rng.randrange(1, 4))],
            "AttrType.FLOATS": [rng.choice(FLOATS) for _ in range(rng.randrange(1, 4))],
        }.get(str(kind), 1)
    else:
        value = rng.choice((1, 1.5, "text", [1, 2]))
    if rng.random() < 0.8:
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
    node.attribute.append(helper.make_attribute(name, value))


def attribute_refers(rng: random.Random, model: onnx.ModelProto) -> None:
    own = pick(rng, attributes_of(model))
    own.ref_attr_name = rng.choice(("", "scale", own.name, "nothing"))


# Types, shapes and dtypes.


def extent_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    own = pick(rng, [each for each in tensor_types_of(model) if each.shape.dim])
    extent = pick(rng, own.shape.dim)
    extent.Clear()
    match rng.choice(("value", "value", "name", "nothing", "same")):
        case "value":
            extent.dim_value = rng.choice(EXTENTS)
        case "name":
            extent.dim_param = rng.choice(("N", "M", "k", *TEXTS))
        case "same":
            extent.CopyFrom(pick(rng, own.shape.dim))


def rank_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    own = pick(rng, tensor_types_of(model))
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


def type_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    pick(rng, tensor_types_of(model)).elem_type = rng.choice(DTYPES)


def types_all_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    """Replace one element type by another everywhere: most operators take both."""
    kinds = [own.elem_type for own in tensor_types_of(model)]
    old, new = pick(rng, kinds), rng.choice((1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16, 8, 14))
    for own in tensor_types_of(model):
        own.elem_type = new if own.elem_type == old else own.elem_type


def kind_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    info = pick(rng, infos_of(model))
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


def outputs_undeclared(rng: random.Random, model: onnx.ModelProto) -> None:
    """Remove the declared shapes of outputs, which then contradict nothing."""
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            for extent in info.type.tensor_type.shape.dim:
                extent.Clear()
    del model.graph.value_info[:]
    extent_changed(rng, model)


def inputs_symbolic(rng: random.Random, model: onnx.ModelProto) -> None:
    for info in pick(rng, (model.graph.input, [*model.graph.input, *model.graph.output])):
        if info.type.HasField("tensor_type"):
            for number, extent in enumerate(info.type.tensor_type.shape.dim):
                extent.Clear()
                extent.dim_param = f"d{number}" if rng.random() < 0.5 else rng.choice(("N", info.name))


# Names.


def renamed(rng: random.Random, model: onnx.ModelProto) -> None:
    name = rng.choice((*TEXTS, pick(rng, names_of(model))))
    match rng.choice(("node", "input", "output", "info", "initializer", "graph", "domain", "function")):
        case "node":
            pick(rng, nodes_of(model)).name = name
        case "input":
            node = pick(rng, [node for node in nodes_of(model) if node.input])
            node.input[rng.randrange(len(node.input))] = name
        case "output":
            node = pick(rng, [node for node in nodes_of(model) if node.output])
            node.output[rng.randrange(len(node.output))] = name
        case "info":
            pick(rng, infos_of(model)).name = name
        case "initializer":
            pick(rng, [*model.graph.initializer, *tensors_of(model)]).name = name
        case "graph":
            pick(rng, [graph for graph in graphs_of(model) if isinstance(graph, onnx.GraphProto)]).name = name
        case "domain":
            pick(rng, nodes_of(model)).domain = rng.choice(
                (name, "ai.onnx", "ai.onnx.ml", "com.none", "deep5.compiled")
            )
        case "function":
            pick(rng, model.functions).name = name


def value_renamed_everywhere(rng: random.Random, model: onnx.ModelProto) -> None:
    """Rename a value to an odd name, consistently."""
    old = pick(rng, [name for name in names_of(model) if name])
    new = rng.choice([text for text in TEXTS if text] + ["a b", "notify", "def", "self", "v0", "grad:x", "-", "1"])
    for graph in graphs_of(model):
        for node in graph.node:
            for names in (node.input, node.output):
                for number, name in enumerate(names):
                    names[number] = new if name == old else name
    for info in infos_of(model):
        info.name = new if info.name == old else info.name
    for tensor in tensors_of(model):
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


def values_extreme(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change numbers of an initial value: shapes, axes, indices and counts among them."""
    tensor = pick(rng, [each for each in tensors_of(model) if each.data_type in (1, 6, 7, 11)])
    array = _array(tensor)
    flat = array.reshape(-1)
    extremes = FLOATS if array.dtype.kind == "f" else INTS
    for _ in range(rng.choice((1, 1, 2, flat.size))):
        with np.errstate(all="ignore"):
            number = np.array(rng.choice(extremes)).astype(array.dtype)
        flat[rng.randrange(flat.size)] = number
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def tensor_reshaped(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = pick(rng, tensors_of(model))
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


def tensor_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = pick(rng, tensors_of(model))
    match rng.choice(("bytes", "bytes", "dims", "dtype", "fields", "negative", "segment", "location")):
        case "bytes" if tensor.raw_data:
            raw = tensor.raw_data
            tensor.raw_data = rng.choice((raw[:-1], raw + b"\0", b"", raw * 2, raw[: len(raw) // 2]))
        case "dims":
            tensor.dims.append(rng.choice(EXTENTS))
        case "negative" if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(EXTENTS)
        case "dtype":
            tensor.data_type = rng.choice(DTYPES)
        case "fields":
            tensor.float_data.append(1.0)
            tensor.int64_data.append(1)
        case "segment":
            tensor.segment.begin, tensor.segment.end = 0, 1 << 40
        case _:
            tensor.data_location = TensorProto.EXTERNAL


def initial_as_input(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = pick(rng, model.graph.initializer)
    kept = [each for each in model.graph.initializer if each.name != tensor.name]
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(info)


def input_as_initial(rng: random.Random, model: onnx.ModelProto) -> None:
    """Turn a fed value into one that the file holds: folding then follows it."""
    info = pick(rng, [each for each in model.graph.input if each.type.HasField("tensor_type")])
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


def initial_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    model.graph.initializer.append(pick(rng, model.graph.initializer))


def sparse(rng: random.Random, model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), pick(rng, names_of(model)))
    indices = numpy_helper.from_array(np.array([rng.choice(INTS)], np.int64))
    made = helper.make_sparse_tensor(values, indices, [rng.choice(EXTENTS)])
    if rng.random() < 0.3:
        model.graph.sparse_initializer.append(made)
        return
    node = model.graph.node.add(op_type="Constant", output=["sparse"])
    node.attribute.append(helper.make_attribute("sparse_value", made))
    feed_into(rng, model, "sparse", node)


def external(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = pick(rng, model.graph.initializer)
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=rng.choice(PATHS) if rng.random() < 0.7 else "weights.bin")
    if rng.random() < 0.6:
        tensor.external_data.add(key="offset", value=rng.choice(NUMBERS))
    if rng.random() < 0.6:
        tensor.external_data.add(key="length", value=rng.choice(NUMBERS))
    if rng.random() < 0.2:
        tensor.external_data.add(key=rng.choice(("checksum", "basepath", "location", "\0")), value=rng.choice(PATHS))
    if rng.random() < 0.2:
        tensor.dims.append(rng.choice(EXTENTS))


def external_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = pick(rng, [each.t for each in attributes_of(model) if each.type == AttributeProto.TENSOR])
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=rng.choice(PATHS))


# Nodes and edges.
