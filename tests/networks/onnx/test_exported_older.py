"""Files of torch.onnx.export in its older format, which does not mark parameters: docs/how_to/onnx_files.md."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import deep5 as d5


class Small(torch.nn.Module):
    """A convolution with batch normalization, a buffer, and a row of a table that PyTorch does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.emb = torch.nn.Embedding(5, 4, padding_idx=0)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return (self.bn(self.conv(x)).mean((2, 3)) * self.scale + self.emb(places)).square().mean()


def exported(file: Path, **settings: Any) -> d5.Network:
    inputs = (torch.ones(2, 3, 5, 5), torch.tensor([0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a newer exporter is available
        torch.onnx.export(Small().train(), inputs, file, input_names=["x", "places"], output_names=["loss"], **settings)
    return d5.Network.from_onnx(file)


OLDER: dict[str, Any] = {
    "dynamo": False,
    "training": torch.onnx.TrainingMode.TRAINING,
    "do_constant_folding": False,
}
TRAINED = {"conv.weight", "conv.bias", "bn.weight", "bn.bias", "emb.weight"}


def test_buffers_are_parameters_until_they_are_frozen(tmp_path: Path) -> None:
    network = exported(tmp_path / "older.onnx", **OLDER)
    assert set(network.parameter_specs) == TRAINED | {"scale"}
    assert network.freeze("scale").frozen == {"scale"}
    newer = exported(tmp_path / "newer.onnx", dynamo=True, optimize=False, verbose=False)
    assert set(newer.parameter_specs) == TRAINED


def test_by_default_a_batch_normalisation_is_merged_and_weights_are_renamed(tmp_path: Path) -> None:
    network = exported(tmp_path / "older.onnx", dynamo=False)
    assert "BatchNormalization" not in {node.op_type for node in network.nodes}
    assert "conv.weight" not in network.parameter_specs


def test_the_row_of_a_padding_index_has_a_gradient(tmp_path: Path) -> None:
    executor = d5.framework("reference").executor(exported(tmp_path / "older.onnx", **OLDER))
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)
    executor.inference_and_backprop({"x": x, "places": np.array([0, 1])}, loss="loss")
    assert np.all(d5.to_numpy(executor.gradients()["emb.weight"])[0] != 0)
