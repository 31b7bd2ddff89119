"""Classical machine learning, domain ai.onnx.ml: types that ONNX does not infer, and values as of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported
from original import compared, declared, graph_model, plain

DRAW = np.random.default_rng(35)
LEAF = "LEAF"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def drawn(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def listed(*shape: int) -> list[float]:
    return drawn(*shape).reshape(-1).tolist()


def node(operator: str, outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, ["x"], outputs, domain="ai.onnx.ml", **attributes)


def model(made: onnx.NodeProto, x: np.ndarray, version: int, outputs: list[str]) -> onnx.ModelProto:
    """The node, and an Identity of each output, whose type follows only from that of the node."""
    kind = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    results = [onnx.ValueInfoProto(name=name.upper()) for name in outputs]
    passed = [helper.make_node("Identity", [name], [name.upper()]) for name in outputs]
    shape = ["n", *x.shape[1:]]
    return graph_model([made, *passed], [declared("x", shape, kind)], results, domains={"ai.onnx.ml": version})


def forest(kind: str, results: list[int], *, trees: int = 4, depth: int = 3, single: bool = False) -> dict[str, Any]:
    """Attributes of an ensemble of full trees; with `single`, one more tree of one leaf."""
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    sizes = [count] * trees + [1] * single
    modes = [DRAW.choice(MODES) if number < inner and size > 1 else LEAF for size in sizes for number in range(size)]
    leaves = [(tree, number) for tree, size in enumerate(sizes) for number in range(inner if size > 1 else 0, size)]
    held = [(tree, number, result) for tree, number in leaves for result in results]
    nodes = [number for size in sizes for number in range(size)]
    branching = [mode != LEAF for mode in modes]
    return {
        "nodes_treeids": [tree for tree, size in enumerate(sizes) for _ in range(size)],
        "nodes_nodeids": nodes,
        "nodes_featureids": DRAW.integers(0, 3, len(nodes)).tolist(),
        "nodes_values": np.round(DRAW.standard_normal(len(nodes)), 1).tolist(),
        "nodes_modes": modes,
        "nodes_truenodeids": [2 * each + 1 if on else 0 for each, on in zip(nodes, branching, strict=True)],
        "nodes_falsenodeids": [2 * each + 2 if on else 0 for each, on in zip(nodes, branching, strict=True)],
        "nodes_missing_value_tracks_true": DRAW.integers(0, 2, len(nodes)).tolist(),
        f"{kind}_treeids": [tree for tree, _, _ in held],
        f"{kind}_nodeids": [number for _, number, _ in held],
        f"{kind}_ids": [result for _, _, result in held],
        f"{kind}_weights": listed(len(held)),
    }


def with_branches(attributes: dict[str, Any], kind: str) -> dict[str, Any]:
    """The same ensemble with a weight at the first node of the first tree, in which no sample ends."""
    more = {f"{kind}_treeids": 0, f"{kind}_nodeids": 0, f"{kind}_ids": 0, f"{kind}_weights": 5.0}
    return {**attributes, **{name: [*attributes[name], value] for name, value in more.items()}}


def table(rows: int = 7) -> np.ndarray:
    """Features, rounded so that comparisons meet equal numbers, and a missing value."""
    x = np.round(drawn(rows, 3), 1)
    x[-1, 1] = np.nan
    return x


REGRESSION = {**forest("target", [0], single=True), "n_targets": 1}
POSITIVE = [abs(weight) for weight in listed(8 * 4)]
SUPPORTS = {"kernel_params": [0.4, 0.3, 2.0], "support_vectors": listed(6, 3), "kernel_type": "RBF"}
MACHINE = {**SUPPORTS, "coefficients": listed(2, 6), "vectors_per_class": [1, 2, 3], "rho": listed(3)}
TWO = {**SUPPORTS, "coefficients": listed(6), "vectors_per_class": [2, 4], "rho": listed(1)}
VALUES = {**SUPPORTS, "coefficients": listed(6), "rho": listed(1), "n_supports": 6}
LINE = {"coefficients": listed(3), "rho": listed(1), "kernel_params": [0.0] * 3}
LABELS = {"classlabels_ints": [7, 9, 4]}
CASES: dict[str, tuple[str, np.ndarray, list[str], dict[str, Any]]] = {
    "Scaler": ("Scaler", drawn(4, 3), ["y"], {"offset": listed(3), "scale": listed(3)}),
    "Scaler of integers": ("Scaler", np.arange(6).reshape(2, 3), ["y"], {"offset": [1.0], "scale": [0.5]}),
    "Normalizer MAX": ("Normalizer", drawn(4, 3), ["y"], {"norm": "MAX"}),
    "Normalizer L1": ("Normalizer", np.vstack([drawn(4, 3), np.zeros((1, 3), np.float32)]), ["y"], {"norm": "L1"}),
    "Normalizer L2": ("Normalizer", drawn(4, 3), ["y"], {"norm": "L2"}),
    "Imputer of NaN": (
        "Imputer",
        table(),
        ["y"],
        {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")},
    ),
    "Imputer of integers": (
        "Imputer",
        np.arange(6).reshape(2, 3),
        ["y"],
        {"imputed_value_int64s": [50], "replaced_value_int64": 4},
    ),
    "OneHotEncoder": ("OneHotEncoder", np.array([[1, 2], [3, 9]]), ["y"], {"cats_int64s": [1, 2, 3]}),
    "OneHotEncoder of floats": ("OneHotEncoder", np.float32([[1, 2.7], [3, 9]]), ["y"], {"cats_int64s": [1, 2, 3]}),
    "FeatureVectorizer": ("FeatureVectorizer", drawn(3, 4), ["y"], {"inputdimensions": [4]}),
    "CategoryMapper": (
        "CategoryMapper",
        np.array([["a", "q"]], object),
        ["y"],
        {"cats_strings": ["a", "b"], "cats_int64s": [4, 5], "default_int64": -7},
    ),
    "LinearRegressor": (
        "LinearRegressor",
        drawn(4, 3),
        ["y"],
        {"coefficients": listed(2, 3), "intercepts": listed(2), "targets": 2, "post_transform": "SOFTMAX"},
    ),
    "LinearRegressor of one target": ("LinearRegressor", drawn(4, 3), ["y"], {"coefficients": listed(3)}),
    "LinearClassifier": (
        "LinearClassifier",
        drawn(5, 3),
        ["y", "z"],
        {"coefficients": listed(3, 3), "intercepts": listed(3), "post_transform": "SOFTMAX", **LABELS},
    ),
    "LinearClassifier of strings": (
        "LinearClassifier",
        drawn(5, 3),
        ["y", "z"],
        {"coefficients": listed(2, 3), "intercepts": listed(2), "classlabels_strings": ["no", "yes"]},
    ),
    "LinearClassifier of one row": (
        "LinearClassifier",
        drawn(5, 3),
        ["y", "z"],
        {
            "coefficients": listed(3),
            "intercepts": listed(1),
            "post_transform": "LOGISTIC",
            "classlabels_ints": [7, 9],
        },
    ),
    "SVMRegressor": (
        "SVMRegressor",
        drawn(5, 3),
        ["y"],
        {**VALUES, "kernel_type": "POLY"},
    ),
    "SVMRegressor, linear": (
        "SVMRegressor",
        drawn(5, 3),
        ["y"],
        LINE,
    ),
    "SVMClassifier": ("SVMClassifier", drawn(6, 3), ["y", "z"], {**MACHINE, **LABELS}),
    "SVMClassifier with probabilities": (
        "SVMClassifier",
        drawn(6, 3),
        ["y", "z"],
        {**MACHINE, **LABELS, "prob_a": [-1.0, -2.0, -0.5], "prob_b": listed(3)},
    ),
    "SVMClassifier of two": (
        "SVMClassifier",
        drawn(6, 3),
        ["y", "z"],
        {**TWO, "classlabels_ints": [7, 9], "prob_a": [-1.5], "prob_b": [0.2], "kernel_type": "SIGMOID"},
    ),
    "TreeEnsembleRegressor": (
        "TreeEnsembleRegressor",
        table(),
        ["y"],
        {**forest("target", [0], single=True), "n_targets": 1},
    ),
    "TreeEnsembleRegressor of three": (
        "TreeEnsembleRegressor",
        table(),
        ["y"],
        {
            **forest("target", [0, 1, 2]),
            "n_targets": 3,
            "aggregate_function": "AVERAGE",
            "base_values": listed(3),
            "post_transform": "SOFTMAX",
        },
    ),
    "TreeEnsembleRegressor of least": (
        "TreeEnsembleRegressor",
        table(),
        ["y"],
        {**forest("target", [0, 1]), "n_targets": 2, "aggregate_function": "MIN"},
    ),
    "TreeEnsembleClassifier": (
        "TreeEnsembleClassifier",
        table(),
        ["y", "z"],
        {**forest("class", [0, 1, 2]), "classlabels_int64s": [7, 9, 4], "post_transform": "SOFTMAX"},
    ),
    "TreeEnsembleClassifier with weights at branches": (
        "TreeEnsembleClassifier",
        table(),
        ["y", "z"],
        {**with_branches(forest("class", [0, 1, 2]), "class"), "classlabels_int64s": [7, 9, 4]},
    ),
    "TreeEnsembleClassifier of two": (
        "TreeEnsembleClassifier",
        table(),
        ["y", "z"],
        {**forest("class", [0]), "classlabels_strings": ["no", "yes"], "post_transform": "LOGISTIC"},
    ),
    "TreeEnsembleClassifier of probabilities": (
        "TreeEnsembleClassifier",
        table(),
        ["y", "z"],
        {**forest("class", [0]), "class_weights": POSITIVE, "classlabels_int64s": [7, 9]},
    ),
}


@pytest.mark.daily
@pytest.mark.parametrize("what", CASES)
def test_values_are_those_of_plain_onnx_runtime(what: str) -> None:
    operator, x, outputs, attributes = CASES[what]
    proto = model(node(operator, outputs, **attributes), x, 3 if operator.startswith("Tree") else 1, outputs)
    network = d5.Network.from_onnx(proto)
    feeds = {"x": x}, {"x": x[:1]}
    compared(network, proto, "reference", *feeds)
    strings = [spec for spec in (*network.inputs.values(), *network.outputs.values()) if spec.dtype == "string"]
    if strings:
        with pytest.raises(Unsupported, match=r"is string.*remedy: framework 'reference'"):
            d5.framework("onnxruntime").executor(network)
    else:
        compared(network, proto, "onnxruntime", *feeds)


def test_tensors_of_the_third_version() -> None:
    attributes = {**forest("target", [0]), "n_targets": 1}
    for name in ("nodes_values", "target_weights"):
        array = np.array(attributes.pop(name), np.float64)
        attributes[f"{name}_as_tensor"] = numpy_helper.from_array(array, name)
    x = table().astype(np.float64)
    proto = model(node("TreeEnsembleRegressor", ["y"], **attributes), x, 3, ["y"])
    for framework in ("reference", "onnxruntime"):
        compared(d5.Network.from_onnx(proto), proto, framework, {"x": x})


def test_a_pipeline_keeps_the_name_of_the_batch() -> None:
    """A scaler, a linear model and arithmetic after it, as skl2onnx writes a pipeline."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        helper.make_node(
            "LinearRegressor", ["s"], ["r"], domain="ai.onnx.ml", coefficients=listed(3), intercepts=[1.0]
        ),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    proto = graph_model(nodes, [declared("x", ["n", 3])], [declared("y", None)], domains={"ai.onnx.ml": 1})
    network = d5.Network.from_onnx(proto)
    assert network.outputs["y"].shape == ("n", 1)
    assert network.rename("s", "scaled").outputs["y"].shape == ("n", 1)
    for framework in ("reference", "onnxruntime"):
        compared(network, proto, framework, {"x": drawn(4, 3)})


def test_a_map_is_refused_with_the_option_that_avoids_it() -> None:
    attributes = {"coefficients": listed(3, 3), "intercepts": listed(3), **LABELS}
    nodes = [
        node("LinearClassifier", ["y", "z"], **attributes),
        helper.make_node("ZipMap", ["z"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[7, 9, 4]),
    ]
    made = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    outputs = [declared("y", ["n"], TensorProto.INT64), helper.make_value_info("m", made)]
    proto = graph_model(nodes, [declared("x", ["n", 3])], outputs, domains={"ai.onnx.ml": 1})
    assert isinstance(plain(proto, {"x": drawn(2, 3)})["m"][0], dict)
    with pytest.raises(NetworkError, match=r"the output 'm' is a map; .*; remedy .*options=\{'zipmap': False\}"):
        d5.Network.from_onnx(proto)


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
def test_other_back_ends_name_those_that_run_it(framework: str) -> None:
    proto = model(node("Scaler", ["y"], offset=[1.0], scale=[1.0]), drawn(2, 3), 1, ["y"])
    with pytest.raises(Unsupported, match=r"no operators of the domain 'ai.onnx.ml'; .*; remedy: framework 'onnxrun"):
        d5.framework(framework).executor(d5.Network.from_onnx(proto))


DAMAGED = {
    "modes": ("TreeEnsembleRegressor", {**forest("target", [0]), "n_targets": 1, "nodes_modes": ["LEAF"]}),
    "places": ("TreeEnsembleRegressor", {**forest("target", [0]), "n_targets": 1, "target_nodeids": [99] * 32}),
    "features": ("TreeEnsembleRegressor", {**forest("target", [0]), "n_targets": 1, "nodes_featureids": [77] * 60}),
    "a cycle": ("TreeEnsembleRegressor", {**forest("target", [0]), "n_targets": 1, "nodes_truenodeids": [0] * 60}),
    "nodes": ("TreeEnsembleRegressor", {**forest("target", [0]), "n_targets": 1, "nodes_falsenodeids": [-3] * 60}),
    "targets": ("TreeEnsembleRegressor", {**forest("target", [0]), "n_targets": 1, "target_ids": [5] * 32}),
    "coefficients": ("LinearRegressor", {"coefficients": listed(7), "targets": 2}),
    "vectors": ("SVMClassifier", {**MACHINE, **LABELS, "support_vectors": listed(5)}),
    "counts": ("SVMClassifier", {**MACHINE, **LABELS, "vectors_per_class": [1, 2, 9]}),
    "rho": ("SVMClassifier", {**MACHINE, **LABELS, "rho": [1.0]}),
    "offset": ("Scaler", {"offset": listed(7), "scale": listed(3)}),
}


@pytest.mark.parametrize("framework", ["reference", "onnxruntime"])
@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_attributes(what: str, framework: str) -> None:
    operator, attributes = DAMAGED[what]
    outputs = ["y", "z"] if operator.endswith("Classifier") else ["y"]
    proto = model(node(operator, outputs, **attributes), drawn(2, 3), 1, outputs)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    with pytest.raises(d5.Deep5Error):
        d5.framework(framework).executor(d5.Network.from_onnx(proto)).inference({"x": drawn(2, 3)})
