"""Lion."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Lion"]


class Lion(UpdateRule):
    """Steps by the sign of an interpolation of momentum and gradient, with decoupled weight decay.

    c = β₁ m + (1 − β₁) g;  w ← w − lr · (sign(c) + λ w);  m ← β₂ m + (1 − β₂) g

    Every element moves by `lr`, so use a rate three to ten times smaller than Adam's. Where c is zero, such as for a
    weight whose gradient was always zero, the sign is zero too.

    Args:
        lr: Learning rate η.
        beta1: Weight of the momentum in the step.
        beta2: Decay of the momentum.
        weight_decay: λ.

    References:
        Chen et al., Symbolic discovery of optimization algorithms, NeurIPS 2023, algorithm 2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, w = d5.Lion(lr=0.01, weight_decay=0.5), np.array([1.0, 1.0, 1.0])
    >>> w, state = rule.update_rule(np.array([3.0, -0.1, 0.0]), w, rule.init_state(w))
    >>> w.round(6).tolist(), state["m"].round(6).tolist()
    ([0.985, 1.005, 0.995], [0.03, -0.001, 0.0])
    """

    hyper = ("lr", "beta1", "beta2", "weight_decay")

    def __init__(self, lr: float = 0.0001, beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0) -> None:
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.weight_decay = weight_decay

    def init_state(self, param: Array) -> dict[str, Array]:
        """The momentum m, zero."""
        return {"m": array_namespace(param).zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        sign = array_namespace(param).sign(self.beta1 * state["m"] + (1 - self.beta1) * grad)
        m = self.beta2 * state["m"] + (1 - self.beta2) * grad
        return param - self.lr * sign - self.lr * self.weight_decay * param, {"m": m}
