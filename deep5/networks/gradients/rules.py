"""The table of gradient rules, one per operator, and the operators that no gradient passes."""

from __future__ import annotations

from deep5.networks.gradients import (
    rules_activation,
    rules_algebra,
    rules_convolution,
    rules_convolution_transposed,
    rules_deformable,
    rules_linear,
    rules_loss,
    rules_math,
    rules_nested,
    rules_normalization,
    rules_part,
    rules_pooling,
    rules_reduce,
    rules_resize,
    rules_sampling,
    rules_scan,
    rules_scatter,
    rules_shape,
    rules_signal,
    rules_trigonometric,
)
from deep5.networks.gradients.backward import Rule
from deep5.networks.gradients.sweep import CONSTANT

__all__ = ["CONSTANT", "REFUSED", "RULES"]

RULES: dict[str, Rule] = {
    **rules_activation.RULES,
    **rules_algebra.RULES,
    **rules_convolution.RULES,
    **rules_convolution_transposed.RULES,
    **rules_deformable.RULES,
    **rules_linear.RULES,
    **rules_loss.RULES,
    **rules_math.RULES,
    **rules_nested.RULES,
    **rules_normalization.RULES,
    **rules_part.RULES,
    **rules_pooling.RULES,
    **rules_reduce.RULES,
    **rules_resize.RULES,
    **rules_sampling.RULES,
    **rules_scan.RULES,
    **rules_scatter.RULES,
    **rules_shape.RULES,
    **rules_signal.RULES,
    **rules_trigonometric.RULES,
}

_SEQUENCE = "no gradient passes through a sequence or an optional value"
_QUANTISED = "integers represent floating-point numbers"

REFUSED: dict[str, str] = {
    "BitCast": "reinterpreting bits as another type is not differentiable",
    "ConcatFromSequence": _SEQUENCE,
    "DequantizeLinear": _QUANTISED,
    "DynamicQuantizeLinear": _QUANTISED,
    "Hardmax": "its result is constant wherever it is differentiable",
    "MaxRoiPool": "it rounds regions to whole elements; RoiAlign replaced it",
    "Optional": _SEQUENCE,
    "OptionalGetElement": _SEQUENCE,
    "SequenceAt": _SEQUENCE,
    "SequenceConstruct": _SEQUENCE,
    "SequenceErase": _SEQUENCE,
    "SequenceInsert": _SEQUENCE,
    "SequenceMap": _SEQUENCE,
    "SplitToSequence": _SEQUENCE,
}
"""Floating-point operators that no gradient passes, with the reason; other operators without a rule are expanded into
operators that have one.
"""
