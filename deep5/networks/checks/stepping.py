"""The options of the training steps that `check_executor` compares: groups, a modifier, and a gradient pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from deep5.core.executors import ParameterGroup
from deep5.core.tensors import Array

__all__ = ["NOT_FINITE", "change_numbers", "step_options"]

NOT_FINITE = 7
"""The step whose batch contains a NaN, where the loss scale is dynamic."""


def step_options(rule: str) -> dict[str, Any]:
    """The arguments of `train_step` that a rule is checked with, besides itself: singly, and all together."""
    if rule == "adam":
        return {"pipeline": _pipeline(clip_norm=0.5, weight_decay=0.5, loss_scale="dynamic")}
    if rule == "accelegrad":
        return {"modifier": _modifier}
    # The first group that matches a parameter counts.
    groups = (
        ParameterGroup(lambda name: name.endswith("bias"), lr=0.01, clip_value=0.02),
        ParameterGroup(lambda name: name.startswith("fc2"), lr=0.1, momentum=0.5, coupled_weight_decay=0.5),
    )
    pipeline = _pipeline(clip_value=0.1, coupled_weight_decay=0.1, loss_scale=3.0)
    return {"groups": groups, "modifier": _modifier, "pipeline": pipeline}


def change_numbers(rule: Any, options: dict[str, Any], *, late: bool) -> None:
    """Set what a schedule would: the learning rate, and the clipping of the pipeline."""
    rule.lr = 0.005 if late else 0.02
    pipeline = options.get("pipeline")
    if pipeline is not None and pipeline.clip_norm is not None:
        pipeline.clip_norm = 0.2 if late else 0.5


def _pipeline(**stages: Any) -> Any:
    # The level of training defines the class, on which networks do not depend; executors get it from the caller.
    return import_module("deep5.training.pipeline").GradientPipeline(**stages)


def _modifier(name: str, param: Array, grad: Array) -> Array:
    return grad * (0.5 if name.endswith("bias") else 1.5) + 0.125 * param
