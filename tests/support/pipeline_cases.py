"""Hand-written training steps in NumPy, float64: the reference for the gradient pipeline of every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import deep5 as d5
from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform
from deep5.training.optimizer import RuleOptimizer

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime", "device")
"""All frameworks that train, and `DeviceStep`, torch's step for parameters on a device, here on the host."""

Values = dict[str, np.ndarray]


def network(dtype: str = "float32", dropout: float = 0.0) -> d5.Network:
    return d5.networks.mlp(features=6, hidden=5, classes=3, dtype=dtype, dropout=dropout, seed=3)


def mixed_network() -> d5.Network:
    """One layer in float32, one in float64."""
    build = NetworkBuilder("mixed", dtype="float32", seed=3)
    x, label = build.input("input", ("N", 6)), build.input("label", ("N",), "int64")
    x = build.op("Tanh", build.op("MatMul", x, build.parameter("fc1.weight", (6, 5), glorot_uniform)))
    x = build.op("Cast", x, to=11)
    build.dtype = np.dtype("float64")
    x = build.op("MatMul", x, build.parameter("fc2.weight", (5, 3), glorot_uniform))
    loss = build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")
    return build.network({"logits": x, "loss": loss})


def batch(step: int, size: int = 8, dtype: str = "float32") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {"input": draw.standard_normal((size, 6)).astype(dtype), "label": draw.integers(0, 3, size)}


def info(step: int, size: int = 8) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=size)


class _OnHost:
    """PyTorch's executor on the host, with the step for devices."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def train_step(self, rule: Any, loss: str = "loss", **options: Any) -> Any:
        from deep5.frameworks.pytorch.step import DeviceStep

        return DeviceStep(self._executor, rule, loss=loss, **options)


def executor(framework: str, own: d5.Network) -> Any:
    if framework == "device":
        return _OnHost(d5.framework("pytorch").executor(own))
    return d5.framework(framework).executor(own)


def bound(framework: str, rule: Any, own: d5.Network | None = None, **options: Any) -> tuple[Any, RuleOptimizer]:
    run = executor(framework, own or network())
    optimizer = RuleOptimizer(rule, **options)
    optimizer.bind(run)
    return run, optimizer


def parameters(run: Any) -> Values:
    return {name: np.array(d5.to_numpy(value), np.float64) for name, value in run.parameters().items()}


class ByHand:
    """Parameters in float64 and their gradients; each test adds its own update.

    Args:
        own: The network in float32 that provides the initial parameters.
    """

    def __init__(self) -> None:
        self._run = d5.framework("reference").executor(network("float64"))
        start = network()
        for name in start.parameter_specs:
            self._run.write([name], np.array(start.initial(name), np.float64).reshape(-1))
        self.values = parameters(self._run)

    def gradients(self, inputs: dict[str, np.ndarray], at: Values | None = None) -> Values:
        for name, value in (at or self.values).items():
            self._run.write([name], value.reshape(-1))
        self._run.inference_and_backprop({**inputs, "input": inputs["input"].astype("float64")})
        return {name: np.array(value) for name, value in self._run.gradients().items()}


def norm(gradients: Values) -> float:
    return float(np.sqrt(sum(float(np.sum(value * value)) for value in gradients.values())))


def clipped(gradients: Values, clip_value: float | None = None, clip_norm: float | None = None) -> Values:
    if clip_value is not None:
        gradients = {name: np.clip(value, -clip_value, clip_value) for name, value in gradients.items()}
    if clip_norm is not None and norm(gradients) > clip_norm:
        gradients = {name: value * (clip_norm / norm(gradients)) for name, value in gradients.items()}
    return gradients


class Adam:
    def __init__(self, lr: float = 0.05) -> None:
        self.lr, self.count = lr, 0
        self.m: Values = {}
        self.v: Values = {}

    def update(self, values: Values, gradients: Values) -> Values:
        self.count += 1
        for name, grad in gradients.items():
            self.m[name] = 0.9 * self.m.get(name, 0.0) + 0.1 * grad
            self.v[name] = 0.999 * self.v.get(name, 0.0) + 0.001 * grad * grad
        first, second = 1 - 0.9**self.count, 1 - 0.999**self.count
        return {
            name: values[name] - self.lr * (self.m[name] / first) / (np.sqrt(self.v[name] / second) + 1e-8)
            for name in gradients
        }


class LARS:
    def __init__(self, lr: float = 0.5) -> None:
        self.lr = lr
        self.velocity: Values = {}

    def update(self, values: Values, gradients: Values) -> Values:
        found = {}
        for name, grad in gradients.items():
            w, g = float(np.linalg.norm(values[name])), float(np.linalg.norm(grad))
            rate = 0.001 * w / (g + 0.0005 * w) if w > 0 and g > 0 else 1.0
            self.velocity[name] = 0.9 * self.velocity.get(name, 0.0) + rate * (grad + 0.0005 * values[name])
            found[name] = values[name] - self.lr * self.velocity[name]
        return found


class AcceleGrad:
    def __init__(self, lr: float = 0.3) -> None:
        self.lr, self.count, self.squares = lr, 0, 0.0
        self.z: Values = {}

    def point(self, values: Values) -> Values:
        tau = 1.0 / (1.0 if self.count <= 2 else (self.count + 1) / 4)
        self.z = self.z or dict(values)
        return {name: tau * self.z[name] + (1 - tau) * value for name, value in values.items()}

    def update(self, values: Values, gradients: Values) -> Values:
        alpha = 1.0 if self.count <= 2 else (self.count + 1) / 4
        at = self.point(values)
        self.squares += alpha**2 * norm(gradients) ** 2
        eta = self.lr * 2.0 / np.sqrt(1.0 + self.squares)
        self.z = {name: self.z[name] - alpha * eta * gradients[name] for name in values}
        self.count += 1
        return {name: at[name] - eta * gradients[name] for name in values}


RULES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "adam": (lambda: d5.Adam(lr=0.05), Adam),
    "lars": (lambda: d5.LARS(lr=0.5), LARS),
    "accelegrad": (lambda: d5.AcceleGrad(lr=0.3), AcceleGrad),
}
