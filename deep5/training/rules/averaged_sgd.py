"""Gradient descent whose result is the average of its iterates."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.errors import RuleError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["AveragedSGD"]


class AveragedSGD(UpdateRule):
    """Stochastic gradient descent, evaluated at the average of its iterates (Polyak and Ruppert).

    w ← w − lr · g;  a ← a + (w − a) / max(1, t − start), t counted from 1

    From step `start` + 1, a is the plain average of the iterates since then; before, it is the last iterate. Evaluation
    and export use a, training continues from w. PyTorch's `ASGD(t0)` with `lambd=0` begins one step later: `start = t0
    + 1`.

    Args:
        lr: Learning rate.
        start: Number of steps before the average begins.

    Raises:
        RuleError: `start` is not an integer of at least 0.

    References:
        Polyak and Juditsky, Acceleration of stochastic approximation by averaging, SIAM Journal on Control and
        Optimization 30(4), 1992, equation 2.
        Ruppert, Efficient estimations from a slowly convergent Robbins-Monro process, Cornell University, 1988.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights, rule = {"w": np.array([1.0])}, d5.AveragedSGD(lr=0.1)
    >>> kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(1,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> for step in range(2):
    ...     kernel.update({"w": np.array([1.0])}, d5.StepInfo(step=step, batch_size=1))
    >>> with kernel.averaged():  # as evaluation and export do
    ...     mean = weights["w"].round(6).tolist()
    >>> weights["w"].round(6).tolist(), mean  # the iterates are 0.9 and 0.8
    ([0.8], [0.85])
    """

    hyper = ("lr",)

    def __init__(self, lr: float = 0.01, start: int = 0) -> None:
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise RuleError(f"AveragedSGD: got start={brief(start)}; allowed: an integer of at least 0")
        self.lr = lr
        self.start = start

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """The weight of this step's iterate in the average."""
        return {"share": 1.0 / max(1, info.step + 1 - self.start)}

    def init_state(self, param: Array) -> dict[str, Array]:
        """The average a, initially the parameter."""
        return {"average": array_namespace(param).asarray(param, copy=True)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        new = param - self.lr * grad
        return new, {"average": state["average"] + self.share * (new - state["average"])}

    def eval_param(self, param: Array, state: State) -> Array:
        """The average a."""
        return state["average"]

    share: float
    """The weight of the current step's iterate in the average."""
