"""The table of gradient rules: one an operator."""

from __future__ import annotations

from deep5.networks.gradients import (
    rules_convolution,
    rules_linear,
    rules_loss,
    rules_math,
    rules_pooling,
    rules_shape,
)
from deep5.networks.gradients.backward import Rule

__all__ = ["RULES"]

RULES: dict[str, Rule] = {
    **rules_convolution.RULES,
    **rules_linear.RULES,
    **rules_loss.RULES,
    **rules_math.RULES,
    **rules_pooling.RULES,
    **rules_shape.RULES,
}
