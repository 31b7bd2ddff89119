"""Networks that torch.onnx.export wrote, in both formats: gradients are those of the exported module."""

from __future__ import annotations

import functools
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
# For these, compilation by itself takes more than ten seconds.
SLOW = {(module, framework) for module in ("lstm", "gru") for framework in ("jax", "tensorflow")}
# Float32, the same operations in another order: about ten roundings of 6e-8.
CLOSE = 1e-5


# The older format, of TorchScript, and the newer one, of torch.export, the default since PyTorch 2.9.
FORMS = ("torchscript", "dynamo")
# In the newer format, whose export by itself takes seconds, these modules are exported daily, some always.
DAILY = {"perceptron", "attention"}
ALWAYS = {("attention", framework) for framework in ("reference", "pytorch", "onnxruntime")}

Made = tuple[Any, Any, dict[str, np.ndarray], Any]


@functools.cache
def exported(name: str, form: str = "torchscript", *, batch: str | None = None) -> Made:
    """The module, its network with a loss, its feeds, and the target."""
    if form == "dynamo":
        pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")
    torch.manual_seed(0)
    case = MODULES[name]
    module = case.make().train()
    values = [torch.randn(own) if isinstance(own[0], int) else torch.randint(own[1], own[0]) for own in case.inputs]
    feed = {f"x{number}": value for number, value in enumerate(values)}
    settings: dict[str, Any] = {"dynamo": False, "opset_version": 18, "training": torch.onnx.TrainingMode.TRAINING}
    # Folding would rename and transpose weights.
    settings["do_constant_folding"] = False
    if batch:
        settings["dynamic_axes"] = {key: {0: batch} for key in feed}
    if form == "dynamo":
        settings = {"dynamo": True, "optimize": False}
        if batch:
            settings["dynamic_shapes"] = tuple({0: torch.export.Dim.DYNAMIC} for _ in values)
    network = d5.Network.from_onnx(written(module, feed, **settings))
    with torch.no_grad():
        target = torch.randn(module(*values).shape)
    module = case.make().train().requires_grad_()
    module.load_state_dict(
        {key: torch.from_numpy(network.initial(key)) for key in dict(module.named_parameters())}, strict=False
    )
    network = network.add_loss("y", "mse", label="target")
    return module, network, {key: value.numpy() for key, value in feed.items()}, target


def written(module: Any, feed: dict[str, Any], **settings: Any) -> onnx.ModelProto:
    """The file that torch.onnx.export writes for a module."""
    file, names = io.BytesIO(), {"input_names": list(feed), "output_names": ["y"], "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's warnings about future versions
        torch.onnx.export(module, tuple(feed.values()), file, **names, **settings)
    return onnx.ModelProto.FromString(file.getvalue())


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
        # A sum that is 0 up to rounding (a bias before a normalization) is compared relative to its terms.
        scale = max(float(np.linalg.norm(wanted)), 1e-3 * loss.item())
        assert own.shape == wanted.shape
        assert np.linalg.norm(own - wanted) <= CLOSE * scale, key


def marks(name: str, framework: str, form: str) -> list[pytest.MarkDecorator]:
    if form == "dynamo" and (name, framework) in ALWAYS:
        return [pytest.mark.daily]
    return [pytest.mark.slow] if (name, framework) in SLOW or (form == "dynamo" and name not in DAILY) else []


@pytest.mark.parametrize(
    ("form", "name", "framework"),
    [
        pytest.param(form, name, framework, marks=marks(name, framework, form))
        for form in FORMS
        for name in MODULES
        for framework in FRAMEWORKS
    ],
)
def test_gradients_are_those_of_the_module(form: str, name: str, framework: str) -> None:
    pytest.importorskip(framework if framework not in ("reference", "pytorch") else "torch")
    compare(framework, exported(name, form))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["perceptron", "attention"])
@pytest.mark.parametrize("form", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_a_batch_of_any_size(form: str, name: str, framework: str) -> None:
    module, network, feed, target = exported(name, form, batch="N")
    for size in (2, 1):
        part = {key: value[:size] for key, value in feed.items()}
        compare(framework, (module, network, part, target[:size]))


def test_what_only_sets_an_operator_is_no_parameter() -> None:
    """An interpolation's scales, a mask of infinities and a layer's initial state are not weights."""
    for name in ("interpolation", "encoder", "lstm", "gru", "slices"):
        module, network, *_ = exported(name)
        assert network.parameter_specs.keys() == dict(module.named_parameters()).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_parameters_are_those_of_the_module(name: str) -> None:
    module, network, *_ = exported(name, "dynamo")
    assert network.parameter_specs.keys() == dict(module.named_parameters()).keys()
