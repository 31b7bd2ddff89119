"""Resources of a network, without running it: against hand-computed and published counts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from deep5.core.errors import NetworkError, UsageError
from deep5.core.tensors import TensorSpec
from deep5.networks import (
    Network,
    NetworkBuilder,
    alexnet,
    analyse,
    densenet121,
    googlenet,
    gpt,
    lenet,
    lstm,
    lstm_language_model,
    mlp,
    mobilenet_v2,
    resnet,
    resnet18,
    resnet34,
    resnet50,
    squeezenet,
    transformer,
    vgg,
    wide_resnet,
    zeros,
)
from deep5.networks.analysis.arithmetic import arithmetic

# Multiply-adds of convolutions and fully connected layers for one 224 x 224 image, in millions; from the papers, or,
# where they do not state it, from the sum over their tables.
PUBLISHED: dict[str, tuple[Any, float]] = {
    "alexnet": (alexnet, 714.2),
    "vgg16": (vgg, 15470.3),
    "resnet18": (resnet18, 1814.1),
    "resnet34": (resnet34, 3663.8),
    "resnet50": (resnet50, 4089.2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_multiply_adds_are_as_many_as_published(name: str) -> None:
    make, millions = PUBLISHED[name]
    found = analyse(make(), batch=1)
    layers = [layer for layer in found.layers if layer.op_type in ("Conv", "Gemm")]
    macs = sum(layer.arithmetic.macs for layer in layers if layer.arithmetic is not None)
    assert macs / 1e6 == pytest.approx(millions, abs=0.05)
    assert not found.unknown


def test_counts_by_hand() -> None:
    found = analyse(mlp(features=3, hidden=4, classes=2, dtype="float64"), batch=5)
    layers = {layer.name: layer for layer in found.layers}
    first = layers["Gemm_1"]
    assert first.arithmetic is not None
    # (5, 3) x (3, 4) + (4,): 60 products, as many additions with those of the bias: 5 x 4 x (3 - 1 + 1) = 60.
    assert (first.arithmetic.macs, first.arithmetic.flops) == (60, 140 - 0)
    assert first.arithmetic.depth == 1 + 2 + 1
    assert first.parameters == 3 * 4 + 4
    assert first.parameter_bytes == 8 * 16
    assert first.activation_bytes == 8 * 5 * 4
    assert first.moved_bytes == 8 * (5 * 3 + 3 * 4 + 4 + 5 * 4)
    assert first.intensity == pytest.approx(140 / 408)
    assert found.parameters == 3 * 4 + 4 + 4 * 2 + 2
    assert found.extents == {"N": 5}
    assert found.average_parallelism == found.flops / found.depth


def test_depth_is_that_of_the_longest_path() -> None:
    build = NetworkBuilder("paths", dtype="float32")
    x = build.input("x", ("N", 8))
    long = build.op("Relu", build.op("Relu", build.op("Relu", x)))
    short = build.op("MatMul", x, build.parameter("w", (8, 8)))
    found = analyse(build.network({"y": build.op("Add", long, short)}), batch=1)
    # The product: one multiplication and three levels of additions; the other path: three functions.
    assert found.depth == 4 + 1
    assert found.flops == 3 * 8 + 2 * 64 + 8


@pytest.mark.parametrize(
    ("op", "shapes", "out", "attributes", "flops", "depth"),
    [
        ("Relu", [(2, 3)], (2, 3), {}, 6, 1),
        ("Reshape", [(2, 3), (1,)], (6,), {}, 0, 0),
        ("MaxPool", [(1, 2, 4, 4)], (1, 2, 2, 2), {"kernel_shape": [2, 2]}, 3 * 8, 2),
        ("AveragePool", [(1, 2, 4, 4)], (1, 2, 2, 2), {"kernel_shape": [2, 2]}, 4 * 8, 3),
        ("GlobalAveragePool", [(1, 2, 4, 4)], (1, 2, 1, 1), {}, 16 * 2, 5),
        ("ReduceMean", [(4, 8)], (4,), {}, 7 * 4 + 4, 4),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {}, 2 * 144 * 27, 1 + 5),
        ("Conv", [(1, 4, 8, 8), (4, 1, 3, 3)], (1, 4, 6, 6), {"group": 4}, 2 * 144 * 9, 1 + 4),
        ("Sum", [(2, 2)] * 4, (2, 2), {}, 12, 2),
        ("Softmax", [(2, 8)], (2, 8), {"axis": -1}, 5 * 16 - 4, 2 * 3 + 3),
    ],
)
def test_formulas(op: str, shapes: Any, out: Any, attributes: Any, flops: int, depth: int) -> None:
    found = arithmetic(op, [TensorSpec(shape=shape) for shape in shapes], [TensorSpec(shape=out)], attributes)
    assert found is not None
    assert (found.flops, found.depth) == (flops, depth)


def test_the_peak_of_training_by_hand() -> None:
    """x (8 numbers) -> MatMul -> Relu -> MatMul -> mean: peak memory of a step."""
    build = NetworkBuilder("peak", dtype="float32")
    x = build.input("x", (1, 8))
    hidden = build.op("Relu", build.op("MatMul", x, build.parameter("v", (8, 100))))
    y = build.op("MatMul", hidden, build.parameter("w", (100, 2)))
    found = analyse(build.network({"loss": build.op("ReduceMean", y, keepdims=0)}))
    weights = 8 * 100 + 100 * 2
    # The peak is at the gradient of ReLU: x and ReLU's output are kept, the gradients of its output and of its input
    # are there, and the loss, which the step returns.
    assert found.peak_training_bytes == 4 * (2 * weights + 8 + 100 + 100 + 100 + 1)
    assert found.parameter_bytes == 4 * weights


def test_the_peak_grows_with_the_batch_and_holds_what_is_kept() -> None:
    network = resnet(depth=20)
    one, many = analyse(network, batch=1), analyse(network, batch=64)
    assert many.parameters == one.parameters
    assert many.flops == pytest.approx(64 * one.flops, rel=0.01)  # all but what depends only on running statistics
    assert many.peak_training_bytes > sum(layer.kept_bytes for layer in many.layers) + 2 * many.parameter_bytes
    assert many.peak_training_bytes < 2 * many.activation_bytes + 3 * many.parameter_bytes


@pytest.mark.parametrize(
    "make",
    [
        densenet121,
        googlenet,
        lambda: gpt(length=16, layers=2, vocabulary=100),
        lenet,
        lstm,
        mobilenet_v2,
        squeezenet,
        transformer,
        lambda: wide_resnet(depth=10, widen=1),
    ],
)
def test_every_operator_of_the_zoo_is_known(make: Any) -> None:
    network = make()
    found = analyse(network, batch=2)
    assert not found.unknown
    assert sum(layer.parameters for layer in found.layers) == found.parameters
    assert found.parameters == sum(spec.size for spec in network.parameter_specs.values())
    assert all(layer.outputs for layer in found.layers)


def test_an_unknown_operator_is_named_and_not_counted_as_zero() -> None:
    build = NetworkBuilder("unknown", dtype="float32")
    x = build.input("x", ("N", 3, 8, 8))
    y = build.op("DepthToSpace", build.op("Conv", x, build.parameter("w", (4, 3, 1, 1))), blocksize=2)
    found = analyse(build.network({"y": build.op("Einsum", y, equation="nchw->nc")}), batch=1)
    assert found.unknown == {"Einsum": 1}
    assert found.layers[-1].arithmetic is None
    assert found.layers[-1].intensity is None


def fixed() -> Network:
    build = NetworkBuilder("fixed", dtype="float32")
    return build.network({"y": build.op("Relu", build.input("x", (2, 16)))})


def sequence() -> Network:
    build = NetworkBuilder("sequence", dtype="float32")
    return build.network({"y": build.op("Relu", build.input("x", ("N", "T", 16)))})


def dimensions() -> Network:
    build = NetworkBuilder("dimensions", dtype="float32")
    return build.network({"y": build.op("Relu", build.input("x", ("N", "T", "C")))})


def test_a_batch_is_the_first_extent_of_every_input() -> None:
    assert analyse(sequence(), 4, extents={"T": 35}).extents == {"N": 4, "T": 35}
    assert analyse(sequence(), extents={"N": 4, "T": 35}).extents == {"N": 4, "T": 35}
    assert analyse(fixed()).extents == {}
    for make in (lenet, lstm_language_model, gpt, transformer):
        network = make(**{"length": 4} if make in (lstm_language_model, gpt) else {})
        assert analyse(network, 3).extents == {"N": 3}


@pytest.mark.parametrize(("got", "remedy"), [(None, "lenet()"), ("lenet", "from_onnx"), (lenet, "call it: lenet(…)")])
def test_what_is_no_network(got: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match="analyse: got .* as the network; allowed: a Network; .*" + re.escape(remedy)):
        analyse(got, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: analyse(lenet()), "the dimension 'N' of an input is not known; remedy: batch="),
        (lambda: analyse(lenet(), 0), "got batch = 0; allowed: an integer from 1 to 2147483647"),
        (lambda: analyse(lenet(), 2**31), "got batch = 2147483648; allowed: an integer from 1 to 2147483647"),
        (lambda: analyse(lenet(), 10**20), "got batch = 100000000000000000000; allowed"),
        (lambda: analyse(lenet(), extents={"N": 2**31}), "got N = 2147483648; allowed"),
        (
            lambda: analyse(lenet(), 4, extents={"N": 3}),
            "no dimension of an input is left for the batch size: got batch = 4 beside N = 3, inputs ",
        ),
        (lambda: analyse(fixed(), 4), "no dimension of an input is left for the batch size: got batch = 4, inputs "),
        (
            lambda: analyse(sequence(), 4),
            "the dimension 'T' of an input is not known, and a batch sets only first dimensions; remedy: "
            "extents={'T': …}, on the command "
            "line --extent T=…",
        ),
        (
            lambda: analyse(dimensions()),
            "the dimensions 'N', 'T', 'C' of inputs are not known; remedy: batch=, or extents={'N': …, 'T': …, 'C': "
            "…}, on the command line --extent N=… --extent T=… --extent C=…",
        ),
        (lambda: analyse(sequence(), 4, extents={"N": 3}), "is left for the batch size: got batch = 4 beside N = 3"),
        (lambda: analyse(lenet(), extents=[3]), "got extents=[3]; allowed: a mapping from names to integers"),
        (lambda: analyse(lenet(), extents={3: 3}), "no input has a symbolic dimension 3; allowed: N"),
        (lambda: analyse(lenet(), extents={"M": 2}), "no input has a symbolic dimension 'M'; allowed: N"),
        (lambda: analyse(lenet(), extents={"N": 1.5}), "got N = 1.5; allowed: an integer"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises(NetworkError, match=re.escape(message)):
        call()


def test_nothing_is_drawn() -> None:
    """Only the shapes of weights count."""

    def fail(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        raise AssertionError("drawn")

    build = NetworkBuilder("lazy", dtype="float32")
    x = build.input("x", ("N", 1000))
    y = build.op("Gemm", x, build.parameter("w", (1000, 1000), fail), build.parameter("b", (1000,), zeros), transB=1)
    assert analyse(build.network({"y": y}), batch=1).parameters == 1_001_000
