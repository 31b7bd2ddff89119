"""Gradient descent with Polyak's or Nesterov's momentum."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Momentum"]


class Momentum(UpdateRule):
    """Momentum: v ← μ v + g;  w ← w − lr · v,  or with Nesterov's look-ahead  w ← w − lr · (g + μ v).

    The learning rate is applied outside the velocity, so a learning rate of zero stops the weights at once.

    Args:
        lr: Learning rate.
        momentum: μ.
        nesterov: Nesterov's form, rewritten in the look-ahead variable as in Sutskever et al., equation 4.

    References:
        Polyak, Some methods of speeding up the convergence of iteration methods, 1964.
        Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, g, w = d5.Momentum(lr=0.1, momentum=0.9), np.array([1.0]), np.array([0.0])
    >>> state = rule.init_state(w)
    >>> for step in range(3):  # the steps are 0.1 · (1, 1.9, 2.71)
    ...     w, state = rule.update_rule(g, w, state)
    >>> w.round(6).tolist(), state["velocity"].round(6).tolist()
    ([-0.561], [2.71])
    """

    hyper = ("lr", "momentum")

    def __init__(self, lr: float = 0.01, momentum: float = 0.9, *, nesterov: bool = False) -> None:
        self.lr = lr
        self.momentum = momentum
        self.nesterov = nesterov

    def init_state(self, param: Array) -> dict[str, Array]:
        """The velocity v, zero."""
        return {"velocity": array_namespace(param).zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        velocity = self.momentum * state["velocity"] + grad
        direction = grad + self.momentum * velocity if self.nesterov else velocity
        return param - self.lr * direction, {"velocity": velocity}
