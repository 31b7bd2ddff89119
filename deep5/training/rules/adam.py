"""Adam."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Adam"]


class Adam(UpdateRule):
    """Adam with the published bias correction.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  w ← w − lr · m̂ / (√v̂ + ε)
    with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ), t counted from 1.

    Args:
        lr: Learning rate α.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added outside the root.

    References:
        Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015, algorithm 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights = {"w": np.array([1.0, 1.0])}
    >>> kernel = d5.bind_rule(d5.Adam(lr=0.1), {"w": d5.TensorSpec(shape=(2,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([5.0, -0.01])}, d5.StepInfo(step=0, batch_size=1))
    >>> weights["w"].round(6).tolist()  # the first step is lr long, whatever the gradient
    [0.9, 1.1]
    """

    hyper = ("lr", "beta1", "beta2", "epsilon")

    def __init__(self, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """The bias corrections 1 − βᵗ."""
        t = info.step + 1
        return {"correction1": 1.0 - self.beta1**t, "correction2": 1.0 - self.beta2**t}

    def init_state(self, param: Array) -> dict[str, Array]:
        """First moment m and second moment v, zero."""
        xp = array_namespace(param)
        return {"m": xp.zeros_like(param), "v": xp.zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        # m̂ / (√v̂ + ε), numerator and denominator multiplied by √(1 − β₂ᵗ): one root and one quotient per element.
        root = xp.sqrt(self.correction2)
        step = self.lr * root / self.correction1 * m / (xp.sqrt(v) + self.epsilon * root)
        return param - step, {"m": m, "v": v}

    correction1: float
    """1 − β₁ᵗ of the current step."""
    correction2: float
    """1 − β₂ᵗ of the current step."""
