"""PyTorch's own optimizers under deep5's names; torch loads when one is bound, so that a recipe may name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.backend import GraphExecutor, StepOptimizer
from deep5.errors import ShapeError, UsageError
from deep5.events import StepInfo
from deep5.tensors import Arrays

if TYPE_CHECKING:
    import torch

__all__ = ["NATIVE", "AdamOptimizer", "GradientDescentOptimizer", "MomentumOptimizer", "NativeOptimizer"]


class _Unbound:
    """Stands where the executor will."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")


class NativeOptimizer:
    """An optimizer of `torch.optim` that owns its step.

    Args:
        make: From the list of parameters to the optimizer.
        loss: Name of the scalar output to differentiate.
        hyper: Its hyperparameters by deep5's names, for the record.
    """

    def __init__(
        self, make: Callable[[list[Any]], torch.optim.Optimizer], loss: str = "loss", **hyper: float | bool
    ) -> None:
        self._make, self.loss, self._hyper = make, loss, hyper
        self._executor: Any = _Unbound()
        self._optimizer: Any = _Unbound()
        self._names: list[str] = []

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
            self._optimizer = self._make(list(tensors.values()))
        except (TypeError, ValueError) as error:
            raise UsageError(f"torch refuses the optimizer {self.describe()}: {error}") from error
        self._executor, self._names = executor, list(tensors)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward, `torch.optim.Optimizer.step`."""
        outputs: Arrays = self._executor.inference_and_backprop(inputs, self.loss, info=info)
        self._optimizer.step()
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
        document = self._optimizer.state_dict()
        document["state"] = loaded
        self._optimizer.load_state_dict(document)

    def describe(self) -> dict[str, Any]:
        """The optimizer and its hyperparameters."""
        return {"native": "pytorch", "optimizer": type(self).__name__, **self._hyper}


def _torch_optim() -> Any:
    import torch

    return torch.optim


class GradientDescentOptimizer(NativeOptimizer):
    """`torch.optim.SGD`, fused."""

    def __init__(self, lr: float = 0.01, *, loss: str = "loss") -> None:
        super().__init__(lambda parameters: _torch_optim().SGD(parameters, lr=lr, fused=True), loss, lr=lr)


class MomentumOptimizer(NativeOptimizer):
    """`torch.optim.SGD` with momentum, fused."""

    def __init__(self, lr: float = 0.01, momentum: float = 0.9, *, nesterov: bool = False, loss: str = "loss") -> None:
        super().__init__(
            lambda parameters: _torch_optim().SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, fused=True),
            loss,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
        )


class AdamOptimizer(NativeOptimizer):
    """`torch.optim.Adam`, fused."""

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        *,
        loss: str = "loss",
    ) -> None:
        super().__init__(
            lambda parameters: _torch_optim().Adam(parameters, lr=lr, betas=(beta1, beta2), eps=epsilon, fused=True),
            loss,
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
