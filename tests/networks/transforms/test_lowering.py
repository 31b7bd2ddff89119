"""Expansion of operators that a back-end lacks: the same results, names kept, weights untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.framework import Support
from deep5.networks import Network, NetworkBuilder, lenet, lstm, resnet18_small, transformer
from deep5.networks.edit.builder import ones
from deep5.networks.transforms.lowering import lowered


def without(*operators: str) -> Callable[[ir.Node], Support]:
    def supports(node: ir.Node) -> Support:
        return Support(node.op_type not in operators, "left out by the test")

    return supports


def kinds(network: Network) -> set[str]:
    return {node.op_type for node in network.nodes}


def feed_of(network: Network, batch: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    feed = {}
    for name, spec in network.inputs.items():
        shape = [batch if isinstance(extent, str) else extent for extent in spec.shape]
        feed[name] = (draw.integers(0, 3, shape) if spec.dtype == "int64" else draw.standard_normal(shape)).astype(
            spec.dtype
        )
    return feed


def run(network: Network, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
    return [np.asarray(value) for value in session.run(list(network.outputs), feed)]


def same(network: Network, low: Network) -> None:
    """The same interface and, on one batch, the same numbers."""
    onnx.checker.check_model(low.to_onnx(), full_check=True)
    assert (low.inputs, low.outputs, low.buffer_specs) == (network.inputs, network.outputs, network.buffer_specs)
    assert low.parameter_specs == network.parameter_specs  # dictionaries: an expansion may use them in another order
    for node in low.nodes:
        for value in node.outputs:
            assert value.shape is not None, value
            assert value.dtype is not None, value
    feed = feed_of(network)
    for got, want in zip(run(low, feed), run(network, feed), strict=True):
        # A few dozen float32 operations on numbers of size one.
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_what_is_supported_is_not_copied() -> None:
    network = lenet()
    assert lowered(network, without()) is network


def test_what_cannot_be_expanded_stays() -> None:
    network = lenet()
    assert lowered(network, without("Conv", "Gemm")) is network
    before = network.structure_hash()
    low = lowered(network, without("Conv", "SoftmaxCrossEntropyLoss"))
    assert "Conv" in kinds(low)
    assert "SoftmaxCrossEntropyLoss" not in kinds(low)
    assert network.structure_hash() == before


# Functions of ONNX


def unary(operator: str, *constants: Any, shape: tuple[int | str, ...] = ("N", 4, 6), **attributes: Any) -> Network:
    build = NetworkBuilder("one")
    given = [build.constant(f"c{i}", np.asarray(value)) for i, value in enumerate(constants)]
    return build.network({"y": build.op(operator, build.input("x", shape), *given, **attributes)})


FUNCTIONS: dict[str, Network] = {
    "Celu": unary("Celu", alpha=0.7),
    "Clip": unary("Clip", np.float32(-0.5), np.float32(0.5)),
    "Elu": unary("Elu"),
    "Gelu": unary("Gelu"),
    "HardSigmoid": unary("HardSigmoid", alpha=0.3),
    "HardSwish": unary("HardSwish"),
    "LeakyRelu": unary("LeakyRelu", alpha=0.1),
    "LogSoftmax": unary("LogSoftmax", axis=1),
    "Mish": unary("Mish"),
    "ReduceL1": unary("ReduceL1", np.array([1]), keepdims=0),
    "ReduceL2": unary("ReduceL2", np.array([1, 2])),
    "ReduceSumSquare": unary("ReduceSumSquare", np.array([2])),
    "Relu": unary("Relu"),
    "Selu": unary("Selu"),
    "Shrink": unary("Shrink", lambd=0.3, bias=0.1),
    "Softmax": unary("Softmax", axis=2),
    "Softplus": unary("Softplus"),
    "Softsign": unary("Softsign"),
    "ThresholdedRelu": unary("ThresholdedRelu", alpha=0.4),
}


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_functions(operator: str) -> None:
    network = FUNCTIONS[operator]
    low = lowered(network, without(operator))
    assert operator not in kinds(low)
    same(network, low)
    assert all(node.name.startswith(f"{operator}_1") for node in low.nodes)


def test_bodies_are_expanded_in_their_turn() -> None:
    network = FUNCTIONS["Mish"]
    low = lowered(network, without("Mish", "Softplus", "CastLike"))
    assert kinds(low) <= {"Exp", "Constant", "Add", "Log", "Tanh", "Mul"}
    same(network, low)


@pytest.mark.parametrize("axes", [None, [0, 2, 3], [1]])
@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax", "onnxruntime", "openvino"])
def test_mean_variance_normalization_with_its_default(framework: str, axes: list[int] | None) -> None:
    """Its attribute may be omitted, which ONNX's own shape inference does not support."""
    attributes = {} if axes is None else {"axes": axes}
    graph = helper.make_graph(
        [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3, 4, 5])],
    )
    network = Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    over = tuple(axes or (0, 2, 3))
    exact = (x - x.mean(over, np.float64, keepdims=True)) / x.std(over, np.float64, keepdims=True)
    got = d5.to_numpy(d5.framework(framework).executor(network).inference({"x": x})["y"])
    np.testing.assert_allclose(got, exact, atol=1e-5)  # sums of about ten numbers of size one, in float32


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses(reduction: str, weighted: bool) -> None:
    build = NetworkBuilder("loss")
    x, label = build.input("x", ("N", 4)), build.input("label", ("N",), "int64")
    weight = [build.constant("weight", np.array([1, 2, 3, 4], np.float32))] if weighted else []
    x = build.op("Mul", x, build.parameter("scale", (4,), ones))
    network = build.network({"y": build.op("SoftmaxCrossEntropyLoss", x, label, *weight, reduction=reduction)})
    low = lowered(network, without("SoftmaxCrossEntropyLoss", "LogSoftmax"))
    same(network, low)
    assert list(low.parameter_specs) == ["scale"]  # class weights are not parameters, not in the body either


def test_shapes_that_contain_the_batch_are_computed_beforehand() -> None:
    """The body of a layer normalization contains shapes; except for the batch, they are known."""
    network = transformer(vocabulary=5, length=4, width=8, heads=2, layers=1)
    low = lowered(network, without("LayerNormalization", "Gelu", "CastLike"))
    assert not {"LayerNormalization", "Gelu", "CastLike", "Shape", "ConstantOfShape", "Slice"} & kinds(low)
    same(network, low)


def test_a_float64_normalisation_is_not_rounded_to_float32() -> None:
    network = transformer(vocabulary=5, length=4, width=8, heads=2, layers=1, dtype="float64")
    low = lowered(network, without("LayerNormalization"))
    feed = feed_of(network)
    for got, want in zip(*(ReferenceEvaluator(each.to_onnx()).run(None, feed) for each in (low, network)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)  # float64, the order of a few sums differs


def test_nodes_that_share_a_name_with_a_body_stay_apart() -> None:
    build = NetworkBuilder("names")
    x = build.input("X", ("N", 4))  # as ONNX's bodies call their input
    x = build.op("Gelu", build.op("Gelu", build.op("Relu", x)))
    network = build.network({"Y": x})
    low = lowered(network, without("Gelu"))
    names = [value.name for node in low.nodes for value in node.outputs]
    assert len(set(names)) == len(names)
    assert len({node.name for node in low.nodes}) == len(low.nodes)
    same(network, low)


# LSTM


def layer(direction: str, *, initial: bool, bias: bool, steps: int = 4) -> Network:
    d = 2 if direction == "bidirectional" else 1
    build = NetworkBuilder("layer", seed=3)

    def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape)

    x = build.input("x", (steps, "N", 3))
    weights = [build.parameter(name, shape, normal) for name, shape in (("w", (d, 8, 3)), ("r", (d, 8, 2)))]
    b = build.parameter("b", (d, 16), normal) if bias else None
    states = [build.input(name, (d, "N", 2)) for name in ("h", "c")] if initial else []
    y, h, c = build.op(
        "LSTM", x, *weights, b, *([None, *states] if states else []), outputs=3, hidden_size=2, direction=direction
    )
    return build.network({"y": y, "y_h": h, "y_c": c})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_lstm(direction: str, initial: bool, bias: bool) -> None:
    network = layer(direction, initial=initial, bias=bias)
    low = lowered(network, without("LSTM"))
    assert "LSTM" not in kinds(low)
    same(network, low)


@pytest.mark.parametrize("framework", ["onnxruntime", "tensorflow"])
def test_a_state_that_the_file_holds_stays_no_parameter(framework: str) -> None:
    """One value for both states of a layer: the unrolled cells would train it."""
    model = layer("forward", initial=True, bias=True).to_onnx()
    for name in ("h", "c"):
        model.graph.input.remove(next(value for value in model.graph.input if value.name == name))
    model.graph.initializer.append(helper.make_tensor("h", TensorProto.FLOAT, [1, 2, 2], [1, -2, 3, -4]))
    model.graph.node[0].input[6] = "h"
    total = [helper.make_node("ReduceSum", [name], [f"{name}/sum"], keepdims=0) for name in ("y", "y_h")]
    model.graph.node.extend([*total, helper.make_node("Mul", ["y/sum", "y_h/sum"], ["loss"])])
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    network = Network.from_onnx(model)
    assert network.parameter_specs.keys() == {"w", "r", "b"}
    assert lowered(network, without("LSTM")).parameter_specs.keys() == {"w", "r", "b"}
    feed, found = feed_of(network, batch=2), {}
    for name in (framework, "reference"):
        executor = d5.framework(name).executor(network)
        outputs = executor.inference_and_backprop(feed)
        found[name] = {**outputs, **executor.gradients()}
    assert found[framework].keys() == found["reference"].keys()
    for name, value in found["reference"].items():
        # A few dozen float32 operations on numbers of size one to ten.
        np.testing.assert_allclose(d5.to_numpy(found[framework][name]), value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_step_is_one_product() -> None:
    low = lowered(layer("forward", initial=False, bias=True, steps=5), without("LSTM"))
    names = [node.op_type for node in low.nodes]
    # One for the whole input, and one per step except the first, whose state is zero.
    assert names.count("Gemm") == 1 + 4
    assert names.count("Tanh") == 2 * 5
    # The batch keeps its name inside the layer.
    rows = next(node.outputs[0] for node in low.nodes if node.op_type == "Split" and len(node.outputs) == 5)
    assert str(rows.shape) == "[1,N,8]"


def smaller_layer(kind: str, direction: str, *, initial: bool, bias: bool, **attributes: Any) -> Network:
    """A GRU or an RNN."""
    d, gates = (2 if direction == "bidirectional" else 1), {"GRU": 3, "RNN": 1}[kind]
    build = NetworkBuilder("layer", seed=3)

    def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape)

    x = build.input("x", (4, "N", 3))
    w, r = build.parameter("w", (d, gates * 2, 3), normal), build.parameter("r", (d, gates * 2, 2), normal)
    b = build.parameter("b", (d, 2 * gates * 2), normal) if bias else None
    state = [None, build.input("h", (d, "N", 2))] if initial else []
    given = {"hidden_size": 2, "direction": direction, **attributes}
    y, h = build.op(kind, x, w, r, b, *state, outputs=2, **given)
    return build.network({"y": y, "y_h": h})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("initial", "bias"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["GRU before", "GRU after", "RNN tanh", "RNN relu"])
def test_gru_and_rnn(kind: str, direction: str, initial: bool, bias: bool) -> None:
    operator, form = kind.split()
    ways = 2 if direction == "bidirectional" else 1
    attributes: dict[str, Any] = {"linear_before_reset": int(form == "after")} if operator == "GRU" else {}
    if form == "relu":
        attributes["activations"] = ["Relu"] * ways
    network = smaller_layer(operator, direction, initial=initial, bias=bias, **attributes)
    low = lowered(network, without(operator))
    assert operator not in kinds(low)
    same(network, low)


@pytest.mark.parametrize("kind", ["GRU", "RNN"])
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", "onnxruntime", "reference"])
def test_gru_and_rnn_run_and_differentiate_everywhere(kind: str, framework: str) -> None:
    network = smaller_layer(kind, "forward", initial=True, bias=True)
    model = network.to_onnx()
    total = [
        helper.make_node("Mul", ["y", "y"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["loss"], keepdims=0),
    ]
    model.graph.node.extend(total)
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    network = Network.from_onnx(model)
    feed = feed_of(network)
    found = {}
    for name in (framework, "reference"):
        executor = d5.framework(name).executor(network)
        outputs = executor.inference_and_backprop(feed)
        found[name] = {**outputs, **executor.gradients()}
    for name, value in found["reference"].items():
        # A few dozen float32 operations on numbers of size one to ten.
        np.testing.assert_allclose(d5.to_numpy(found[framework][name]), value, rtol=1e-4, atol=1e-5, err_msg=name)


def lstm_of(x_shape: list[Any], lengths: list[int] | None = None, **attributes: Any) -> Network:
    inputs = ["x", "w", "r", ""] + (["lengths"] if lengths is not None else [])
    initial = [
        helper.make_tensor("w", TensorProto.FLOAT, [1, 8, 3], np.linspace(-1, 1, 24)),
        helper.make_tensor("r", TensorProto.FLOAT, [1, 8, 2], np.linspace(-1, 1, 16)),
    ]
    if lengths is not None:
        initial.append(helper.make_tensor("lengths", TensorProto.INT32, [len(lengths)], lengths))
    graph = helper.make_graph(
        [helper.make_node("LSTM", inputs, ["", "y"], hidden_size=2, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None, 2])],
        initial,
    )
    return Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def test_lengths_that_are_all_full_make_no_difference() -> None:
    network = lstm_of([4, 3, 3], [4, 4, 4])
    low = lowered(network, without("LSTM"))
    assert "LSTM" not in kinds(low)
    feed = feed_of(network)
    # A few dozen float32 operations on numbers of size one.
    np.testing.assert_allclose(run(low, feed)[0], run(network, feed)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "attributes"), [(["T", 3, 3], {}), ([3, "T", 3], {"layout": 1})])
def test_an_lstm_of_a_length_that_is_not_known_is_a_scan(shape: list[Any], attributes: dict[str, Any]) -> None:
    network = lstm_of(shape, **attributes)
    low = lowered(network, without("LSTM"))
    assert "LSTM" not in kinds(low)
    assert "Scan" in kinds(low)
    feed = feed_of(lstm_of([4 if extent == "T" else extent for extent in shape], **attributes))
    reference = d5.framework("reference")
    expected, found = (reference.executor(each).inference(feed)["y"] for each in (network, low))
    # A few dozen float32 operations on numbers of size one.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "attributes"),
    [
        ([4, 2, 1], {}),
        ([4, 2, 1], {"direction": "reverse"}),
        (None, {"clip": 0.5}),
        (None, {"input_forget": 1}),
        (None, {"activations": ["Sigmoid", "Relu", "Tanh"]}),
        ([1, 3, 2], {"activations": ["HardSigmoid", "Affine", "ScaledTanh"], "activation_alpha": [0.3, 0.7, 0.9]}),
    ],
)
def test_an_lstm_of_any_kind(lengths: list[int] | None, attributes: dict[str, Any]) -> None:
    """Against the reference's own kernel; the cases of test_gradient_drawn.py cover more."""
    network = lstm_of([4, 3, 3], lengths, **attributes)
    low = lowered(network, without("LSTM"))
    assert "LSTM" not in kinds(low)
    feed, reference = feed_of(network), d5.framework("reference")
    expected, found = (reference.executor(each).inference(feed)["y"] for each in (network, low))
    # A few dozen float32 operations on numbers of size one.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", ["GRU", "LSTM", "RNN"])
def test_the_batch_in_front_and_peepholes(layer: str) -> None:
    """Against the reference's own kernel, which has loops instead of cells."""
    gates, directions = {"GRU": 3, "LSTM": 4, "RNN": 1}[layer], 2
    rng = np.random.default_rng(4)
    build = NetworkBuilder("layer", dtype="float64")
    x = build.input("x", (3, 5, 2), "float64")  # batch, steps, features
    shapes = [(directions, gates * 4, 2), (directions, gates * 4, 4), (directions, 2 * gates * 4)]
    weights = [build.constant(f"c{n}", 0.5 * rng.standard_normal(shape)) for n, shape in enumerate(shapes)]
    states = [build.constant(f"s{n}", rng.standard_normal((3, directions, 4))) for n in range(1 + (layer == "LSTM"))]
    seen = [build.constant("p", rng.standard_normal((directions, 12)))] if layer == "LSTM" else []
    made = build.op(
        layer, x, *weights, None, *states, *seen,
        outputs=2 + (layer == "LSTM"), hidden_size=4, layout=1, direction="bidirectional",
    )  # fmt: skip
    network = build.network({f"y{n}": value for n, value in enumerate(made)})
    low = lowered(network, without(layer))
    assert layer not in kinds(low)
    feed = {"x": rng.standard_normal((3, 5, 2))}
    reference = d5.framework("reference")
    expected, found = (reference.executor(each).inference(feed) for each in (network, low))
    for name, value in expected.items():
        # Float64, a few hundred roundings of 1e-16.
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-13)


# Costs


def test_weights_are_not_drawn() -> None:
    drawn: list[tuple[int, ...]] = []

    def counting(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        drawn.append(shape)
        return rng.standard_normal(shape)

    build = NetworkBuilder("lazy")
    x = build.op("Gelu", build.op("MatMul", build.input("x", ("N", 3)), build.parameter("w", (3, 5), counting)))
    low = lowered(build.network({"y": x}), without("Gelu", "CastLike"))
    assert "Erf" in kinds(low)
    assert drawn == []
    assert low.initial("w").shape == (3, 5)


def test_a_residual_network_is_lowered_without_its_weights() -> None:
    """Every parameter of the lowered network is the same object, or the same function that draws it."""
    network = resnet18_small()
    low = lowered(network, without("SoftmaxCrossEntropyLoss"))
    assert "SoftmaxCrossEntropyLoss" not in kinds(low)
    assert low.parameter_specs == network.parameter_specs


def test_a_long_sequence_is_unrolled() -> None:
    network = lstm(features=3, hidden=4, length=50)
    low = lowered(network, without("LSTM"))
    assert sum(node.op_type == "Gemm" for node in low.nodes) == 50 + 1
    same(network, low)


def test_a_trained_tensor_in_the_graph_of_an_attention_gets_its_gradient() -> None:
    """ONNX's function body contains the graph, and so reads a value from outside the function."""
    floats = onnx.TensorProto.FLOAT
    make = onnx.helper.make_tensor_value_info
    modify = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", ["scores", "gate.weight"], ["modified"])],
        "modify",
        [make("scores", floats, ["B", "H", "L", "S"])],
        [make("modified", floats, ["B", "H", "L", "S"])],
        [onnx.numpy_helper.from_array(np.array([[0.5, 0.6, 0.7]], np.float32), "gate.weight")],
    )
    nodes = [
        onnx.helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", score_mod=modify),
        onnx.helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0),
    ]
    shape = [1, 2, 3, 4]
    graph = onnx.helper.make_graph(
        nodes, "flex", [make(name, floats, shape) for name in "qkv"], [make("loss", floats, [])]
    )
    opsets = [onnx.helper.make_opsetid("", 26), onnx.helper.make_opsetid("ai.onnx.preview", 1)]
    network = d5.Network.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11))
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))

    def loss(gate: np.ndarray) -> float:
        scores = q.astype("float64") @ k.astype("float64").swapaxes(2, 3) / 2 * gate
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ v
        return float((y * y).sum())

    gate, step = np.array([[0.5, 0.6, 0.7]]), 1e-5
    ways = step * np.eye(3)[:, None]
    want = np.array([[(loss(gate + way) - loss(gate - way)) / (2 * step) for way in ways]])
    run = d5.framework("reference").executor(network)
    run.inference_and_backprop({"q": q, "k": k, "v": v})
    # float32 sums of a few products, against float64 differences with an error below 1e-9.
    np.testing.assert_allclose(run.gradients()["gate.weight"], want, rtol=1e-4, atol=1e-5)
