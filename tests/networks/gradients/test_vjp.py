"""`vjp_network`: a vector-Jacobian product as a network."""

from __future__ import annotations

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, UnknownName
from deep5.networks.gradients import gradient_network, vjp_network

RNG, NUMPY = np.random.default_rng(11), d5.framework("reference")


def network() -> d5.Network:
    """A squared layer between two others."""
    build = d5.NetworkBuilder("squared", dtype="float64", seed=3)
    h = build.op("MatMul", build.input("x", ("N", 4)), build.parameter("w", (4, 3)))
    h = build.op("MatMul", build.op("Mul", h, h), build.parameter("v", (3, 2)))
    return build.network({"h": h, "loss": build.op("ReduceMean", build.op("Mul", h, h), keepdims=0)})


def test_a_vector_jacobian_product_is_that_of_the_formula() -> None:
    build = d5.NetworkBuilder("product", dtype="float64")
    x, w = build.input("x", ("N", 3)), build.parameter("w", (3, 2))
    h = build.op("MatMul", x, w)
    made = vjp_network(
        build.network({"h": h, "square": build.op("Mul", h, h), "count": build.op("Shape", h)}), ["w", "x"]
    )
    assert list(made.inputs) == ["x", "seed:h", "seed:square"]
    assert list(made.outputs) == ["h", "square", "count", "grad:w", "grad:x"]
    assert str(made.inputs["seed:h"]) == "float64[N, 2]"
    runs = NUMPY.executor(made)
    x_, u, v = (RNG.standard_normal(shape) for shape in ((5, 3), (5, 2), (5, 2)))
    found = runs.inference({"x": x_, "seed:h": u, "seed:square": v})
    weight = made.initial("w")
    by_h = u + 2 * (x_ @ weight) * v
    # Float64 sums of a handful of terms.
    np.testing.assert_allclose(found["grad:w"], x_.T @ by_h, rtol=1e-12)
    np.testing.assert_allclose(found["grad:x"], by_h @ weight.T, rtol=1e-12)
    np.testing.assert_allclose(found["square"], (x_ @ weight) ** 2, rtol=1e-12)


def test_a_seed_alone_is_the_gradient_of_a_network_of_one_loss() -> None:
    plain = network()
    one, other = gradient_network(plain, wrt=["w"]), vjp_network(plain, ["w"])
    x = RNG.standard_normal((3, 4))
    want = NUMPY.executor(one).inference({"x": x, "loss_scale": np.array(2.0)})["grad:w"]
    seeds = {"seed:h": np.zeros((3, 2)), "seed:loss": np.array(2.0)}
    np.testing.assert_allclose(NUMPY.executor(other).inference({"x": x, **seeds})["grad:w"], want, rtol=1e-13)
    with pytest.raises(UnknownName, match="parameter or input"):
        vjp_network(plain, ["nothing"])
    build = d5.NetworkBuilder("whole")
    with pytest.raises(NetworkError, match=r"nothing to differentiate: got the outputs y int64\[2\]"):
        vjp_network(build.network({"y": build.op("Shape", build.input("x", ("N", 2)))}), ["x"])
