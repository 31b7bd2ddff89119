"""A network's convolutions by algorithms of level 0: the same function, with the same names."""

from __future__ import annotations

import re

import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, UnknownName, UsageError
from deep5.networks import NetworkBuilder, alexnet, he_normal, lenet, mobilenet_v2, zeros
from deep5.networks.transforms.convolution_algorithms import CONVOLUTIONS, convolutions_by, unfit_convolutions
from deep5.networks.transforms.equivalence import check_transformation


def kinds(network: d5.Network) -> list[str]:
    return [node.op_type for node in network.nodes if "Conv" in node.op_type]


def residual() -> d5.Network:
    """With a stride, odd padding, a sum around a convolution, and one bias."""
    build = NetworkBuilder("residual", seed=0)
    x, label = build.input("input", ("N", 2, 9, 8)), build.input("label", ("N",), "int64")
    weights = [build.parameter(f"w{index}", shape, he_normal) for index, shape in enumerate(WEIGHTS)]
    x = build.op("Softplus", build.op("Conv", x, weights[0], build.parameter("b", (4,), zeros), pads=[1, 0, 1, 2]))
    x = build.op("Add", x, build.op("Conv", x, weights[1], pads=[1] * 4))
    x = build.op("Conv", build.op("Softplus", x), weights[2], strides=[2, 2])
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


WEIGHTS = ((4, 2, 3, 3), (4, 4, 3, 3), (3, 4, 1, 1))
UNFIT = ["Conv_3"]


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("algorithm", CONVOLUTIONS)
def test_outputs_and_gradients_are_the_same(algorithm: str, framework: str) -> None:
    plain = residual()
    made = check_transformation(
        lambda given: convolutions_by(given, algorithm), plain, framework=framework, batches=[1, 3]
    )
    assert {node.name for node in plain.nodes} <= {node.name for node in made.nodes}
    strided = algorithm.startswith(("direct", "im2col"))
    assert kinds(made).count("Conv") == (0 if strided else 1)
    assert sorted(unfit_convolutions(plain, algorithm)) == ([] if strided else UNFIT)


def test_biases_are_added_and_keep_their_names() -> None:
    made = check_transformation(lambda given: convolutions_by(given, "fft"), lenet(classes=4), batches=[3])
    assert kinds(made) == ["ConvFFT", "ConvFFT"]
    assert list(made.inputs) == ["input", "label"]


def test_chosen_nodes() -> None:
    plain = alexnet(width=4, image=63, classes=3)
    assert kinds(convolutions_by(plain, "im2col", nodes=["Conv_2"])) == ["Conv", "ConvIm2Col", "Conv", "Conv", "Conv"]
    assert unfit_convolutions(plain, "fft") == {
        "Conv_1": "it has the strides [4, 4]; allowed: 1: the algorithm computes every position"
    }
    assert list(unfit_convolutions(plain, "winograd")) == ["Conv_1", "Conv_2"]
    assert kinds(convolutions_by(plain, "winograd")) == ["Conv", "Conv", *["ConvWinograd"] * 3]


def test_groups_dilations_and_padding_by_name_are_told() -> None:
    groups = unfit_convolutions(mobilenet_v2(classes=3), "im2col")
    assert len(groups) == 17
    assert set(groups.values()) >= {"it has 32 groups; allowed: 1"}
    build = NetworkBuilder("odd")
    x, weight = build.input("x", ("N", 2, 9, 9)), build.parameter("w", (2, 2, 3, 3), he_normal)
    y = build.op("Conv", x, weight, dilations=[2, 2])
    y = build.op("Conv", y, weight, auto_pad="SAME_UPPER")
    assert unfit_convolutions(build.network({"y": y}), "im2col") == {
        "Conv_1": "it has the dilations [2, 2]; allowed: 1",
        "Conv_2": "it has auto_pad='SAME_UPPER'; allowed: pads as numbers",
    }


def test_refusals() -> None:
    plain = alexnet(width=4, image=63, classes=3)
    with pytest.raises(UnknownName, match=r"unknown convolution algorithm 'ftt'; .*did you mean 'fft'"):
        convolutions_by(plain, "ftt")
    for call in (convolutions_by, unfit_convolutions):
        with pytest.raises(
            UsageError, match=f"^{call.__name__}: got 'lenet' as the network; allowed: a Network; remedy"
        ):
            call("lenet", "fft")  # type: ignore[operator]
    with pytest.raises(NetworkError, match=re.escape("node 'Conv_1' cannot run by 'fft': it has the strides [4, 4]")):
        convolutions_by(plain, "fft", nodes=["Conv_2", "Conv_1"])
    with pytest.raises(NetworkError, match="node 'Relu_1' cannot run by 'fft': it is a node of Relu; allowed: Conv"):
        convolutions_by(plain, "fft", nodes=["Relu_1"])
    with pytest.raises(NetworkError, match="no node 'Conv_9' in the network"):
        convolutions_by(plain, "fft", nodes=["Conv_9"])
    with pytest.raises(NetworkError, match="got 'Conv_2' as nodes; allowed: a list of names"):
        convolutions_by(plain, "fft", nodes="Conv_2")
