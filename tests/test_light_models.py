"""ONNX's light models, with weights drawn from a seed: gradients by all of them agree between back-ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.errors import Unsupported

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx"))
# Operators that some back-ends lack.
LACKING = ("LRN", "AveragePool")
# ReLUs and largest elements: where a sum is within a rounding of 0 or of another one, a gradient goes another way.
CLOSE = 2e-2


def network(name: str, *, seed: int = 0) -> d5.Network:
    """Weights whose sums keep their size, as ReLUs want it; a loss between what comes out and a target."""
    made = d5.Network.from_onnx(FOLDER / f"light_{name}.onnx")
    draw, values = np.random.default_rng(seed), {}
    for key, spec in made.parameter_specs.items():
        fan = int(np.prod(spec.shape[1:])) if len(spec.shape) > 1 else 0
        centre, width = (0.0, np.sqrt(2 / fan)) if fan else (0.5, 0.1)
        values[key] = (centre + width * draw.standard_normal(spec.shape)).astype(spec.dtype)
    (output,) = made.outputs
    return made.with_values(values).add_loss(output, "mean_squared_error", label="target")


def test_there_are_nine() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(
            name, framework, marks=[] if (name, framework) == ("squeezenet", "onnxruntime") else [pytest.mark.slow]
        )
        for name in NAMES
        for framework in ("onnxruntime", "jax", "tensorflow", "reference")
    ],
)
def test_gradients_agree_with_pytorch(name: str, framework: str) -> None:
    for needed in ("torch", *([framework] if framework != "reference" else [])):
        pytest.importorskip(needed)
    net, draw = network(name), np.random.default_rng(1)
    feed = {key: draw.standard_normal(spec.shape).astype(spec.dtype) for key, spec in net.inputs.items()}
    found = []
    for each in ("pytorch", framework):
        try:
            executor = d5.framework(each).executor(net)
            outputs = executor.inference_and_backprop(feed)
        except Unsupported as error:
            if any(f"({operator})" in str(error) for operator in LACKING):
                pytest.skip(str(error).replace("\n", " ")[:200])
            raise
        found.append((d5.to_numpy(outputs["loss"]), {k: d5.to_numpy(v) for k, v in executor.gradients().items()}))
    (loss, wanted), (own_loss, own) = found
    np.testing.assert_allclose(own_loss, loss, rtol=1e-4)
    assert own.keys() == wanted.keys() == net.parameter_specs.keys()
    largest = max(float(np.linalg.norm(value)) for value in wanted.values())
    assert largest > 0
    for key, value in wanted.items():
        # What is a thousandth of the largest gradient and less is a remainder of roundings.
        assert np.linalg.norm(own[key] - value) <= CLOSE * max(float(np.linalg.norm(value)), 1e-3 * largest), key
