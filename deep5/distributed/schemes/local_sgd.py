"""`LocalSGD`: every rank trains independently, and parameters are averaged periodically."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.events import StepInfo
from deep5.distributed.agreement import check_agreement
from deep5.distributed.schemes.averaging import ParameterAveraging, check_every
from deep5.training.loss_scale import KEYS

__all__ = ["LocalSGD"]


class LocalSGD(ParameterAveraging):
    """Ranks step independently; after every H-th step the parameters of each become the mean of all.

    With P ranks, rank i's own update u and its own part of the batch ξ:

    w_i ← w_i + u(w_i, ξ_i), and if H divides the number of completed steps: w_i ← (1 / P) Σ_j w_j.

    Every rank has the same weight, however many samples its part has. Evaluation uses the mean at any step. With H = 1,
    plain SGD and parts of equal size, this is synchronous SGD. Optimizer state (for example momentum) stays local to
    each rank, unless `average_state` is set; a rule whose state holds points, such as AcceleGrad, needs that.

    A rank sends n / H bytes per step on average, where n is the size of the trained parameters in bytes: one message
    per dtype every H steps. With `average_state` n includes the floating-point state and 16 bytes more.

    Args:
        every: H, in steps.
        average_state: Average the optimizer's floating-point state together with the parameters.
        timeout_s: See `DistributedOptimizer`.

    Raises:
        UsageError: An argument is out of range.
        Unsupported: On `bind`: `average_state` with an optimizer that takes more than one gradient per step and whose
            state describes the path of its own rank (L-BFGS).

    References:
        McDonald, Hall and Mann, Distributed training strategies for the structured perceptron, NAACL-HLT 2010
        (iterative parameter mixing, uniform). Stich, Local SGD converges fast and communicates little,
        ICLR 2019, algorithm 1. For the state: Yu, Jin and Yang, On the linear speedup analysis of communication
        efficient momentum SGD for distributed non-convex optimization, ICML 2019, algorithm 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.LocalSGD(every=2).wrap(d5.SGD(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     found = []
    ...     for step in range(2):
    ...         info = d5.StepInfo(step=step, batch_size=1, global_batch_size=2)
    ...         scheme.step({"input": np.array([[4.0 * communicator.rank]])}, info)
    ...         found += executor.parameters()["w"].tolist()
    ...     return found
    >>> run_in_threads(2, train)  # each rank steps to its own sample; after the second step all have the mean
    [[0.0, 2.0], [4.0, 2.0]]
    """

    def __init__(self, every: int = 8, *, average_state: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(timeout_s=timeout_s)
        self.every = check_every("LocalSGD", every)
        if not isinstance(average_state, bool):
            raise UsageError(f"LocalSGD: got average_state={brief(average_state)}; allowed: True or False")
        self.average_state = average_state

    def _bound(self) -> None:
        if self.average_state and getattr(self.optimizer, "halves", None) is None:
            raise Unsupported(
                f"LocalSGD: got average_state=True with {type(self.optimizer).__name__}, whose state is specific "
                "to its rank; allowed: an optimizer of one gradient a step; remedy: average_state=False"
            )

    def _after(self, info: StepInfo) -> None:
        # A function of the step, so that a resumed run averages at the same steps.
        if not (info.step + 1) % self.every:
            self.average_parameters()
            if self.average_state:
                self._average_state()

    def _average_state(self) -> None:
        communicator, optimizer = self.communicator, self.optimizer
        state = optimizer.state_dict()
        floats = {name: value for name, value in state.items() if name not in KEYS and _floating(value)}
        # A framework may create its state at a rank's first step, and a rank may not have stepped yet.
        layout = repr([(name, value.dtype.str, value.shape) for name, value in floats.items()])
        digest = np.frombuffer(hashlib.sha256(layout.encode()).digest()[:8], np.uint64)
        check_agreement(communicator, [digest], "entries of the optimizer's state", timeout_s=self.timeout_s)
        for dtype in dict.fromkeys(value.dtype for value in floats.values()):
            own = {name: value for name, value in floats.items() if value.dtype == dtype}
            buffer = np.concatenate([value.reshape(-1) for value in own.values()])
            communicator.all_reduce(buffer, timeout_s=self.timeout_s)
            buffer /= communicator.size
            state.update(_parted(buffer, own))
        optimizer.load_state_dict(state)


def _floating(value: Any) -> bool:
    # A scalar may be a NumPy scalar.
    return isinstance(value, np.ndarray | np.generic) and "float" in value.dtype.name


def _parted(buffer: np.ndarray, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split a flat buffer into arrays of these names and shapes."""
    ends = np.cumsum([value.size for value in like.values()])[:-1]
    parts = np.split(buffer, ends)
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
