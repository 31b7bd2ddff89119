"""`EngineFramework`: the common part of `Framework` for engines that only run ONNX forward."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from deep5.core.framework import Framework
from deep5.core.tensors import Array

if TYPE_CHECKING:
    from deep5.core.operator import Operator
    from deep5.training.gradient_executor import GradientExecutor
    from deep5.training.operator_executor import EngineOperatorExecutor

__all__ = ["EngineFramework"]


class EngineFramework(Framework):
    """Base of back-ends with `GradientExecutor`s, whose options are fixed at compilation.

    The number of threads is process-wide: each class keeps its own and updates the live executors.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> engine = d5.framework("onnxruntime")  # runs ONNX forward
    >>> isinstance(engine, d5.EngineFramework), isinstance(d5.framework("reference"), d5.EngineFramework)
    (True, False)
    >>> executor = engine.executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> isinstance(executor, d5.GradientExecutor)  # so it trains nevertheless
    True
    >>> engine.operator(d5.ONNXOperator("Relu"))(np.array([-1.0, 2.0], np.float32)).tolist()
    [0.0, 2.0]
    """

    _requested: ClassVar[int] = 0
    _executors: ClassVar[WeakSet[GradientExecutor | EngineOperatorExecutor]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._executors = WeakSet()

    @property
    def threads(self) -> int:
        """Threads per operator: as set, or one per physical core available to this process."""
        return self._requested or _cores()

    def set_threads(self, threads: int) -> None:
        """Set the threads per operator, for all later calls of any executor.

        Raises:
            UsageError: As for `Framework.set_threads`.
        """
        type(self)._requested = threads
        for executor in list(self._executors):
            executor.discard_programs()

    def operator(self, operator: Operator) -> Callable[..., Any]:
        """The operator on the engine, on NumPy arrays; returns an array or a tuple of arrays."""
        run = self.operator_executor(operator).inference

        def call(*inputs: Array) -> Any:
            outputs = run(*inputs)
            return outputs[0] if len(outputs) == 1 else outputs

        return call


def _cores() -> int:
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or allowed, allowed)
