"""`ParameterAveraging`: the base of schemes whose ranks step independently and average their parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.tensors import Arrays
from deep5.distributed.schemes.base import DistributedOptimizer

__all__ = ["ParameterAveraging", "check_every"]


class ParameterAveraging(DistributedOptimizer):
    """A rank takes its optimizer's whole step, compiled if the framework compiles; only parameters are exchanged.

    So any optimizer works, including one that evaluates the loss several times per step. A rank whose part of a batch
    is empty makes no update, but takes part in the exchange.

    Args:
        timeout_s: See `DistributedOptimizer`.
    """

    accumulates: ClassVar[bool] = True

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        # Ranks differ by design, so their parameters are not compared.
        super().__init__(verify_every=0, timeout_s=timeout_s)

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Step this rank's optimizer, with the exchange around it; see `DistributedOptimizer.step`."""
        self._before(info)
        outputs = self.executor.inference(inputs) if _empty(info) else self.optimizer.step(inputs, info)
        self._after(info)
        return outputs

    def accumulated_step(self, batches: Sequence[Arrays | None], info: StepInfo) -> Arrays:
        """The same from several micro-batches; None represents one in which this rank has no sample.

        Raises:
            Unsupported: The optimizer takes one batch per step.
        """
        accumulated = getattr(self.optimizer, "accumulated_step", None)
        if accumulated is None:
            raise Unsupported(
                f"{type(self.optimizer).__name__} takes one batch a step; got several micro-batches; allowed: "
                "step(inputs, info)"
            )
        own = [batch for batch in batches if batch is not None]
        self._before(info)
        outputs: Arrays = self.executor.inference(own[0]) if _empty(info) else accumulated(own, info)
        self._after(info)
        return outputs

    def _before(self, info: StepInfo) -> None:
        """Exchange the parameters before this rank's update."""

    @abstractmethod
    def _after(self, info: StepInfo) -> None:
        """Combine the parameters after this rank's update."""


def _empty(info: StepInfo) -> bool:
    """Whether all samples of the step are borrowed; False if samples are not counted."""
    return info.global_batch_size > 0 == info.batch_size


def check_every(name: str, every: object) -> int:
    """Check a number of steps.

    Raises:
        UsageError: It is not a positive integer.
    """
    if not is_whole(every) or every < 1:
        raise UsageError(f"{name}: got every={brief(every)}; allowed: an integer number of steps, at least 1")
    return int(every)
