"""Momentum with the weight decay of the papers on residual networks: a penalty in the gradient, not a separate term."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["PenalisedMomentum"]


class PenalisedMomentum(UpdateRule):
    """Momentum on the gradient of loss + λ/2 ‖w‖²:  v ← μ v + g + λ w;  w ← w − lr · v.

    The decay passes through the velocity. A recipe's `weight_decay` bypasses the velocity: with the same λ it is ten
    times weaker at μ = 0.9, unlike in these papers.

    Args:
        lr: Learning rate.
        momentum: μ.
        weight_decay: λ; a parameter group may set its own.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2.
        Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv:1706.02677, equation 9.
    """

    hyper = ("lr", "momentum", "weight_decay")

    def __init__(self, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0001) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

    def init_state(self, param: Array) -> dict[str, Array]:
        """The velocity v, zero."""
        return {"velocity": array_namespace(param).zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class."""
        velocity = self.momentum * state["velocity"] + grad + self.weight_decay * param
        return param - self.lr * velocity, {"velocity": velocity}
