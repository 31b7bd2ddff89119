"""`GradientPipeline`: transformations of gradients before an update rule, and of parameters beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deep5.core.errors import RuleError, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Array
from deep5.training.rule import UpdateRule

__all__ = ["GROUP_STAGES", "STAGES", "GradientPipeline", "Stages", "check_stage", "modified"]

STAGES = ("loss_scale", "clip_value", "clip_norm", "coupled_weight_decay", "weight_decay")
"""The numbers of a pipeline, in the order in which a step applies them."""

GROUP_STAGES = ("clip_value", "coupled_weight_decay", "weight_decay")
"""The numbers that a parameter group may set; norm and scale apply to the whole model."""

# The values that disable a stage for parameters outside the groups that set it.
_IDLE = {"clip_value": math.inf, "coupled_weight_decay": 0.0, "weight_decay": 0.0}


class GradientPipeline:
    """Loss scaling, clipping and weight decay around an update rule; the same on every framework.

    With S the loss scale, g' the gradient of S · loss, f the gradient modifier, c and n the thresholds, κ the coupled
    and λ the decoupled decay, and x the point of the gradient (the parameter w, unless the rule takes another):

    g ← f(g' / S);  g ← min(max(g, −c), c);  g ← g · min(1, n / ‖g‖);  g ← g + κ x;  w ← rule(g, w) − lr · λ · w

    ‖g‖ is over all trained parameters of all groups. The coupled decay is the gradient of a penalty κ/2 ‖x‖² on the
    loss: it passes through the rule's state (momentum, moments), as `weight_decay` of torch's SGD and Adam does. The
    decoupled decay bypasses the state and is scaled by the rule's learning rate, as AdamW's. Everything is part of the
    rule's kernel or of the compiled step. A NaN gradient makes the norm, and with it every parameter, NaN, so that it
    is noticed; with `loss_scale="dynamic"` such a step is skipped.

    The numbers are read at every step, like a rule's hyperparameters: they may change between steps (a schedule)
    without retracing. None permanently excludes a stage from the step; a threshold of `math.inf` clips nothing.

    Args:
        clip_value: Largest absolute value of an element of the gradient.
        clip_norm: Largest norm of the whole gradient.
        weight_decay: λ.
        coupled_weight_decay: κ; added after clipping, as torch's optimizers do.
        loss_scale: A factor for the loss before differentiation, by which the gradient is divided afterwards: small
            gradients then do not underflow in half precision. `"dynamic"` starts at 2¹⁶, halves the scale and skips the
            update when an element of the gradient is not finite, and doubles it after 2000 good steps.
        master_weights: How parameters of float16 and bfloat16 are updated. None and True: in float32, with float32
            master weights in the step's state; the parameter is rounded once per step. False: in their own type, by the
            framework's arithmetic. It has no effect on float32 and float64 parameters.

    Raises:
        UsageError: A value is not allowed.

    References:
        Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, ICML 2013, algorithm 1.
        Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019, algorithm 2.
        The coupled decay is L2 regularization there, algorithms 1 and 2.
        Micikevicius et al., Mixed precision training, ICLR 2018, section 3.2.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> weights, pipeline = {"w": np.zeros(2)}, d5.GradientPipeline(clip_norm=1.0)
    >>> specs = {"w": d5.TensorSpec(shape=(2,), dtype="float64")}
    >>> kernel = d5.bind_rule(d5.SGD(lr=1.0), specs, pipeline=pipeline, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([3.0, 4.0])}, d5.StepInfo(batch_size=1))
    >>> weights["w"].round(6).tolist()  # the norm, 5, is clipped to 1
    [-0.6, -0.8]
    """

    def __init__(
        self,
        *,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        weight_decay: float | None = None,
        coupled_weight_decay: float | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        master_weights: bool | None = None,
    ) -> None:
        self.clip_value, self.clip_norm = clip_value, clip_norm
        self.coupled_weight_decay = coupled_weight_decay
        self.weight_decay, self.loss_scale = weight_decay, loss_scale
        if master_weights is not None and not isinstance(master_weights, bool):
            raise UsageError(
                f"master_weights: got {brief(master_weights)}; allowed: True (float32 master weights), False (the "
                "framework's own arithmetic), or None for the default, True; remedy: master_weights=True"
            )
        self.master_weights = master_weights
        for name in STAGES:
            value = getattr(self, name)
            if value is not None and not (name == "loss_scale" and isinstance(value, str) and value == "dynamic"):
                check_stage(name, value)

    @property
    def dynamic(self) -> bool:
        """Whether the step determines its loss scale."""
        return isinstance(self.loss_scale, str)

    def describe(self) -> dict[str, Any]:
        """The values that are set, in JSON types; enters a recipe's hash."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return f"GradientPipeline({', '.join(f'{key}={value!r}' for key, value in self.describe().items())})"


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The pipeline stages in a step.

    Attributes:
        names: A subset of `STAGES`, in that order.
        fused: Whether the kernel includes the division by the loss scale; a modifier needs it before.
    """

    names: tuple[str, ...] = ()
    fused: bool = True

    @classmethod
    def of(
        cls, pipeline: GradientPipeline, rule: UpdateRule, hypers: Iterable[Mapping[str, float]], *, fused: bool = True
    ) -> Stages:
        """The stages that a rule, a pipeline and the groups' hyperparameters require.

        Raises:
            RuleError: The rule itself has a hyperparameter of that name, or weight decay is requested for a rule
                without a learning rate.
        """
        if not isinstance(pipeline, GradientPipeline):
            raise UsageError(
                f"pipeline: got {brief(pipeline)}; allowed: a GradientPipeline; remedy: "
                "deep5.GradientPipeline(clip_norm=1.0), say"
            )
        name, hyper = type(rule).__name__, getattr(rule, "hyper", ())
        requested = {key for key in STAGES if getattr(pipeline, key) is not None}
        if twice := requested & set(hyper):
            raise RuleError(
                f"{name} already has a hyperparameter {min(twice)!r}, got another one; remedy: give it only to "
                f"the rule, {name}({min(twice)}=…)"
            )
        requested |= {key for own in hypers for key in own if key in GROUP_STAGES and key not in hyper}
        if "weight_decay" in requested and "lr" not in hyper:
            raise RuleError(
                f"weight_decay is scaled by the learning rate, and {name} has no hyperparameter 'lr'; got: "
                f"{', '.join(hyper) or 'none'}; remedy: let the rule decay the weights itself"
            )
        return cls(names=tuple(key for key in STAGES if key in requested), fused=fused)

    def numbers(
        self, pipeline: GradientPipeline, hyper: Mapping[str, float], info: StepInfo, scale: float
    ) -> list[float]:
        """The current numbers for the parameters of a group.

        Args:
            pipeline: The current pipeline.
            hyper: The group's own values.
            info: The step that begins.
            scale: The loss scale if it is dynamic.

        Raises:
            UsageError: A value is not allowed.
        """
        values = []
        for name in self.names:
            value: Any = hyper.get(name) if name in GROUP_STAGES else None
            if value is None:
                value = getattr(pipeline, name)
            if value is None:
                value = _IDLE.get(name)
            if name == "loss_scale" and isinstance(value, str):
                value = scale
            check_stage(name, value, f" at step {info.step}")
            values.append(float(value))
        return values


def modified(modifier: Callable[[str, Array, Array], Array], name: str, param: Array, grad: Array) -> Array:
    """The result of a gradient modifier for one gradient.

    Raises:
        UsageError: It returned nothing.
    """
    value = modifier(name, param, grad)
    if value is None:
        raise UsageError(
            f"the gradient modifier returned None for {name!r}; allowed: an array of the gradient's shape and element "
            "type; remedy: return grad"
        )
    return value


def check_stage(name: str, value: Any, where: str = "") -> None:
    """Reject an invalid number for a stage.

    Raises:
        UsageError: It is not a number, or out of range.
    """
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if name in ("weight_decay", "coupled_weight_decay"):
        good, allowed = number and 0 <= value < math.inf, "a finite number of at least 0"
    elif name == "loss_scale":
        good, allowed = number and 0 < value < math.inf, "a finite number above 0, or 'dynamic'"
    else:
        good, allowed = number and value > 0, "a number above 0, or math.inf for no clipping"
    if not good:
        raise UsageError(f"{name}{where}: got {brief(value)}; allowed: {allowed}")
