"""Every gradient rule against torch's autograd and against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.core.errors import NetworkError, UnknownName, Unsupported
from deep5.networks import Network, NetworkBuilder, lenet
from deep5.networks.gradients import gradient_network
from gradient_cases import check_case, dot_network, gradients_of, normal

CONVOLUTIONS = [
    # x, w, bias, attributes
    ((2, 3, 7, 6), (4, 3, 3, 2), True, {}),
    ((2, 3, 7, 6), (4, 3, 3, 2), False, {"pads": [1, 2, 0, 1]}),
    ((1, 2, 9, 8), (3, 2, 3, 3), True, {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    ((2, 2, 10, 9), (3, 2, 2, 3), True, {"dilations": [2, 1], "strides": [3, 2]}),
    ((3, 1, 6, 6), (2, 1, 1, 1), True, {"strides": [2, 2]}),
    ((40, 2, 5, 5), (3, 2, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    ((2, 3, 11), (4, 3, 4), True, {"strides": [2], "pads": [2, 1]}),
    ((1, 2, 5, 4, 6), (2, 2, 2, 2, 3), True, {"strides": [1, 2, 1], "pads": [0, 1, 1, 0, 1, 0]}),
]


@pytest.mark.parametrize(("x", "w", "bias", "attributes"), CONVOLUTIONS)
def test_convolution(x: tuple[int, ...], w: tuple[int, ...], bias: bool, attributes: dict[str, Any]) -> None:
    rank = len(w) - 2
    shapes = {"x": x, "w": w, **({"b": (w[0],)} if bias else {})}
    native = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def expected(x: Any, w: Any, b: Any = None) -> Any:
        pads = attributes.get("pads", [0] * 2 * rank)
        order = [pads[side * rank + axis] for axis in reversed(range(rank)) for side in (0, 1)]
        options = {"stride": attributes.get("strides", 1), "dilation": attributes.get("dilations", 1)}
        return native(F.pad(x, order), w, b, **options)

    check_case(lambda build, *values: build.op("Conv", *values, **attributes), expected, shapes)


def test_convolution_with_a_symbolic_batch() -> None:
    check_case(
        lambda build, x, w: build.op("Conv", x, w, strides=[2, 2], pads=[1, 1, 1, 1]),
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        {"x": (5, 2, 6, 7), "w": (3, 2, 3, 3)},
        declared={"x": ("N", 2, 6, 7)},
    )


AVERAGES = [
    # x, kernel, attributes of ONNX, of torch
    ((2, 3, 6, 4), [2, 2], {"strides": [2, 2]}, {}),
    ((2, 3, 7, 5), [3, 2], {"strides": [3, 2]}, {}),
    ((2, 2, 6, 7), [3, 2], {"strides": [1, 1]}, {"stride": 1}),
    ((2, 2, 9, 8), [3, 3], {"strides": [2, 2]}, {"stride": 2}),
    ((2, 2, 6, 6), [3, 3], {"strides": [2, 2], "pads": [1] * 4, "count_include_pad": 1}, {"stride": 2, "padding": 1}),
    ((2, 2, 6, 4), [2, 2], {"strides": [2, 2], "ceil_mode": 1}, {"ceil_mode": True}),
]


@pytest.mark.parametrize(("x", "kernel", "attributes", "options"), AVERAGES)
@pytest.mark.parametrize("batch", [None, "N"])
def test_average_pool(x: Any, kernel: list[int], attributes: dict[str, Any], options: Any, batch: str | None) -> None:
    check_case(
        lambda build, x: build.op("AveragePool", x, kernel_shape=kernel, **attributes),
        lambda x: F.avg_pool2d(x, kernel, **options),
        {"x": x},
        declared={"x": (batch, *x[1:])} if batch else None,
    )


def test_average_pool_over_dilated_windows() -> None:
    check_case(
        lambda build, x: build.op("AveragePool", x, kernel_shape=[2], dilations=[2], strides=[2]),
        lambda x: torch.stack([(x[..., i] + x[..., i + 2]) / 2 for i in (0, 2, 4)], -1),
        {"x": (2, 3, 8)},
    )


@pytest.mark.parametrize(
    ("x", "kernel", "attributes", "options"),
    [
        ((2, 3, 6, 4), [2, 2], {"strides": [2, 2]}, {}),
        ((2, 2, 7, 8), [3, 2], {"strides": [1, 2]}, {"stride": (1, 2)}),
        ((2, 2, 6, 6), [3, 3], {"strides": [2, 2], "pads": [1] * 4}, {"stride": 2, "padding": 1}),
        ((2, 2, 7, 7), [2, 2], {"strides": [2, 2], "ceil_mode": 1}, {"ceil_mode": True}),
        ((2, 2, 9, 9), [3, 3], {"strides": [2, 2], "dilations": [2, 2]}, {"stride": 2, "dilation": 2}),
    ],
)
def test_max_pool(x: Any, kernel: list[int], attributes: dict[str, Any], options: dict[str, Any]) -> None:
    check_case(
        lambda build, x: build.op("MaxPool", x, kernel_shape=kernel, **attributes),
        lambda x: F.max_pool2d(x, kernel, **options),
        {"x": x},
        declared={"x": ("N", *x[1:])},
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_max_pool_gives_ties_to_the_first(stride: int) -> None:
    """Equal elements, overlapping windows included: one element of each window receives the gradient, as in torch."""
    check_case(
        lambda build, x: build.op(
            "MaxPool",
            build.op("Mul", x, build.constant("zero", np.zeros(()))),
            kernel_shape=[2, 2],
            strides=[stride] * 2,
        ),
        lambda x: F.max_pool2d(x * 0, 2, stride=stride),
        {"x": (2, 2, 4, 4)},
        smooth=False,
    )
    network = dot_network(
        lambda build, x: build.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]),
        {"x": (1, 1, 4, 4)},
        declared={"x": (1, 1, 4, 4)},
    )
    _, gradients = gradients_of(network, {"x": np.ones((1, 1, 4, 4)), "seed": np.arange(1.0, 5.0)}, ["x"])
    first = np.zeros((4, 4))
    first[::2, ::2] = [[1, 2], [3, 4]]
    np.testing.assert_array_equal(gradients["x"][0, 0], first)


@pytest.mark.parametrize("declared", [None, {"x": ("N", 3, "H", "W")}])
def test_global_average_pool(declared: dict[str, Any] | None) -> None:
    check_case(
        lambda build, x: build.op("GlobalAveragePool", x),
        lambda x: x.mean((2, 3), keepdim=True),
        {"x": (2, 3, 4, 5)},
        declared=declared,
    )


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("Tanh", torch.tanh),
        ("Sigmoid", torch.sigmoid),
        ("Relu", torch.relu),
        ("Exp", torch.exp),
        ("Neg", torch.neg),
        ("Identity", lambda x: x),
        ("Softmax", lambda x: torch.softmax(x, -1)),
    ],
)
def test_functions_of_one_value(op: str, expected: Callable[..., Any]) -> None:
    check_case(lambda build, x: build.op(op, x), expected, {"x": (3, 4)})
    check_case(lambda build, x: build.op(op, x), expected, {"x": (3, 4)}, declared={"x": ("N", 4)})


def test_softmax_along_an_axis() -> None:
    check_case(lambda build, x: build.op("Softmax", x, axis=1), lambda x: torch.softmax(x, 1), {"x": (2, 5, 3)})


BROADCASTS = [
    ({"a": (3, 4), "c": (3, 4)}, None),
    ({"a": (3, 4), "c": (4,)}, None),
    ({"a": (), "c": (2, 3)}, None),
    ({"a": (2, 1, 4), "c": (3, 1)}, None),
    ({"a": (1, 4), "c": (2, 3, 1)}, None),
    ({"a": (5, 4), "c": (1, 4)}, {"a": ("N", 4)}),
    ({"a": (5, 4), "c": (5, 1)}, {"a": ("N", 4), "c": ("N", 1)}),
    # the same graph must be right for M = 1 and for any other M
    ({"a": (5, 4), "c": (1, 4)}, {"a": ("N", 4), "c": ("M", 4)}),
    ({"a": (5, 4), "c": (5, 4)}, {"a": ("N", 4), "c": ("M", 4)}),
    ({"a": (2, 5, 4), "c": (1, 4)}, {"a": (2, "N", 4), "c": ("M", 4)}),
]


@pytest.mark.parametrize(("shapes", "declared"), BROADCASTS)
@pytest.mark.parametrize(
    ("op", "expected"),
    [("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul), ("Div", torch.div)],
)
def test_arithmetic_broadcasts(op: str, expected: Callable[..., Any], shapes: Any, declared: Any) -> None:
    def away_from_zero(build: Any, value: Any) -> Any:
        return build.op("Exp", value) if op == "Div" else value

    check_case(
        lambda build, a, c: build.op(op, a, away_from_zero(build, c)),
        lambda a, c: expected(a, torch.exp(c) if op == "Div" else c),
        shapes,
        declared=declared,
    )


@pytest.mark.parametrize("flip_a", [0, 1])
@pytest.mark.parametrize("flip_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)])
def test_gemm(flip_a: int, flip_b: int, c: tuple[int, ...] | None) -> None:
    shapes = {"a": (4, 3) if flip_a else (3, 4), "b": (5, 4) if flip_b else (4, 5)}
    if c is not None:
        shapes["c"] = c

    def expected(a: Any, b: Any, c: Any = 0.0) -> Any:
        return 0.5 * ((a.T if flip_a else a) @ (b.T if flip_b else b)) + 1.5 * c

    check_case(
        lambda build, *values: build.op("Gemm", *values, alpha=0.5, beta=1.5, transA=flip_a, transB=flip_b),
        expected,
        shapes,
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((4,), (2, 4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_case(lambda build, a, b: build.op("MatMul", a, b), torch.matmul, {"a": a, "b": b})


def test_shapes_are_given_back() -> None:
    shapes = {"x": (2, 3, 4)}
    check_case(lambda build, x: build.op("Flatten", x, axis=2), lambda x: x.reshape(6, 4), shapes)
    check_case(lambda build, x: build.op("Transpose", x, perm=[1, 2, 0]), lambda x: x.permute(1, 2, 0), shapes)
    check_case(lambda build, x: build.op("Transpose", x), lambda x: x.permute(2, 1, 0), shapes)
    check_case(
        lambda build, x: build.op("Reshape", x, build.constant("to", np.array([0, -1, 2]))),
        lambda x: x.reshape(2, 6, 2),
        shapes,
        declared={"x": ("N", 3, 4)},
    )


def test_a_value_used_twice_sums_its_gradients() -> None:
    check_case(
        lambda build, x: build.op("Add", build.op("Mul", x, x), build.op("Tanh", x)),
        lambda x: x * x + torch.tanh(x),
        {"x": (3, 4)},
    )

    def shared(build: Any, x: Any, w: Any) -> Any:
        return build.op("MatMul", build.op("Relu", build.op("MatMul", x, w)), w)

    check_case(shared, lambda x, w: torch.relu(x @ w) @ w, {"x": (3, 4), "w": (4, 4)})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -7])
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 2, 2)])
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_losses_over_classes(
    op_type: str, reduction: str, weighted: bool, ignored: int | None, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    label = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored is not None:
        label.reshape(-1)[:2] = ignored
    weights = rng.uniform(0.5, 2.0, shape[1]) if weighted else None
    declared = {"x": ("N", "C", *shape[2:])}
    attributes = {} if ignored is None else {"ignore_index": ignored}

    def op(build: Any, x: Any) -> Any:
        rest = [] if weights is None else [build.constant("weights", weights)]
        label_value = build.constant("label", label)
        return build.op(op_type, x, label_value, *rest, reduction=reduction, **attributes)

    def expected(x: Any) -> Any:
        options = {} if ignored is None else {"ignore_index": ignored}
        weight = None if weights is None else torch.tensor(weights)
        function = F.cross_entropy if op_type == "SoftmaxCrossEntropyLoss" else F.nll_loss
        return function(x, torch.tensor(label), weight=weight, reduction=reduction, **options)

    for given in (None, declared):
        check_case(op, expected, {"x": shape}, declared=given)


def test_labels_may_be_of_32_bits() -> None:
    label = np.array([0, 2, 1], np.int32)
    check_case(
        lambda build, x: build.op("SoftmaxCrossEntropyLoss", x, build.constant("label", label)),
        lambda x: F.cross_entropy(x, torch.tensor(label).long()),
        {"x": (3, 4)},
    )


def test_the_graph_is_valid_onnx_and_ends_in_gradients() -> None:
    network = lenet()
    gradients = gradient_network(network)
    onnx.checker.check_model(gradients.to_onnx(), full_check=True)
    assert list(gradients.inputs) == ["input", "label", "loss_scale"]
    assert list(gradients.outputs) == ["logits", "loss", *(f"grad:{name}" for name in network.parameter_specs)]
    assert {name: gradients.outputs[f"grad:{name}"] for name in network.parameter_specs} == network.parameter_specs
    assert gradients.parameter_specs == network.parameter_specs


def test_gradients_are_named_as_soon_as_they_are_known() -> None:
    """The last layer's gradients do not wait for the first's: communication overlaps with computation."""
    made = [str(value.name) for node in gradient_network(lenet()).nodes for value in node.outputs]
    order = [name for name in made if name.startswith("grad:")]
    assert set(order[:2]) == {"grad:fc3.weight", "grad:fc3.bias"}
    assert set(order[-2:]) == {"grad:conv1.weight", "grad:conv1.bias"}


def test_what_the_loss_does_not_see_has_gradient_zero() -> None:
    build = NetworkBuilder("two", dtype="float64")
    x, w, unused = build.input("x", (3,)), build.parameter("w", (3,), normal), build.parameter("u", (2, 2), normal)
    network = build.network({"loss": build.op("MatMul", x, w), "other": build.op("Tanh", unused)})
    _, gradients = gradients_of(network, {"x": np.arange(3.0)}, ["w", "u"])
    np.testing.assert_array_equal(gradients["w"], np.arange(3.0))
    np.testing.assert_array_equal(gradients["u"], np.zeros((2, 2)))


def test_integers_stop_the_gradient() -> None:
    build = NetworkBuilder("stop", dtype="float64")
    w = build.parameter("w", (3,), normal)
    whole = build.op("Cast", build.op("Cast", w, to=ir.DataType.INT64), to=ir.DataType.DOUBLE)
    network = build.network({"loss": build.op("MatMul", whole, w)})
    _, gradients = gradients_of(network, {}, ["w"])
    np.testing.assert_array_equal(gradients["w"], np.trunc(network.initial("w")))


def test_missing_rules_are_listed_by_name() -> None:
    build = NetworkBuilder("odd")
    w = build.parameter("w", (3, 3), normal)
    network = build.network({"loss": build.op("Det", build.op("Hardmax", build.op("Hardmax", build.op("Tanh", w))))})
    reason = r"\(Hardmax: its result is constant wherever it is differentiable\)"
    remedy = "allowed: operators with one in docs/reference/onnx_operators.md; remedy: .*, or compute the loss without$"
    with pytest.raises(Unsupported, match=f"no gradient rule for 'Hardmax_1' {reason}, 'Hardmax_2' {reason}; {remedy}"):
        gradient_network(network)


def test_a_branch_without_a_rule_is_refused_with_a_remedy() -> None:
    network = Network.from_onnx(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["": 20]> g (bool chosen, float[3] x) => (float loss)
            <float[3] w = {1, 2, 3}> {
                y = If (chosen) <then_branch = a () => (float[3] p) {p = Mul(x, w)},
                                 else_branch = b () => (float[3] q) {q = Hardmax(w)}>
                loss = ReduceSum <keepdims = 0> (y)
            }"""
        )
    )
    with pytest.raises(Unsupported, match=r"no gradient rule for .*Hardmax.*; remedy: .*") as refused:
        gradient_network(network)
    assert len(str(refused.value)) < 400


def test_padding_by_sizes_that_only_a_run_knows_is_that_of_known_sizes() -> None:
    rng = np.random.default_rng(2)
    feed = {"x": rng.standard_normal((2, 2, 5, 5)), "seed": rng.standard_normal(36)}
    gradients = []
    for sizes in ((2, 2, 5, 5), ("N", 2, "H", 5)):
        network = dot_network(
            lambda b, x: b.op("Conv", x, b.parameter("w", (2, 2, 3, 3)), auto_pad="SAME_UPPER", strides=[2, 2]),
            {"x": (2, 2, 5, 5)},
            declared={"x": sizes},
        )
        executor = d5.framework("reference").executor(network)
        executor.inference_and_backprop(feed, wrt=["x", "w"])
        gradients.append(executor.gradients())
    for name, value in gradients[0].items():
        # The same float64 products, perhaps in another order.
        np.testing.assert_allclose(gradients[1][name], value, rtol=1e-12, atol=1e-12)


def test_wrong_questions_are_refused() -> None:
    network = lenet()
    with pytest.raises(UnknownName, match="unknown loss 'los'; allowed: logits, loss; did you mean 'loss'"):
        gradient_network(network, "los")
    with pytest.raises(NetworkError, match=r"float32\[N, 10\]; allowed: a floating-point scalar"):
        gradient_network(network, "logits")
    with pytest.raises(UnknownName, match=r"unknown parameter or input 'conv1\.wait'"):
        gradient_network(network, wrt=["conv1.wait"])
    with pytest.raises(Unsupported, match=r"no gradient by 'label', which is int64\[N\]"):
        gradient_network(network, wrt=["label"])
    with pytest.raises(NetworkError, match="already has a value 'loss_scale'; remedy: rename it"):
        gradient_network(gradient_network(network))
    old = network.model.clone()
    old.graph.opset_imports[""] = 17
    with pytest.raises(Unsupported, match="opset 17; allowed: 18 and newer"):
        gradient_network(Network(old))
