"""Networks: from files and from Python, their names, hashes and copies, and the ones that ship."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import deep5 as d5
from deep5.errors import NetworkError, OutputError, ShapeError, UsageError
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet
from deep5.networks.builder import zeros

SMALL: dict[str, Any] = {"features": 4, "hidden": 3, "classes": 2}
CHILD_TIMEOUT_S = 60  # imports of onnx take a second; the rest is slack for a loaded machine


def count(network: Network) -> int:
    return sum(spec.size for spec in network.parameters.values())


def model(nodes: list[Any], inputs: Any, outputs: Any, initial: dict[str, np.ndarray], opset: int = 20) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def affine(**options: Any) -> Any:
    return model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        [("x", TensorProto.FLOAT, ["N", 3])],
        [("y", TensorProto.FLOAT, ["N", 2])],
        {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)},
        **options,
    )


# Reading


def test_a_network_is_read_from_a_path_and_from_a_model(tmp_path: Path) -> None:
    proto = affine()
    onnx.save(proto, tmp_path / "a.onnx")
    of_model = Network.from_onnx(proto)
    for network in (of_model, Network.from_onnx(tmp_path / "a.onnx"), Network.from_onnx(str(tmp_path / "a.onnx"))):
        assert {name: str(spec) for name, spec in network.inputs.items()} == {"x": "float32[N, 3]"}
        assert {name: str(spec) for name, spec in network.outputs.items()} == {"y": "float32[N, 2]"}
        assert list(network.parameters) == ["w", "b"]
        assert network.structure_hash() == of_model.structure_hash()
        assert network.weights_hash() == of_model.weights_hash()
        assert network.opset == 20


def test_the_model_in_memory_is_copied() -> None:
    proto = affine()
    network = Network.from_onnx(proto)
    proto.graph.initializer[0].raw_data = b"\x00" * 24
    np.testing.assert_array_equal(network.initial("w"), np.ones((2, 3)))


@pytest.mark.parametrize("content", [b"", b"not a network at all", b"\x00" * 100])
def test_a_file_that_is_no_network_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(NetworkError, match=r"the file .*bad\.onnx (cannot be read as ONNX|is not valid ONNX)"):
        Network.from_onnx(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    data = affine().SerializeToString()
    path = tmp_path / "short.onnx"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(NetworkError, match=r"short\.onnx (cannot be read as ONNX|is not valid ONNX)"):
        Network.from_onnx(path)


def test_a_missing_file_a_folder_and_another_type_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(NetworkError, match=r"is not there; allowed: an ONNX file or an onnx.ModelProto"):
            Network.from_onnx(path)
    with pytest.raises(NetworkError, match="got a int; allowed: an ONNX file"):
        Network.from_onnx(3)  # type: ignore[arg-type]


def test_a_model_that_is_not_valid_is_refused() -> None:
    proto = affine()
    proto.graph.node[0].op_type = "Gemmm"
    with pytest.raises(NetworkError, match=r"the model is not valid ONNX: .*Gemmm"):
        Network.from_onnx(proto)
    proto = affine()
    proto.graph.initializer[0].dims[:] = [3, 2]  # does not fit x any more
    with pytest.raises(NetworkError, match="the model is not valid ONNX"):
        Network.from_onnx(proto)
    with pytest.raises(NetworkError, match=r"opset 12; allowed: 13 and newer; remedy: onnx\.version_converter"):
        Network.from_onnx(affine(opset=12))


def test_constant_nodes_become_initial_values() -> None:
    proto = model(
        [
            helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([0, -1]), "c")),
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 3, 2])],
        [("y", TensorProto.FLOAT, ["N", 6])],
        {},
    )
    network = Network.from_onnx(proto)
    assert [node.op_type for node in network.nodes] == ["Reshape"]
    assert network.constants["shape"].tolist() == [0, -1]
    assert not network.parameters


def test_a_value_that_exporters_share_between_roles_is_separated() -> None:
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    proto = model(
        [
            helper.make_node("BatchNormalization", ["x", "one", "zero", "zero", "one"], ["h"]),
            helper.make_node("BatchNormalization", ["h", "one", "zero", "zero", "one"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 2, 3])],
        [("y", TensorProto.FLOAT, ["N", 2, 3])],
        {"zero": zero, "one": one},
    )
    network = Network.from_onnx(proto)
    assert not network.parameters.keys() & network.buffers.keys()
    assert set(network.parameters) == {"one", "zero"}  # scale and bias stay shared, as the file has them
    assert len(network.buffers) == 4
    onnx.checker.check_model(network.to_onnx(), full_check=True)


def test_settings_are_not_parameters() -> None:
    build = NetworkBuilder("settings")
    x, label = build.input("x", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("Clip", x, build.constant("low", np.float32(-1)), build.constant("high", np.float32(1)))
    weight = build.constant("class_weight", np.ones(4, np.float32))
    network = build.network({"loss": build.op("SoftmaxCrossEntropyLoss", x, label, weight)})
    assert not network.parameters
    assert set(network.constants) == {"low", "high", "class_weight"}


def test_unknown_extents_do_not_pass_for_equal_ones() -> None:
    proto = model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        [("a", TensorProto.FLOAT, [None, 3]), ("b", TensorProto.FLOAT, [3, None])],
        [("y", TensorProto.FLOAT, [None, None])],
        {},
    )
    network = Network.from_onnx(proto)
    assert network.inputs["a"].shape[0] != network.inputs["b"].shape[1]


# Copies and hashes


def test_to_onnx_is_valid_and_runs() -> None:
    for network in (lenet(), lenet(activation="relu", pooling="max"), mlp(**SMALL), resnet(depth=8)):
        onnx.checker.check_model(network.to_onnx(), full_check=True)
    network = mlp(**SMALL, seed=3)
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
    x, label = np.ones((2, 4), np.float32), np.array([0, 1])
    w1, b1, w2, b2 = map(network.initial, network.parameters)
    expected = np.tanh(x @ w1.T + b1) @ w2.T + b2
    # A dozen float32 products of size one.
    np.testing.assert_allclose(session.run(["logits"], {"input": x, "label": label})[0], expected, atol=1e-6)


def test_save_and_read_back(tmp_path: Path) -> None:
    network = mlp(**SMALL)
    network.save(tmp_path / "n.onnx")
    again = Network.from_onnx(tmp_path / "n.onnx")
    assert (again.structure_hash(), again.weights_hash()) == (network.structure_hash(), network.weights_hash())
    with pytest.raises(OutputError, match=r"the network cannot be written to .*; allowed: a writable file"):
        network.save(tmp_path / "no" / "n.onnx")


def test_with_values_copies_and_checks() -> None:
    network = mlp(**SMALL)
    before = network.weights_hash()
    value = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    other = network.with_values({"fc1.weight": value})
    value[:] = -1
    np.testing.assert_array_equal(other.initial("fc1.weight"), np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(other.initial("fc2.weight"), network.initial("fc2.weight"))
    assert network.weights_hash() == before != other.weights_hash()
    assert network.structure_hash() == other.structure_hash()
    with pytest.raises(NetworkError, match=r"no initial value 'fc9'; allowed: fc1.weight"):
        network.with_values({"fc9": value})
    with pytest.raises(NetworkError, match=r"'fc1.weight' does not fit: got shape \(4, 3\), expected float32\[3, 4\]"):
        network.with_values({"fc1.weight": value.T})
    with pytest.raises(NetworkError, match="got dtype float64, expected float32"):
        network.with_values({"fc1.weight": value.astype(np.float64)})


def test_initial_values_are_fresh_and_writable() -> None:
    network = mlp(**SMALL)
    network.initial("fc1.bias")[:] = 7
    np.testing.assert_array_equal(network.initial("fc1.bias"), 0)
    read = Network.from_onnx(network.to_onnx())
    read.initial("fc1.bias")[:] = 7
    np.testing.assert_array_equal(read.initial("fc1.bias"), 0)
    with pytest.raises(NetworkError, match=r"no initial value 'input'; allowed: fc1.weight, fc1.bias"):
        network.initial("input")


def test_with_outputs() -> None:
    network = lenet()
    cut = network.with_outputs(["Tanh_2_output", "Tanh_1_output"])
    assert {name: spec.shape for name, spec in cut.outputs.items()} == {
        "Tanh_2_output": ("N", 16, 10, 10),
        "Tanh_1_output": ("N", 6, 28, 28),
    }
    assert list(cut.parameters) == ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
    assert list(network.outputs) == ["logits", "loss"]
    onnx.checker.check_model(cut.to_onnx(), full_check=True)
    with pytest.raises(NetworkError, match=r"no value 'conv1.weight' in the network; allowed: Conv_1_output"):
        network.with_outputs(["conv1.weight"])


def test_hashes_see_what_they_should() -> None:
    network = mlp(**SMALL)
    assert network.structure_hash() == mlp(**SMALL, seed=1).structure_hash()
    assert network.weights_hash() != mlp(**SMALL, seed=1).weights_hash()
    assert network.weights_hash() == mlp(**SMALL).weights_hash()
    relu = mlp(**SMALL, activation="relu").with_values({name: network.initial(name) for name in network.parameters})
    assert relu.weights_hash() == network.weights_hash()
    assert relu.structure_hash() != network.structure_hash()
    assert mlp(features=4, hidden=2, classes=2).structure_hash() != network.structure_hash()
    assert Network.from_onnx(affine(opset=18)).structure_hash() != Network.from_onnx(affine()).structure_hash()


@pytest.mark.parametrize("end", [2, 3])
def test_the_structure_hash_sees_constants_and_attributes(end: int) -> None:
    def sliced(stop: int, to: int) -> str:
        build = NetworkBuilder("s")
        bounds = [build.constant(name, np.array([at])) for name, at in (("start", 0), ("end", stop))]
        x = build.op("Slice", build.input("x", ("N", 4)), *bounds)
        return build.network({"y": build.op("Softmax", x, axis=to)}).structure_hash()

    assert sliced(end, 0) == sliced(end, 0)
    assert len({sliced(end, 0), sliced(end + 1, 0), sliced(end, 1)}) == 3


def test_hashes_are_the_same_in_another_process() -> None:
    program = "import deep5 as d5; n = d5.networks.lenet(seed=5); print(n.structure_hash(), n.weights_hash())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=True
    )
    network = lenet(seed=5)
    assert done.stdout.split() == [network.structure_hash(), network.weights_hash()]


# Building


def test_building_draws_nothing() -> None:
    drawn: list[tuple[int, ...]] = []

    def counting(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        drawn.append(shape)
        return rng.standard_normal(shape)

    build = NetworkBuilder("lazy")
    x = build.input("x", ("N", 3))
    y = build.op("Gemm", x, build.parameter("w", (2, 3), counting), build.parameter("b", (2,), counting), transB=1)
    network = build.network({"y": y})
    assert (network.structure_hash(), network.with_outputs(["y"]).parameters) == (
        network.structure_hash(),
        network.parameters,
    )
    assert drawn == []
    first = network.initial("w")
    assert drawn == [(2, 3)]
    np.testing.assert_array_equal(network.initial("w"), first)


def test_both_dtypes_start_at_the_same_point() -> None:
    single, double = lenet(seed=2), lenet(seed=2, dtype="float64")
    for name in single.parameters:
        assert double.initial(name).dtype == np.float64
        np.testing.assert_array_equal(single.initial(name), double.initial(name).astype(np.float32))
    assert double.inputs["input"].dtype == "float64"
    assert single.weights_hash() != double.weights_hash()


def test_an_initial_value_is_a_function_of_seed_and_name() -> None:
    small, large = mlp(**SMALL), mlp(features=4, hidden=3, classes=5)
    np.testing.assert_array_equal(small.initial("fc1.weight"), large.initial("fc1.weight"))


def test_initial_distributions() -> None:
    weight = lenet(seed=1).initial("fc1.weight")
    limit = np.sqrt(6 / (400 + 120))
    assert np.abs(weight).max() <= limit
    # 48 000 uniform draws: the standard deviation is limit/sqrt(3) within four standard errors (< 1 %).
    assert weight.std() == pytest.approx(limit / np.sqrt(3), rel=0.01)
    weight = resnet(depth=8).initial("stage3.block0.conv2.weight")
    # 36 864 normal draws: relative standard error of the deviation 0.4 %; four of them.
    assert weight.std() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.016)


def test_builder_errors() -> None:
    build = NetworkBuilder("bad")
    x = build.input("x", ("N", 3))
    build.parameter("w", (2, 3))
    for again in (
        lambda: build.parameter("w", (1,)),
        lambda: build.constant("x", np.zeros(1)),
        lambda: build.input("w", (1,)),
    ):
        with pytest.raises(NetworkError, match=r"the name '[wx]' is taken; remedy: name every"):
            again()
    y = build.op("Relu", x)
    for outputs in ({"a": y, "b": y}, {"w": y}, {"x": y}):
        with pytest.raises(NetworkError, match=r"the outputs \[.*\] clash; allowed: a computed value once"):
            build.network(outputs)


def test_a_builder_refuses_shapes_that_do_not_fit() -> None:
    build = NetworkBuilder("misfit")
    y = build.op(
        "Gemm", build.input("x", ("N", 3)), build.parameter("w", (2, 4)), build.parameter("b", (2,), zeros), transB=1
    )
    with pytest.raises(NetworkError, match="network 'misfit' is not valid"):
        build.network({"y": y})


# The ones that ship


@pytest.mark.parametrize(("activation", "pooling"), [("tanh", "average"), ("relu", "max")])
def test_lenet_is_the_published_one(activation: str, pooling: str) -> None:
    network = lenet(activation=activation, pooling=pooling)
    assert count(network) == 61_706  # with every map of the second convolution connected
    assert network.inputs["input"].shape == ("N", 1, 28, 28)
    assert network.inputs["label"] == d5.TensorSpec(shape=("N",), dtype="int64")
    assert network.outputs["logits"].shape == ("N", 10)
    assert network.outputs["loss"].shape == ()
    kinds = {node.op_type for node in network.nodes}
    assert ({"Tanh", "AveragePool"} if activation == "tanh" else {"Relu", "MaxPool"}) <= kinds


def test_mlp_and_resnet_are_the_published_ones() -> None:
    assert count(mlp()) == 784 * 500 + 500 + 500 * 10 + 10
    # He et al. give 0.66 M for 44 layers (table 6); exact: convolutions, batch normalisation, last layer.
    assert count(resnet()) == 658_586
    assert count(resnet(depth=8)) == 75_290
    network = resnet(depth=44)
    assert sum(node.op_type == "Conv" for node in network.nodes) + 1 == 44
    assert network.outputs["logits"].shape == ("N", 10)
    assert len(network.buffers) == 2 * 43
    assert resnet(depth=8, classes=100).outputs["logits"].shape == ("N", 100)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lenet(activation="tnh"), "unknown activation 'tnh'; allowed: tanh, relu"),
        (lambda: lenet(pooling="mean"), "unknown pooling 'mean'; allowed: average, max"),
        (lambda: lenet(classes=0), "got classes = 0; allowed: a whole number of at least 1"),
        (lambda: lenet(dtype="int8"), "unknown dtype 'int8' of a network; allowed: float32, float64"),
        (lambda: mlp(hidden=2.5), r"got hidden = 2\.5; allowed: a whole number"),  # type: ignore[arg-type]
        (lambda: mlp(features=True), "got features = True; allowed: a whole number"),
        (lambda: resnet(depth=9), r"a resnet of depth 9 does not exist; allowed: 6n \+ 2"),
        (lambda: resnet(depth=2), "a resnet of depth 2 does not exist"),
        (lambda: resnet(depth="44"), "got depth = '44'; allowed: a whole number"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_builder_refuses_what_is_no_value() -> None:
    build = d5.NetworkBuilder("odd")
    x = build.input("input", ("N", 2))
    with pytest.raises(
        NetworkError, match="Relu got 'input' as an input; allowed: what input, parameter and op return"
    ):
        build.op("Relu", "input")  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match="got Value as outputs; allowed: a dict such as"):
        build.network(build.op("Relu", x))


@pytest.mark.parametrize("name", ["pytorch", "reference"])
def test_inputs_that_are_no_dict_are_refused(name: str) -> None:
    executor = d5.framework(name).executor(d5.networks.mlp(features=2, hidden=2, classes=2))
    with pytest.raises(ShapeError, match="got ndarray as inputs; expected a dict of arrays: input, label"):
        executor.inference(np.zeros((2, 2)))
