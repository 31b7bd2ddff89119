"""Nesterov's accelerated gradient."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Nesterov"]


class Nesterov(UpdateRule):
    """Momentum that looks ahead: v ← μ v + g;  w ← w − lr · (g + μ v).

    The parameter w is the point where the gradient is taken, θ − lr · μ v in terms of the papers' θ, as in the
    frameworks; evaluation uses it as well. The learning rate is applied outside the velocity, so a learning rate of
    zero stops the weights at once. Equivalent to `Momentum(nesterov=True)`.

    Args:
        lr: Learning rate.
        momentum: μ.

    References:
        Nesterov, A method of solving a convex programming problem with convergence rate O(1/k²), Soviet Mathematics
        Doklady 27, 1983.
        Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013, equations 3
        and 4.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, g, w = d5.Nesterov(lr=0.1, momentum=0.9), np.array([1.0]), np.array([0.0])
    >>> w, state = rule.update_rule(g, w, rule.init_state(w))  # 0.1 · (1 + 0.9), where `Momentum` steps by 0.1
    >>> w.round(6).tolist(), state["velocity"].tolist()
    ([-0.19], [1.0])
    """

    hyper = ("lr", "momentum")

    def __init__(self, lr: float = 0.01, momentum: float = 0.9) -> None:
        self.lr = lr
        self.momentum = momentum

    def init_state(self, param: Array) -> dict[str, Array]:
        """The velocity v, zero."""
        return {"velocity": array_namespace(param).zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        velocity = self.momentum * state["velocity"] + grad
        return param - self.lr * (grad + self.momentum * velocity), {"velocity": velocity}
