"""PyTorch's optimizers under deep5's names; torch is imported when one is bound, so recipes may refer to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from typing_extensions import override

from deep5.core.errors import ShapeError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.tensors import Arrays
from deep5.frameworks.pytorch.native_optimizer import TorchOptimizer
from deep5.training.lbfgs import LBFGS
from deep5.training.native_optimizer import Unbound
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
]


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
        """Fused if a fused version exists: in host memory."""
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
    """`torch.optim.Adam` with `amsgrad`, fused; corrects the bias, like deep5's with `bias_correction=True`."""

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
    """`torch.optim.ASGD` without its decays; the weights of its average are in float32.

    torch begins the average one step later than its setting, and not before the second step: `start` of 1 or more is
    equivalent to deep5's, and 0 is equivalent to 1.
    """

    made, states = "ASGD", ("step", "eta", "mu", "ax")
    _inside = False

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"lr": hyper["lr"], "lambd": 0.0, "t0": max(hyper["start"], 1) - 1}

    def _change(self, hyper: Mapping[str, Any]) -> None:
        super()._change(hyper)
        for state in self._optimizer.state.values():
            state["eta"].fill_(hyper["lr"])  # torch reads its own rate only after the step

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
        """Inside the context, the executor's parameters hold the average.

        Raises:
            UsageError: A step is requested inside.
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
        """Create torch's optimizer for the executor's parameters; see `TorchOptimizer`.

        If ranks share the batches, the argument evaluates for all of them and wraps this rank's executor.
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
        """`iterations` updates on this batch; returns the outputs before the first."""
        executor, evaluated = self._executor, self._evaluated
        seen: list[Arrays] = []

        def closure() -> Any:
            outputs: Arrays = evaluated.inference_and_backprop(inputs, self.loss, info=info)
            if evaluated is not executor:
                self._place(evaluated.gradients())
            seen[1:] = [outputs]  # keep the first
            return outputs[self.loss]

        self._optimizer.step(closure)
        executor.spend()
        return dict(seen[0])

    def _state(self) -> dict[str, Any]:
        """torch's state, one for all parameters, as NumPy arrays; lists of vectors as rows."""
        return {key: _array(value) for key, value in self._whole().items() if key != "al"}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state` exactly.

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
                # Each row has separate memory, aligned by torch: products of rows are then bit-identical.
                loaded[key] = [row.clone() for row in tensor] if key in _ROWS else tensor.clone()
        self._optimizer.state.clear()
        if loaded:
            self._optimizer.state[first] = loaded

    def _whole(self) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self._optimizer.state.values()), {})
        # After a step at a minimum there is no direction yet.
        return found if "d" in found else {}


# torch's state of L-BFGS: numbers, vectors, lists of vectors or of numbers.
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
