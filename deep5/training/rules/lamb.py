"""Layer-wise adaptive moments for large batches."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["LAMB"]


class LAMB(UpdateRule):
    """Adam whose step has, for every parameter tensor, the norm of the tensor times the learning rate.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  r = m̂ / (√v̂ + ε);
    w ← w − lr · ‖w‖ / ‖r + λ w‖ · (r + λ w)
    with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ), t counted from 1. The paper's φ is the identity.

    The ratio is 1 where ‖w‖ or ‖r + λ w‖ is zero (a bias at its start), as in the authors' code.

    Args:
        lr: Learning rate η.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added outside the root.
        weight_decay: λ.

    References:
        You et al., Large batch optimization for deep learning: training BERT in 76 minutes, ICLR 2020, algorithm 2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights, rule = {"w": np.array([3.0, 4.0])}, d5.LAMB(lr=0.1)
    >>> kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(2,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([1e-3, 7.0])}, d5.StepInfo(step=0, batch_size=1))
    >>> round(float(np.linalg.norm(weights["w"] - [3.0, 4.0])), 6)  # lr · ‖w‖ = 0.1 · 5
    0.5
    """

    hyper = ("lr", "beta1", "beta2", "epsilon", "weight_decay")
    scope = "tensor"

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """The bias corrections 1 − βᵗ."""
        t = info.step + 1
        return {"correction1": 1.0 - self.beta1**t, "correction2": 1.0 - self.beta2**t}

    def init_state(self, param: Array) -> dict[str, Array]:
        """First moment m and second moment v, zero."""
        xp = array_namespace(param)
        return {"m": xp.zeros_like(param), "v": xp.zeros_like(param)}

    def sums(self, grad: Array, param: Array, state: State) -> dict[str, Array]:
        """Squares of ‖r + λ w‖ and ‖w‖."""
        xp = array_namespace(param)
        direction, _, _ = self._direction(grad, param, state)
        return {"step_square": xp.sum(direction * direction), "param_square": xp.sum(param * param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        direction, m, v = self._direction(grad, param, state)
        step_norm, param_norm = xp.sqrt(self.step_square), xp.sqrt(self.param_square)
        one = xp.ones((), dtype=param.dtype)
        defined = (step_norm > 0) & (param_norm > 0)
        ratio = xp.where(defined, param_norm / xp.where(defined, step_norm, one), one)
        return param - self.lr * ratio * direction, {"m": m, "v": v}

    def _direction(self, grad: Array, param: Array, state: State) -> tuple[Array, Array, Array]:
        """r + λ w and the new moments."""
        xp = array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        # m̂ / (√v̂ + ε), numerator and denominator multiplied by √(1 − β₂ᵗ).
        root = xp.sqrt(self.correction2)
        adam = root / self.correction1 * m / (xp.sqrt(v) + self.epsilon * root)
        return adam + self.weight_decay * param, m, v

    correction1: float
    """1 − β₁ᵗ of the current step."""
    correction2: float
    """1 − β₂ᵗ of the current step."""
    step_square: Array
    """‖r + λ w‖² of the parameter."""
    param_square: Array
    """‖w‖² of the parameter."""
