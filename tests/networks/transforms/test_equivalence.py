"""A transformation is checked to keep outputs and gradients; the error says where one does not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.networks import NetworkBuilder, gpt, he_normal, lenet, resnet, zeros
from deep5.networks.judge import ConformanceError
from deep5.networks.microbatching.transform import micro_batched
from deep5.networks.transforms.convolution_algorithms import convolutions_by
from deep5.networks.transforms.equivalence import check_equivalence, check_transformation


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
        r"[-\d.e]+, expected [-\d.e]+, [\d.e-]+ away; allowed: [\d.e-]+ \(1e-09 of [\d.e-]+\)"
    )
    with pytest.raises(ConformanceError, match=message):
        check_transformation(lambda given: given.replace_node("Relu_1", "Softplus"), network())


@d5.register_operator("Detached", domain="equivalence_test")
class Detached(d5.CppOperator):
    """The identity with twice its gradient."""

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
    """With another node after a value."""
    user = next(node for node in given.nodes if any(each is not None and each.name == value for each in node.inputs))
    return given.add_node(op_type, [value], ["between"], **keywords).add_edge("between", str(user.name), 0)


def test_a_gradient_alone_that_is_wrong_is_found() -> None:
    def doubled(given: d5.Network) -> d5.Network:
        return between(given, "Detached", "Conv_1_output", domain="equivalence_test")

    with pytest.raises(ConformanceError, match=r"a batch of 1: the gradient by 'w' differs in \d+ of 54 elements"):
        check_transformation(doubled, network())


def test_what_is_wrong_at_some_batch_alone_is_found() -> None:
    """Scores that a transformation scales by a quarter of the batch size, rounded down."""

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
    with pytest.raises(UsageError, match="got a batch of 0; allowed: an integer of at least 1"):
        check_equivalence(network(), network(), batches=[0])
    build = NetworkBuilder("two")
    made = build.network({"y": build.op("Sum", build.input("x", ("N", "M")))})
    with pytest.raises(UsageError, match=r"^check_transformation: the inputs have the symbolic dimensions M, N"):
        check_transformation(lambda given: given, made)
    build = NetworkBuilder("whole")
    x = build.input("x", ("N",), "int64")
    made = build.network({"y": build.op("Cast", x, to=1)})
    with pytest.raises(UsageError, match=r"what the input 'x' \(int64\[N\]\) may hold is not known; remedy: feeds="):
        check_equivalence(made, made)


def test_words_are_drawn_below_the_size_of_the_table() -> None:
    made = gpt(vocabulary=11, length=4, width=8, layers=1, heads=2)
    check_equivalence(made, made, batches=[2])


@pytest.mark.parametrize("tolerance", [float("inf"), float("nan"), -1, 0, 0.011, 1, "x", None, True])
def test_a_tolerance_under_which_anything_passes_is_refused(tolerance: Any) -> None:
    def wrong(given: d5.Network) -> d5.Network:
        return given.replace_node("Relu_1", "Softplus")

    message = re.escape(f"got tolerance={tolerance!r}; allowed: a finite number above 0 and at most 0.01")
    with pytest.raises(UsageError, match=f"check_transformation: {message}.*; remedy: leave it at 1e-09"):
        check_transformation(wrong, network(), tolerance=tolerance)
    with pytest.raises(UsageError, match=f"check_equivalence: {message}"):
        check_equivalence(network(), wrong(network()), tolerance=tolerance)


def test_the_largest_tolerance_still_finds_what_is_wrong() -> None:
    with pytest.raises(ConformanceError, match="the output 'logits' differs"):
        check_transformation(lambda given: given.replace_node("Relu_1", "Softplus"), network(), tolerance=1e-2)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"batches": 3}, "got batches=3; allowed: a list of sizes of the minibatch; remedy: batches=[3]"),
        ({"batches": "3"}, "got batches='3'; allowed: a list of sizes of the minibatch; remedy: batches=[1, 4]"),
        ({"batches": None}, "got batches=None; allowed: a list of sizes"),
        ({"batches": [2.5]}, "got a batch of 2.5; allowed: an integer of at least 1; remedy: batches=[1, 4]"),
        (
            {"feeds": {"input": []}},
            "got feeds={'input': []}; allowed: None, or a list of arrays by the input's name; remedy: ",
        ),
        ({"feeds": [3]}, "got feeds=[3]; allowed: None, or a list"),
        ({"feeds": []}, "got no feeds and no batches; allowed: at least one"),
        ({"seed": 1.5}, "got seed=1.5; allowed: an integer from 0 to 2**63 - 1; remedy: seed=0"),
        ({"seed": -1}, "got seed=-1; allowed: an integer from 0"),
        ({"framework": 3}, "got framework=3; allowed: a name, or what deep5.framework(name) gives"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_anything_runs(keywords: dict[str, Any], message: str) -> None:
    def never(given: d5.Network) -> d5.Network:
        raise AssertionError("it ran")

    with pytest.raises(UsageError, match=re.escape(f"check_transformation: {message}")):
        check_transformation(never, network(), **keywords)
    with pytest.raises(UsageError, match=re.escape(f"check_equivalence: {message}")):
        check_equivalence(network(), network(), **keywords)


def test_what_is_no_network_or_no_transformation_is_refused() -> None:
    made: Any = network()
    with pytest.raises(UsageError, match="check_transformation: got 3 as the transformation; allowed: a function from"):
        check_transformation(3, made)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="check_transformation: got 'lenet' as the network; allowed: a Network; remedy"
    ):
        check_transformation(lambda given: given, "lenet")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="check_equivalence: got None as the network after; allowed: a Network"):
        check_equivalence(made, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got <function .* as the network before; .*; remedy: call it: lenet\(…\)"):
        check_equivalence(lenet, made)  # type: ignore[arg-type]
