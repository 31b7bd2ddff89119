"""Every operator of PyTorch's and TensorFlow's tables: values of ONNX Runtime, gradients by central differences."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from conformance import cases as onnx_cases
from conformance import model_of
from deep5.networks.onnx.reading import nodes_of
from operator_cases import ONLY, Case, cases, checked_gradients, converted, named, runtime, single, smooth, with_loss

FRAMEWORKS = ("pytorch", "tensorflow")
# Neither in the cases nor in ONNX's suite; test_pytorch_operators.py and test_tensorflow_operators.py test them.
_TRIED_ELSEWHERE = {
    *("ConcatFromSequence", "GlobalLpPool", "Multinomial", "Optional", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike", "SequenceErase"),
}
# Operators whose float32 kernels differ from their float64 kernels.
_OF_THEIR_OWN = {"AveragePool", "BatchNormalization", "Conv", "MaxPool", "SoftmaxCrossEntropyLoss"}


def listed(chosen: Any = lambda case: True) -> list[Any]:
    return [
        pytest.param(framework, *case, id=f"{framework}-{case[0]}-{index}")
        for framework in FRAMEWORKS
        for index, case in enumerate(cases(framework))
        if chosen(case)
    ]


every = pytest.mark.parametrize(("framework", "op", "values", "options"), listed())
every_smooth = pytest.mark.parametrize(("framework", "op", "values", "options"), listed(smooth))


@every
def test_operator_against_onnxruntime(
    framework: str, op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]
) -> None:
    feeds = named(values)
    network = single(op, feeds, **options)
    assert not d5.framework(framework).unsupported(network.nodes)
    executor = d5.framework(framework).executor(network)
    for got, want in zip(executor.inference(feeds).values(), runtime(network, feeds), strict=True):
        want = np.asarray(want)  # noqa: PLW2901 - a scalar comes as a number
        assert (tuple(got.shape), got.numpy().dtype) == (want.shape, want.dtype)
        # Sums of at most a hundred float32 products of size one.
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_local_response_normalization_over_an_even_number_of_channels(framework: str) -> None:
    """ONNX Runtime has no kernel for it: compared with the definition."""
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 2)).astype(np.float32)
    network = single("LRN", {"x": x}, size=4, alpha=0.3, beta=0.6, bias=1.5)
    ((_, got),) = d5.framework(framework).executor(network).inference({"x": x}).items()
    squares = np.pad(np.square(x.astype(np.float64)), ((0, 0), (1, 2), (0, 0), (0, 0)))
    total = sum(squares[:, at : at + 5] for at in range(4))
    # Five float32 operations.
    np.testing.assert_allclose(got.numpy(), x / (1.5 + 0.3 / 4 * total) ** 0.6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_operator_of_the_table_is_tried(framework: str) -> None:
    table = import_module(f"deep5.frameworks.{framework}.operators").OPERATORS
    tried = {op for op, _, _ in cases(framework)} | {"Constant"}
    assert tried <= table.keys()
    # ONNX's own suite tests the others.
    models = [model_of(case) for suite in ("node", "simple") for case in onnx_cases(suite).values()]
    nodes = [node for model in models for node in nodes_of(model)]
    known = {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes}
    assert table.keys() - tried - known - _TRIED_ELSEWHERE == set()


def test_what_one_table_has_alone_the_other_refuses() -> None:
    """Otherwise the case belongs to the shared ones."""

    def taken(case: Case, framework: str) -> bool:
        op, values, options = case
        return not d5.framework(framework).unsupported(single(op, named(values), **options).nodes)

    others = {"pytorch": "tensorflow", "tensorflow": "pytorch"}
    assert [(name, case[0]) for name, own in ONLY.items() for case in own if taken(case, others[name])] == []


@every_smooth
def test_gradient_of_every_operator(
    framework: str, op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]
) -> None:
    feeds = {name: converted(value, "float64") for name, value in named(values).items()}
    run = d5.framework(framework).executor(with_loss(op, feeds, "float64", **options))
    gradients = checked_gradients(run, feeds)
    if framework == "tensorflow" and op not in _OF_THEIR_OWN:
        return  # the other operators use the same kernels in both element types, and tracing takes long
    feeds = {name: converted(value, "float32") for name, value in named(values).items()}
    single_precision = d5.framework(framework).executor(with_loss(op, feeds, "float32", **options))
    single_precision.inference_and_backprop(feeds, wrt=list(gradients))
    for name, value in single_precision.gradients().items():
        # Sums of some hundred products in float32.
        scale = np.abs(gradients[name]).max(initial=1.0)
        np.testing.assert_allclose(value.numpy(), gradients[name], rtol=1e-4, atol=1e-5 * scale)
