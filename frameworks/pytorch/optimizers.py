"""PyTorch's own optimizers under deep5's names; torch loads when one is bound, so that a recipe may name them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.tensors import Arrays
from deep5.training.lbfgs import LBFGS
from deep5.training.native_optimizer import NativeOptimizer, Unbound
from deep5.training.rule_step import refuse_inside
from deep5.training.rules.adadelta import AdaDelta
from deep5.training.rules.adagrad import AdaGrad
from deep5.training.rules.adam import Adam
from deep5.training.rules.adamw import AdamW
from deep5.training.rules.amsgrad import AMSGrad
from deep5.training.rules.averaged_sgd import AveragedSGD
from deep5.training.rules.momentum import Momentum
from deep5.training.rules.nadam import Nadam
from deep5.training.rules.nesterov import Nesterov
from deep5.training.rules.rmsprop import RMSProp
from deep5.training.rules.sgd import SGD
from deep5.training.state_check import check_entries

__all__ = [
    "NATIVE",
    "AMSGradOptimizer",
    "AdaDeltaOptimizer",
    "AdaGradOptimizer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "AveragedSGDOptimizer",
    "GradientDescentOptimizer",
    "LBFGSOptimizer",
    "MomentumOptimizer",
    "NadamOptimizer",
    "NesterovOptimizer",
    "RMSPropOptimizer",
    "TorchOptimizer",
]


class TorchOptimizer(NativeOptimizer):
    """An optimizer of `torch.optim` that owns its step."""

    framework, library = "pytorch", "torch"
    made: ClassVar[str]
    fused: ClassVar[bool] = False
    # The states of each parameter after a step, those that are there from the first one on.
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
        """Make torch's optimizer over the executor's parameters.

        Raises:
            UsageError: The executor is another framework's, or torch refuses a hyperparameter.
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
        """Put gradients where torch looks for them, `.grad`: the executor's are there, what ranks added up is not."""
        from deep5.frameworks.pytorch.short import from_numpy

        for name, leaf in self._executor.leaves().items():
            if leaf.grad is not None and (given := gradients[name]) is not leaf.grad:
                leaf.grad.copy_(from_numpy(given) if isinstance(given, np.ndarray) else given)

    def _change(self, hyper: Mapping[str, Any]) -> None:
        for group in self._optimizer.param_groups:
            group.update(self.arguments(hyper))

    def _state(self) -> dict[str, Any]:
        """torch's state as NumPy arrays, `"<state>/<parameter>"`; `"none/<parameter>"` where others alone have one."""
        import torch

        state = self._optimizer.state_dict()["state"]
        # A parameter that the loss does not depend on has no state in torch, which is said: nothing is missing.
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
        """Restore `_state`, bit for bit.

        Raises:
            ShapeError: An entry of an unknown parameter, of another shape than its parameter or none of this
                optimizer's, or one that is missing.
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
            # Not by torch's own load_state_dict: it rounds every state to the parameter's type, the scalars too.
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


class GradientDescentOptimizer(TorchOptimizer, twin=SGD):
    """`torch.optim.SGD`, fused."""

    made, fused = "SGD", True

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": hyper["lr"]}


class MomentumOptimizer(TorchOptimizer, twin=Momentum):
    """`torch.optim.SGD` with momentum, fused."""

    made, fused, states = "SGD", True, ("momentum_buffer",)

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return dict(hyper)


class NesterovOptimizer(TorchOptimizer, twin=Nesterov):
    """`torch.optim.SGD` with Nesterov's momentum, fused."""

    made, fused, states = "SGD", True, ("momentum_buffer",)

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**hyper, "nesterov": True}


class AdaGradOptimizer(TorchOptimizer, twin=AdaGrad):
    """`torch.optim.Adagrad`."""

    made, states = "Adagrad", ("step", "sum")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": hyper["lr"], "eps": hyper["epsilon"], "initial_accumulator_value": hyper["initial"]}

    def native(self, tensors: Sequence[Any]) -> Any:
        """Fused where there is a fused form: in the host's memory."""
        import torch

        fused = all(tensor.device.type == "cpu" for tensor in tensors)
        return torch.optim.Adagrad(tensors, **self.arguments(self.hyper), fused=fused)


class AdaDeltaOptimizer(TorchOptimizer, twin=AdaDelta):
    """`torch.optim.Adadelta`."""

    made, states = "Adadelta", ("step", "square_avg", "acc_delta")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": hyper["lr"], "rho": hyper["rho"], "eps": hyper["epsilon"]}


class RMSPropOptimizer(TorchOptimizer, twin=RMSProp):
    """`torch.optim.RMSprop`."""

    made, states = "RMSprop", ("step", "square_avg")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": hyper["lr"], "alpha": hyper["rho"], "eps": hyper["epsilon"]}


def _adam(hyper: Mapping[str, Any]) -> dict[str, Any]:
    return {"lr": hyper["lr"], "betas": (hyper["beta1"], hyper["beta2"]), "eps": hyper["epsilon"]}


class AdamOptimizer(TorchOptimizer, twin=Adam):
    """`torch.optim.Adam`, fused."""

    made, fused, states = "Adam", True, ("step", "exp_avg", "exp_avg_sq")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return _adam(hyper)


class AdamWOptimizer(TorchOptimizer, twin=AdamW):
    """`torch.optim.AdamW`, fused."""

    made, fused, states = "AdamW", True, ("step", "exp_avg", "exp_avg_sq")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**_adam(hyper), "weight_decay": hyper["weight_decay"]}


class AMSGradOptimizer(TorchOptimizer, twin=AMSGrad, lacks=("bias_correction",)):
    """`torch.optim.Adam` with `amsgrad`, fused; it corrects the bias, as deep5's does with `bias_correction=True`."""

    made, fused, states = "Adam", True, ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**_adam(hyper), "amsgrad": True}


class NadamOptimizer(TorchOptimizer, twin=Nadam):
    """`torch.optim.NAdam`; the product of its μ is in float32."""

    made, states = "NAdam", ("step", "exp_avg", "exp_avg_sq", "mu_product")

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**_adam(hyper), "momentum_decay": hyper["momentum_decay"]}


class AveragedSGDOptimizer(TorchOptimizer, twin=AveragedSGD):
    """`torch.optim.ASGD` without its decays; the shares of its average are in float32.

    torch begins the average one step later than it is told to, and not before the second step: `start` from 1 on is the
    same in deep5's, and 0 is as 1.
    """

    made, states = "ASGD", ("step", "eta", "mu", "ax")
    _inside = False

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": hyper["lr"], "lambd": 0.0, "t0": max(hyper["start"], 1) - 1}

    def _change(self, hyper: Mapping[str, Any]) -> None:
        super()._change(hyper)
        for state in self._optimizer.state.values():
            state["eta"].fill_(hyper["lr"])  # torch looks at its own rate after the step only

    @override
    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        if self._inside:
            refuse_inside()
        return super().step(inputs, info)

    def _apply(self, gradients: Arrays) -> None:
        if self._inside:
            refuse_inside()
        super()._apply(gradients)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While inside, the executor's parameters hold the average.

        Raises:
            UsageError: A step is asked for inside.
        """
        import torch

        if self._inside:
            yield
            return
        leaves = self._executor.leaves().values()
        pairs = [(leaf, leaf.detach().clone()) for leaf in leaves if leaf in self._optimizer.state]
        try:
            with torch.no_grad():
                for leaf, _ in pairs:
                    leaf.copy_(self._optimizer.state[leaf]["ax"])
            self._inside = True
            yield
        finally:
            self._inside = False
            with torch.no_grad():
                for leaf, kept in pairs:
                    leaf.copy_(kept)


class LBFGSOptimizer(TorchOptimizer, twin=LBFGS, lacks=("evaluations", "c1", "c2")):
    """`torch.optim.LBFGS` with its strong Wolfe line search."""

    made, accumulates, closures = "LBFGS", False, True

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._evaluated: Any = Unbound()

    def bind(self, executor: GraphExecutor) -> None:
        """Make torch's optimizer over the executor's parameters; see `TorchOptimizer`.

        Where ranks share the batches, what is given evaluates for all of them, and has this rank's executor.
        """
        self._evaluated = executor
        super().bind(getattr(executor, "own", executor))

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "lr": hyper["lr"],
            "max_iter": hyper["iterations"],
            "history_size": hyper["history"],
            "line_search_fn": "strong_wolfe",
        }

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """`iterations` updates on this batch; the outputs before the first."""
        executor, evaluated = self._executor, self._evaluated
        seen: list[Arrays] = []

        def closure() -> Any:
            outputs: Arrays = evaluated.inference_and_backprop(inputs, self.loss, info=info)
            if evaluated is not executor:
                self._place(evaluated.gradients())
            seen[1:] = [outputs]  # the first stays
            return outputs[self.loss]

        self._optimizer.step(closure)
        executor.spend()
        return dict(seen[0])

    def _state(self) -> dict[str, Any]:
        """torch's state, one for all parameters, as NumPy arrays; lists of vectors as rows."""
        return {key: _array(value) for key, value in self._whole().items() if key != "al"}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state`, bit for bit.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape.
        """
        import torch

        first = next(iter(self._executor.leaves().values()))
        numbers = sum(leaf.numel() for leaf in self._executor.leaves().values())
        shapes = {**dict.fromkeys(_WHOLE, ()), **dict.fromkeys(_VECTORS, (numbers,))}
        if state:
            check_entries(state, {*shapes, *_ROWS})
        loaded: dict[str, Any] = {}
        for key, value in state.items():
            array = np.array(value)
            count = len(np.atleast_1d(state["ro"]))
            wanted = shapes.get(key, (count, numbers) if count and key != "ro" else (count,))
            if array.shape != wanted:
                raise ShapeError(f"the optimizer's state {key!r} has shape {array.shape}; allowed: {wanted}")
            if key in _WHOLE and (array.dtype.kind in "iu" or key in ("prev_loss", "t")):
                loaded[key] = array.item()
            else:
                tensor = torch.from_numpy(array).to(first.device)
                # Rows each on memory of its own, aligned as torch aligns it: products of them have equal bits then.
                loaded[key] = [row.clone() for row in tensor] if key in _ROWS else tensor.clone()
        self._optimizer.state.clear()
        if loaded:
            self._optimizer.state[first] = loaded

    def _whole(self) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self._optimizer.state.values()), {})
        # After a step at a minimum there is no direction yet.
        return found if "d" in found else {}


# What torch keeps of L-BFGS: numbers, vectors, lists of vectors or of numbers.
_WHOLE = ("func_evals", "n_iter", "t", "H_diag", "prev_loss")
_VECTORS = ("d", "prev_flat_grad")
_ROWS = ("old_dirs", "old_stps", "ro")


def _array(value: Any) -> np.ndarray:
    if isinstance(value, list):
        return np.array([_array(part) for part in value])
    return value.detach().cpu().numpy().copy() if hasattr(value, "detach") else np.asarray(value)


NATIVE: Mapping[str, Callable[..., StepOptimizer]] = {
    "adadelta": AdaDeltaOptimizer,
    "adagrad": AdaGradOptimizer,
    "adam": AdamOptimizer,
    "adamw": AdamWOptimizer,
    "amsgrad": AMSGradOptimizer,
    "averaged_sgd": AveragedSGDOptimizer,
    "lbfgs": LBFGSOptimizer,
    "momentum": MomentumOptimizer,
    "nadam": NadamOptimizer,
    "nesterov": NesterovOptimizer,
    "rmsprop": RMSPropOptimizer,
    "sgd": GradientDescentOptimizer,
}
