"""RMSProp."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["RMSProp"]


class RMSProp(UpdateRule):
    """Divides the gradient by the root of a running average of its square.

    s ← ρ s + (1 − ρ) g²;  w ← w − lr · g / (√s + ε)

    Args:
        lr: Learning rate.
        rho: Decay ρ of the average; the lecture uses 0.9.
        epsilon: Added outside the root, as in PyTorch; the lecture has no ε. Keras adds it inside, as does Optax by
            default.

    References:
        Tieleman and Hinton, Neural networks for machine learning, lecture 6e (rmsprop: divide the gradient by a running
        average of its recent magnitude), Coursera 2012.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, w = d5.RMSProp(lr=0.1, rho=0.75), np.zeros(2)
    >>> w, state = rule.update_rule(np.array([4.0, -0.5]), w, rule.init_state(w))
    >>> w.round(6).tolist(), state["squares"].tolist()  # g / √(0.25 g²) = ±2
    ([-0.2, 0.2], [4.0, 0.0625])
    """

    hyper = ("lr", "rho", "epsilon")

    def __init__(self, lr: float = 0.001, rho: float = 0.9, epsilon: float = 1e-8) -> None:
        self.lr = lr
        self.rho = rho
        self.epsilon = epsilon

    def init_state(self, param: Array) -> dict[str, Array]:
        """The average of the squared gradient s, zero."""
        return {"squares": array_namespace(param).zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        squares = self.rho * state["squares"] + (1 - self.rho) * grad * grad
        root = array_namespace(param).sqrt(squares)
        return param - self.lr * grad / (root + self.epsilon), {"squares": squares}
