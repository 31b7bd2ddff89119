"""Computed targets of a Reshape become constants where possible: 0 for a kept dimension, and -1."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.networks import NetworkBuilder
from deep5.networks.constants import constant_value
from trajectory_cases import FRAMEWORKS

torch = pytest.importorskip("torch")


class Flattened(torch.nn.Module):
    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept, self.linear = kept, torch.nn.Linear(12 if kept == 1 else 4, 5)

    def forward(self, x: Any) -> Any:
        return self.linear(x.view(*[x.size(axis) for axis in range(self.kept)], -1))


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_reshape_that_keeps_extents_of_its_input_needs_no_computed_shape(
    framework: str, kept: int, tmp_path: Path
) -> None:
    """As PyTorch exports `x.view(x.size(0), -1)` with a batch of any size."""
    module, names = Flattened(kept).eval(), {"x": {0: "N", **({1: "M"} if kept == 2 else {})}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a newer exporter is available
        torch.onnx.export(
            module,
            (torch.zeros(2, 3, 4),),
            tmp_path / "view.onnx",
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={**names, "y": names["x"]},
        )
    network = d5.Network.from_onnx(tmp_path / "view.onnx")
    assert not {node.op_type for node in network.nodes} & {"Shape", "Gather", "Concat"}
    executor = d5.framework(framework).executor(network)
    for count in (3, 1, 5):
        x = np.random.default_rng(count).standard_normal((count, 3, 4)).astype(np.float32)
        # One float32 product of at most 12 terms.
        want = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(d5.to_numpy(executor.inference({"x": x})["y"]), want, rtol=1e-5, atol=1e-5)


def test_what_a_reshape_does_not_keep_is_not_taken_for_kept() -> None:
    """Sizes of another value, or at another position, stay computed; with `allowzero` a 0 would mean size 0."""

    def made(order: list[int], source: str = "x", **options: Any) -> d5.Network:
        build = NetworkBuilder("moved")
        values = {"x": build.input("x", ("N", "M", 4)), "other": build.input("other", ("K", "L", 4))}
        extents = build.op("Gather", build.op("Shape", values[source]), build.constant("order", np.array(order)))
        goal = build.op("Concat", extents, build.constant("rest", np.array([-1])), axis=0)
        return build.network({"y": build.op("Reshape", values["x"], goal, **options)})

    def computed(network: d5.Network) -> bool:
        return constant_value(next(n for n in network.nodes if n.op_type == "Reshape").inputs[1]) is None

    def read(network: d5.Network) -> d5.Network:
        return d5.Network.from_onnx(network.to_onnx())

    kept = read(made([0, 1]))
    assert not computed(kept)
    for network in (made([1, 0]), made([0, 1], "other"), made([0, 1], allowzero=1)):
        assert computed(read(network))
    x, other = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.zeros((3, 2, 4), np.float32)
    for network, shape in ((made([1, 0]), (3, 2, 4)), (made([0, 1], "other"), (3, 2, 4)), (made([0, 1]), (2, 3, 4))):
        got = d5.framework("reference").executor(read(network)).inference({"x": x, "other": other})["y"]
        np.testing.assert_array_equal(got, x.reshape(shape))


def test_what_no_elements_are_cut_into_is_left_open() -> None:
    """A 0 in the target would mean the input's dimension at that position."""
    build = NetworkBuilder("none")
    x = build.input("x", ("N", 3, 0))
    batch = build.op("Gather", build.op("Shape", x), build.constant("first", np.array([0])))
    goal = build.op("Concat", batch, build.constant("rest", np.array([-1])), axis=0)
    network = d5.Network.from_onnx(build.network({"y": build.op("Reshape", x, goal)}).to_onnx())
    (reshape,) = (node for node in network.nodes if node.op_type == "Reshape")
    np.testing.assert_array_equal(constant_value(reshape.inputs[1]), [0, -1])
