"""PyTorch's own optimizers under deep5's names; torch loads when one is bound, so that a recipe may name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deep5.errors import ShapeError, UsageError
from deep5.events import StepInfo
from deep5.executors import GraphExecutor, StepOptimizer
from deep5.tensors import Arrays
from deep5.training.native_optimizer import (
    AdamSignature,
    GradientDescentSignature,
    MomentumSignature,
    NativeOptimizer,
)

__all__ = ["NATIVE", "AdamOptimizer", "GradientDescentOptimizer", "MomentumOptimizer", "TorchOptimizer"]


class TorchOptimizer(NativeOptimizer):
    """An optimizer of `torch.optim` that owns its step; `native` makes it from the list of parameters."""

    framework = "pytorch"

    def bind(self, executor: GraphExecutor) -> None:
        """Make torch's optimizer over the executor's parameters.

        Raises:
            UsageError: The executor is another framework's, or torch refuses a hyperparameter.
        """
        leaves = getattr(executor, "leaves", None)
        if leaves is None:
            raise UsageError(
                f"a native optimizer of pytorch cannot drive a {type(executor).__name__}; allowed: an executor of "
                "pytorch"
            )
        tensors = leaves()
        try:
            self._optimizer = self.native(list(tensors.values()))
        except (TypeError, ValueError) as error:
            raise UsageError(f"torch refuses the optimizer {self.describe()}: {error}") from error
        self._executor, self._names = executor, list(tensors)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward, `torch.optim.Optimizer.step`."""
        outputs: Arrays = self._executor.inference_and_backprop(inputs, self.loss, info=info)
        self._optimizer.step()
        self._executor.spend()
        return outputs

    def set_hyper(self, name: str, value: float) -> None:
        """Change a hyperparameter of torch's, such as `lr`, in all groups.

        Raises:
            UsageError: torch's optimizer has no such hyperparameter.
        """
        for group in self._optimizer.param_groups:
            if name not in group:
                raise UsageError(
                    f"no hyperparameter {name!r}; allowed: {', '.join(key for key in group if key != 'params')}"
                )
            group[name] = value

    def state_dict(self) -> dict[str, Any]:
        """torch's state as NumPy arrays, `"<state>/<parameter>"`."""
        import torch

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
            ShapeError: An entry of an unknown parameter, or of another shape than its parameter.
        """
        import torch

        document = self._optimizer.state_dict()
        position = {name: index for index, name in enumerate(self._names)}
        loaded: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if name not in position:
                raise ShapeError(
                    f"the optimizer's state has an unknown entry {key!r}; allowed: of {', '.join(self._names)}"
                )
            array, shape = np.array(value), tuple(self._executor.leaves()[name].shape)
            if array.shape not in ((), shape):
                raise ShapeError(f"the optimizer's state {key!r} has shape {array.shape}; allowed: {shape} or ()")
            loaded.setdefault(position[name], {})[kind] = torch.from_numpy(array)
        document["state"] = loaded
        self._optimizer.load_state_dict(document)


def _torch_optim() -> Any:
    import torch

    return torch.optim


class GradientDescentOptimizer(GradientDescentSignature, TorchOptimizer):
    """`torch.optim.SGD`, fused."""

    def native(self, given: list[Any]) -> Any:
        """Over these parameters."""
        return _torch_optim().SGD(given, lr=self.hyper["lr"], fused=True)


class MomentumOptimizer(MomentumSignature, TorchOptimizer):
    """`torch.optim.SGD` with momentum, fused."""

    def native(self, given: list[Any]) -> Any:
        """Over these parameters."""
        return _torch_optim().SGD(given, **self.hyper, fused=True)


class AdamOptimizer(AdamSignature, TorchOptimizer):
    """`torch.optim.Adam`, fused."""

    def native(self, given: list[Any]) -> Any:
        """Over these parameters."""
        lr, beta1, beta2, epsilon = (self.hyper[name] for name in ("lr", "beta1", "beta2", "epsilon"))
        return _torch_optim().Adam(given, lr=lr, betas=(beta1, beta2), eps=epsilon, fused=True)


NATIVE: Mapping[str, Callable[..., StepOptimizer]] = {
    "adam": AdamOptimizer,
    "momentum": MomentumOptimizer,
    "sgd": GradientDescentOptimizer,
}
