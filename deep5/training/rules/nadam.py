"""Nadam."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Nadam"]


class Nadam(UpdateRule):
    """Adam with Nesterov's momentum, whose coefficient μₜ increases with the steps.

    μₜ = β₁ (1 − 0.5 · 0.96^(ψ t));  Πₜ = μ₁ ⋯ μₜ, t counted from 1;
    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;
    m̄ = (1 − μₜ) g / (1 − Πₜ) + μₜ₊₁ m / (1 − Πₜ₊₁);  v̂ = v / (1 − β₂ᵗ);  w ← w − lr · m̄ / (√v̂ + ε)

    As in the report and in the frameworks, m decays with the constant β₁. The later workshop paper also multiplies v̂
    by β₂, which no framework does. Πₜ uses the current β₁ and ψ, as Adam's β₁ᵗ uses the current β₁. The report uses ψ =
    0.004, Keras 1. The larger ψ is, the closer μₜ is to the constant β₁ of Optax; from 20000 it is equal in float64.

    Args:
        lr: Learning rate η.
        beta1: Decay of the first moment, and the limit of μₜ.
        beta2: Decay of the second moment.
        epsilon: Added outside the root.
        momentum_decay: ψ.

    References:
        Dozat, Incorporating Nesterov momentum into Adam, Stanford CS229 project report, 2015; ICLR 2016 workshop.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights = {"w": np.array([0.0])}
    >>> kernel = d5.bind_rule(d5.Nadam(lr=0.1), {"w": d5.TensorSpec(shape=(1,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([5.0])}, d5.StepInfo(step=0, batch_size=1))
    >>> weights["w"].round(4).tolist()  # 0.1 · (1 + 0.1 μ₂ / (1 − μ₁ μ₂)); Adam's first step is 0.1
    [-0.1056]
    """

    hyper = ("lr", "beta1", "beta2", "epsilon", "momentum_decay")

    def __init__(
        self,
        lr: float = 0.002,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        momentum_decay: float = 0.004,
    ) -> None:
        self.lr = lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.momentum_decay = momentum_decay

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """μₜ, μₜ₊₁, Πₜ and the bias correction 1 − β₂ᵗ."""
        t = info.step + 1
        mu, mu_next = (self.beta1 * (1.0 - 0.5 * 0.96 ** (self.momentum_decay * s)) for s in (t, t + 1))
        product = self.beta1**t * _product(self.momentum_decay, t)
        return {"mu": mu, "mu_next": mu_next, "product": product, "correction2": 1.0 - self.beta2**t}

    def init_state(self, param: Array) -> dict[str, Array]:
        """First moment m and second moment v, zero."""
        xp = array_namespace(param)
        return {"m": xp.zeros_like(param), "v": xp.zeros_like(param)}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        # m̄ / (√v̂ + ε), numerator and denominator multiplied by √(1 − β₂ᵗ).
        root = xp.sqrt(self.correction2)
        scale = self.lr * root
        of_grad = scale * (1 - self.mu) / (1 - self.product)
        of_m = scale * self.mu_next / (1 - self.product * self.mu_next)
        step = (of_grad * grad + of_m * m) / (xp.sqrt(v) + self.epsilon * root)
        return param - step, {"m": m, "v": v}

    mu: float
    """μₜ of the current step."""
    mu_next: float
    """μₜ₊₁ of the current step."""
    product: float
    """Πₜ of the current step."""
    correction2: float
    """1 − β₂ᵗ of the current step."""


# The number of steps whose products are computed together.
_CHUNK = 1024
# The terms of the series, each at most half the previous one: enough for float64.
_K = np.arange(1, 65)


def _product(decay: float, t: int) -> float:
    """Πₜ / β₁ᵗ, the product of 1 − 0.5 · 0.96^(ψ s) over s from 1 to t."""
    return float(_products(decay, t // _CHUNK)[t % _CHUNK])


@functools.lru_cache(maxsize=64)
def _products(decay: float, chunk: int) -> np.ndarray:
    """The values of `_product` for all t of a chunk.

    With q = 0.96^ψ, the product up to the chunk is (q/2; q)ₜ = exp(−Σₖ (q/2)ᵏ (1 − qᵏᵗ) / (k (1 − qᵏ))), by the series
    of each factor's logarithm, so a result does not depend on earlier calls.
    """
    log_q, first = decay * math.log(0.96), chunk * _CHUNK
    before = 1.0
    if first:
        with np.errstate(under="ignore"):
            sums = np.expm1(_K * first * log_q) / np.expm1(_K * log_q) if log_q else np.full(_K.shape, float(first))
            before = float(np.exp(-np.sum(np.exp(_K * log_q) * sums / (_K * 2.0**_K))))
    factors = 1.0 - 0.5 * 0.96 ** (decay * np.arange(first, first + _CHUNK, dtype=np.float64))
    factors[0] = before
    return np.cumprod(factors)
