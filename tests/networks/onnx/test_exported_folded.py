"""Networks that torch.onnx.export wrote and optimized, as it does by default: which values are parameters.

Weights come out transposed, joined and under other names; other initial values are not parameters.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import deep5 as d5

torch = pytest.importorskip("torch", reason="exports are PyTorch's")
from test_exported import CLOSE, FRAMEWORKS, SLOW, written  # noqa: E402 - it needs PyTorch

from exported_modules import MODULES  # noqa: E402 - it needs PyTorch

# The exporter folds batch normalization into a convolution, in training too, merges equal initial values, and
# precomputes expressions of parameters. The resulting network trains, but not as the module did.
OTHER = {"convolutions", "encoder", "functions"}
DAILY = {"attention"}
# A bias that a normalization cancels: its gradient is the rounding error of a sum, with terms as large as the weight's.
NOTHING = {"down.bias": "down.weight"}


@functools.cache
def folded(name: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """The module with its gradients, its network with a loss, and its feeds."""
    pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")
    torch.manual_seed(0)
    case = MODULES[name]
    module = case.make().train().requires_grad_()
    values = [torch.randn(own) if isinstance(own[0], int) else torch.randint(own[1], own[0]) for own in case.inputs]
    feed = {f"x{number}": value for number, value in enumerate(values)}
    network = d5.Network.from_onnx(written(module, feed, dynamo=True, opset_version=18))
    target = torch.randn(module(*values).shape)
    torch.nn.functional.mse_loss(module(*values), target).backward()
    network = network.add_loss("y", "mse", label="target")
    return module, network, {**{key: value.numpy() for key, value in feed.items()}, "target": target.numpy()}


@functools.cache
def gradients(name: str, framework: str) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and its gradients by all parameters."""
    _, network, feed = folded(name)
    executor = d5.framework(framework).executor(network)
    loss = float(d5.to_numpy(executor.inference_and_backprop(feed)["loss"]))
    return loss, {key: d5.to_numpy(value) for key, value in executor.gradients().items()}


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(name, framework, marks=[] if name in DAILY and (name, framework) not in SLOW else pytest.mark.slow)
        for name in MODULES
        for framework in FRAMEWORKS
        if framework != "reference"
    ],
)
def test_gradients_agree_between_frameworks(name: str, framework: str) -> None:
    pytest.importorskip(framework if framework != "pytorch" else "torch")
    loss, found = gradients(name, framework)
    right, wanted = gradients(name, "reference")
    np.testing.assert_allclose(loss, right, rtol=CLOSE)
    assert found.keys() == wanted.keys() == folded(name)[1].parameter_specs.keys()
    for key in wanted:
        assert_close(found, wanted, key)


def assert_close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], key: str) -> None:
    scale = np.linalg.norm(wanted[NOTHING.get(key, key)])
    assert np.linalg.norm(found[key] - wanted[key]) <= CLOSE * scale, key


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in DAILY else pytest.mark.slow) for name in MODULES if name not in OTHER],
)
def test_gradients_are_those_of_the_module_in_another_order(name: str) -> None:
    """Transposed and joined, they have the same norm; parameters without a gradient in the module add nothing to it."""
    module, found = folded(name)[0], gradients(name, "reference")[1]
    own = {key: value.grad.numpy() for key, value in module.named_parameters()}
    assert norm(found) == pytest.approx(norm(own), rel=CLOSE)
    for key in found.keys() & own.keys():
        assert_close(found, own, key)


def norm(gradients: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(value, dtype=np.float64).sum() for value in gradients.values())))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_constants_are_no_parameters(name: str) -> None:
    """The bound of a softplus, the ones of a GroupNorm's statistics, a mask, the root of two, buffers."""
    module, network, _ = folded(name)
    own = dict(module.named_parameters())
    assert {key for key, spec in network.parameter_specs.items() if spec.size == 1} <= own.keys()
    count = sum(spec.size for spec in network.parameter_specs.values())
    # Two functions of one parameter are kept.
    assert count <= sum(value.numel() for value in own.values()) + (own["b"].numel() if name == "functions" else 0)
