"""Networks that torch.onnx.export wrote: gradients by all parameters are those of the module that was exported."""

from __future__ import annotations

import importlib.util
import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5

torch = pytest.importorskip("torch", reason="exports are PyTorch's")
from exported_modules import MODULES  # noqa: E402 - it needs PyTorch

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime")
# Of these, compilation alone takes more than ten seconds.
SLOW = {(module, framework) for module in ("lstm", "gru") for framework in ("jax", "tensorflow")}
# Float32, the same operations in another order: some ten roundings of 6e-8.
CLOSE = 1e-5


Made = tuple[Any, Any, dict[str, np.ndarray], Any]


def exported(name: str, *, batch: str | None = None, dynamo: bool = False) -> Made:
    """The module, its network with a loss, what to feed it, and the target."""
    torch.manual_seed(0)
    case = MODULES[name]
    module = case.make().train()
    values = [torch.randn(own) if isinstance(own[0], int) else torch.randint(own[1], own[0]) for own in case.inputs]
    feed, file = {f"x{number}": value for number, value in enumerate(values)}, io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, on what its next versions will do
        torch.onnx.export(
            module,
            tuple(values),
            file,
            dynamo=dynamo,
            input_names=list(feed),
            output_names=["y"],
            opset_version=18,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,  # which would rename and transpose weights
            dynamic_axes={key: {0: batch} for key in feed} if batch else None,
        )
    network = d5.Network.from_onnx(onnx.ModelProto.FromString(file.getvalue()))
    with torch.no_grad():
        target = torch.randn(module(*values).shape)
    module = case.make().train().requires_grad_()
    module.load_state_dict(
        {key: torch.from_numpy(network.initial(key)) for key in dict(module.named_parameters())}, strict=False
    )
    network = network.add_loss("y", "mean_squared_error", label="target")
    return module, network, {key: value.numpy() for key, value in feed.items()}, target


def compare(framework: str, made: Made) -> None:
    module, network, feed, target = made
    missing = dict(module.named_parameters()).keys() - network.parameter_specs.keys()
    assert not missing
    executor = d5.framework(framework).executor(network)
    outputs = executor.inference_and_backprop({**feed, "target": target.numpy()})
    module.zero_grad()
    loss = torch.nn.functional.mse_loss(module(*(torch.from_numpy(value) for value in feed.values())), target)
    loss.backward()
    np.testing.assert_allclose(float(d5.to_numpy(outputs["loss"])), loss.item(), rtol=CLOSE)
    found = executor.gradients()
    for key, value in module.named_parameters():
        own, wanted = d5.to_numpy(found[key]), value.grad.numpy()
        # A sum that is 0 but for roundings (a bias before a normalisation) is held to what it is a sum of.
        scale = max(float(np.linalg.norm(wanted)), 1e-3 * loss.item())
        assert own.shape == wanted.shape
        assert np.linalg.norm(own - wanted) <= CLOSE * scale, key


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(name, framework, marks=[pytest.mark.slow] if (name, framework) in SLOW else [])
        for name in MODULES
        for framework in FRAMEWORKS
    ],
)
def test_gradients_are_those_of_the_module(name: str, framework: str) -> None:
    pytest.importorskip(framework if framework not in ("reference", "pytorch") else "torch")
    compare(framework, exported(name))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["perceptron", "attention"])
def test_a_batch_of_any_size(name: str, framework: str) -> None:
    module, network, feed, target = exported(name, batch="N")
    for size in (2, 1):
        part = {key: value[:size] for key, value in feed.items()}
        compare(framework, (module, network, part, target[:size]))


def test_what_only_sets_an_operator_is_no_parameter() -> None:
    """The scales of an interpolation, a mask of infinities and the state that a layer starts from are no weights."""
    for name in ("interpolation", "encoder", "lstm", "gru", "slices"):
        module, network, *_ = exported(name)
        assert network.parameter_specs.keys() == dict(module.named_parameters()).keys()


@pytest.mark.parametrize("name", ["perceptron", "attention", "slices"])
def test_the_newer_exporter(name: str) -> None:
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("torch.onnx.export(dynamo=True) needs onnxscript, which is not installed")
    compare("pytorch", exported(name, dynamo=True))
