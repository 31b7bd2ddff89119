"""AdaGrad."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["AdaGrad"]


class AdaGrad(UpdateRule):
    """A learning rate per element that decreases with the sum of its squared gradients.

    s ← s + g²;  w ← w − lr · g / (√s + ε)

    Args:
        lr: Learning rate η.
        epsilon: The paper's δ, added outside the root. Keras and Optax add it inside.
        initial: Initial value of s. The paper uses 0; Keras and Optax use 0.1.

    References:
        Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and stochastic optimization, JMLR 12,
        2011, figure 1 with diagonal matrices.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, w = d5.AdaGrad(lr=0.1), np.zeros(2)
    >>> state = rule.init_state(w)
    >>> for g in (np.array([3.0, 0.01]), np.array([4.0, 0.0])):
    ...     w, state = rule.update_rule(g, w, state)
    >>> w.round(4).tolist(), state["squares"].tolist()  # 0.1 · (1 + 4 / √25), and 0.1 · 1
    ([-0.18, -0.1], [25.0, 0.0001])
    """

    hyper = ("lr", "epsilon", "initial")

    def __init__(self, lr: float = 0.01, epsilon: float = 1e-10, initial: float = 0.0) -> None:
        self.lr = lr
        self.epsilon = epsilon
        self.initial = initial

    def init_state(self, param: Array) -> dict[str, Array]:
        """The sum of the squared gradients s."""
        return {"squares": self.initial * array_namespace(param).ones_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        squares = state["squares"] + grad * grad
        root = array_namespace(param).sqrt(squares)
        return param - self.lr * grad / (root + self.epsilon), {"squares": squares}
