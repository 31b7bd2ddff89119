"""Muon: momentum, orthogonalized by a Newton-Schulz iteration."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.events import StepInfo
from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Muon", "orthogonalized"]

# A normal number of float32, for a matrix of zeros.
_SMALLEST = 1e-37


class Muon(UpdateRule):
    """Steps that are nearly orthogonal matrices: the momentum's singular values are all replaced by about 1.

    A parameter of two dimensions, or of more, whose first axis is then the matrix's rows (a convolution's output
    channels) and whose others together are its columns:

    B ← μ B + G;  O = NewtonSchulz(G + μ B) with Nesterov's momentum, else NewtonSchulz(B);
    w ← w − lr · s · O − lr · λ w,  s = √max(1, rows / columns), or 0.2 √max(rows, columns) with `match_rms`

    Any other parameter (a bias, a scale) has AdamW's step instead, as the author recommends, with the rate
    `adam_lr` · lr. Embeddings and the last layer are matrices here; the author gives them AdamW's step, too: put them
    in a separate optimizer, or accept Muon's.

    Args:
        lr: Learning rate; it also scales the decay and, for other parameters, Adam's rate.
        momentum: μ.
        weight_decay: λ, decoupled from the gradient.
        adam_lr: Adam's rate relative to `lr`.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        epsilon: Added outside Adam's root; for matrices, the smallest norm by which the momentum is divided.
        nesterov: Whether the momentum is Nesterov's.
        match_rms: Whether s makes the root mean square of a step that of AdamW (Liu et al., equation 4).
        iterations: Newton-Schulz iterations.

    References:
        Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024, kellerjordan.github.io/posts/muon,
        algorithm 2 and its Newton-Schulz iteration of degree 5.
        Liu et al., Muon is scalable for LLM training, arXiv:2502.16982, equations 1 to 4.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, w = d5.Muon(lr=1.0), np.zeros((2, 2))
    >>> w, state = rule.update_rule(np.array([[3.0, 0.0], [0.0, 0.2]]), w, rule.init_state(w))
    >>> np.linalg.svd(w, compute_uv=False).round(1).tolist()  # those of the gradient are 3 and 0.2
    [1.1, 0.7]
    >>> sorted(rule.init_state(w)), sorted(rule.init_state(np.zeros(2)))  # of a matrix, and of a bias
    (['momentum'], ['m', 'v'])
    """

    hyper = ("lr", "momentum", "weight_decay", "adam_lr", "beta1", "beta2", "epsilon")

    def __init__(
        self,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adam_lr: float = 0.05,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        nesterov: bool = True,
        match_rms: bool = False,
        iterations: int = 5,
    ) -> None:
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.adam_lr = adam_lr
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.nesterov = nesterov
        self.match_rms = match_rms
        self.iterations = iterations

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """Adam's bias corrections 1 − βᵗ."""
        t = info.step + 1
        return {"correction1": 1.0 - self.beta1**t, "correction2": 1.0 - self.beta2**t}

    def init_state(self, param: Array) -> dict[str, Array]:
        """The momentum B of a matrix; Adam's moments m and v of another parameter; zero."""
        xp = array_namespace(param)
        names = ("momentum",) if param.ndim >= 2 else ("m", "v")
        return {name: xp.zeros_like(param) for name in names}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        kept = param - self.lr * self.weight_decay * param
        if param.ndim < 2:
            m = self.beta1 * state["m"] + (1 - self.beta1) * grad
            v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
            step = m / self.correction1 / (xp.sqrt(v / self.correction2) + self.epsilon)
            return kept - self.lr * self.adam_lr * step, {"m": m, "v": v}
        buffer = self.momentum * state["momentum"] + grad
        moved = grad + self.momentum * buffer if self.nesterov else buffer
        matrix = xp.reshape(moved, (param.shape[0], -1))
        rows, columns = matrix.shape
        scale = 0.2 * max(rows, columns) ** 0.5 if self.match_rms else max(1.0, rows / columns) ** 0.5
        step = scale * orthogonalized(matrix, self.epsilon, self.iterations)
        return kept - self.lr * xp.reshape(step, param.shape), {"momentum": buffer}

    correction1: float
    """1 − β₁ᵗ of the current step."""
    correction2: float
    """1 − β₂ᵗ of the current step."""


def orthogonalized(matrix: Array, epsilon: Array, iterations: int) -> Array:
    """About U Vᵀ of the singular value decomposition U S Vᵀ: X ← a X + (b A + c A²) X with A = X Xᵀ.

    Args:
        matrix: Shape (rows, columns).
        epsilon: The smallest Frobenius norm by which the matrix is divided at the beginning.
        iterations: After 5, every singular value is within about 0.7 to 1.2, unless it was nearly zero.

    References:
        Jordan et al. 2024, the coefficients of "zeropower_via_newtonschulz5".
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    xp = array_namespace(matrix)
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else xp.matrix_transpose(matrix)
    # By the largest element first: the squares of large elements would overflow.
    largest = xp.maximum(xp.max(xp.abs(x)), _SMALLEST * xp.ones((), dtype=x.dtype))
    x = x / largest
    x = x / xp.maximum(xp.sqrt(xp.sum(x * x)), epsilon / largest)
    for _ in range(iterations):
        gram = x @ xp.matrix_transpose(x)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else xp.matrix_transpose(x)
