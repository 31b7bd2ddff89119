"""Networks as files: protobuf reads what was written, and no second copy of the weights is held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.networks import Network
from deep5.networks.onnx.writing import _varint

SCRIPT = Path(__file__).parents[2] / "support" / "network_memory.py"


def parsed(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet", "lstm", "squeezenet"])
def test_a_file_holds_what_protobuf_would_write(name: str, tmp_path: Path) -> None:
    network = getattr(d5.networks, name)()
    network.save(tmp_path / "network.onnx")
    model = parsed(tmp_path / "network.onnx")
    assert model == network.to_onnx()
    read = Network.from_onnx(tmp_path / "network.onnx")
    assert (read.structure_hash(), read.weights_hash()) == (network.structure_hash(), network.weights_hash())
    read.save(tmp_path / "again.onnx")
    again = Network.from_onnx(tmp_path / "again.onnx")
    assert (again.structure_hash(), again.weights_hash()) == (network.structure_hash(), network.weights_hash())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("size", [0, 1, 1 << 16, 1 << 17])
def test_values_of_every_type_and_size(dtype: str, size: int, tmp_path: Path) -> None:
    kind = ir.DataType.from_numpy(np.dtype(np.float32)) if dtype == "bfloat16" else None
    values = np.arange(size) % 2
    array = values.astype(np.float32 if kind else dtype)
    build = d5.NetworkBuilder("values")
    held = build.constant("held", array)
    build.network({"y": build.op("Identity", build.op("Cast", held, to=ir.DataType.BFLOAT16) if kind else held)}).save(
        tmp_path / "values.onnx"
    )
    found = Network.from_onnx(tmp_path / "values.onnx")
    run = d5.framework("reference").executor(found).inference({})
    np.testing.assert_array_equal(np.asarray(d5.to_numpy(run["y"]), np.float64), values)


def test_weights_in_another_file_come_inside(tmp_path: Path) -> None:
    network = d5.networks.lenet()
    onnx.save_model(
        network.to_onnx(), tmp_path / "outside.onnx", save_as_external_data=True, location="weights", size_threshold=64
    )
    outside = Network.from_onnx(tmp_path / "outside.onnx")
    outside.save(tmp_path / "inside.onnx")
    assert Network.from_onnx(tmp_path / "inside.onnx").weights_hash() == network.weights_hash()
    (tmp_path / "inside.onnx").unlink()
    outside = Network.from_onnx(tmp_path / "outside.onnx")
    (tmp_path / "weights").unlink()
    with pytest.raises(NetworkError, match=r"the initial value '.*' of \d+ bytes cannot be read"):
        outside.save(tmp_path / "inside.onnx")
    assert not list(tmp_path.glob("*inside*")), "no part of a file is left"


def test_numbers_of_any_length() -> None:
    assert [_varint(number).hex() for number in (0, 1, 127, 128, 300, 1 << 31)] == [
        "00", "01", "7f", "8001", "ac02", "8080808008",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_half_a_gigabyte_is_held_little_more_than_twice(tmp_path: Path) -> None:
    """Loading, editing and saving: peak memory of at most 1.2 times the network's size beside the loaded one."""
    for what in ("build", "work"):
        done = subprocess.run(
            [sys.executable, SCRIPT, tmp_path, what], capture_output=True, text=True, timeout=300, check=False
        )
        assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert found["size"] > 500
    assert found["loaded"] <= 1.1 * found["size"], found
    assert found["peak"] - found["loaded"] <= 1.2 * found["size"], found


def test_constants_keep_their_order_whatever_their_size() -> None:
    """A causal mask of 32 tokens is large enough to be handled as a weight, and follows constants that are not."""
    network = d5.networks.gpt(vocabulary=8, length=32, width=4, heads=1, layers=1)
    read = Network.from_onnx(network.to_onnx())
    assert list(read.constants) == list(network.constants)
    assert read.structure_hash() == network.structure_hash()
