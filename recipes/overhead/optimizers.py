"""The sides of the update rule recipes: only a rule's kernel, and only PyTorch's fused optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.seeds import generator

__all__ = ["LARGE", "SMALL", "Yogi", "arrays", "fused", "fused_alone", "rule_alone"]

Work = Callable[[], object]

SMALL = ((20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (10, 500), (10,))
"""The shapes of the 431 080 parameters of Caffe's LeNet."""


def _resnet18() -> tuple[tuple[int, ...], ...]:
    """The parameter shapes of ResNet-18 for ten classes: 11.2 million in 62 tensors (He et al., CVPR 2016, table 1)."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    into = 64
    for out in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(out, into, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
            if block == 0 and out != into:
                shapes += [(out, into, 1, 1), (out,), (out,)]
            into = out
    return (*shapes, (10, 512), (10,))


LARGE = _resnet18()


class Yogi(d5.UpdateRule):
    """A rule that deep5 does not ship: m and v as in Adam, but v moves by a bounded amount.

    m ← β₁ m + (1 − β₁) g;  v ← v − (1 − β₂) sign(v − g²) g²;  w ← w − lr · m / (√v + ε)

    References:
        Zaheer et al., Adaptive methods for nonconvex optimization, NeurIPS 2018, algorithm 2.
    """

    hyper = ("lr", "beta1", "beta2", "epsilon")

    def __init__(self, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-3) -> None:
        self.lr, self.beta1, self.beta2, self.epsilon = lr, beta1, beta2, epsilon

    def init_state(self, param: Any) -> dict[str, Any]:
        xp = d5.array_namespace(param)
        return {"m": xp.zeros_like(param), "v": xp.zeros_like(param)}

    def update_rule(self, grad: Any, param: Any, state: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        xp = d5.array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        square = grad * grad
        v = state["v"] - (1 - self.beta2) * xp.sign(state["v"] - square) * square
        return param - self.lr * m / (xp.sqrt(v) + self.epsilon), {"m": m, "v": v}


def fused(name: str, parameters: list[Any]) -> Any:
    """PyTorch's optimizer with `fused=True`; for Yogi, which PyTorch does not have, the closest one, Adam."""
    import torch

    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.001, fused=True)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, fused=True)
    return torch.optim.Adam(parameters, lr=0.001, fused=True)


def arrays(shapes: tuple[tuple[int, ...], ...], seed: int, purpose: str) -> list[np.ndarray]:
    """Normally distributed float32 arrays of these shapes, deterministic in the arguments."""
    rng = generator(seed, "overhead", purpose)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def rule_alone(*, steps: int, seed: int, threads: int, rule: Any, shapes: tuple[tuple[int, ...], ...]) -> Work:
    """Updates by deep5's kernel on PyTorch's memory.

    Args:
        steps: Updates per call.
        seed: Seed of parameters and gradients.
        threads: Threads of the kernel.
        rule: Makes the update rule.
        shapes: Shapes of the parameters.
    """
    import torch

    parameters = [torch.from_numpy(array).clone() for array in arrays(shapes, seed, "parameters")]
    gradients = [torch.from_numpy(array).clone() for array in arrays(shapes, seed, "gradients")]
    specs = {str(index): d5.TensorSpec(shape=shape) for index, shape in enumerate(shapes)}
    kernel = d5.bind_rule(rule(), specs, threads=threads)
    kernel.attach({str(index): tensor.numpy() for index, tensor in enumerate(parameters)})

    def work() -> None:
        for step in range(steps):
            kernel.update_from([tensor.data_ptr() for tensor in gradients], d5.StepInfo(step))

    return work


def fused_alone(*, steps: int, seed: int, threads: int, optimizer: str, shapes: tuple[tuple[int, ...], ...]) -> Work:
    """Updates by PyTorch's fused optimizer.

    Args:
        steps: Updates per call.
        seed: Seed of parameters and gradients.
        threads: Threads of PyTorch.
        optimizer: As in `fused`.
        shapes: Shapes of the parameters.
    """
    import torch

    torch.set_num_threads(threads)
    parameters = [torch.nn.Parameter(torch.from_numpy(array).clone()) for array in arrays(shapes, seed, "parameters")]
    for parameter, gradient in zip(parameters, arrays(shapes, seed, "gradients"), strict=True):
        parameter.grad = torch.from_numpy(gradient).clone()
    update = fused(optimizer, parameters)

    def work() -> None:
        for _ in range(steps):
            update.step()

    return work
