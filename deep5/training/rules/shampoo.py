"""Shampoo: one preconditioner per axis."""

from __future__ import annotations

from deep5.core.tensors import Array, array_namespace
from deep5.training.rule import State, UpdateRule

__all__ = ["Shampoo", "inverse_root"]


class Shampoo(UpdateRule):
    """Gradients multiplied, along each axis, by an inverse root of the sum of their products.

    For a matrix, L ← L + G Gᵀ;  R ← R + Gᵀ G;  w ← w − lr · L^(−1/4) G R^(−1/4), both from ε I. For k axes, with
    G₍ᵢ₎ the matrix whose rows are axis i: Hᵢ ← Hᵢ + G₍ᵢ₎ G₍ᵢ₎ᵀ, and G is multiplied along each axis i by
    Hᵢ^(−1/2k). A vector has k = 1, a scalar counts as a vector.

    An axis longer than `largest` has the diagonal of Hᵢ only, as the paper's implementation does. The roots are
    computed by a coupled Newton iteration, in products of matrices only.

    Args:
        lr: Learning rate η.
        epsilon: ε, the initial preconditioner's diagonal.
        largest: The longest axis with a whole matrix.
        iterations: Newton iterations: each multiplies the smallest eigenvalue by about e until it is near the largest;
            30 are for matrices of a condition number up to 1e10.

    References:
        Gupta, Koren and Singer, Shampoo: preconditioned stochastic tensor optimization, ICML 2018, algorithms 1 and 2,
        and section 5 for the diagonal variant.
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
        """One step; see the class."""
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
                rows = rows * xp.reshape(h ** (-0.5 / len(shape)), (-1, 1))
            new[f"axis{axis}"] = h
            step = xp.permute_dims(xp.reshape(rows, moved), back)
        return param - self.lr * xp.reshape(step, param.shape), new

    def _whole(self, size: int) -> bool:
        return size <= self.largest


def inverse_root(matrix: Array, p: int, iterations: int) -> Array:
    """A^(−1/p) of a symmetric positive definite matrix, by the coupled Newton iteration.

    M₀ = z A, X₀ = z^(1/p) I with z = (1 + p) / (2 ‖A‖);  T = ((p + 1) I − M) / p;  X ← X T;  M ← Tᵖ M

    Args:
        matrix: A, shape (n, n).
        p: An even integer of at least 2.
        iterations: How often; see `Shampoo`.

    References:
        Guo and Higham, A Schur-Newton method for the matrix pth root and its inverse, SIAM J. Matrix Anal. Appl. 28,
        2006, iteration 3.8; Anil et al., Scalable second order optimization for deep learning, arXiv:2002.09018,
        algorithm 2.
    """
    xp = array_namespace(matrix)
    identity = xp.eye(matrix.shape[0], dtype=matrix.dtype)
    # The Frobenius norm is at least the spectral norm, so that all eigenvalues of M are within the iteration's region.
    z = (1 + p) / (2 * xp.sqrt(xp.sum(matrix * matrix)))
    m, x = z * matrix, z ** (1 / p) * identity
    for _ in range(iterations):
        t = ((p + 1) * identity - m) / p
        x = x @ t
        square = t @ t
        power = square
        for _ in range(p // 2 - 1):
            power = power @ square
        m = power @ m
    return x
