"""Networks: from files and from Python, their names, hashes and copies, and the ones that ship with deep5."""

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
from deep5.core.errors import NetworkError, OutputError, ShapeError, Unsupported, UsageError
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet, transformer
from deep5.networks.constants import constant_value
from deep5.networks.edit.builder import zeros

SMALL: dict[str, Any] = {"features": 4, "hidden": 3, "classes": 2}
CHILD_TIMEOUT_S = 60  # importing onnx takes a second; the rest is slack for a loaded machine


def count(network: Network) -> int:
    return sum(spec.size for spec in network.parameter_specs.values())


def model(nodes: list[Any], inputs: Any, outputs: Any, initial: dict[str, np.ndarray], opset: int = 20) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(network: Network, **feed: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
    return dict(zip(network.outputs, session.run(list(network.outputs), feed), strict=True))


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
        assert list(network.parameter_specs) == ["w", "b"]
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
    with pytest.raises(NetworkError, match=r"the file .*bad\.onnx (is empty|cannot be read as ONNX|is not valid ONNX)"):
        Network.from_onnx(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
            r"is a git-LFS pointer, .*; allowed: a complete ONNX file; remedy: git lfs pull",
        ),
        (b"PK\x03\x04\x00\x00data.pkl", r"is a zip archive, .*; remedy: torch\.onnx\.export\(module, inputs"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", r"is a Python pickle, .*; remedy: torch\.onnx\.export"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", r"is a PNG image; allowed: .*; remedy: the ONNX file itself"),
        (b"import torch\n", r"cannot be read as ONNX \(.*\); allowed: a complete ONNX file; remedy: export it, or"),
        (b"", r"is empty; allowed: a complete ONNX file; remedy: export it, or download it, again"),
    ],
)
def test_a_file_of_another_kind_is_recognized(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "other.onnx").write_bytes(content)
    with pytest.raises(NetworkError, match=rf"the file .*other\.onnx {said}"):
        Network.from_onnx(tmp_path / "other.onnx")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    data = affine().SerializeToString()
    path = tmp_path / "short.onnx"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(NetworkError, match=r"short\.onnx (cannot be read as ONNX|is not valid ONNX)"):
        Network.from_onnx(path)


def test_a_missing_file_a_folder_and_another_type_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.onnx", r"none\.onnx is not there"), (tmp_path, "' is a folder")):
        with pytest.raises(NetworkError, match=f"{said}; allowed: an ONNX file or an onnx.ModelProto"):
            Network.from_onnx(path)
    with pytest.raises(NetworkError, match="the file /dev/null is not a regular file; allowed: an ONNX file"):
        Network.from_onnx("/dev/null")
    with pytest.raises(NetworkError, match="got an empty path; allowed: an ONNX file"):
        Network.from_onnx("")
    with pytest.raises(NetworkError, match="got an object of type int; allowed: an ONNX file"):
        Network.from_onnx(3)  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match=r"type bytes; allowed: .*; remedy: onnx\.load_from_string\(content\)"):
        Network.from_onnx(affine().SerializeToString())  # type: ignore[arg-type]


def test_a_model_that_is_not_valid_is_refused() -> None:
    proto = affine()
    proto.graph.node[0].op_type = "Gemmm"
    with pytest.raises(NetworkError, match=r"the model is not valid ONNX: .*Gemmm"):
        Network.from_onnx(proto)
    proto = affine()
    proto.graph.initializer[0].dims[:] = [3, 2]  # does not fit x anymore
    with pytest.raises(NetworkError, match="the model is inconsistent"):
        Network.from_onnx(proto)


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
    assert not network.parameter_specs


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
    assert not network.parameter_specs.keys() & network.buffer_specs.keys()
    assert set(network.parameter_specs) == {"one", "zero"}  # scale and bias stay shared, as in the file
    assert len(network.buffer_specs) == 4
    onnx.checker.check_model(network.to_onnx(), full_check=True)


def test_settings_are_not_parameters() -> None:
    build = NetworkBuilder("settings")
    x, label = build.input("x", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("Clip", x, build.constant("low", np.float32(-1)), build.constant("high", np.float32(1)))
    weight = build.constant("class_weight", np.ones(4, np.float32))
    network = build.network({"loss": build.op("SoftmaxCrossEntropyLoss", x, label, weight)})
    assert not network.parameter_specs
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


# One form for all opsets


@pytest.mark.parametrize("opset", [7, 9, 13, 17, 20, 22])
def test_older_opsets_are_raised_and_compute_the_same(opset: int) -> None:
    """Each of these opsets defines BatchNormalization, Unsqueeze or Softmax differently."""
    axes: dict[str, Any] = {"axes": [1]} if opset < 13 else {}
    extra = {} if axes else {"axes": np.array([1])}
    proto = model(
        [
            helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["h"]),
            helper.make_node("Unsqueeze", ["h", *extra], ["u"], **axes),
            helper.make_node("Softmax", ["u"], ["y"], axis=-1),
        ],
        [("x", TensorProto.FLOAT, ["N", 3])],
        [("y", TensorProto.FLOAT, ["N", 1, 3])],
        {"s": np.ones(3, np.float32), "b": np.arange(3, dtype=np.float32)}
        | {"m": np.zeros(3, np.float32), "v": np.full(3, 2.0, np.float32), **extra},
        opset=opset,
    )
    network = Network.from_onnx(proto)
    assert network.opset == max(20, opset)
    assert list(network.parameter_specs) == ["s", "b"]
    assert list(network.buffer_specs) == ["m", "v"]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    hidden = x / np.sqrt(2 + 1e-5) + np.arange(3)
    expected = np.exp(hidden) / np.exp(hidden).sum(axis=1, keepdims=True)
    # A dozen float32 operations on numbers of size one.
    np.testing.assert_allclose(run(network, x=x)["y"], expected[:, None], atol=1e-6)


def test_initial_values_that_old_files_list_as_inputs_are_no_inputs() -> None:
    proto = affine(opset=9)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    network = Network.from_onnx(proto)
    assert list(network.inputs) == ["x"]
    assert list(network.parameter_specs) == ["w", "b"]
    assert network.to_onnx().ir_version >= 10


def test_weights_written_as_constants_are_parameters_and_numbers_are_not() -> None:
    ones = numpy_helper.from_array(np.array([1.0], np.float32), "value")
    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), "value")
    proto = model(
        [
            helper.make_node("Constant", [], ["w"], value=weight),
            helper.make_node("Constant", [], ["size"], value_ints=[3]),
            helper.make_node("ConstantOfShape", ["size"], ["b"], value=ones),
            helper.make_node("Constant", [], ["scale"], value_float=0.5),
            helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
            helper.make_node("Mul", ["h", "scale"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 3])],
        [("y", TensorProto.FLOAT, ["N", 3])],
        {},
    )
    network = Network.from_onnx(proto)
    assert list(network.parameter_specs) == ["w", "b"]
    assert [node.op_type for node in network.nodes] == ["Constant", "Gemm", "Mul"]
    np.testing.assert_array_equal(network.initial("b"), np.ones(3))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(network, x=x)["y"], np.ones((2, 3)))
    held = {value.name: constant_value(value) for node in network.nodes for value in node.inputs}
    assert held.pop("scale") == 0.5
    assert set(held.values()) == {None}


def test_a_file_of_gigabytes_is_not_drawn_up_before_it_is_asked_for() -> None:
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "shape")
    proto = model(
        [helper.make_node("ConstantOfShape", ["shape"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["N", 1 << 20])],
        [("y", TensorProto.FLOAT, ["N", 1 << 20])],
        {"shape": numpy_helper.to_array(shape)},
    )
    network = Network.from_onnx(proto)
    assert network.parameter_specs["w"].size == 1 << 40
    with pytest.raises(NetworkError, match=r"the weights take 4398046511104 bytes; allowed in one ONNX model: less"):
        network.to_onnx()


def test_what_follows_from_shapes_is_computed_beforehand() -> None:
    """A Reshape as exporters write it: the batch size is read from the input, the rest is a product."""
    proto = model(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
            helper.make_node("Gather", ["shape", "one"], ["channels"], axis=0),
            helper.make_node("Gather", ["shape", "two"], ["extent"], axis=0),
            helper.make_node("Mul", ["channels", "extent"], ["rest"]),
            helper.make_node("Unsqueeze", ["batch", "axes"], ["front"]),
            helper.make_node("Unsqueeze", ["rest", "axes"], ["back"]),
            helper.make_node("Concat", ["front", "back"], ["goal"], axis=0),
            helper.make_node("Reshape", ["x", "goal"], ["h"]),
            helper.make_node("Cast", ["rest"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Sqrt", ["number"], ["root"]),
            helper.make_node("Div", ["h", "root"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 3, 12])],
        [("y", TensorProto.FLOAT, ["N", 36])],
        {name: np.array(at) for at, name in enumerate(("zero", "one", "two"))} | {"axes": np.array([0])},
    )
    network = Network.from_onnx(proto)
    assert [node.op_type for node in network.nodes] == ["Reshape", "Constant", "Div"]
    assert [array.tolist() for array in network.constants.values()] == [[-1, 36]]
    assert not network.parameter_specs
    x = np.arange(72, dtype=np.float32).reshape(2, 3, 12)
    np.testing.assert_array_equal(run(network, x=x)["y"], x.reshape(2, 36) / 6)


def test_parameters_and_what_varies_are_not_folded() -> None:
    proto = model(
        [
            helper.make_node("Transpose", ["w"], ["t"]),
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Slice", ["table", "zero", "shape"], ["cut"]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N"])],
        [("y", TensorProto.FLOAT, [2]), ("cut", TensorProto.INT64, ["M"])],
        {"w": np.ones((2, 3), np.float32), "table": np.arange(9), "zero": np.array([0])},
    )
    network = Network.from_onnx(proto)
    assert [node.op_type for node in network.nodes] == ["Transpose", "Shape", "Slice", "MatMul"]
    assert list(network.parameter_specs) == ["w"]


def test_functions_of_the_model_are_inlined() -> None:
    opsets = [helper.make_opsetid("", 20)]
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Add", ["s", "b"], ["c"])]
    square = helper.make_function("my", "Square", ["a", "b"], ["c"], body, opsets)
    proto = model(
        [
            helper.make_node("Square", ["x", "x"], ["h"], domain="my"),
            helper.make_node("Square", ["h", "x"], ["y"], domain="my"),
        ],
        [("x", TensorProto.FLOAT, ["N"])],
        [("y", TensorProto.FLOAT, ["N"])],
        {},
    )
    proto.opset_import.append(helper.make_opsetid("my", 1))
    proto.functions.append(square)
    network = Network.from_onnx(proto)
    assert [node.op_type for node in network.nodes] == ["Mul", "Add", "Mul", "Add"]
    assert len({node.name for node in network.nodes}) == 4
    np.testing.assert_array_equal(run(network, x=np.array([1.0, 2.0], np.float32))["y"], [5, 38])


def test_an_unknown_domain_is_left_to_the_executor() -> None:
    proto = model(
        [helper.make_node("Foo", ["x"], ["y"], domain="my")],
        [("x", TensorProto.FLOAT, ["N"])],
        [("y", TensorProto.FLOAT, ["N"])],
        {},
        opset=13,
    )
    proto.opset_import.append(helper.make_opsetid("my", 1))
    network = Network.from_onnx(proto)
    with pytest.raises(Unsupported, match=r"Foo"):
        d5.framework("reference").executor(network)


def test_reading_twice_gives_the_same() -> None:
    proto = transformer(vocabulary=5, length=4, width=4, heads=2, layers=1).to_onnx()
    for node in proto.graph.node:
        node.name = "" if node.op_type == "Add" else "same"
    first, second = Network.from_onnx(proto), Network.from_onnx(proto)
    names = [node.name for node in first.nodes]
    assert names == [node.name for node in second.nodes]
    assert len(set(names)) == len(names)
    assert first.to_onnx().SerializeToString(deterministic=True) == second.to_onnx().SerializeToString(
        deterministic=True
    )


LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize(("name", "weights"), [("squeezenet", 1_235_496), ("shufflenet", 1_393_320)])
def test_the_light_models_of_onnx_have_their_weights(name: str, weights: int) -> None:
    """IR 3, opset 9, every weight a ConstantOfShape node; the numbers of weights are those of the original models."""
    network = Network.from_onnx(LIGHT / f"light_{name}.onnx")
    assert count(network) == weights
    assert len(network.inputs) == 1
    assert not {"ConstantOfShape"} & {node.op_type for node in network.nodes}


# External weights


def external(folder: Path, **options: Any) -> Path:
    proto = affine()
    onnx.save_model(
        proto, folder / "e.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0, **options
    )
    return folder / "e.onnx"


@pytest.mark.parametrize("one_file", [True, False])
def test_external_weights_are_read_when_asked_for(tmp_path: Path, one_file: bool) -> None:
    path = external(tmp_path, all_tensors_to_one_file=one_file)
    network = Network.from_onnx(path)
    # Shapes, structure and outputs are known without them.
    assert str(network.parameter_specs["w"]) == "float32[2, 3]"
    data = next(file for file in tmp_path.iterdir() if file != path and file.stat().st_size >= 24)
    changed = bytearray(data.read_bytes())
    changed[:4] = np.float32(7).tobytes()
    data.write_bytes(changed)
    np.testing.assert_array_equal(network.initial("w"), [[7, 1, 1], [1, 1, 1]])
    alone = network.to_onnx()
    assert not [tensor.name for tensor in alone.graph.initializer if tensor.external_data]
    np.testing.assert_array_equal(Network.from_onnx(alone).initial("w"), network.initial("w"))


def test_weights_that_vanish_after_reading_are_named(tmp_path: Path) -> None:
    network = Network.from_onnx(external(tmp_path))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(NetworkError, match=r"the initial value 'w' of 24 bytes cannot be read: .*weights\.bin"):
        network.initial("w")


# Weights in separate files


def test_weights_are_written_and_read(tmp_path: Path) -> None:
    network, other = resnet(depth=8, seed=1), resnet(depth=8, seed=2)
    network.save_weights(tmp_path / "a.safetensors")
    network.save_weights(tmp_path / "b.safetensors")
    network.save(tmp_path / "a.onnx")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert other.weights_hash() != network.weights_hash()
    for name in ("a.safetensors", "a.onnx"):
        again = other.with_weights(tmp_path / name)
        assert (again.weights_hash(), again.structure_hash()) == (network.weights_hash(), other.structure_hash())


@pytest.mark.parametrize("ending", ["safetensors", "onnx"])
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path, ending: str) -> None:
    network, path = mlp(**SMALL), tmp_path / f"w.{ending}"

    def write(source: Network) -> None:
        source.save(path) if ending == "onnx" else source.save_weights(path)

    part = NetworkBuilder("part")
    weight, bias = part.parameter("fc2.weight", (2, 3)), part.parameter("fc2.bias", (2,), zeros)
    half = part.network({"y": part.op("Gemm", part.input("x", ("N", 3)), weight, bias, transB=1)})
    cases = {
        r"w\.\w+ do not fit.*'fc1\.weight': got shape \(5, 4\), expected float32\[3, 4\]; 'fc1\.bias'": mlp(
            **{**SMALL, "hidden": 5}
        ),
        r"'fc1\.weight': got dtype float64, expected float32": mlp(**SMALL, dtype="float64"),
        r"unknown conv1\.bias, conv1\.weight, .*; allowed: fc1\.weight": lenet(),
        r"missing fc1\.weight, fc1\.bias$": half,
    }
    for message, source in cases.items():
        write(source)
        with pytest.raises(NetworkError, match=message):
            network.with_weights(path)


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    network = mlp(**SMALL)
    with pytest.raises(UsageError, match=r"got .*w\.bin' as a file for the weights; allowed: NAME\.safetensors; "):
        network.save_weights(tmp_path / "w.bin")
    with pytest.raises(OutputError, match=r"the weights cannot be written to .*; allowed: a writable file"):
        network.save_weights(tmp_path / "none" / "w.safetensors")
    with pytest.raises(NetworkError, match=r"w\.safetensors is not there; allowed: a \.safetensors or an \.onnx"):
        network.with_weights(tmp_path / "w.safetensors")
    for name in ("w.safetensors", "w.pt"):
        (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(NetworkError, match=r"w\.safetensors cannot be read as safetensors \("):
        network.with_weights(tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=r"got .*w\.pt as a file of weights; allowed: NAME\.safetensors, NAME\.onnx"):
        network.with_weights(tmp_path / "w.pt")
    with pytest.raises(NetworkError, match=r"the file .* is a folder; allowed: a \.safetensors or an \.onnx file"):
        network.with_weights(tmp_path)
    with pytest.raises(OutputError, match=r"the weights cannot be written to .*none/w \(.*none is not a folder"):
        network.save_weights(tmp_path / "none" / "w")


@pytest.mark.parametrize("path", [None, 3])
def test_what_is_no_path_is_refused(path: Any) -> None:
    network, got = mlp(**SMALL), f"got an object of type {type(path).__name__} as a file for the"
    for method, rest in (
        (network.save, r"network; allowed: NAME\.onnx"),
        (network.save_weights, r"weights; allowed: NAME\.safetensors"),
        (network.with_weights, r"weights; allowed: NAME\.safetensors, NAME\.onnx"),
    ):
        with pytest.raises(UsageError, match=f"{got} {rest}"):
            method(path)


def test_a_network_is_written_under_a_name_that_is_read_back(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"n\.txt' as a file for the network; allowed: NAME\.onnx; remedy for"):
        mlp(**SMALL).save(tmp_path / "n.txt")
    assert list(tmp_path.iterdir()) == []


# Copies and hashes


def test_to_onnx_is_valid_and_runs() -> None:
    for network in (lenet(), lenet(activation="relu", pooling="max"), mlp(**SMALL), resnet(depth=8)):
        onnx.checker.check_model(network.to_onnx(), full_check=True)
    network = mlp(**SMALL, seed=3)
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
    x, label = np.ones((2, 4), np.float32), np.array([0, 1])
    w1, b1, w2, b2 = map(network.initial, network.parameter_specs)
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
    with pytest.raises(NetworkError, match=r"'fc1.weight' does not fit: got float32\[4, 3\]; allowed: float32\[3, 4\]"):
        network.with_values({"fc1.weight": value.T})
    with pytest.raises(
        NetworkError, match=r"got float64\[3, 4\]; allowed: float32\[3, 4\], .*; remedy: astype\('float32'\)"
    ):
        network.with_values({"fc1.weight": value.astype(np.float64)})
    with pytest.raises(NetworkError, match="got NoneType as values; allowed: a dict of arrays by name"):
        network.with_values(None)  # type: ignore[arg-type]


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
    assert list(cut.parameter_specs) == ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
    assert list(network.outputs) == ["logits", "loss"]
    onnx.checker.check_model(cut.to_onnx(), full_check=True)
    with pytest.raises(NetworkError, match=r"no node computes 'conv1.weight'; allowed: Conv_1_output"):
        network.with_outputs(["conv1.weight"])
    for names in ([], None, "logits"):
        with pytest.raises(NetworkError, match=r"got .* as outputs; allowed: a list of at least one name"):
            network.with_outputs(names)  # type: ignore[arg-type]


def test_hashes_see_what_they_should() -> None:
    network = mlp(**SMALL)
    assert network.structure_hash() == mlp(**SMALL, seed=1).structure_hash()
    assert network.weights_hash() != mlp(**SMALL, seed=1).weights_hash()
    assert network.weights_hash() == mlp(**SMALL).weights_hash()
    relu = mlp(**SMALL, activation="relu").with_values(
        {name: network.initial(name) for name in network.parameter_specs}
    )
    assert relu.weights_hash() == network.weights_hash()
    assert relu.structure_hash() != network.structure_hash()
    assert mlp(features=4, hidden=2, classes=2).structure_hash() != network.structure_hash()
    assert Network.from_onnx(affine(opset=21)).structure_hash() != Network.from_onnx(affine()).structure_hash()
    assert Network.from_onnx(affine(opset=18)).structure_hash() == Network.from_onnx(affine()).structure_hash()


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
    assert (network.structure_hash(), network.with_outputs(["y"]).parameter_specs) == (
        network.structure_hash(),
        network.parameter_specs,
    )
    assert drawn == []
    first = network.initial("w")
    assert drawn == [(2, 3)]
    np.testing.assert_array_equal(network.initial("w"), first)


def test_both_dtypes_start_at_the_same_point() -> None:
    single, double = lenet(seed=2), lenet(seed=2, dtype="float64")
    for name in single.parameter_specs:
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


def test_a_scalar_is_a_constant_of_the_network_and_no_parameter() -> None:
    build = NetworkBuilder("scaled", dtype="float64")
    x = build.op("Mul", build.input("x", ("N",)), build.scalar(0.125))
    network = build.network({"y": build.op("Add", x, build.scalar(3.0))})
    assert not network.parameter_specs
    assert [node.op_type for node in network.nodes] == ["Constant", "Mul", "Constant", "Add"]
    assert str(network.outputs["y"]) == "float64[N]"
    assert constant_value(network.nodes[0].outputs[0]) == 0.125
    with pytest.raises(NetworkError, match=r"scalar: got 'q'; allowed: a number, such as 0\.5"):
        build.scalar("q")  # type: ignore[arg-type]


def test_constants_are_told_from_what_is_trained() -> None:
    build = NetworkBuilder("roles")
    x = build.input("x", ("N", 2))
    low, table = build.constant("low", np.float32(-1)), build.constant("goal", np.array([0, 2]))
    weight = build.parameter("w", (2, 2))
    x = build.op("Reshape", build.op("Clip", build.op("MatMul", x, weight), low), table)
    network = build.network({"y": x})
    values = {value.name: value for node in network.nodes for value in node.inputs if value is not None}
    assert constant_value(values["low"]) == -1
    assert constant_value(values["goal"]).tolist() == [0, 2]  # type: ignore[union-attr] # checked by the test itself
    for value in (values["w"], values["x"], None):
        assert constant_value(value) is None


def test_builder_errors() -> None:
    build = NetworkBuilder("bad")
    x = build.input("x", ("N", 3))
    build.parameter("w", (2, 3))
    for again in (
        lambda: build.parameter("w", (1, 1)),
        lambda: build.constant("x", np.zeros(1)),
        lambda: build.input("w", (1,)),
    ):
        with pytest.raises(NetworkError, match=r"the name '[wx]' is taken; remedy: name every"):
            again()
    y = build.op("Relu", x)
    for outputs in ({"a": y, "b": y}, {"w": y}, {"x": y}):
        with pytest.raises(NetworkError, match=r"the outputs \[.*\] clash; allowed: a computed value once"):
            build.network(outputs)


def test_a_builder_finishes_once() -> None:
    build = NetworkBuilder("once")
    y = build.op("Relu", build.input("x", ("N", 3)))
    build.network({"y": y})
    with pytest.raises(NetworkError, match="the network 'once' is finished; remedy: another NetworkBuilder"):
        build.network({"y": y})


def test_a_builder_refuses_a_distribution_without_its_axes() -> None:
    with pytest.raises(
        NetworkError, match=r"parameter 'b': got the shape \[4\] for glorot_uniform; allowed: \(out, in"
    ):
        NetworkBuilder("short").parameter("b", (4,))


def test_a_builder_refuses_shapes_that_do_not_fit() -> None:
    build = NetworkBuilder("misfit")
    y = build.op(
        "Gemm", build.input("x", ("N", 3)), build.parameter("w", (2, 4)), build.parameter("b", (2,), zeros), transB=1
    )
    with pytest.raises(NetworkError, match="network 'misfit' is not valid"):
        build.network({"y": y})


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


@pytest.mark.parametrize("opset", [13, 20, 22])
def test_the_ir_version_of_a_file_is_no_newer_than_its_opset_needs(opset: int, tmp_path: Path) -> None:
    """Engines support versions that are older than onnx's newest, which its helpers write."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=onnx.IR_VERSION)
    onnx.save(model, tmp_path / "new.onnx")
    network = d5.Network.from_onnx(tmp_path / "new.onnx")
    network.save(tmp_path / "saved.onnx")
    assert onnx.load(tmp_path / "saved.onnx").ir_version == 10
    given = {"x": np.array([[-1, 2]], np.float32)}
    np.testing.assert_array_equal(d5.framework("onnxruntime").executor(network).inference(given)["y"], [[0, 2]])
