"""A transformation is proved to keep outputs and gradients, and one that does not is told where."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.errors import UsageError
from deep5.networks import NetworkBuilder, gpt, he_normal, lenet, resnet, zeros
from deep5.networks.convolution_algorithms import convolutions_by
from deep5.networks.equivalence import check_equivalence, check_transformation
from deep5.networks.judge import ConformanceError
from deep5.networks.microbatching import micro_batched


def network() -> d5.Network:
    build = NetworkBuilder("convolved", dtype="float32", seed=0)
    x, label = build.input("input", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    weight, bias = build.parameter("w", (3, 2, 3, 3), he_normal), build.parameter("b", (3,), zeros)
    x = build.op("Relu", build.op("Conv", x, weight, bias, kernel_shape=[3, 3]))
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_equivalent_networks_are_accepted(framework: str) -> None:
    made = check_transformation(lambda given: micro_batched(given, {"Conv_1": [2, 1]}), network(), framework=framework)
    assert made.inputs["input"].shape == (3, 2, 6, 6)
    check_transformation(lambda given: given, lenet(classes=4), framework=framework)
    check_transformation(
        lambda given: given.rename("Relu_1", "other"), resnet(depth=8), batches=[3], framework=framework
    )


def test_a_network_without_a_loss() -> None:
    made = network().with_outputs(["logits"]).subnetwork(["input"], ["logits"])
    check_equivalence(made, made.rename("Relu_1", "other"))
    with pytest.raises(ConformanceError, match="the output 'logits' differs"):
        check_equivalence(made, made.replace_node("Relu_1", "Softplus"))


def test_a_wrong_output_is_told_with_its_place_and_distance() -> None:
    message = (
        r"the transformation .*: a batch of 1: the output 'logits' differs in 3 of 3 elements, first at \[0, 0\]: "
        r"[-\d.e]+, where [-\d.e]+ is wanted, [\d.e-]+ away; allowed: [\d.e-]+ \(1e-09 of [\d.e-]+\)"
    )
    with pytest.raises(ConformanceError, match=message):
        check_transformation(lambda given: given.replace_node("Relu_1", "Softplus"), network())


@d5.register_operator("Detached", domain="equivalence_test")
class Detached(d5.CppOperator):
    """The identity, whose gradient is twice what it should be."""

    source = """
    template <typename T>
    struct Detached : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { std::copy(x.begin(), x.end(), y.begin()); }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < dx.size(); ++i) dx[i] = 2 * dy[i];
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return (inputs[0],)


def between(given: d5.Network, op_type: str, value: str, **keywords: Any) -> d5.Network:
    """With another node behind a value."""
    user = next(node for node in given.nodes if any(each is not None and each.name == value for each in node.inputs))
    return given.add_node(op_type, [value], ["between"], **keywords).add_edge("between", str(user.name), 0)


def test_a_gradient_alone_that_is_wrong_is_found() -> None:
    def doubled(given: d5.Network) -> d5.Network:
        return between(given, "Detached", "Conv_1_output", domain="equivalence_test")

    with pytest.raises(ConformanceError, match=r"a batch of 1: the gradient by 'w' differs in \d+ of 54 elements"):
        check_transformation(doubled, network())


def test_what_is_wrong_at_some_batch_alone_is_found() -> None:
    """Scores that a transformation scales by the size of the batch, in quarters rounded down."""

    def divided(given: d5.Network) -> d5.Network:
        made = given.add_parameter("samples", np.array([4])).add_node("Shape", ["logits"], ["shape"], end=1)
        made = made.add_node("Div", ["shape", "samples"], ["whole"]).add_node(
            "CastLike", ["whole", "logits"], ["share"]
        )
        return made.add_node("Mul", ["logits", "share"], ["scaled"]).add_edge("scaled", "SoftmaxCrossEntropyLoss_1", 0)

    check_transformation(divided, network(), batches=[4])
    with pytest.raises(ConformanceError, match="a batch of 3: the output 'loss' differs in 1 of 1"):
        check_transformation(divided, network(), batches=[4, 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.with_outputs(["logits"]), "has the outputs ['logits']; allowed: ['logits', 'loss']"),
        (lambda given: given.rename("w", "v"), "has the parameters ['b', 'v']; allowed: ['b', 'w']"),
        (lambda given: given.with_values({"b": np.ones(3)}), "'b' begins with other values; allowed: the same bits"),
        (lambda given: None, "gave NoneType; allowed: a Network"),
    ],
)
def test_other_names_and_values_are_found(change: Any, message: str) -> None:
    with pytest.raises(ConformanceError, match=re.escape(message)):
        check_transformation(change, network())


def test_frozen_parameters_stay_frozen() -> None:
    frozen = network().freeze("w")
    for keep in (
        lambda given: micro_batched(given, {"Conv_1": [2, 1]}),
        lambda given: convolutions_by(given, "direct"),
    ):
        made = check_transformation(keep, frozen)
        assert made.frozen == {"w"}
    with pytest.raises(ConformanceError, match=re.escape("freezes []; allowed: ['w']")):
        check_transformation(lambda given: given.unfreeze("w"), frozen)


def test_the_given_network_is_not_changed() -> None:
    def careless(given: d5.Network) -> d5.Network:
        given.model.graph[1].op_type = "Relu"
        return given

    with pytest.raises(ConformanceError, match="changed the network that it was given; allowed: a new network"):
        check_transformation(careless, d5.networks.mlp(features=3, hidden=2, classes=2, dtype="float64"))


def test_refusals() -> None:
    with pytest.raises(UsageError, match="got no feeds and no batches"):
        check_equivalence(network(), network(), batches=[])
    with pytest.raises(UsageError, match="got a batch of 0; allowed: at least 1"):
        check_equivalence(network(), network(), batches=[0])
    build = NetworkBuilder("whole")
    x = build.input("x", ("N",), "int64")
    made = build.network({"y": build.op("Cast", x, to=1)})
    with pytest.raises(UsageError, match=r"what the input 'x' \(int64\[N\]\) may hold is not known; remedy: feeds="):
        check_equivalence(made, made)


def test_words_are_drawn_below_the_size_of_the_table() -> None:
    made = gpt(vocabulary=11, length=4, width=8, layers=1, heads=2)
    check_equivalence(made, made, batches=[2])
