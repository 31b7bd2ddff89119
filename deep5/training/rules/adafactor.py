"""Adafactor: second moments from the means of rows and columns."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Adafactor"]


class Adafactor(UpdateRule):
    """Adam's second moment of a matrix in the memory of one row and one column, without a first moment.

    For a matrix (with more axes: the last two), with the means r over each row and c over each column:

    r ← β̂ r + (1 − β̂) mean_columns(G² + ε₁);  c ← β̂ c + (1 − β̂) mean_rows(G² + ε₁);  V = r c / mean(r);
    U = G / √V;  Û = U / max(1, RMS(U) / d);  w ← w − max(ε₂, RMS(w)) · ρ · Û
    with β̂ = 1 − t^(−decay), ρ = min(lr, 1 / √t), t counted from 1.

    A vector or scalar has an own second moment for each element, V ← β̂ V + (1 − β̂) (G² + ε₁).

    Args:
        lr: The largest relative step ρ.
        decay: The exponent of β̂.
        epsilon1: Added to each squared gradient.
        epsilon2: The smallest root mean square of a parameter by which its step is scaled.
        clip: d, the root mean square above which an update is scaled down.

    References:
        Shazeer and Stern, Adafactor: adaptive learning rates with sublinear memory cost, ICML 2018, algorithms 4 and 5
        with the parameters of section 8; for means instead of sums see equation 2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule = d5.Adafactor(lr=0.01)
    >>> {name: state.shape for name, state in rule.init_state(np.zeros((300, 200))).items()}  # 500 numbers, not 60000
    {'rows': (300, 1), 'columns': (1, 200)}
    >>> weights, specs = {"w": np.full((2, 2), 4.0)}, {"w": d5.TensorSpec(shape=(2, 2), dtype="float64")}
    >>> kernel = d5.bind_rule(rule, specs, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([[1.0, 3.0], [2.0, 6.0]])}, d5.StepInfo(step=0, batch_size=1))
    >>> weights["w"].round(6).tolist()  # the step is lr · RMS(w) = 0.01 · 4
    [[3.96, 3.96], [3.96, 3.96]]
    """

    hyper = ("lr", "decay", "epsilon1", "epsilon2", "clip")

    def __init__(
        self,
        lr: float = 0.01,
        decay: float = 0.8,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        clip: float = 1.0,
    ) -> None:
        self.lr = lr
        self.decay = decay
        self.epsilon1 = epsilon1
        self.epsilon2 = epsilon2
        self.clip = clip

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """1 − β̂ and ρ."""
        t = info.step + 1
        return {"share": float(t) ** -self.decay, "rate": min(self.lr, float(t) ** -0.5)}

    def init_state(self, param: Array) -> dict[str, Array]:
        """The means r and c of a matrix, or the second moment V of each element; zero."""
        xp = array_namespace(param)
        if param.ndim < 2:
            return {"v": xp.zeros_like(param)}
        *batch, rows, columns = param.shape
        return {
            "rows": xp.zeros((*batch, rows, 1), dtype=param.dtype),
            "columns": xp.zeros((*batch, 1, columns), dtype=param.dtype),
        }

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        square = grad * grad
        new: dict[str, Array] = {}
        if param.ndim < 2:
            v = new["v"] = (1 - self.share) * state["v"] + self.share * (square + self.epsilon1)
            update = grad / xp.sqrt(v)
        else:
            for name, axis in (("rows", -1), ("columns", -2)):
                mean = xp.mean(square, axis=axis, keepdims=True) + self.epsilon1
                new[name] = (1 - self.share) * state[name] + self.share * mean
            # The quotient first: the product of two means of tiny gradients would be zero.
            relative = new["rows"] / xp.mean(new["rows"], axis=-2, keepdims=True)
            update = grad * (1 / xp.sqrt(relative)) * (1 / xp.sqrt(new["columns"]))
        one = xp.ones((), dtype=param.dtype)
        rate = xp.maximum(self.epsilon2, _rms(param)) * self.rate / xp.maximum(one, _rms(update) / self.clip)
        return param - rate * update, new

    share: float
    """1 − β̂ of the current step."""
    rate: float
    """ρ of the current step."""


def _rms(x: Array) -> Array:
    """The root mean square of the elements."""
    xp = array_namespace(x)
    return xp.sqrt(xp.mean(x * x))
