"""The gradient of a convolution in groups: in float64 against torch and central differences, and on every back-end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.networks import Network, NetworkBuilder, zeros
from deep5.networks.gradients import build as differentiation
from gradient_cases import check_case

CASES: list[tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]] = [
    # x, w, bias, attributes
    ((2, 4, 7, 6), (6, 2, 3, 2), True, {"group": 2}),
    ((2, 6, 7, 6), (6, 2, 3, 3), False, {"group": 3, "pads": [1, 2, 0, 1]}),
    ((3, 4, 9, 8), (4, 1, 3, 3), True, {"group": 4, "strides": [2, 3], "pads": [1, 1, 1, 1]}),
    ((2, 3, 10, 9), (6, 1, 2, 3), True, {"group": 3, "dilations": [2, 1], "strides": [3, 2], "pads": [0, 2, 1, 0]}),
    ((3, 4, 6, 6), (8, 2, 1, 1), True, {"group": 2, "strides": [2, 2]}),
    ((1, 4, 5, 5), (2, 2, 3, 3), False, {"group": 2}),  # one output per group
    ((2, 4, 9, 8), (4, 1, 3, 3), False, {"group": 4, "pads": [1, 1, 1, 1]}),  # more windows than are processed together
    ((2, 64, 14, 13), (4, 32, 2, 1), True, {"group": 2}),  # many channels and windows
    ((2, 4, 11), (6, 2, 4), True, {"group": 2, "strides": [2], "pads": [2, 1]}),
    ((1, 4, 5, 4, 6), (4, 1, 2, 2, 3), True, {"group": 4, "strides": [1, 2, 1], "pads": [0, 1, 1, 0, 1, 0]}),
]


def native(attributes: dict[str, Any], rank: int) -> Callable[..., Any]:
    """The same convolution in torch, which has no asymmetric padding."""
    convolution = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    pads = attributes.get("pads", [0] * 2 * rank)
    order = [pads[side * rank + axis] for axis in reversed(range(rank)) for side in (0, 1)]
    options = {"stride": attributes.get("strides", 1), "dilation": attributes.get("dilations", 1)}

    def expected(x: Any, w: Any, b: Any = None) -> Any:
        return convolution(F.pad(x, order), w, b, groups=attributes["group"], **options)

    return expected


@pytest.mark.parametrize(("x", "w", "bias", "attributes"), CASES)
@pytest.mark.parametrize("batch", [None, "N"])
def test_gradients(
    x: tuple[int, ...], w: tuple[int, ...], bias: bool, attributes: dict[str, Any], batch: str | None
) -> None:
    check_case(
        lambda build, *values: build.op("Conv", *values, **attributes),
        native(attributes, len(w) - 2),
        {"x": x, "w": w, **({"b": (w[0],)} if bias else {})},
        declared={"x": (batch, *x[1:])} if batch else None,
    )


def test_gradients_over_space_of_any_extent() -> None:
    check_case(
        lambda build, x, w: build.op("Conv", x, w, pads=[1, 0, 1, 2], dilations=[1, 2], group=2),
        native({"pads": [1, 0, 1, 2], "dilations": [1, 2], "group": 2}, 2),
        {"x": (2, 4, 6, 7), "w": (6, 2, 3, 3)},
        declared={"x": ("N", 4, "H", "W")},
    )


@pytest.mark.parametrize("wrong", ["the groups of the weights", "the groups of the input"])
def test_groups_that_are_mixed_up_are_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = differentiation.RULES

    def mixed(b: Any, node: Any, grads: Any) -> Any:
        dx, dw, dbias = rules["Conv"](b, node, grads)
        which, extent = (dw, 6) if wrong.endswith("weights") else (dx, 4)
        axis = 0 if which is dw else 1
        half = b.ints(*range(extent // 2, extent), *range(extent // 2))
        turned = b.op("Gather", which, half, axis=axis)
        return [dx, turned, dbias] if which is dw else [turned, dw, dbias]

    monkeypatch.setattr(differentiation, "RULES", {**rules, "Conv": mixed})
    with pytest.raises(AssertionError, match="w" if wrong.endswith("weights") else "x"):
        test_gradients(*CASES[0], batch=None)


def separable(dtype: str) -> Network:
    """A depthwise convolution, one in two groups, and a pointwise one: the building blocks of small networks."""
    build = NetworkBuilder("separable", dtype=dtype, seed=2)
    x = build.input("input", ("N", 3, 9, 8))
    deep = build.parameter("deep", (6, 1, 3, 3))
    x = build.op("Conv", x, deep, strides=[2, 1], pads=[1, 0, 0, 1], kernel_shape=[3, 3], group=3)
    x = build.op("Tanh", x)
    x = build.op(
        "Conv",
        x,
        build.parameter("pairs", (4, 3, 2, 2)),
        build.parameter("bias", (4,), zeros),
        dilations=[2, 1],
        kernel_shape=[2, 2],
        group=2,
    )
    x = build.op("Conv", build.op("Tanh", x), build.parameter("point", (8, 1, 1, 1)), kernel_shape=[1, 1], group=4)
    x = build.op("Flatten", build.op("GlobalAveragePool", x))
    loss = build.op("SoftmaxCrossEntropyLoss", x, build.input("label", ("N",), "int64"))
    return build.network({"loss": loss})


def torchs(network: Network, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients of the same network as a torch user writes it, by all parameters and by the input, in float64."""
    names = [*network.parameter_specs, "input"]
    start = {name: feeds[name] if name == "input" else network.initial(name) for name in names}
    leaves = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in start.items()}
    x = F.pad(leaves["input"], (0, 1, 1, 0))
    x = torch.tanh(F.conv2d(x, leaves["deep"], stride=(2, 1), groups=3))
    x = torch.tanh(F.conv2d(x, leaves["pairs"], leaves["bias"], dilation=(2, 1), groups=2))
    x = F.conv2d(x, leaves["point"], groups=4).mean((2, 3))
    F.cross_entropy(x, torch.tensor(feeds["label"])).backward()
    return {name: leaf.grad.numpy() for name, leaf in leaves.items()}


# ONNX Runtime and OpenVINO convolve only in float32.
ENGINES = [
    *((name, "float64") for name in ("reference", "pytorch", "tensorflow", "jax")),
    *((name, "float32") for name in ("reference", "onnxruntime", "openvino")),
]


@pytest.mark.parametrize(("framework", "dtype"), ENGINES)
def test_back_ends(framework: str, dtype: str) -> None:
    """Gradients against torch's, and one gradient descent step."""
    network = separable(dtype)
    rng = np.random.default_rng(4)
    feeds = {"input": rng.standard_normal((5, 3, 9, 8)).astype(dtype), "label": rng.integers(0, 8, 5)}
    expected = torchs(network, feeds)
    executor = d5.framework(framework).executor(network)
    executor.inference_and_backprop(feeds, wrt=list(expected))
    found = executor.gradients()
    # about a hundred products of size 1, whose sums are gradients of size 0.01 to 0.1
    tolerance = {"float64": 1e-13, "float32": 1e-6}[dtype]
    for name, want in expected.items():
        got = np.asarray(found[name])
        assert (got.shape, got.dtype) == (want.shape, np.dtype(dtype)), name
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=name)
    executor.train_step(d5.SGD(lr=0.5))(feeds, d5.StepInfo(step=0, batch_size=5))
    for name, value in executor.state_dict().items():
        want = network.initial(name) - 0.5 * expected[name]
        np.testing.assert_allclose(value, want, rtol=2 * tolerance, atol=2 * tolerance, err_msg=name)


@pytest.mark.parametrize("framework", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("extent", [3, 6])
def test_three_spatial_axes(framework: str, group: int, extent: int) -> None:
    """OpenVINO has no transposed convolution of rank 4, which a small image with its batch would need."""
    build = NetworkBuilder("volume")
    weight = build.parameter("w", (4, 4 // group, 2, 2, 2))
    x = build.op("Conv", build.input("input", ("N", 4, *[extent] * 3)), weight, kernel_shape=[2] * 3, group=group)
    x = build.op("Flatten", build.op("GlobalAveragePool", build.op("Tanh", x)))
    network = build.network({"loss": build.op("SoftmaxCrossEntropyLoss", x, build.input("label", ("N",), "int64"))})
    images = np.random.default_rng(0).standard_normal((3, 4, *[extent] * 3)).astype(np.float32)
    found = []
    for name in (framework, "reference"):
        executor = d5.framework(name).executor(network)
        executor.inference_and_backprop({"input": images, "label": np.array([0, 1, 2])}, wrt=["w", "input"])
        found.append({key: np.asarray(value) for key, value in executor.gradients().items()})
    for key, want in found[1].items():
        # sums of at most about a hundred products of size 0.1
        np.testing.assert_allclose(found[0][key], want, rtol=1e-5, atol=1e-6, err_msg=key)
