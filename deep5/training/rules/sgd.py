"""Stochastic gradient descent."""

from __future__ import annotations

from deep5.core.tensors import Array
from deep5.training.rule import State, UpdateRule

__all__ = ["SGD"]


class SGD(UpdateRule):
    """Stochastic gradient descent: w ← w − lr · g.

    Args:
        lr: Learning rate.

    References:
        Robbins and Monro, A stochastic approximation method, Ann. Math. Statist. 22(3), 1951.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> w, state = d5.SGD(lr=0.1).update_rule(np.array([2.0, -4.0]), np.array([1.0, 1.0]), {})
    >>> w.round(6).tolist()
    [0.8, 1.4]
    """

    hyper = ("lr",)

    def __init__(self, lr: float = 0.01) -> None:
        self.lr = lr

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        return param - self.lr * grad, state
