"""Sums of products."""

from __future__ import annotations

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS"]


def _einsum(xp: Primitives, *operands: Array, equation: str) -> Array:
    return xp.einsum(equation.replace(" ", ""), *operands)


OPERATORS = {"Einsum": Composite(function=_einsum, product=True)}
