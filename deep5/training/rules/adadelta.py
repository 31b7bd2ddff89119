"""AdaDelta."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["AdaDelta"]


class AdaDelta(UpdateRule):
    """AdaDelta scales each gradient by the ratio of the RMS of recent steps to the RMS of recent gradients.

    E[g²] ← ρ E[g²] + (1 − ρ) g²;  Δ = √(E[Δ²] + ε) / √(E[g²] + ε) · g;
    E[Δ²] ← ρ E[Δ²] + (1 − ρ) Δ²;  w ← w − lr · Δ

    Args:
        lr: Scale of the step; the paper has no such factor, i.e. 1.
        rho: Decay ρ of both averages.
        epsilon: Added inside both roots.

    References:
        Zeiler, ADADELTA: an adaptive learning rate method, arXiv:1212.5701, algorithm 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, w = d5.AdaDelta(rho=0.75, epsilon=1e-6), np.zeros(2)
    >>> w, state = rule.update_rule(np.array([1.0, 100.0]), w, rule.init_state(w))
    >>> w.round(6).tolist()  # √ε / √(0.25 g²) · g = 0.002, whatever the gradient
    [-0.002, -0.002]
    """

    hyper = ("lr", "rho", "epsilon")

    def __init__(self, lr: float = 1.0, rho: float = 0.95, epsilon: float = 1e-6) -> None:
        self.lr = lr
        self.rho = rho
        self.epsilon = epsilon

    def init_state(self, param: Array) -> dict[str, Array]:
        """The averages of squared gradients E[g²] and of squared steps E[Δ²], zero."""
        xp = array_namespace(param)
        return {"squares": xp.zeros_like(param), "steps": xp.zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        squares = self.rho * state["squares"] + (1 - self.rho) * grad * grad
        step = xp.sqrt(state["steps"] + self.epsilon) / xp.sqrt(squares + self.epsilon) * grad
        steps = self.rho * state["steps"] + (1 - self.rho) * step * step
        return param - self.lr * step, {"squares": squares, "steps": steps}
