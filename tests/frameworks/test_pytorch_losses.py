"""A Huber loss written out is one call of torch's kernel, with the values and gradients of the nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5


def network(
    *,
    delta: float = 1.0,
    half: float = 0.5,
    swapped: bool = False,
    shape: tuple[Any, ...] = ("N", 3),
    more: bool = False,
) -> d5.Network:
    """The mean of m (|d| - m / 2), with d the product of `x` and a parameter, less `y`."""
    build = d5.NetworkBuilder("huber", dtype="float64", seed=0)
    x, y = build.input("x", ("N", 3)), build.input("y", shape)
    weight = build.parameter("weight", (3,), lambda rng, size: rng.standard_normal(size))
    size = build.op("Abs", build.op("Sub", build.op("Mul", x, weight), y))
    least = build.op("Min", size, build.scalar(delta))
    rest = build.op("Sub", size, build.op("Mul", least, build.scalar(half)))
    cost = build.op("Mul", *((rest, least) if swapped else (least, rest)))
    outputs = {"loss": build.op("ReduceMean", cost, keepdims=0)}
    return build.network({**outputs, "size": size} if more else outputs)


def compare(made: d5.Network) -> str:
    """Loss and gradients of torch and of the reference; the source of torch's program."""
    draw = np.random.default_rng(0)
    columns = made.inputs["y"].shape[-1]
    feed = {"x": 2 * draw.standard_normal((64, 3)), "y": draw.standard_normal((64, columns))}
    feed["y"][0] = 0  # a difference of zero below, where the gradient is zero
    feed["x"][0] = 0
    found = {}
    for name in ("pytorch", "reference"):
        executor = d5.framework(name).executor(made)
        outputs = executor.inference_and_backprop(feed, wrt=["weight", "x", "y"])
        found[name] = {"loss": np.asarray(outputs["loss"]), **executor.gradients()}
        if name == "pytorch":
            source = executor.training_source  # type: ignore[attr-defined]
    for key, value in found["reference"].items():
        # Other orders of float64 sums.
        np.testing.assert_allclose(np.asarray(found["pytorch"][key]), value, rtol=1e-12, atol=1e-14, err_msg=key)
    return str(source)


@pytest.mark.parametrize("delta", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("swapped", [False, True])
def test_the_written_loss_is_one_call(delta: float, swapped: bool) -> None:
    source = compare(network(delta=delta, swapped=swapped))
    assert "f_huber_loss(" in source
    assert f"delta={delta!r}" in source
    assert "f_abs" not in source


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"half": 0.25}, id="another function"),
        pytest.param({"shape": ("N", 1)}, id="a difference of other shapes"),
        pytest.param({"more": True}, id="another reader"),
        pytest.param({"delta": -1.0}, id="never quadratic"),
    ],
)
def test_other_functions_stay_as_they_are_written(given: dict[str, Any]) -> None:
    assert "huber" not in compare(network(**given))


def test_the_detectors_loss_is_found() -> None:
    executor: Any = d5.framework("pytorch").executor(d5.networks.ssd(image=16, classes=2, width=4))
    assert executor.source.count("f_huber_loss(") == 1
