"""deep5's matrix product, blocked for registers and caches, as an operator."""

from __future__ import annotations

from deep5.core.errors import ShapeError
from deep5.core.tensors import TensorSpec
from deep5.operators.cpp import CppOperator
from deep5.operators.registry import register_operator

__all__ = ["MatMulBlocked"]


@register_operator("MatMulBlocked", domain="deep5")
class MatMulBlocked(CppOperator):
    """The product of two matrices, [M, K] and [K, N], as [M, N]; `report` counts `"multiplications"`.

    References:
        Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, TOMS 34(3), 2008.
    """

    source = "product.cpp"

    def specs(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        """The product.

        Raises:
            ShapeError: The inputs are not matrices, or do not fit.
        """
        inner = (a.shape[1], b.shape[0]) if len(a.shape) == len(b.shape) == 2 else (0, 1)
        if a.dtype != b.dtype or (all(isinstance(extent, int) for extent in inner) and inner[0] != inner[1]):
            raise ShapeError(f"MatMulBlocked: got {a} and {b}; allowed: [M, K] and [K, N] of one element type")
        return (TensorSpec(shape=(a.shape[0], b.shape[1]), dtype=a.dtype),)
