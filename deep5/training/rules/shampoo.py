"""Shampoo: one preconditioner per axis."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Shampoo", "inverse_root"]

# A normal number of float32: the root of zero, times a gradient of zero, is zero.
_SMALLEST = 1e-37
_GROWTH = 1.2


class Shampoo(UpdateRule):
    """Gradients multiplied, along each axis, by an inverse root of the sum of their products.

    For a matrix, L ← L + G Gᵀ;  R ← R + Gᵀ G;  w ← w − lr · L^(−1/4) G R^(−1/4), both from ε I. For k axes, with
    G₍ᵢ₎ the matrix whose rows are axis i: Hᵢ ← Hᵢ + G₍ᵢ₎ G₍ᵢ₎ᵀ, and G is multiplied along each axis i by
    Hᵢ^(−1/2k). A vector has k = 1, a scalar counts as a vector.

    An axis longer than `largest` has the diagonal of Hᵢ only, as the paper's implementation does. The roots are
    computed by a coupled Newton iteration, in products of matrices only. An eigenvalue of Hᵢ below the rounding of its
    largest, 1e-7 of it in float32, is lost, and counts as about that rounding. Gradients whose squares overflow make
    the parameter NaN.

    Args:
        lr: Learning rate η.
        epsilon: ε, the initial preconditioner's diagonal.
        largest: The longest axis with a whole matrix.
        iterations: Newton iterations: each multiplies the smallest eigenvalue by about e until it is near the largest;
            30 are for matrices of a condition number up to 1e10.

    References:
        Gupta, Koren and Singer, Shampoo: preconditioned stochastic tensor optimization, ICML 2018, algorithms 1 and 2,
        and section 5 for the diagonal variant.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, w = d5.Shampoo(lr=0.1, epsilon=1e-12), np.zeros((2, 2))
    >>> w, state = rule.update_rule(np.diag([4.0, 1.0]), w, rule.init_state(w))  # 16^(−1/4) · 4 · 16^(−1/4) = 1
    >>> w.round(6).tolist(), {name: h.round(6).tolist() for name, h in state.items()}
    ([[-0.1, 0.0], [0.0, -0.1]], {'axis0': [[16.0, 0.0], [0.0, 1.0]], 'axis1': [[16.0, 0.0], [0.0, 1.0]]})
    """

    hyper = ("lr", "epsilon")

    def __init__(self, lr: float = 0.1, epsilon: float = 1e-4, *, largest: int = 512, iterations: int = 30) -> None:
        self.lr = lr
        self.epsilon = epsilon
        self.largest = largest
        self.iterations = iterations

    def init_state(self, param: Array) -> dict[str, Array]:
        """The preconditioner Hᵢ of each axis, shape (size, size), or its diagonal, shape (size,)."""
        xp = array_namespace(param)
        return {
            f"axis{axis}": self.epsilon
            * (xp.eye(size, dtype=param.dtype) if self._whole(size) else xp.ones((size,), dtype=param.dtype))
            for axis, size in enumerate(param.shape or (1,))
        }

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One step; see the class, and `UpdateRule.update_rule` for the arguments."""
        xp = array_namespace(param)
        shape = param.shape or (1,)
        step, original, new = xp.reshape(grad, shape), xp.reshape(grad, shape), dict[str, Array]()
        for axis, size in enumerate(shape):
            order = (axis, *(other for other in range(len(shape)) if other != axis))
            back = tuple(order.index(other) for other in range(len(shape)))
            moved = tuple(shape[other] for other in order)
            matrix = xp.reshape(xp.permute_dims(original, order), (size, -1))
            rows = xp.reshape(xp.permute_dims(step, order), (size, -1))
            if self._whole(size):
                h = state[f"axis{axis}"] + matrix @ xp.matrix_transpose(matrix)
                rows = inverse_root(h, 2 * len(shape), self.iterations) @ rows
            else:
                h = state[f"axis{axis}"] + xp.sum(matrix * matrix, axis=1)
                root = xp.maximum(h, _SMALLEST * xp.ones_like(h)) ** (-0.5 / len(shape))
                rows = rows * xp.reshape(root, (-1, 1))
            new[f"axis{axis}"] = h
            step = xp.permute_dims(xp.reshape(rows, moved), back)
        return param - self.lr * xp.reshape(step, param.shape), new

    def _whole(self, size: int) -> bool:
        return size <= self.largest


def inverse_root(matrix: Array, p: int, iterations: int) -> Array:
    """A^(−1/p) of a symmetric positive definite matrix, by the coupled Newton iteration.

    M₀ = z A, X₀ = z^(1/p) I with z = (1 + p) / (2 ‖A‖);  T = ((p + 1) I − M) / p;  X ← X T;  M ← Tᵖ M

    The iteration ends where ‖M − I‖, which falls for a positive definite A, grows by a fifth. Rounding may leave A with
    a negative eigenvalue in place of one that is smaller than the rounding of its largest: M would diverge. X then has,
    for such an eigenvalue, about the root of that rounding.

    Args:
        matrix: A, shape (n, n).
        p: An even integer of at least 2.
        iterations: How often at most; see `Shampoo`.

    References:
        Guo and Higham, A Schur-Newton method for the matrix pth root and its inverse, SIAM J. Matrix Anal. Appl. 28,
        2006, iteration 3.8; Anil et al., Scalable second order optimization for deep learning, arXiv:2002.09018,
        algorithm 2, and the end of the iteration in its published implementation.
    """
    xp = array_namespace(matrix)
    identity = xp.eye(matrix.shape[0], dtype=matrix.dtype)
    one = xp.ones((), dtype=matrix.dtype)
    # By the largest element first: the squares of large elements would overflow.
    largest = xp.maximum(xp.max(xp.abs(matrix)), _SMALLEST * one)
    scaled = matrix / largest
    # The Frobenius norm is at least the spectral norm, so that all eigenvalues of M are within the iteration's region.
    z = (1 + p) / (2 * xp.maximum(xp.sqrt(xp.sum(scaled * scaled)), one))
    m, x = z * scaled, z ** (1 / p) * largest ** (-1 / p) * identity
    away = m - identity
    distance = xp.sum(away * away)
    for _ in range(iterations):
        t = identity - away / p
        square = t @ t
        power = square
        for _ in range(p // 2 - 1):
            power = power @ square
        new = power @ m
        left = new - identity
        norm = xp.sum(left * left)
        # False for NaN, too. Once it is false, it stays false.
        nearer = norm <= _GROWTH**2 * distance
        x, m = xp.where(nearer, x @ t, x), xp.where(nearer, new, m)
        away, distance = xp.where(nearer, left, away), xp.where(nearer, norm, distance)
    return x
