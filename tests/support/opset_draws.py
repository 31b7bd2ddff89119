"""All draws of opset_cases.py, by operator."""

from __future__ import annotations

from collections.abc import Callable

from opset_cases import Draw, Drawn
from opset_draws_images import IMAGES
from opset_draws_layers import LAYERS
from opset_draws_math import MATH
from opset_draws_other import OTHER
from opset_draws_shape import SHAPE

__all__ = ["DRAWS"]

DRAWS: dict[str, Callable[[Draw], Drawn]] = {**MATH, **SHAPE, **LAYERS, **IMAGES, **OTHER}
