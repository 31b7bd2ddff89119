"""The table of gradient rules, one an operator, and the operators that no gradient passes."""

from __future__ import annotations

from deep5.networks.gradients import (
    rules_activation,
    rules_convolution,
    rules_linear,
    rules_loss,
    rules_math,
    rules_normalization,
    rules_part,
    rules_pooling,
    rules_reduce,
    rules_shape,
)
from deep5.networks.gradients.backward import Rule

__all__ = ["CONSTANT", "RULES"]

RULES: dict[str, Rule] = {
    **rules_activation.RULES,
    **rules_convolution.RULES,
    **rules_linear.RULES,
    **rules_loss.RULES,
    **rules_math.RULES,
    **rules_normalization.RULES,
    **rules_part.RULES,
    **rules_pooling.RULES,
    **rules_reduce.RULES,
    **rules_shape.RULES,
}

# fmt: off
# Operators whose outputs are constant wherever they are differentiable: the gradient stops there. The other operators
# without a rule are refused.
CONSTANT = frozenset({
    "And", "ArgMax", "ArgMin", "Bernoulli", "Ceil", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "Or", "RandomNormalLike",
    "RandomUniformLike", "Round", "Shape", "Sign", "Size", "Xor",
})
# fmt: on
