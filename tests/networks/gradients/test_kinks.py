"""Gradients at kinks: the conventions of tests/support/kinks.py, exact and the same on every back-end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deep5 as d5
from backends import COMPUTING, ENGINES, Backend, parametrized
from deep5.networks import NetworkBuilder
from kinks import CONVENTIONS, KINKS, Kink


@parametrized(*COMPUTING, *ENGINES)
@pytest.mark.parametrize("kink", KINKS, ids=[kink.name for kink in KINKS])
def test_a_convention_is_the_same_on_every_back_end(backend: Backend, kink: Kink) -> None:
    build = NetworkBuilder("kink", dtype="float32", seed=0)
    x = build.parameter("x", kink.x.shape, lambda rng, shape: kink.x)
    flat = build.op("Reshape", kink.op(build, x), build.constant("flat", np.array([-1])))
    network = build.network({"loss": build.op("MatMul", flat, build.input("seed", (kink.count,)))})
    executor = d5.framework(backend.name).executor(network)
    executor.inference_and_backprop({"seed": np.arange(1, kink.count + 1, dtype=np.float32)})
    got = d5.to_numpy(executor.gradients()["x"])
    np.testing.assert_allclose(got, kink.gradient, rtol=1e-6, atol=0)


def test_the_page_has_the_conventions() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "gradients.md").read_text(encoding="utf-8")
    assert [f"| {operators} | {words} |" in page for operators, words in CONVENTIONS.items()] == [True] * 10
