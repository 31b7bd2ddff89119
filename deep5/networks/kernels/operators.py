"""`COMPOSITES`: the table of all operators that are written once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deep5.core.errors import UsageError
from deep5.networks.kernels import (
    control,
    drawing,
    elementwise,
    gathering,
    images,
    indexing,
    losses,
    normalizing,
    products,
    quantizing,
    recurrent,
    reducing,
    resizing,
    sampling,
    searching,
    sequences,
    shapes,
    signal,
    unfolding,
    updates,
    windows,
)
from deep5.networks.kernels.table import Composite

__all__ = ["COMPOSITES", "LISTS", "check_overrides"]

COMPOSITES: dict[str, Composite] = {
    **drawing.OPERATORS,
    **control.OPERATORS,
    **elementwise.OPERATORS,
    **gathering.OPERATORS,
    **images.OPERATORS,
    **indexing.OPERATORS,
    **losses.OPERATORS,
    **normalizing.OPERATORS,
    **products.OPERATORS,
    **quantizing.OPERATORS,
    **recurrent.OPERATORS,
    **reducing.OPERATORS,
    **resizing.OPERATORS,
    **sampling.OPERATORS,
    **searching.OPERATORS,
    **shapes.OPERATORS,
    **signal.OPERATORS,
    **unfolding.OPERATORS,
    **updates.OPERATORS,
    **windows.OPERATORS,
}

LISTS: dict[str, Composite] = sequences.OPERATORS
"""Operators whose inputs or outputs may be lists or None, for back-ends whose programs can hold these."""


def check_overrides(operators: Collection[str], overrides: Mapping[str, str]) -> None:
    """Check that a back-end's table writes an operator of this table again only as an override, with its reason.

    Raises:
        UsageError: An operator has no reason, or is no override of anything.
    """
    without = sorted(set(operators) & set(COMPOSITES) - set(overrides))
    alone = sorted(set(overrides) - set(COMPOSITES))
    if without or alone:
        raise UsageError(
            f"the operators {', '.join(without + alone)} are written twice, or override nothing; allowed: an override "
            "with its reason, of an operator in deep5/networks/kernels; remedy: delete one of them"
        )
