"""The operator table, filled by the sibling modules, and the nodes that it can run."""

from __future__ import annotations

from deep5.frameworks.jax import (
    operators_control,
    operators_index,
    operators_layers,
    operators_math,
    operators_sampling,
    operators_shape,
)
from deep5.frameworks.jax.composites import register
from deep5.frameworks.jax.support import supports
from deep5.frameworks.jax.table import OPERATORS

__all__ = ["OPERATORS", "supports"]

# Listed to keep the imports, which fill the table.
_FILLED_BY = (
    operators_control,
    operators_index,
    operators_layers,
    operators_math,
    operators_sampling,
    operators_shape,
)
register()
