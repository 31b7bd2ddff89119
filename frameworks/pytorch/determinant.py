"""`determinant`: torch's, with a gradient for singular matrices, too."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["determinant"]


class _Determinant(torch.autograd.Function):  # type: ignore[misc]
    """torch's backward pass divides by the determinant and returns 0 if that is 0; the cofactors are not 0 there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.linalg.det(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad[..., None, None] * _cofactors(x)


def _cofactors(x: torch.Tensor) -> torch.Tensor:
    """Cofactors of x = U S V', U and V orthogonal: det(U) det(V) U (products of all singular values but one) V'.

    References:
        Giles, An extended collection of matrix derivative results for forward and reverse mode automatic
        differentiation, 2008, section 2.2.4, with the singular value decomposition inserted into the inverse.
    """
    u, s, vh = torch.linalg.svd(x)
    size = s.shape[-1]
    others = torch.where(torch.eye(size, dtype=torch.bool, device=x.device), 1.0, s[..., None, :]).prod(-1)
    sign = torch.linalg.det(u) * torch.linalg.det(vh)
    return sign[..., None, None] * (u * others[..., None, :]) @ vh


def determinant(x: torch.Tensor) -> torch.Tensor:
    """The determinants of matrices.

    Args:
        x: Shape (..., n, n), float32 or float64.

    Returns:
        Shape (...).
    """
    found: torch.Tensor = _Determinant.apply(x)
    return found
