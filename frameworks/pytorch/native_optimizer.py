"""`TorchOptimizer`: an optimizer of torch.optim that owns its step; torch is imported when it is bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Arrays
from deep5.training.native_optimizer import NativeOptimizer

__all__ = ["TorchOptimizer"]


class TorchOptimizer(NativeOptimizer):
    """An optimizer of `torch.optim` that owns its step."""

    framework, library = "pytorch", "torch"
    made: ClassVar[str]
    fused: ClassVar[bool] = False
    # The states that each parameter has from the first step on.
    states: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """torch's arguments for deep5's hyperparameters."""

    def native(self, tensors: Sequence[Any]) -> Any:
        """torch's optimizer over these parameters."""
        import torch

        further = {"fused": True} if self.fused else {}
        return getattr(torch.optim, self.made)(tensors, **self.arguments(self.hyper), **further)

    def bind(self, executor: GraphExecutor) -> None:
        """Create torch's optimizer for the executor's parameters.

        Raises:
            UsageError: The executor belongs to another framework, or torch rejects a hyperparameter.
        """
        leaves = getattr(executor, "leaves", None)
        if leaves is None:
            raise self._foreign(executor)
        tensors = leaves()
        with self._making():
            self._optimizer = self.native(list(tensors.values()))
        self._executor, self._names, self._now = executor, list(tensors), dict(self.hyper)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward, `torch.optim.Optimizer.step`."""
        outputs: Arrays = self._executor.inference_and_backprop(inputs, self.loss, info=info)
        self._optimizer.step()
        self._executor.spend()
        return outputs

    def _apply(self, gradients: Arrays) -> None:
        self._place(gradients)
        self._optimizer.step()
        self._executor.spend()

    def _place(self, gradients: Arrays) -> None:
        """Store gradients in `.grad` for torch: the executor's are already there, sums over ranks are not."""
        from deep5.frameworks.pytorch.short import from_numpy

        for name, leaf in self._executor.leaves().items():
            if leaf.grad is not None and (given := gradients[name]) is not leaf.grad:
                leaf.grad.copy_(from_numpy(given) if isinstance(given, np.ndarray) else given)

    def _change(self, hyper: Mapping[str, Any]) -> None:
        for group in self._optimizer.param_groups:
            group.update(self.arguments(hyper))

    def _state(self) -> dict[str, Any]:
        """torch's state as NumPy arrays, `"<state>/<parameter>"`; `"none/<parameter>"` if only others have one."""
        import torch

        state = self._optimizer.state_dict()["state"]
        # In torch, a parameter that the loss does not depend on has no state; record this, so that nothing counts as
        # missing.
        without = [name for index, name in enumerate(self._names) if state and self.states and not state.get(index)]
        return dict.fromkeys((f"none/{name}" for name in without), np.asarray(True)) | {
            f"{key}/{self._names[index]}": value.detach().cpu().numpy().copy()
            if isinstance(value, torch.Tensor)
            else np.asarray(value)
            for index, values in state.items()
            for key, value in values.items()
            if value is not None
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state` exactly.

        Raises:
            ShapeError: An entry is missing, belongs to an unknown parameter or to another optimizer, or has another
                shape than its parameter.
        """
        import torch

        leaves = self._executor.leaves()
        loaded: dict[str, dict[str, Any]] = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if name not in leaves:
                raise ShapeError(
                    f"the optimizer's state has an unknown entry {key!r}; allowed: of {', '.join(self._names)}"
                )
            array, leaf = np.array(value), leaves[name]
            if array.shape not in ((), tuple(leaf.shape)):
                raise ShapeError(
                    f"the optimizer's state {key!r} has shape {array.shape}; allowed: {tuple(leaf.shape)} or ()"
                )
            # torch's own load_state_dict would round every state to the parameter's type, including the scalars.
            tensor = torch.from_numpy(array)
            loaded.setdefault(name, {})[kind] = tensor.to(leaf.device) if array.shape or self.fused else tensor
        for name in leaves if loaded else ():
            found = set(loaded.get(name, ()))
            if found not in ({"none"}, set(self.states)):
                raise ShapeError(
                    f"the optimizer's state of {name!r} has missing or unknown entries: "
                    f"{sorted(found ^ set(self.states))}; allowed: {', '.join(self.states) or 'none'}"
                )
        self._optimizer.state.clear()
        for name, kept in loaded.items():
            if "none" not in kept:
                self._optimizer.state[leaves[name]] = kept
