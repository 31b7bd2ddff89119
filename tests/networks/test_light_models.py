"""ONNX's light models, with weights drawn from a seed: gradients by all weights agree between back-ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from conformance import cases, model_of, samples
from deep5.networks.transforms.precision import with_precision

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx"))
# By precision: float64, sums of some thousand terms through fifty layers, measured to 1e-11; float32, where rounding of
# a sum or of a largest element can change the path of a gradient (ONNX Runtime has no float64).
CLOSE = {"float64": 1e-9, "float32": 2e-2}


def network(name: str, *, seed: int = 0) -> d5.Network:
    """Weights with variance-preserving sums for ReLUs; a loss between the output and a target."""
    made = d5.Network.from_onnx(FOLDER / f"light_{name}.onnx")
    draw, values = np.random.default_rng(seed), {}
    for key, spec in made.parameter_specs.items():
        fan = int(np.prod(spec.shape[1:])) if len(spec.shape) > 1 else 0
        centre, width = (0.0, np.sqrt(2 / fan)) if fan else (0.5, 0.1)
        values[key] = (centre + width * draw.standard_normal(spec.shape)).astype(spec.dtype)
    (output,) = made.outputs
    return made.with_values(values).add_loss(output, "mse", label="target")


def test_there_are_nine() -> None:
    assert len(NAMES) == 9


def test_what_is_expected_of_squeezenet_is_not_met_by_the_evaluator_of_onnx() -> None:
    """All its logits are about 9.5e9, where float32 numbers are 1024 apart: the order of addition decides."""
    model = model_of(cases("light")["squeezenet"])
    inputs, expected = next(samples(cases("light")["squeezenet"], model))
    weights = {tensor.name for tensor in model.graph.initializer}
    (fed,) = (value.name for value in model.graph.input if value.name not in weights)
    found = ReferenceEvaluator(model).run(None, {fed: inputs[0]})
    with pytest.raises(AssertionError):
        Runner.assert_similar_outputs(expected, found, 1e-3, 1e-7)
    np.testing.assert_allclose(expected[0], 1e-3, rtol=1e-6)
    np.testing.assert_array_equal(found[0], 1.0)


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(
            name,
            framework,
            marks=[] if name == "squeezenet" and framework in ("onnxruntime", "reference") else [pytest.mark.slow],
        )
        for name in NAMES
        for framework in ("onnxruntime", "jax", "tensorflow", "reference")
    ],
)
def test_gradients_agree_with_pytorch(name: str, framework: str) -> None:
    for needed in ("torch", *([framework] if framework != "reference" else [])):
        pytest.importorskip(needed)
    precision = "float32" if framework == "onnxruntime" else "float64"
    net, draw = with_precision(network(name), precision), np.random.default_rng(1)
    feed = {key: draw.standard_normal(spec.shape).astype(spec.dtype) for key, spec in net.inputs.items()}
    found = []
    for each in ("pytorch", framework):
        executor = d5.framework(each).executor(net)
        outputs = executor.inference_and_backprop(feed)
        found.append((d5.to_numpy(outputs["loss"]), {k: d5.to_numpy(v) for k, v in executor.gradients().items()}))
    (loss, wanted), (own_loss, own) = found
    np.testing.assert_allclose(own_loss, loss, rtol=min(1e-4, CLOSE[precision]))
    assert own.keys() == wanted.keys() == net.parameter_specs.keys()
    largest = max(float(np.linalg.norm(value)) for value in wanted.values())
    assert largest > 0
    for key, value in wanted.items():
        # A gradient of at most a thousandth of the largest is dominated by rounding.
        assert np.linalg.norm(own[key] - value) <= CLOSE[precision] * max(
            float(np.linalg.norm(value)), 1e-3 * largest
        ), key
