"""`TrainingExecutor`: the common part of all executors that create an update rule's step."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Unpack

from typing_extensions import override

from deep5.core.errors import RuleError, Unsupported
from deep5.core.executors import ParameterGroup, TrainStep
from deep5.core.tensors import Array, Device
from deep5.networks.executor import NetworkExecutor
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.training.master_weights import SHORT_FLOATS, update_dtype, warn_of_zeros
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import RuleStep, StepOptions

__all__ = ["TrainingExecutor"]


class TrainingExecutor(NetworkExecutor):
    """Base of deep5's executors that create a `RuleStep`; arguments and attributes are `NetworkExecutor`'s."""

    def __init__(self, network: Network | NativeNetwork, *, device: Device, seed: int = 0) -> None:
        super().__init__(network, device=device, seed=seed)
        self._step: weakref.ref[RuleStep] | None = None
        # Why there are no gradients, if known.
        self._without = ""

    @abstractmethod
    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> RuleStep:
        """The training step; arguments are `train_step`'s, with a checked loss."""

    @override
    def train_step(
        self,
        rule: Any,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
        pipeline: GradientPipeline | None = None,
    ) -> TrainStep:
        self._check_loss(loss)
        if not self.network.parameter_specs:
            raise RuleError(
                f"nothing to train by {type(rule).__name__}: the network has no parameters; allowed: a network with "
                "some; remedy: Network.from_onnx(file, parameters=[…]), with names that 'deep5 show network FILE' lists"
            )
        step = self._make_step(rule, loss, groups=groups, modifier=modifier, pipeline=pipeline)
        self._step = weakref.ref(step)
        specs = self.network.trained_specs.values()
        short = any(spec.dtype in SHORT_FLOATS for spec in specs)
        self._update_dtype = update_dtype(specs, step.pipeline.master_weights) if short else None
        if self._update_dtype is not None:
            warn_of_zeros(rule, self._update_dtype)
        return step

    def _averaged(self) -> Any:
        step = None if self._step is None else self._step()
        return super()._averaged() if step is None else step.averaged()

    def _refuse_gradients(self) -> NoReturn:
        """Report that there are no gradients.

        Raises:
            Unsupported: Always.
        """
        reason = f": {self._without}" if self._without else ""
        raise Unsupported(f"there are no gradients{reason}; remedy: call inference_and_backprop first")
