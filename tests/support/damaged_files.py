"""Small files of the kinds that people have, and the ways in which files are damaged or contradict themselves."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["DAMAGES", "KINDS", "bytes_damaged", "damaged"]

Damage = Callable[[random.Random, onnx.ModelProto], None]


class Inapplicable(Exception):
    """A damage that a model has no place for."""


def _float(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _array(values: object, dtype: type, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def _model(text: str, values: Mapping[str, np.ndarray], opset: int = 20, version: int = 10) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: {version}, opset_import: ["": {opset}]> {text}')
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return made


_DRAW = np.random.default_rng(0)


def _normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return _DRAW.standard_normal(shape).astype(dtype)


def _weights_as_inputs() -> onnx.ModelProto:
    """Before version 4 of the format every initial value is an input, too."""
    text = "g (float[N, 3] x, float[3, 4] w, float[4] b) => (float[N, 4] y) { h = Gemm (x, w, b) y = Relu (h) }"
    return _model(text, {"w": _normal(3, 4), "b": _normal(4)}, opset=8, version=3)


def _half() -> onnx.ModelProto:
    text = "g (float16[N, 3] x) => (float16[N, 4] y) { h = MatMul (x, w) a = Add (h, b) y = Tanh (a) }"
    return _model(text, {"w": _normal(3, 4, dtype=np.float16), "b": _normal(4, dtype=np.float16)})


def _image() -> onnx.ModelProto:
    text = """g (float[N, 2, 6, 6] x) => (float[N, 5] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k, b) n = BatchNormalization (c, s, o, m, v) r = Relu (n)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) f = Flatten (p) y = Gemm <transB = 1> (f, w, d) }"""
    values = {"k": _normal(3, 2, 3, 3), "b": _normal(3), "s": _normal(3), "o": _normal(3), "m": _normal(3)}
    return _model(text, {**values, "v": np.abs(_normal(3)), "w": _normal(5, 27), "d": _normal(5)}, opset=17)


def _recurrent() -> onnx.ModelProto:
    text = """g (float[T, N, 3] x) => (float[T, N, 2] z) {
        y, h, c = LSTM <hidden_size = 2> (x, w, r, b) z = Squeeze (y, one) }"""
    made = _model(text, {"w": _normal(1, 8, 3), "r": _normal(1, 8, 2), "b": _normal(1, 16)}, opset=14)
    made.graph.initializer.append(_array([1], np.int64, "one"))
    return made


def _control() -> onnx.ModelProto:
    text = """g (float[2] x, bool c, float[3, 2] rows) => (float[2] y) <int64 n = {3}, bool yes = {1}> {
        a = If (c) <then_branch = t () => (float[2] p) { p = Mul (x, w) },
            else_branch = e () => (float[2] q) { q = Neg (x) }>
        b = Loop (n, yes, a) <body = l (int64 i, bool g, float[2] s) => (bool d, float[2] u) {
            d = Identity (g) u = Add (s, w) }>
        y = Scan <num_scan_inputs = 1, body = k (float[2] s, float[2] r) => (float[2] v) {
            v = Mul (s, r) }> (b, rows) }"""
    return _model(text, {"w": _normal(2)})


def _trees() -> onnx.ModelProto:
    nodes: dict[str, object] = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
    }  # fmt: skip
    ends: dict[str, object] = {
        "class_treeids": [0] * 6, "class_nodeids": [1, 1, 1, 2, 2, 2], "class_ids": [0, 1, 2, 0, 1, 2],
        "class_weights": [0.7, 0.2, 0.1, 0.2, 0.3, 0.5], "classlabels_int64s": [0, 1, 2], "post_transform": "NONE",
    }  # fmt: skip
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **nodes, **ends)
    outputs = [helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]), _float("scores", "N", 3)]
    graph = helper.make_graph([node], "g", [_float("x", "N", 2)], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _zip_map() -> onnx.ModelProto:
    made = _trees()
    made.graph.node.append(
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    )
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    made.graph.output.append(helper.make_value_info("maps", helper.make_sequence_type_proto(kind)))
    return made


def _quantized() -> onnx.ModelProto:
    scale, zero = _array(0.05, np.float32, "scale"), _array(128, np.uint8, "zero")
    both = ("scale", "zero")
    weight = _array(np.arange(12).reshape(3, 4), np.uint8, "w")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("QLinearAdd", ["q", *both, "q", *both, *both], ["s"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["s", "scale", "zero"], ["d"]),
        helper.make_node("DynamicQuantizeMatMul", ["d", "w", "scale", "zero"], ["y"], domain="com.microsoft"),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [_float("x", "N", 3)], [_float("y", "N", 4)], [scale, zero, weight])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _exported(dynamo: bool) -> onnx.ModelProto:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    given = (torch.ones(2, 2, 6),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(module.eval(), given, dynamo=True, verbose=False)
            return program.model_proto  # type: ignore[union-attr]
        file = io.BytesIO()
        torch.onnx.export(module.eval(), given, file, dynamo=False, opset_version=17)
        return onnx.ModelProto.FromString(file.getvalue())


KINDS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "ir3": _weights_as_inputs,
    "float16": _half,
    "image": _image,
    "recurrent": _recurrent,
    "control": _control,
    "trees": _trees,
    "zipmap": _zip_map,
    "quantized": _quantized,
    "dynamo": lambda: _exported(True),
    "jit": lambda: _exported(False),
}
"""Models by kind."""


def _any(rng: random.Random, values: object) -> object:
    found = list(values)  # type: ignore[call-overload]
    if not found:
        raise Inapplicable
    return rng.choice(found)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for entry in node.attribute:
            if entry.HasField("g"):
                yield from _all_nodes(entry.g)


def _tensor(rng: random.Random, model: onnx.ModelProto) -> onnx.TensorProto:
    return _any(rng, model.graph.initializer)  # type: ignore[return-value]


def _node(rng: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    return _any(rng, _all_nodes(model.graph))  # type: ignore[return-value]


def _attribute(rng: random.Random, model: onnx.ModelProto) -> tuple[onnx.NodeProto, onnx.AttributeProto]:
    return _any(rng, ((node, entry) for node in _all_nodes(model.graph) for entry in node.attribute))  # type: ignore[return-value]


def raw_shorter(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]


def dims_longer(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.dims.append(3)


def dim_negative(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.dims[:] = [-1, *tensor.dims[1:]]


def dim_huge(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.dims[:] = [1 << rng.choice((31, 40, 62)), *tensor.dims[1:]]


def element_unknown(rng: random.Random, model: onnx.ModelProto) -> None:
    _tensor(rng, model).data_type = rng.choice((0, 14, 77, -1))


def element_other(rng: random.Random, model: onnx.ModelProto) -> None:
    _tensor(rng, model).data_type = rng.choice((1, 2, 6, 7, 10, 11, 16, 22))


def name_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _node(rng, model)
    node.output[0] = str(_any(rng, (name for other in model.graph.node for name in other.output if name)))


def initial_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    model.graph.initializer.append(_tensor(rng, model))


def name_empty(rng: random.Random, model: onnx.ModelProto) -> None:
    _tensor(rng, model).name = ""


def cyclic(rng: random.Random, model: onnx.ModelProto) -> None:
    node: onnx.NodeProto = _any(rng, (each for each in model.graph.node if each.input))  # type: ignore[assignment]
    node.input[0] = node.output[0]


def input_missing(rng: random.Random, model: onnx.ModelProto) -> None:
    del model.graph.input[rng.randrange(len(model.graph.input))]


def initial_missing(rng: random.Random, model: onnx.ModelProto) -> None:
    _tensor(rng, model)
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def attribute_retyped(rng: random.Random, model: onnx.ModelProto) -> None:
    node, entry = _attribute(rng, model)
    name = entry.name
    node.attribute.remove(entry)
    node.attribute.append(helper.make_attribute(name, rng.choice((1.5, "text", 3, [2, 3], [0.5]))))


def attribute_missing(rng: random.Random, model: onnx.ModelProto) -> None:
    node, entry = _attribute(rng, model)
    node.attribute.remove(entry)


def attribute_unknown(rng: random.Random, model: onnx.ModelProto) -> None:
    _node(rng, model).attribute.append(helper.make_attribute("no_such_attribute", 3))


def attribute_extreme(rng: random.Random, model: onnx.ModelProto) -> None:
    _, entry = _attribute(rng, model)
    if entry.type == onnx.AttributeProto.INT:
        entry.i = rng.choice((-1, 0, 1 << 31, (1 << 63) - 1, -(1 << 63)))
    elif entry.type == onnx.AttributeProto.INTS and entry.ints:
        entry.ints[rng.randrange(len(entry.ints))] = rng.choice((-7, 0, 1 << 31, (1 << 63) - 1))
    elif entry.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        entry.ints[:] = entry.ints[:-1]
        entry.floats[:] = entry.floats[:-1]
    else:
        raise Inapplicable


def list_shorter(rng: random.Random, model: onnx.ModelProto) -> None:
    _, entry = _attribute(rng, model)
    if not (entry.ints or entry.floats or entry.strings):
        raise Inapplicable
    entry.ints[:], entry.floats[:], entry.strings[:] = entry.ints[:-1], entry.floats[:-1], entry.strings[:-1]


def opset_99(rng: random.Random, model: onnx.ModelProto) -> None:
    _any(rng, model.opset_import).version = rng.choice((99, 0, -1, 1))  # type: ignore[attr-defined]


def opset_missing(rng: random.Random, model: onnx.ModelProto) -> None:
    del model.opset_import[rng.randrange(len(model.opset_import)) :]


def operator_unknown(rng: random.Random, model: onnx.ModelProto) -> None:
    _node(rng, model).op_type = "NoSuchOperator"


def domain_unknown(rng: random.Random, model: onnx.ModelProto) -> None:
    _node(rng, model).domain = rng.choice(("no.such.domain", "com.microsoft", "ai.onnx.ml"))


def inputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _node(rng, model)
    del node.input[max(len(node.input) - 1, 0) :]


def inputs_more(rng: random.Random, model: onnx.ModelProto) -> None:
    node = _node(rng, model)
    node.input.extend([node.input[0] if node.input else model.graph.input[0].name] * 3)


def outputs_more(rng: random.Random, model: onnx.ModelProto) -> None:
    _node(rng, model).output.extend(["extra_1", "extra_2", "extra_3"])


def value_shape_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    name = str(_any(rng, (name for node in model.graph.node for name in node.output)))
    model.graph.value_info.append(_float(name, 17, 19))


def value_type_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    name = str(_any(rng, (name for node in model.graph.node for name in node.output)))
    model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.INT64, None))


def output_shape_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    output: onnx.ValueInfoProto = _any(rng, model.graph.output)  # type: ignore[assignment]
    if not output.type.HasField("tensor_type"):
        raise Inapplicable
    output.CopyFrom(helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, [17, 19]))


def output_type_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    output: onnx.ValueInfoProto = _any(rng, model.graph.output)  # type: ignore[assignment]
    if not output.type.HasField("tensor_type"):
        raise Inapplicable
    output.type.tensor_type.elem_type = rng.choice((6, 9, 11, 8))


def input_type_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    _any(rng, model.graph.input).type.tensor_type.elem_type = rng.choice((6, 9, 11, 8, 0))  # type: ignore[attr-defined]


def input_shape_contradicts(rng: random.Random, model: onnx.ModelProto) -> None:
    value: onnx.ValueInfoProto = _any(rng, model.graph.input)  # type: ignore[assignment]
    value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, [17, 19]))


def input_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    model.graph.input.append(_any(rng, model.graph.input))  # type: ignore[arg-type]


def output_not_produced(rng: random.Random, model: onnx.ModelProto) -> None:
    _any(rng, model.graph.output).name = "nothing_computes_this"  # type: ignore[attr-defined]


def output_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.output[0])


def no_outputs(rng: random.Random, model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def initial_against_input(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    for value in list(model.graph.input):
        if value.name == tensor.name:
            model.graph.input.remove(value)
    model.graph.input.append(_float(tensor.name, 17, 19))


def graph_outputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    graphs = [entry.g for node in _all_nodes(model.graph) for entry in node.attribute if entry.HasField("g")]
    graph: onnx.GraphProto = _any(rng, graphs)  # type: ignore[assignment]
    del graph.output[-1]


def graph_inputs_more(rng: random.Random, model: onnx.ModelProto) -> None:
    graphs = [entry.g for node in _all_nodes(model.graph) for entry in node.attribute if entry.HasField("g")]
    graph: onnx.GraphProto = _any(rng, graphs)  # type: ignore[assignment]
    graph.input.append(_float("one_more", 2))


def graph_inputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    graphs = [entry.g for node in _all_nodes(model.graph) for entry in node.attribute if entry.HasField("g")]
    graph: onnx.GraphProto = _any(rng, (each for each in graphs if each.input))  # type: ignore[assignment]
    del graph.input[-1]


def graph_missing(rng: random.Random, model: onnx.ModelProto) -> None:
    found = [(node, entry) for node in _all_nodes(model.graph) for entry in node.attribute if entry.HasField("g")]
    node, entry = _any(rng, found)  # type: ignore[misc]
    node.attribute.remove(entry)


def nodes_shuffled(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def numbers_not_finite(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype.kind == "f":
        array[...] = rng.choice((np.nan, np.inf, -np.inf))
    elif array.dtype.kind in "iu":
        array[...] = np.iinfo(array.dtype).max
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def external_missing(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(rng, model)
    if not tensor.HasField("raw_data"):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.external_data_helper.set_external_data(
        tensor, rng.choice(("none.bin", "../outside.bin", "/etc/passwd", "short.bin", ""))
    )
    tensor.ClearField("raw_data")


def not_utf8(rng: random.Random, model: onnx.ModelProto) -> None:
    _, entry = _attribute(rng, model)
    entry.s = b"\xff\xfe"
    entry.type = onnx.AttributeProto.STRING


DAMAGES: Mapping[str, Damage] = {
    damage.__name__: damage
    for damage in (
        raw_shorter, dims_longer, dim_negative, dim_huge, element_unknown, element_other, name_twice, initial_twice,
        name_empty, cyclic, input_missing, initial_missing, attribute_retyped, attribute_missing, attribute_unknown,
        attribute_extreme, list_shorter, opset_99, opset_missing, operator_unknown, domain_unknown, inputs_fewer,
        inputs_more, outputs_more, value_shape_contradicts, value_type_contradicts, output_shape_contradicts,
        output_type_contradicts, input_type_contradicts, input_shape_contradicts, input_twice, output_not_produced,
        output_twice, no_outputs, initial_against_input, graph_outputs_fewer, graph_inputs_more, graph_inputs_fewer,
        graph_missing, nodes_shuffled, numbers_not_finite, external_missing, not_utf8,
    )
}  # fmt: skip
"""What can be wrong with a model, by name."""


def damaged(model: onnx.ModelProto, damage: str, seed: int) -> onnx.ModelProto | None:
    """A damaged copy of a model; None if it has no place for the damage.

    Args:
        model: The model; not changed.
        damage: A name in `DAMAGES`.
        seed: Which place, and what there.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    try:
        DAMAGES[damage](random.Random(f"{damage} {seed}"), made)  # noqa: S311 - nothing secret
    except Inapplicable:
        return None
    return made


def bytes_damaged(data: bytes, seed: int) -> bytes:
    """A file that is cut off, or in which some bits are others."""
    rng = random.Random(seed)  # noqa: S311
    if seed % 2:
        return data[: rng.randrange(len(data))]
    found = bytearray(data)
    for _ in range(rng.choice((1, 3, 10))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)
