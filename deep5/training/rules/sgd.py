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
    """

    hyper = ("lr",)

    def __init__(self, lr: float = 0.01) -> None:
        self.lr = lr

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class."""
        return param - self.lr * grad, state
