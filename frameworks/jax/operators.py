"""The table of operators, filled by the modules beside this one, and which nodes it runs."""

from __future__ import annotations

from deep5.frameworks.jax import (
    operators_control,
    operators_index,
    operators_layers,
    operators_math,
    operators_normalization,
    operators_quantized,
    operators_random,
    operators_recurrent,
    operators_resize,
    operators_sampling,
    operators_shape,
    operators_signal,
    operators_training,
    operators_windows,
)
from deep5.frameworks.jax.support import supports
from deep5.frameworks.jax.table import OPERATORS

__all__ = ["OPERATORS", "supports"]

# Named, so that nobody takes the imports away: they fill the table.
_FILLED_BY = (
    operators_control,
    operators_index,
    operators_layers,
    operators_math,
    operators_resize,
    operators_sampling,
    operators_normalization,
    operators_quantized,
    operators_random,
    operators_recurrent,
    operators_signal,
    operators_training,
    operators_shape,
    operators_windows,
)
