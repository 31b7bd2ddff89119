"""PyTorch's own optimizers as step optimizers, under deep5's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from deep5.errors import ShapeError, UsageError
from deep5.events import StepInfo
from deep5.backend import GraphExecutor, StepOptimizer
from deep5.tensors import Arrays

__all__ = ["NATIVE", "AdamOptimizer", "GradientDescentOptimizer", "MomentumOptimizer", "NativeOptimizer"]


class NativeOptimizer:
    """An optimizer of `torch.optim` that owns its step.

    Args:
        make: From the list of parameters to the optimizer.
        hyper: Its hyperparameters by deep5's names, for the record.
    """

    def __init__(self, make: Callable[[list[Any]], torch.optim.Optimizer], **hyper: float | bool) -> None:
        self._make, self._hyper = make, hyper
        self._executor: Any = None
        self._optimizer: Any = None
        self._names: list[str] = []

    def bind(self, executor: GraphExecutor) -> None:
        """Make torch's optimizer over the executor's parameters.

        Raises:
            UsageError: The executor is another framework's.
        """
        leaves = getattr(executor, "leaves", None)
        if leaves is None:
            raise UsageError(
                f"a native optimizer of pytorch cannot drive a {type(executor).__name__}; allowed: an executor of pytorch"
            )
        self._executor, tensors = executor, leaves()
        self._names = list(tensors)
        self._optimizer = self._make(list(tensors.values()))

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward, `torch.optim.Optimizer.step`."""
        outputs: Arrays = self._executor.inference_and_backprop(inputs, info=info)
        self._optimizer.step()
        return outputs

    def set_hyper(self, name: str, value: float) -> None:
        """Change a hyperparameter of torch's, such as `lr`, in all groups.

        Raises:
            UsageError: torch's optimizer has no such hyperparameter.
        """
        for group in self._optimizer.param_groups:
            if name not in group:
                raise UsageError(f"no hyperparameter {name!r}; allowed: {', '.join(key for key in group if key != 'params')}")
            group[name] = value

    def state_dict(self) -> dict[str, Any]:
        """torch's state as NumPy arrays, `"<state>/<parameter>"`."""
        state = self._optimizer.state_dict()["state"]
        return {
            f"{key}/{self._names[index]}": value.detach().cpu().numpy().copy()
            if isinstance(value, torch.Tensor)
            else np.asarray(value)
            for index, values in state.items()
            for key, value in values.items()
            if value is not None
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit.

        Raises:
            ShapeError: An entry of an unknown parameter.
        """
        position = {name: index for index, name in enumerate(self._names)}
        loaded: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if name not in position:
                raise ShapeError(f"the optimizer's state has an unknown entry {key!r}; allowed: of {', '.join(self._names)}")
            loaded.setdefault(position[name], {})[kind] = torch.from_numpy(np.array(value))
        document = self._optimizer.state_dict()
        document["state"] = loaded
        self._optimizer.load_state_dict(document)

    def describe(self) -> dict[str, Any]:
        """The optimizer and its hyperparameters."""
        return {"native": "pytorch", "optimizer": type(self).__name__, **self._hyper}


class GradientDescentOptimizer(NativeOptimizer):
    """`torch.optim.SGD`, fused."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__(lambda parameters: torch.optim.SGD(parameters, lr=lr, fused=True), lr=lr)


class MomentumOptimizer(NativeOptimizer):
    """`torch.optim.SGD` with momentum, fused."""

    def __init__(self, lr: float = 0.01, momentum: float = 0.9, *, nesterov: bool = False) -> None:
        super().__init__(
            lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, fused=True),
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
        )


class AdamOptimizer(NativeOptimizer):
    """`torch.optim.Adam`, fused."""

    def __init__(self, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        super().__init__(
            lambda parameters: torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), eps=epsilon, fused=True),
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
        )


NATIVE: Mapping[str, Callable[..., StepOptimizer]] = {
    "adam": AdamOptimizer,
    "momentum": MomentumOptimizer,
    "sgd": GradientDescentOptimizer,
}
