"""Edits of networks: each returns a valid network or refuses, and leaves the original unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet, zeros


@pytest.fixture
def small() -> Network:
    """x -> Gemm_1 -> Relu_1 -> Gemm_2, and the sum of both halves' inputs."""
    build = NetworkBuilder("small", dtype="float64", seed=0)
    x = build.input("x", ("N", 4))
    y = build.op("Gemm", x, build.parameter("w1", (4, 4)), build.parameter("b1", (4,), zeros), transB=1)
    z = build.op("Relu", y)
    return build.network({"out": build.op("Gemm", z, build.parameter("w2", (4, 4)), transB=1), "hidden": z})


def run(network: Network, **feed: np.ndarray) -> dict[str, np.ndarray]:
    proto = network.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    return dict(zip(network.outputs, ReferenceEvaluator(proto).run(None, feed), strict=True))


def x_of(size: int = 3) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((size, 4))


def unchanged(network: Network, edit: Callable[[], Any], message: str) -> None:
    before = network.structure_hash(), network.weights_hash(), network.to_onnx().SerializeToString()
    with pytest.raises(NetworkError, match=re.escape(message)):
        edit()
    assert (network.structure_hash(), network.weights_hash(), network.to_onnx().SerializeToString()) == before


def test_a_node_is_put_between_two(small: Network) -> None:
    before = small.structure_hash()
    longer = small.add_node("Tanh", ["hidden"], ["bent"]).add_edge("bent", "Gemm_2", 0)
    x = x_of()
    old, new = run(small, x=x), run(longer, x=x)
    np.testing.assert_array_equal(old["hidden"], new["hidden"])
    np.testing.assert_allclose(new["out"], np.tanh(old["hidden"]) @ small.initial("w2").T, rtol=1e-12)
    assert small.structure_hash() == before != longer.structure_hash()
    assert [node.op_type for node in longer.nodes] == ["Gemm", "Relu", "Tanh", "Gemm"]
    assert longer.nodes[2].name == "Tanh_1"


def test_a_layer_with_parameters_is_added(small: Network) -> None:
    weight = np.eye(4)[:3]
    wider = (
        small.add_parameter("w3", weight)
        .add_node("Gemm", ["hidden", "w3"], ["third"], name="third", transB=1)
        .with_outputs(["out", "third"])
    )
    assert wider.parameter_specs["w3"].shape == (3, 4)
    assert wider.outputs["third"].shape == ("N", 3)
    result = run(wider, x=x_of())
    np.testing.assert_array_equal(result["third"], run(small, x=x_of())["hidden"][:, :3])
    weight[...] = 0.0
    assert wider.initial("w3").any()  # a copy


def test_a_node_is_removed(small: Network) -> None:
    linear = small.remove_node("Relu_1", bypass="Gemm_1_output")
    x = x_of()
    np.testing.assert_allclose(run(linear, x=x)["hidden"], x @ small.initial("w1").T, rtol=1e-12)
    assert list(linear.outputs) == ["out", "hidden"]
    headless = small.with_outputs(["hidden"]).add_node("Abs", ["hidden"]).remove_node("Abs_1")
    assert [node.op_type for node in headless.nodes] == ["Gemm", "Relu"]
    assert list(small.with_outputs(["out"]).remove_node("Relu_1", bypass="Gemm_1_output").parameter_specs) == [
        "w1",
        "b1",
        "w2",
    ]


def test_edges_are_removed(small: Network) -> None:
    without = small.remove_edge("Gemm_1", 2)
    assert list(without.parameter_specs) == ["w1", "w2"]
    assert "b1" not in without.model.graph.initializers
    build = NetworkBuilder("row", dtype="float64")
    a, b = build.input("a", ("N", 2)), build.input("b", ("N", 2))
    row = build.network({"joined": build.op("Concat", a, b, a, axis=1)})
    assert row.remove_edge("Concat_1", 1).outputs["joined"].shape == ("N", 4)
    assert row.add_edge("b", "Concat_1").outputs["joined"].shape == ("N", 8)
    shorter = row.remove_edge("Concat_1", 0).remove_edge("Concat_1", 1)
    unchanged(shorter, lambda: shorter.remove_edge("Concat_1", 0), "Concat node 'Concat_1' needs its input 0, 'b'")


def test_an_optional_input_in_the_middle_leaves_a_gap() -> None:
    build = NetworkBuilder("clip", dtype="float64")
    x = build.input("x", ("N", 2))
    y = build.op("Clip", x, build.scalar(-1.0), build.scalar(1.0))
    network = build.network({"y": y}).remove_edge("Clip_1", 1)
    np.testing.assert_array_equal(run(network, x=np.array([[-5.0, 5.0]]))["y"], [[-5.0, 1.0]])


def test_renamed(small: Network, tmp_path: Path) -> None:
    named = small.rename("w1", "first.weight").rename("hidden", "between").rename("Relu_1", "act").rename("x", "input")
    assert list(named.parameter_specs) == ["first.weight", "b1", "w2"]
    assert list(named.outputs) == ["out", "between"]
    assert list(named.inputs) == ["input"]
    assert named.nodes[1].name == "act"
    x = x_of()
    np.testing.assert_array_equal(run(named, input=x)["out"], run(small, x=x)["out"])
    named.save(tmp_path / "named.onnx")
    again = Network.from_onnx(tmp_path / "named.onnx")
    assert again.structure_hash() == named.structure_hash()
    assert again.weights_hash() == named.weights_hash()


def test_a_node_is_replaced(small: Network) -> None:
    other = small.replace_node("Relu_1", "Gelu", approximate="tanh")
    assert [node.op_type for node in other.nodes] == ["Gemm", "Gelu", "Gemm"]
    assert list(other.outputs) == ["out", "hidden"]
    turned = small.replace_node("Gemm_2", "MatMul")
    x = x_of()
    np.testing.assert_allclose(run(turned, x=x)["out"], run(small, x=x)["hidden"] @ small.initial("w2"), rtol=1e-12)
    swapped = small.replace_node("Relu_1", "Add", ["Gemm_1_output", "x"])
    np.testing.assert_allclose(run(swapped, x=x)["hidden"], x @ small.initial("w1").T + x, rtol=1e-12)


@pytest.mark.parametrize("kind", ["cross_entropy", "mse", "binary_cross_entropy"])
def test_a_loss_is_added(small: Network, kind: str) -> None:
    network = small.add_loss("out", kind)
    assert list(network.outputs) == ["out", "hidden", "loss"]
    assert network.outputs["loss"].shape == ()
    x = x_of()
    label = np.array([0, 3, 1]) if kind == "cross_entropy" else np.ones((3, 4))
    assert network.inputs["label"].dtype == str(label.dtype)
    result = run(network, x=x, label=label)
    out = result["out"]
    expected = {
        "cross_entropy": lambda: -(out - np.log(np.exp(out).sum(1, keepdims=True)))[np.arange(3), label].mean(),
        "mse": lambda: np.square(out - label).mean(),
        "binary_cross_entropy": lambda: -np.log(1 / (1 + np.exp(-np.where(label, out, -out)))).mean(),
    }[kind]()
    np.testing.assert_allclose(result["loss"], expected, rtol=1e-12)
    step = d5.framework("reference").executor(network).train_step(d5.SGD(0.1))
    losses = [float(step({"x": x, "label": label}, d5.StepInfo(step=i, batch_size=3))["loss"]) for i in range(3)]
    assert losses[0] > losses[2]


@pytest.mark.parametrize("kind", ["mse", "binary_cross_entropy"])
@pytest.mark.parametrize(("shape", "dtype"), [(("N",), "int64"), (("N", 1), "uint8"), (("N",), "float64")])
def test_labels_of_a_column_are_the_numbers_they_hold(kind: str, shape: tuple[str | int, ...], dtype: str) -> None:
    build = d5.NetworkBuilder("column", dtype="float64")
    x = build.input("x", ("N", 4))
    network = build.network({"out": build.op("MatMul", x, build.parameter("w", (4, 1)))})
    network = network.add_loss("out", kind, label_spec=d5.TensorSpec(shape=shape, dtype=dtype))
    assert network.inputs["label"].shape == shape
    x, label = x_of(), np.array([0, 1, 1])
    given = label.reshape([3, 1][: len(shape)]).astype(dtype)
    found = run(network, x=x, label=given)
    # A label of shape (N,) against scores of shape (N, 1) broadcasts to (N, N), another loss.
    expected = run(network.add_loss("out", kind, label="all", name="other"), x=x, label=given, all=label[:, None] * 1.0)
    np.testing.assert_array_equal(found["loss"], expected["other"])


def test_a_large_logit_has_a_finite_loss_and_gradient() -> None:
    build = d5.NetworkBuilder("steep", dtype="float32")
    x = build.input("x", ("N", 1))
    network = build.network({"out": build.op("Mul", x, build.parameter("w", (1,), d5.networks.ones))})
    network = network.add_loss("out", "binary_cross_entropy")
    x, label = np.array([[1e4], [-1e4], [0.0]], np.float32), np.array([[1.0], [0.0], [1.0]], np.float32)
    for name in ("reference", "pytorch", "jax"):
        executor = d5.framework(name).executor(network)
        loss = executor.inference_and_backprop({"x": x, "label": label})["loss"]
        np.testing.assert_allclose(d5.to_numpy(loss), np.log(2) / 3, rtol=1e-6)
        assert np.isfinite(d5.to_numpy(executor.gradients()["w"])).all()


def test_a_second_loss_takes_the_same_label() -> None:
    network = mlp(features=4, hidden=3, classes=2).add_loss("logits", name="again")
    assert list(network.inputs) == ["input", "label"]
    assert list(network.outputs) == ["logits", "loss", "again"]


def test_a_sub_network_is_cut_out() -> None:
    network = lenet(dtype="float64")
    body = network.subnetwork(["input"], ["Flatten_1_output"])
    head = network.subnetwork(["Flatten_1_output"], ["logits"])
    assert list(head.inputs) == ["Flatten_1_output"]
    assert not body.parameter_specs.keys() & head.parameter_specs.keys()
    assert body.parameter_specs.keys() | head.parameter_specs.keys() == network.parameter_specs.keys()
    feed = np.random.default_rng(0).standard_normal((2, 1, 28, 28))
    between = run(body, input=feed)["Flatten_1_output"]
    logits = run(network.with_outputs(["logits"]), input=feed, label=np.zeros(2, np.int64))["logits"]
    np.testing.assert_array_equal(run(head, Flatten_1_output=between)["logits"], logits)
    unchanged(network, lambda: network.subnetwork(["Flatten_1_output"], ["loss"]), "it also depends on 'label'; remedy")


def test_edits_of_a_real_network_train_everywhere() -> None:
    """The last layer of a residual network for 10 classes becomes one for 3."""
    body = resnet(depth=8).subnetwork(["input"], ["Flatten_1_output"])
    weight = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32) * 0.1
    small = (
        body.add_parameter("head.weight", weight)
        .add_node("Gemm", ["Flatten_1_output", "head.weight"], ["logits"], transB=1)
        .with_outputs(["logits"])
        .add_loss()
    )
    feed = {
        "input": np.random.default_rng(1).standard_normal((4, 3, 32, 32)).astype(np.float32),
        "label": np.array([0, 1, 2, 0]),
    }
    losses = {}
    for name in ("reference", "pytorch", "jax", "onnxruntime"):
        pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(name, name))
        step = d5.framework(name).executor(small).train_step(d5.SGD(0.1))
        losses[name] = [float(d5.to_numpy(step(feed, d5.StepInfo(step=i, batch_size=4))["loss"])) for i in range(2)]
    for values in losses.values():
        # Two steps of about forty float32 operations with batch normalizations.
        np.testing.assert_allclose(values, losses["reference"], rtol=1e-4)


def test_refusals(small: Network) -> None:
    for edit, message in (
        (lambda: small.add_node("Rellu", ["x"]), "add_node: No Op registered for Rellu"),
        (lambda: small.add_node("Relu", ["y"]), "add_node: no value 'y' in the network; allowed: x, w1"),
        (lambda: small.add_node("Relu", ["hiden"]), "did you mean 'hidden'?"),
        (lambda: small.add_node("Relu", ["x"], ["hidden"]), "the name 'hidden' is taken by another value"),
        (lambda: small.add_node("Relu", ["x"], name="Relu_1"), "the name 'Relu_1' is taken by another node"),
        (lambda: small.add_node("Relu", "x"), "got 'x' as inputs; allowed: a list of names"),
        (lambda: small.add_node("Split", ["x"], ["a", "a"]), "the outputs ['a', 'a'] clash"),
        (lambda: small.add_parameter("w1", np.ones(2)), "the name 'w1' is taken by another value"),
        (lambda: small.add_parameter("w9", [1.0]), "got [1.0] as 'w9'; allowed: a NumPy array of numbers"),  # type: ignore[arg-type]
        (lambda: small.remove_node("Relu"), "no node 'Relu' in the network; allowed: Gemm_1, Relu_1, Gemm_2"),
        (lambda: small.remove_node("Relu_1"), "'hidden' of node 'Relu_1' goes to node 'Gemm_2', which would dangle"),
        (lambda: small.remove_node("Gemm_2"), "'out' of node 'Gemm_2' goes to the network, whose output it is"),
        (
            lambda: small.remove_node("Relu_1", bypass="x"),
            "node 'Relu_1' has no input 'x'; allowed as bypass: 'Gemm_1_",
        ),
        (
            lambda: small.add_edge("out", "Gemm_1", 0),
            "'out' depends on node 'Gemm_1': to feed it there would make a cycle",
        ),
        (lambda: small.add_edge("out", "Gemm_2", 0), "would make a cycle"),
        (lambda: small.add_edge("x", "Gemm_3", 0), "no node 'Gemm_3'"),
        (lambda: small.add_edge("x", "Gemm_1", -1), "got position -1"),
        (lambda: small.remove_edge("Gemm_1", 1), "Gemm node 'Gemm_1' needs its input 1, 'w1'"),
        (lambda: small.remove_edge("Gemm_1", 3), "node 'Gemm_1' has no input 3; allowed: 0, 1, 2"),
        (lambda: small.rename("w1", "w2"), "the name 'w2' is taken by another value"),
        (lambda: small.rename("w9", "w8"), "no value or node 'w9'"),
        (lambda: small.rename("w1", ""), "got '' as a name"),
        (lambda: small.replace_node("Relu_1", "Relu", ["out"]), "would make a cycle"),
        (
            lambda: small.add_loss("out", "hinge"),
            "unknown loss 'hinge'; allowed: cross_entropy, mse, binary_cross_entropy",
        ),
        (lambda: small.add_loss("out", name="x"), "the name 'x' is taken by another value"),
        (lambda: small.subnetwork(["hidden"], ["x"]), "no node computes 'x'"),
        (
            lambda: small.subnetwork(["x", "w1"], ["out"]),
            "'w1' is an initial value, which is included where it is used",
        ),
        (lambda: small.subnetwork(["x", "x"], ["out"]), "the inputs 'x', 'x' clash; allowed: every value once"),
        (lambda: small.subnetwork(["x"], ["out", "out"]), "the outputs 'out', 'out' clash"),
    ):
        unchanged(small, edit, message)  # type: ignore[arg-type]


def test_shapes_that_an_edit_breaks_are_told_by_node(small: Network) -> None:
    wrong = small.add_parameter("w5", np.ones((5, 5)))
    unchanged(wrong, lambda: wrong.add_edge("w5", "Gemm_2", 1), "Gemm_2")
    unchanged(wrong, lambda: wrong.replace_node("Relu_1", "MatMul", ["Gemm_1_output", "w5"]), "Relu_1")


def test_a_removed_output_keeps_its_name_only_where_another_can_take_it(small: Network) -> None:
    network = small.with_outputs(["hidden"])
    both = small.add_node("Neg", ["hidden"], ["minus"]).with_outputs(["hidden", "minus"])
    unchanged(
        both,
        lambda: both.remove_node("Neg_1", bypass="hidden"),
        "'minus' of node 'Neg_1' is an output of the network, and 'hidden' cannot take its name",
    )
    assert list(network.remove_node("Relu_1", bypass="Gemm_1_output").outputs) == ["hidden"]


def refused(edits: dict[str, Callable[[], Any]], network: Network) -> None:
    for message, edit in edits.items():
        unchanged(network, edit, message)


def test_labels_that_do_not_fit_their_scores_are_refused() -> None:
    network = lenet(seed=0)
    refused(
        {
            "add_loss: the label 'label' is int64[N], and the scores 'Conv_1_output' float32[N, 6, 28, 28]; allowed: "
            "int64[N, 28, 28]; remedy: label='target', which declares such an input": lambda: network.add_loss(
                "Conv_1_output", name="l2"
            ),
            "the label 'label' is int64[N], and the scores 'logits' float32[N, 10]; allowed: float32[N, 10]; remedy: "
            "label='target'": lambda: network.add_loss("logits", "mse", name="l2"),
            "the label 'logits' is float32[N, 10]": lambda: network.add_loss(label="logits", name="l2"),
            "add_loss: the label 'scores' is computed by the network itself; allowed: an input, or a name that no "
            "value has; remedy: label='target'": lambda: network.add_node("Relu", ["logits"], ["scores"]).add_loss(
                "logits", "mse", label="scores", name="l2"
            ),
            "add_loss: got None as the label; allowed: a name": lambda: network.add_loss(label=None, name="l2"),  # type: ignore[arg-type]
            "(SoftmaxCrossEntropyLoss) got 'label' int64[N] as its labels; allowed beside 'Conv_1_output' float32[N, "
            "6, 28, 28]: [N, 28, 28]": lambda: network.add_node("SoftmaxCrossEntropyLoss", ["Conv_1_output", "label"]),
        },
        network,
    )
    twice = network.add_loss("logits", "mse", label="target", name="l2")
    assert twice.inputs["target"].shape == ("N", 10)
    unchanged(
        twice,
        lambda: twice.add_loss("Conv_1_output", "mse", label="target", name="l3"),
        "label='target_2'",
    )


def test_weights_that_do_not_fit_are_refused() -> None:
    network = lenet(seed=0)
    grouped = network.add_parameter("w", np.ones((4, 1, 3, 3), np.float32))
    turned = network.add_parameter("w", np.ones((5, 4, 3, 3), np.float32))
    normal = network.add_parameter("w", np.ones(5, np.float32)).add_parameter("c", np.ones(6, np.float32))
    refused(
        {
            "the node 'Conv_1' (Conv) got 'input' float32[N, 1, 28, 28] as its weight; allowed beside 'input' float32["
            "N, 1, 28, 28], 'conv1.bias' float32[6]": lambda: network.add_edge("input", "Conv_1", 1),
            "got 'conv2.bias' float32[16] as its bias": lambda: network.add_edge("conv2.bias", "Conv_1", 2),
            "got 'conv2.weight' float32[16, 6, 5, 5] as its weight": lambda: network.add_edge(
                "conv2.weight", "Conv_1", 1
            ),
            "(Gemm) got 'fc2.bias' float32[84] as its bias": lambda: network.add_edge("fc2.bias", "Gemm_1", 2),
        },
        network,
    )
    for wrong, edit, message in (
        (
            grouped,
            lambda: grouped.add_node("Conv", ["Tanh_1_output", "w"], group=4),
            "got 'Tanh_1_output' float32[N, 6, 28, 28] as its input; allowed beside 'w' float32[4, 1, 3, 3] and group=4"
            ": [any, 4, any, any]",
        ),
        (
            turned,
            lambda: turned.add_node("ConvTranspose", ["Tanh_1_output", "w"]),
            "(ConvTranspose) got 'w' float32[5, 4, 3, 3] as its weight; allowed beside 'Tanh_1_output' float32[N, 6, "
            "28, 28]: [6, any, any, any]",
        ),
        (
            normal,
            lambda: normal.add_node("InstanceNormalization", ["Tanh_1_output", "c", "w"]),
            "got 'w' float32[5] as its bias",
        ),
    ):
        unchanged(wrong, edit, message)
    fits = network.add_parameter("w", np.ones((6, 4, 3, 3), np.float32)).add_parameter("b", np.ones(8, np.float32))
    wide = fits.add_node("ConvTranspose", ["Tanh_1_output", "w", "b"], ["up"], group=2).with_outputs(["up"])
    assert wide.outputs["up"].shape == ("N", 8, 30, 30)


def test_windows_larger_than_their_input_are_refused() -> None:
    network = lenet(seed=0)
    body = network.subnetwork(["input"], ["Conv_1_output"])
    told = "(MaxPool) makes 'y' float32[N, 6, -171, -171] of 'Conv_1_output' float32[N, 6, 28, 28]; allowed: dimensions"
    unchanged(body, lambda: body.add_node("MaxPool", ["Conv_1_output"], ["y"], kernel_shape=[200, 200]), told)
    # When a later node does not fit either, the message names the cause.
    name = next(str(node.name) for node in network.nodes if node.op_type.endswith("Pool"))
    unchanged(
        network, lambda: network.replace_node(name, "AveragePool", kernel_shape=[200, 200]), "float32[N, 6, -171, -171]"
    )


def test_a_split_says_into_how_many_parts() -> None:
    network = lenet(seed=0)
    told = "'Tanh_1' (Split) has neither sizes nor the number of its parts; allowed: one of both; remedy: num_"
    unchanged(network, lambda: network.replace_node("Tanh_1", "Split"), told)
    assert network.replace_node("Tanh_1", "Split", num_outputs=1).nodes[1].op_type == "Split"


def test_a_sub_network_has_an_output(small: Network) -> None:
    unchanged(small, lambda: small.subnetwork(["x"], []), "subnetwork: got no outputs; allowed: a list of at least one")
    unchanged(small, lambda: small.subnetwork([], ["out"]), "it also depends on 'x'; remedy: inputs=['x']")


def test_what_computes_an_output_is_taken_out_by_the_remedy(small: Network) -> None:
    network = lenet(seed=0)
    loss = "SoftmaxCrossEntropyLoss_1"
    unchanged(
        network,
        lambda: network.remove_node(loss),
        "'loss' of node 'SoftmaxCrossEntropyLoss_1' goes to the network, whose output it is; remedy: "
        "with_outputs(['logits']), which takes the node out, too",
    )
    assert loss not in [node.name for node in network.with_outputs(["logits"]).nodes]
    last = small.with_outputs(["out"])
    unchanged(last, lambda: last.remove_node("Gemm_2"), "remedy: with_outputs of others, or bypass= one of 'hidden'")
    assert list(last.remove_node("Gemm_2", bypass="hidden").outputs) == ["out"]


def test_outputs_and_names_that_cannot_be(small: Network) -> None:
    refused(
        {
            "with_outputs: no node computes 'x'; allowed: Gemm_1_output, hidden, out": lambda: small.with_outputs(
                ["x"]
            ),
            "with_outputs: no node computes 'w1'": lambda: small.with_outputs(["w1"]),
            "with_outputs: no node computes ['out']": lambda: small.with_outputs([["out"]]),  # type: ignore[list-item]
            "with_outputs: got 'out' twice; allowed: every value once": lambda: small.with_outputs(["out", "out"]),
            "did you mean 'hidden'?": lambda: small.with_outputs(["Hidden"]),
            "the value for 'w1' does not fit: got float32[3]; allowed: float64[4, 4], shape and dtype; remedy: a value "
            "of that shape": lambda: small.with_values({"w1": np.zeros(3, np.float32)}),
            "got float32[4]; allowed: float64[4], shape and dtype; remedy: astype('float64')": lambda: (
                small.with_values({"b1": np.zeros(4, np.float32)})
            ),
        },
        small,
    )
    for name in ("Relu_1", "hidden", "w1", "x"):
        assert small.rename(name, name).structure_hash() == small.structure_hash()
    unchanged(small, lambda: small.rename("w9", "w9"), "no value or node 'w9'")


def test_nodes_that_no_schema_allows_are_refused(small: Network) -> None:
    add, swap = small.add_node, small.replace_node
    refused(
        {
            "add_edge at position 5: Relu got 6 inputs, None among them; allowed: 1 input (X)": lambda: small.add_edge(
                "x", "Relu_1", 5
            ),
            "add_edge at position 3: Gemm got 4 inputs; allowed: 2 to 3 inputs (A, B, C)": lambda: small.add_edge(
                "x", "Gemm_1", 3
            ),
            "add_node: Relu got no inputs; allowed: 1 input (X)": lambda: add("Relu", []),
            "add_node: Relu got 1 input, None among them; allowed: 1 input (X)": lambda: add("Relu", [None]),
            "add_node: Concat got no inputs; allowed: at least 1 input (inputs)": lambda: add("Concat", [], axis=1),
            "add_node: MatMul got no input 0 (A), which it needs": lambda: add("MatMul", [None, "w1"]),
            "add_node: Relu got 2 outputs; allowed: 1 output (Y)": lambda: add("Relu", ["x"], ["a", "b"]),
            "add_node: Relu got no outputs; allowed: 1 output (Y)": lambda: add("Relu", ["x"], []),
            "replace_node: Tanh has no attribute 'alpha'; allowed: none": lambda: swap("Relu_1", "Tanh", alpha=3),
            "Elu has no attribute 'alhpa'; allowed: alpha; did you mean 'alpha'?": lambda: swap(
                "Relu_1", "Elu", alhpa=1.0
            ),
            "Elu got alpha=3, an integer; allowed: a float; remedy: alpha=3.0": lambda: swap("Relu_1", "Elu", alpha=3),
            "Softmax got axis=1.5, a float; allowed: an integer": lambda: add("Softmax", ["x"], axis=1.5),
            "Cast got no attribute 'to', which it needs; allowed: an integer": lambda: add("Cast", ["x"]),
            "got '' as an operator; allowed: the name of one, such as 'Relu'": lambda: swap("Relu_1", ""),
            "got None as an operator; allowed: the name of one": lambda: swap("Relu_1", None),  # type: ignore[arg-type]
            "No Op registered for relu with": lambda: swap("Relu_1", "relu"),
            "; did you mean 'Relu'?": lambda: swap("Relu_1", "relu"),
        },
        small,
    )
    assert add("Clip", ["x", None, None], ["cut"]).nodes[-1].op_type == "Clip"
