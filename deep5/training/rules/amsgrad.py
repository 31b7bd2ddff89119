"""AMSGrad."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["AMSGrad"]


class AMSGrad(UpdateRule):
    """Adam whose second moment never decreases, which fixes its proof of convergence.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  s ← max(s, v);  w ← w − lr · m / (√s + ε)

    The paper has no bias correction, and neither does this rule by default. Frameworks differ: PyTorch and Keras
    correct both moments, s after the maximum, w ← w − lr · m̂ / (√ŝ + ε) with m̂ = m / (1 − β₁ᵗ), ŝ = s / (1 − β₂ᵗ), t
    counted from 1; that is `bias_correction=True`. (Keras adds ε next to the root of s.) Optax corrects v before the
    maximum unless that is disabled; deep5's native optimizer disables it, which gives the paper's rule.

    Args:
        lr: Learning rate α.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added outside the root; the paper has no ε.
        bias_correction: Correct both moments for their bias, as PyTorch does.

    References:
        Reddi, Kale and Kumar, On the convergence of Adam and beyond, ICLR 2018, algorithm 2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights, rule = {"w": np.array([0.0])}, d5.AMSGrad(beta2=0.5)
    >>> kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(1,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> for step, grad in enumerate((10.0, 0.0)):
    ...     kernel.update({"w": np.array([grad])}, d5.StepInfo(step=step, batch_size=1))
    >>> state = kernel.state_dict()  # v halves where there is no gradient, the divisor's square stays
    >>> state["v/w"].tolist(), state["largest/w"].tolist()
    ([25.0], [50.0])
    """

    hyper = ("lr", "beta1", "beta2", "epsilon")

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        *,
        bias_correction: bool = False,
    ) -> None:
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.bias_correction = bias_correction

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """The bias corrections 1 − βᵗ, or 1."""
        if not self.bias_correction:
            return {"correction1": 1.0, "correction2": 1.0}
        t = info.step + 1
        return {"correction1": 1.0 - self.beta1**t, "correction2": 1.0 - self.beta2**t}

    def init_state(self, param: Array) -> dict[str, Array]:
        """First moment m, second moment v and its maximum s, zero."""
        xp = array_namespace(param)
        return {"m": xp.zeros_like(param), "v": xp.zeros_like(param), "largest": xp.zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        largest = xp.maximum(state["largest"], v)
        # m̂ / (√ŝ + ε), numerator and denominator multiplied by √(1 − β₂ᵗ).
        root = xp.sqrt(self.correction2)
        step = self.lr * root / self.correction1 * m / (xp.sqrt(largest) + self.epsilon * root)
        return param - step, {"m": m, "v": v, "largest": largest}

    correction1: float
    """1 − β₁ᵗ of the current step; 1 without the bias correction."""
    correction2: float
    """1 − β₂ᵗ of the current step; 1 without the bias correction."""
