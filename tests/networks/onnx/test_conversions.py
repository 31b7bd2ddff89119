"""deep5's conversion of older opsets: complete by ONNX's schemas, also in nested graphs, and nothing else changes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.networks import Network
from deep5.networks.onnx.conversions import STEPS
from deep5.networks.onnx.upgrading import upgraded
from opset_cases import Drawn, difference, expected
from original import declared, graph_model, plain

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
# Changes of schemas that change no node, and why.
HARMLESS = {
    ("Attention", 24): "an input more",
    ("GRU", 3): "a default was misspelled",
    ("Gemm", 11): "an input may be left out",
    ("MaxPool", 8): "an output more",
    ("OptionalHasElement", 18): "an input may be left out",
    ("Pad", 18): "an input more",
    ("ReduceLogSum", 28): "fewer types, in an opset that no network is converted to",
    ("ReduceLogSumExp", 28): "fewer types, in an opset that no network is converted to",
}


def value(name: str, array: np.ndarray | None = None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    if array is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, kind if array.dtype == np.float32 else _kind(array), array.shape)


def _kind(array: np.ndarray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray | None],
    opset: int,
    stored: dict[str, np.ndarray] | None = None,
    domains: tuple[str, ...] = (),
    **settings: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "graph", [value(*each) for each in inputs.items()], [value(*each) for each in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (stored or {}).items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **settings)


def result(made: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    outputs = d5.framework("reference").executor(Network.from_onnx(made)).inference(feed)
    return [np.asarray(outputs[each.name]) for each in made.graph.output]


def check(made: onnx.ModelProto, feed: dict[str, np.ndarray]) -> None:
    """deep5 computes what plain ONNX Runtime computes of the file itself."""
    who, want = expected(made, feed, Drawn(inputs=()))
    assert who == "onnxruntime"
    for right, got in zip(want, result(made, feed), strict=True):
        assert (said := difference(right, got)) is None, said


def changes(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> list[str]:
    """What a node of the old version may have that means something else, or nothing, in the new one."""
    found = [name for name in old.attributes if name not in new.attributes]
    found += [name for name, each in new.attributes.items() if name not in old.attributes and each.required]
    for name, each in old.attributes.items():
        same = new.attributes.get(name)
        if same is not None and (each.type, each.default_value) != (same.type, same.default_value):
            found.append(name)
    if len(old.inputs) != len(new.inputs) or len(old.outputs) != len(new.outputs) or new.deprecated:
        found.append("inputs, outputs")
    for before, after in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=False):
        if before.option != after.option or set(before.types) - set(after.types):
            found.append(before.name)
    return found


def test_every_change_of_a_schema_has_a_conversion() -> None:
    schemas: dict[str, dict[int, onnx.defs.OpSchema]] = defaultdict(dict)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            schemas[schema.name][schema.since_version] = schema
    missing = {
        (operator, after): said
        for operator, versions in schemas.items()
        for before, after in zip(sorted(versions), sorted(versions)[1:], strict=False)
        if (said := changes(versions[before], versions[after])) and after not in STEPS.get(operator, ())
    }
    assert set(missing) == set(HARMLESS), missing
    for operator, steps in STEPS.items():
        assert set(steps) <= set(schemas[operator]), operator


# Opsets before 7, which ONNX Runtime does not run: operator, opset, inputs, attributes, the right answer.
ONE = np.ones(3, np.float32)
OLD: dict[str, tuple[str, int, tuple[np.ndarray, ...], dict[str, Any], np.ndarray]] = {
    "add from an axis": ("Add", 6, (X, ONE), {"broadcast": 1, "axis": 1}, X + ONE[:, None]),
    "multiply the last": ("Mul", 6, (X, X[0, 0]), {"broadcast": 1}, X * X[0, 0]),
    "subtract from the first": ("Sub", 1, (X, X[:, 0, 0]), {"broadcast": 1, "axis": 0}, X - X[:, :1, :1]),
    "power of a scalar": ("Pow", 1, (X, np.array(2, np.float32)), {"broadcast": 1}, X**2),
    "less": ("Less", 1, (X, X[0]), {"broadcast": 1, "axis": 1}, X[0] > X),
    "and": ("And", 1, (X > 0, X[0, :, 0] > 0), {"broadcast": 1, "axis": 1}, (X > 0) & (X[0, :, :1] > 0)),
    "slopes of channels": ("PRelu", 6, (X, ONE / 2), {}, np.where(X < 0, X / 2, X)),
    "consumed inputs": ("Relu", 1, (X,), {"consumed_inputs": [0]}, np.maximum(X, 0)),
    "defaults of Selu": ("Selu", 1, (X,), {}, 1.0507 * np.where(X > 0, X, 1.6732 * np.expm1(X))),
    "default axis": ("Concat", 1, (X, X), {}, np.concatenate([X, X], 1)),
    "shape": ("Reshape", 1, (X,), {"shape": [4, -1]}, X.reshape(4, 6)),
    "paddings": ("Pad", 1, (ONE,), {"paddings": [1, 2], "value": 3.0}, np.array([3.0, 1, 1, 1, 3, 3])),
    "named type": ("Cast", 1, (X,), {"to": "INT64"}, X.astype(np.int64)),
    "one axis": ("Tile", 1, (X, np.array(2, np.float32), np.array(1, np.float32)), {}, np.tile(X, (1, 2, 1))),
    "float power": ("GlobalLpPool", 1, (X,), {"p": 2.0}, np.sqrt((X**2).sum(2, keepdims=True))),
    "is_test": ("Dropout", 6, (X,), {"is_test": 1}, X),
    "scales of images": ("Upsample", 1, (X[None],), {"height_scale": 2.0, "width_scale": 1.0}, X[None].repeat(2, 2)),
    "gemm": ("Gemm", 6, (X[0], X[0].T, ONE), {"broadcast": 1}, X[0] @ X[0].T + ONE),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_opsets_before_7(name: str) -> None:
    operator, opset, inputs, attributes, right = OLD[name]
    right = right if right.dtype.kind in "bi" else right.astype(np.float32)
    feed = {f"x{index}": array for index, array in enumerate(inputs)}
    node = helper.make_node(operator, list(feed), ["y"], **attributes)
    (got,) = result(model([node], feed, {"y": right}, opset), feed)
    assert (said := difference(right, got)) is None, said


def test_broadcasting_of_unknown_ranks() -> None:
    feed = {"x": X, "shape": np.array([2, 3, 4]), "short": np.array([3])}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("Slice", ["x"], ["row"], starts=[0, 0], ends=[1, 1], axes=[0, 2]),
        helper.make_node("Reshape", ["row", "short"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"], broadcast=1, axis=1),
    ]
    (got,) = result(model(nodes, feed, {"y": X}, 6), feed)
    np.testing.assert_allclose(got, X + X[0, :, :1], rtol=1e-6)


@pytest.mark.parametrize("opset", [9, 11, 12])
@pytest.mark.parametrize("operator", ["Hardmax", "Softmax", "LogSoftmax"])
def test_rows_of_nested_graphs(operator: str, opset: int) -> None:
    def body(name: str, axis: int) -> onnx.GraphProto:
        nodes = [
            helper.make_node(operator, ["x"], [f"{name}_soft"], axis=axis),
            helper.make_node("Unsqueeze", [f"{name}_soft"], [name], axes=[0]),
        ]
        return helper.make_graph(nodes, name, [], [value(name, X[None])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=body("t", 1), else_branch=body("e", 0))
    made = model([node], {"x": X, "c": np.array(True)}, {"y": X[None]}, opset)
    for chosen in (True, False):
        check(made, {"x": X, "c": np.array(chosen)})


@pytest.mark.parametrize("nested", [False, True])
def test_group_normalization_of_opset_18(nested: bool) -> None:
    x, scale = np.concatenate([X, X], 1), np.array([1.5, 0.5], np.float32)
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["n"], num_groups=2, epsilon=0.1)
    nodes = [node, helper.make_node("Relu", ["n"], ["y"])]
    if nested:
        body = helper.make_graph([node], "body", [], [value("n", x)])
        nodes[0] = helper.make_node("If", ["c"], ["n"], then_branch=body, else_branch=body)
    feed = {"x": x, **({"c": np.array(True)} if nested else {})}
    check(model(nodes, feed, {"y": x}, 18, {"s": scale, "b": scale}), feed)


@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.6, 1.7), (2.0, 0.5), (1.5, 1.0)])
@pytest.mark.parametrize("fed", [False, True])
def test_resize_of_opset_10_rounds_up_where_it_shrinks(scales: tuple[float, float], fed: bool) -> None:
    x = np.arange(60, dtype=np.float32).reshape(1, 1, 6, 10)
    given = {"s": np.array([1, 1, *scales], np.float32)}
    node = helper.make_node("Resize", ["x", "s"], ["y"], "resized")
    feed = {"x": x, **(given if fed else {})}
    made = model([node], feed, {}, 10, None if fed else given)
    made.graph.output.append(helper.make_tensor_value_info("y", FLOAT, ["N", "C", "H", "W"]))
    check(made, feed)


def test_functions_of_another_opset() -> None:
    """A function may import another version than the graph: its nodes are converted from that one."""
    soft = helper.make_node("Softmax", ["a"], ["s"])
    soft.attribute.add(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    body = [soft, helper.make_node("Unsqueeze", ["s"], ["b"], axes=[0])]
    function = helper.make_function("own", "f", ["a"], ["b"], body, [helper.make_opsetid("", 11)], ["axis"])
    node = helper.make_node("f", ["x"], ["y"], domain="own", axis=1)
    flat = np.exp(X.reshape(2, 12))
    right = (flat / flat.sum(1, keepdims=True)).reshape(1, 2, 3, 4)
    for opset in (13, 18, 21):
        made = model([node], {"x": X}, {"y": right}, opset, domains=("own",), functions=[function])
        (got,) = result(made, {"x": X})
        np.testing.assert_allclose(got, right, rtol=1e-6)


def test_names_documentation_and_metadata_stay() -> None:
    soft = helper.make_node("Softmax", ["x"], ["s"], name="first", doc_string="of rows", axis=1)
    soft.metadata_props.add(key="module", value="net.soft")
    inner = helper.make_node("Squeeze", ["s"], ["t"], name="inner", doc_string="within", axes=[0])
    inner.metadata_props.add(key="module", value="net.inner")
    body = helper.make_graph([inner], "body", [], [value("t", X[0])], doc_string="a branch")
    outer = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body)
    made = model([soft, outer], {"x": X[:1], "c": np.array(True)}, {"y": X[0]}, 9, doc_string="a model")
    made.graph.doc_string, made.producer_name = "a graph", "a producer"
    made.metadata_props.add(key="stride", value="8")
    made.graph.value_info.append(helper.make_tensor_value_info("s", FLOAT, [1, 3, 4]))
    new = upgraded(made)
    assert (new.doc_string, new.producer_name, new.metadata_props[0].value) == ("a model", "a producer", "8")
    assert (new.graph.doc_string, new.graph.name) == ("a graph", "graph")
    assert [each.name for each in new.graph.value_info] == ["s"]
    nodes = {each.name: each for each in new.graph.node}
    nodes |= {each.name: each for each in nodes["choice"].attribute[0].g.node}
    assert nodes["choice"].attribute[0].g.doc_string == "a branch"
    for name, node in (("first", soft), ("inner", inner)):
        assert (nodes[name].doc_string, nodes[name].metadata_props) == (node.doc_string, node.metadata_props)
    assert nodes["inner"].output == ["t"]
    assert {"x", "s", "y", "c"} <= {name for each in new.graph.node for name in (*each.input, *each.output)}
    assert made.opset_import[0].version == 9, "the model itself does not change"


@pytest.mark.parametrize("where", ["raw", "fields"])
def test_the_bits_of_initial_values_stay(where: str) -> None:
    bits = np.array([0x7FA00001, 0x80000000, 1, 0x3DCCCCCD, 0xFF800000], np.uint32)
    array = bits.view(np.float32)
    tensor = numpy_helper.from_array(array, "w")
    if where == "fields":
        tensor = TensorProto(name="w", dims=[5], data_type=FLOAT, float_data=[*array[1:].tolist(), 0.1])
    made = model(
        [helper.make_node("Where", ["c", "x", "w"], ["y"])], {"x": ONE[:1], "c": np.array([True])}, {"y": array}, 9
    )
    made.graph.initializer.append(tensor)
    (kept,) = upgraded(made).graph.initializer
    assert kept.SerializeToString() == tensor.SerializeToString()


def test_operators_of_other_domains_stay() -> None:
    nodes = [
        helper.make_node("FusedGelu", ["x"], ["g"], name="fused", domain="com.microsoft", alpha=0.1),
        helper.make_node("Scaler", ["g"], ["s"], name="scaler", domain="ai.onnx.ml", offset=[1.0], scale=[2.0]),
        helper.make_node("Softmax", ["s"], ["y"], axis=1),
    ]
    made = model(nodes, {"x": X}, {"y": X}, 9, domains=("com.microsoft", "ai.onnx.ml"))
    new = upgraded(made)
    kept = {each.name: each for each in new.graph.node if each.domain}
    assert kept == {"fused": nodes[0], "scaler": nodes[1]}
    assert {each.domain: each.version for each in new.opset_import} == {"": 20, "com.microsoft": 1, "ai.onnx.ml": 1}


def test_a_softmax_of_unknown_rank_is_flattened_when_it_runs() -> None:
    feed = {"x": X, "shape": np.array([2, 3, 4])}
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=1)]
    check(model(nodes, feed, {"y": X}, 11), feed)


def test_a_stale_declared_rank_changes_nothing() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=1)]
    made = model(nodes, {"x": X}, {"y": X}, 11)
    made.graph.value_info.append(helper.make_tensor_value_info("a", FLOAT, ["N", "C"]))
    assert "Flatten" in {node.op_type for node in upgraded(made).graph.node}


def test_sparse_values_become_dense_ones() -> None:
    def sparse(name: str) -> onnx.SparseTensorProto:
        values = helper.make_tensor(name, FLOAT, [2], [1.5, -2.5])
        return helper.make_sparse_tensor(values, helper.make_tensor("places", INT64, [2, 2], [0, 1, 1, 2]), [2, 3])

    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse("c")),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]
    x = np.ones((2, 3), np.float32)
    made = model(nodes, {"x": x}, {"y": x}, 13)
    made.graph.sparse_initializer.append(sparse("w"))
    check(made, {"x": x})
    made.graph.sparse_initializer[0].dims[:] = [1 << 20, 1 << 20]
    with pytest.raises(NetworkError, match=r"the value 'w' of shape .* bytes as a dense one; allowed: .*; remedy: "):
        Network.from_onnx(made)


REFUSED: dict[str, tuple[onnx.NodeProto, int, str]] = {
    "coordinates": (
        helper.make_node("Resize", ["x", "s", "s"], ["y"], "odd", coordinate_transformation_mode="tf_half_pixel_for_nn",
                         nearest_mode="ceil"),
        11,
        r"'odd' \(Resize\) of opset 11 or 12 has tf_half_pixel_for_nn .* nearest_mode 'ceil'; allowed: .*; remedy: ",
    ),
    "random numbers": (
        helper.make_node("Dropout", ["x"], ["y"], "odd", is_test=0), 6,
        r"'odd' \(Dropout\) of opset 6 or older has is_test=0, .*; allowed: is_test=1; remedy: ",
    ),
    "power": (
        helper.make_node("GlobalLpPool", ["x"], ["y"], "odd", p=1.5), 1,
        r"'odd' \(GlobalLpPool\) of opset 1 has p=1.5; allowed: an integer",
    ),
    "type": (
        helper.make_node("Cast", ["x"], ["y"], "odd", to="NUMBER"), 1,
        r"'odd' \(Cast\) of opset 5 or older casts to 'NUMBER'; allowed: .*'FLOAT'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_by_name(name: str) -> None:
    node, opset, said = REFUSED[name]
    made = model([node], {"x": X}, {"y": X}, opset, {"s": ONE} if "s" in node.input else None)
    with pytest.raises(NetworkError, match=said) as caught:
        Network.from_onnx(made)
    assert "not valid ONNX" not in str(caught.value)


def test_a_file_in_training_mode_runs_in_evaluation_unless_training_is_requested() -> None:
    """ONNX Runtime normalizes by the statistics of the batch."""
    statistics = {"s": np.ones(3), "b": np.zeros(3), "m": np.full(3, 0.5), "v": np.full(3, 4)}
    nodes = [
        helper.make_node("BatchNormalization", ["x", *statistics], ["y", "m2", "v2"], training_mode=1, epsilon=0.0)
    ]
    initial = {name: array.astype(np.float32) for name, array in statistics.items()}
    proto = graph_model(nodes, [declared("x", ["n", 3, 4])], [declared("y", ["n", 3, 4])], initial)
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    np.testing.assert_allclose(d5.to_numpy(executor.inference({"x": X})["y"]), (X - 0.5) / 2, rtol=1e-6, atol=1e-6)
    trained = d5.to_numpy(executor.inference({"x": X}, training=True)["y"])
    np.testing.assert_allclose(trained, plain(proto, {"x": X})["y"], rtol=1e-5, atol=1e-6)  # sums of 8 numbers
