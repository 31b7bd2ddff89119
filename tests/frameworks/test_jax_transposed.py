"""A transposed convolution whose windows do not overlap is one matrix product on JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.frameworks.jax import primitives

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], bool]] = {
    "one axis": ((3,), {"strides": [3]}, True),
    "two axes of different sizes": ((2, 3), {"strides": [2, 3]}, True),
    "three axes": ((2, 1, 2), {"strides": [2, 1, 2]}, True),
    "windows that overlap": ((3, 3), {"strides": [2, 2]}, False),
    "gaps": ((2, 2), {"strides": [3, 3]}, False),
    "a part is removed": ((2, 2), {"strides": [2, 2], "pads": [1, 0, 0, 1]}, False),
    "a longer result": ((2, 2), {"strides": [2, 2], "output_padding": [1, 0]}, False),
    "a dilated kernel": ((2, 2), {"strides": [2, 2], "dilations": [2, 2]}, False),
    "groups": ((2, 2), {"strides": [2, 2], "group": 2}, False),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_reference(
    name: str, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, attributes, product = CASES[name]
    calls, right = [], primitives._windows_apart
    monkeypatch.setattr(primitives, "_windows_apart", lambda *given: calls.append(1) or right(*given))
    build = d5.NetworkBuilder("apart", dtype="float64", seed=0)
    space = (4, 5, 3)[: len(kernel)]
    x = build.input("x", ("N", 4, *space))
    made = 3 * attributes.get("group", 1)
    weight = build.parameter("weight", (4, 3, *kernel), lambda rng, shape: rng.standard_normal(shape))
    bias = (build.parameter("bias", (made,), lambda rng, shape: rng.standard_normal(shape)),) if biased else ()
    y = build.op("ConvTranspose", x, weight, *bias, kernel_shape=list(kernel), **attributes)
    network = build.network({"y": y, "loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})
    feed, found = {"x": np.random.default_rng(0).standard_normal((2, 4, *space))}, {}
    for framework in ("jax", "reference"):
        executor = d5.framework(framework).executor(network)
        outputs = executor.inference_and_backprop(feed, wrt=[*network.parameter_specs, "x"])
        found[framework] = {**outputs, **executor.gradients()}
    assert bool(calls) is product
    for key, value in found["reference"].items():
        # Other orders of float64 sums.
        np.testing.assert_allclose(np.asarray(found["jax"][key]), value, rtol=1e-11, atol=1e-13, err_msg=key)
