"""Every network of the zoo trains some steps on every framework, with equal losses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from test_zoo import LANGUAGE, SMALL, batch

import deep5 as d5
from deep5.core.errors import MissingDependency

FRAMEWORKS = ("jax", "onnxruntime", "openvino", "pytorch", "tensorflow")
# They take minutes to compile.
MODES = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("pytorch:compiled", "tensorflow:xla")]
NETWORKS = {**SMALL, **LANGUAGE}
# Their convolutions exist only in float32.
SINGLE = ("onnxruntime", "openvino")
STEPS, BATCH = 3, 8


def losses(framework: str, name: str, dtype: str) -> list[float]:
    """The loss before each of a few steps of gradient descent; dropout masks are a function of the step."""
    make, sizes = NETWORKS[name]
    network = make(**sizes, dtype=dtype, seed=1, **({"classes": 3} if name in SMALL else {}))
    step = d5.framework(framework).executor(network, seed=0).train_step(d5.SGD(0.01))
    feed = batch(network, size=BATCH)
    return [
        float(d5.to_numpy(step(feed, d5.StepInfo(step=at, batch_size=BATCH, seed=0))["loss"])) for at in range(STEPS)
    ]


@cache
def right(name: str) -> list[float]:
    return losses("reference", name, "float64")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("framework", [*FRAMEWORKS, *MODES])
def test_trains_with_equal_losses(framework: str, name: str) -> None:
    try:
        d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    found: Any = losses(framework, name, "float32" if framework in SINGLE else "float64")
    # float64: thousands of roundings of 1e-16, each magnified by the batch normalizations of random weights and
    # propagated through two updates. float32: the same with 6e-8.
    np.testing.assert_allclose(found, right(name), rtol=2e-3 if framework in SINGLE else 1e-9)
    assert found[0] != found[-1]
