"""Layer-wise adaptive rate scaling."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["LARS"]


class LARS(UpdateRule):
    """Momentum with a separate learning rate for every parameter tensor.

    λ = η ‖w‖ / (‖g‖ + β ‖w‖);  v ← μ v + λ (g + β w);  w ← w − lr · v

    λ is 1 where ‖w‖ or ‖g‖ is zero (a bias at its start), as in the authors' code. The global learning rate is applied
    outside the velocity (in the paper, inside), so a learning rate of zero stops the weights at once; the two forms
    agree if it is constant.

    Args:
        lr: Global learning rate γ.
        momentum: μ.
        weight_decay: β.
        trust: Trust coefficient η.

    References:
        You, Gitman and Ginsburg, Large batch training of convolutional networks, arXiv:1708.03888, algorithm 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights, rule = {"w": np.array([3.0, 4.0])}, d5.LARS(lr=1.0, weight_decay=0.0, trust=0.1)
    >>> kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(2,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([60.0, 80.0])}, d5.StepInfo(step=0, batch_size=1))
    >>> weights["w"].round(6).tolist()  # λ = 0.1 · 5 / 100: a tenth of ‖w‖, whatever ‖g‖
    [2.7, 3.6]
    """

    hyper = ("lr", "momentum", "weight_decay", "trust")
    scope = "tensor"

    def __init__(
        self, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0005, trust: float = 0.001
    ) -> None:
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.trust = trust

    def init_state(self, param: Array) -> dict[str, Array]:
        """The velocity v, zero."""
        return {"velocity": array_namespace(param).zeros_like(param)}

    def sums(self, grad: Array, param: Array, state: State) -> dict[str, Array]:
        """Squares of ‖g‖ and ‖w‖."""
        xp = array_namespace(param)
        return {"grad_square": xp.sum(grad * grad), "param_square": xp.sum(param * param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        grad_norm, param_norm = xp.sqrt(self.grad_square), xp.sqrt(self.param_square)
        one = xp.ones((), dtype=param.dtype)
        defined = (grad_norm > 0) & (param_norm > 0)
        below = xp.where(defined, grad_norm + self.weight_decay * param_norm, one)
        rate = xp.where(defined, self.trust * param_norm / below, one)
        velocity = self.momentum * state["velocity"] + rate * (grad + self.weight_decay * param)
        return param - self.lr * velocity, {"velocity": velocity}

    grad_square: Array
    """‖g‖² of the parameter."""
    param_square: Array
    """‖w‖² of the parameter."""
