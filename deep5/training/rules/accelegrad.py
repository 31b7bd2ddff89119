"""AcceleGrad."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, ThreeStepOptimizer

__all__ = ["AcceleGrad"]


class AcceleGrad(ThreeStepOptimizer):
    """Accelerated gradient descent that adapts to smoothness and noise, in three steps.

    αₜ = 1 for t ≤ 2, else (t + 1) / 4;  τₜ = 1 / αₜ;  x = τₜ z + (1 − τₜ) y  (where the gradient g is taken);
    ηₜ = lr · 2 D / √(G² + Σ_{s ≤ t} α_s² ‖g_s‖²);  z ← z − αₜ ηₜ g;  y ← x − ηₜ g.
    Evaluation uses the average of the y, weighted by αₜ, as the paper's output does. The parameter between steps
    is y. The domain is all of space, so the projection of the paper is the identity.

    Unlike in other rules, a learning rate of zero does not stop the parameter at once: y ← x, and x lies between z and
    y, so y moves towards z as long as the two differ.

    Args:
        lr: Scale of the step; the paper uses 1.
        diameter: D, the diameter of the set that holds the solution.
        gradient_bound: G, a bound on the gradient's norm.

    References:
        Levy, Yurtsever and Cevher, Online adaptive methods, universality and acceleration, NeurIPS 2018,
        algorithm 2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights, rule = {"w": np.array([1.0, 1.0])}, d5.AcceleGrad(lr=0.65, gradient_bound=12.0)
    >>> kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(2,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.prepare(d5.StepInfo(step=0, batch_size=1))  # from here, `weights` is x, where the gradient is taken
    >>> kernel.update({"w": np.array([3.0, 4.0])}, d5.StepInfo(step=0, batch_size=1))
    >>> weights["w"].round(6).tolist()  # η₀ = 0.65 · 2 / √(144 + 25) = 0.1
    [0.7, 0.6]
    """

    hyper = ("lr", "diameter", "gradient_bound")
    scope = "model"

    def __init__(self, lr: float = 1.0, diameter: float = 1.0, gradient_bound: float = 1.0) -> None:
        self.lr = lr
        self.diameter = diameter
        self.gradient_bound = gradient_bound

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """αₜ, τₜ and the weight of this step in the average, αₜ / Σ α."""
        t = info.step
        alpha = 1.0 if t <= 2 else (t + 1) / 4
        total = t + 1.0 if t <= 2 else 3.0 + ((t + 1) * (t + 2) / 2 - 6) / 4
        return {"alpha": alpha, "tau": 1.0 / alpha, "share": alpha / total}

    def init_state(self, param: Array) -> dict[str, Array]:
        """z, the average of the y, and the sum of α² ‖g‖² so far."""
        xp = array_namespace(param)
        return {
            "z": xp.asarray(param, copy=True),
            "average": xp.asarray(param, copy=True),
            "squares": xp.zeros((), dtype=param.dtype),
        }

    def prepare_param(self, param: Array, state: State) -> Array:
        """x, between z and y."""
        return self.tau * state["z"] + (1 - self.tau) * param

    def sums(self, grad: Array, param: Array, state: State) -> dict[str, Array]:
        """The square of ‖g‖ over the whole model."""
        return {"grad_square": array_namespace(param).sum(grad * grad)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        squares = state["squares"] + self.alpha * self.alpha * self.grad_square
        eta = self.lr * 2 * self.diameter / xp.sqrt(self.gradient_bound * self.gradient_bound + squares)
        x = self.tau * state["z"] + (1 - self.tau) * param
        y = x - eta * grad
        z = state["z"] - self.alpha * eta * grad
        average = state["average"] + self.share * (y - state["average"])
        return y, {"z": z, "average": average, "squares": squares}

    def eval_param(self, param: Array, state: State) -> Array:
        """The weighted average of the y."""
        return state["average"]

    alpha: float
    """αₜ of the current step."""
    tau: float
    """τₜ of the current step."""
    share: float
    """αₜ / Σ α of the current step."""
    grad_square: Array
    """‖g‖² over the whole model."""
