"""`ElasticAveraging`: ranks explore, coupled elastically to a center that follows their mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from deep5.core.arguments import is_finite
from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import ShapeError, UsageError, brief
from deep5.core.events import StepInfo
from deep5.distributed.packed import Packed
from deep5.distributed.schemes.averaging import ParameterAveraging, check_every

__all__ = ["ElasticAveraging"]

_BETA = 0.9


class ElasticAveraging(ParameterAveraging):
    """Elastic averaging SGD (EASGD) in its synchronous form, around any optimizer.

    With P ranks, rank i's own update u and the center c (equations 5 and 6), both from the values before the step:

    w_i ← w_i + u(w_i, ξ_i) − α (w_i − c);  c ← (1 − β) c + β (1 / P) Σ_i w_i.

    The elastic terms apply if τ divides the number of completed steps; other steps omit them. The center starts at the
    initial weights and is used for evaluation. Every rank keeps it, bit-identically: the mean is an all-reduce, so
    there is no server. A single rank has a center as well, and so does not do the same as its optimizer.

    A rank sends n / τ bytes per step on average, where n is the size of the trained parameters in bytes: one message
    per dtype every τ steps.

    Args:
        every: τ, the communication period, in steps.
        alpha: α, in (0, 1): how strongly a rank is pulled to the center. None: β / P.
        beta: β, in (0, 1]: how strongly the center is pulled to the mean. None: P α if `alpha` is given, else 0.9.
        timeout_s: See `DistributedOptimizer`.

    Raises:
        UsageError: An argument is out of range; on `wrap` also P α above 1 if `beta` is not given.

    References:
        Zhang, Choromanska and LeCun, Deep learning with elastic averaging SGD, NeurIPS 2015, section 3.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> def train(communicator):
    ...     executor = d5.framework("reference").executor(network)
    ...     scheme = d5.ElasticAveraging(every=1, alpha=0.25, beta=0.5).wrap(d5.SGD(lr=0.5), communicator)
    ...     scheme.bind(executor)
    ...     found = []
    ...     for step in range(2):
    ...         info = d5.StepInfo(step=step, batch_size=1, global_batch_size=2)
    ...         scheme.step({"input": np.array([[4.0 * communicator.rank]])}, info)
    ...     own = executor.parameters()["w"].tolist()
    ...     with scheme.averaged():  # the center, which is evaluated
    ...         return own, executor.parameters()["w"].tolist()
    >>> run_in_threads(2, train)  # rank 1, at 4, is pulled to the center at 0, and the center to the mean of 2
    [([0.0], [1.0]), ([3.0], [1.0])]
    """

    alone: ClassVar[bool] = False

    def __init__(
        self,
        every: int = 4,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self.every = check_every("ElasticAveraging", every)
        if alpha is not None and not (is_finite(alpha) and 0 < alpha < 1):
            raise UsageError(f"ElasticAveraging: got alpha={brief(alpha)}; allowed: a number above 0 and below 1")
        if beta is not None and not (is_finite(beta) and 0 < beta <= 1):
            raise UsageError(f"ElasticAveraging: got beta={brief(beta)}; allowed: a number above 0 and at most 1")
        self.alpha, self.beta = alpha, beta
        self._forces: list[np.ndarray] = []
        self._centre: list[np.ndarray] = []

    def _prepare(self) -> None:
        size, alpha, beta = self.communicator.size, self.alpha, self.beta
        if beta is None:
            beta = _BETA if alpha is None else size * alpha
        if beta > 1:
            raise UsageError(
                f"ElasticAveraging: got alpha={brief(alpha)} for {size} ranks, of which beta would be {beta:g}; "
                f"allowed: at most 1; remedy: alpha={1 / size:g} or less, or an explicit beta"
            )
        self.alpha, self.beta = float(beta / size if alpha is None else alpha), float(beta)

    def _bound(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Set the center to this rank's parameters, which are equal on all ranks."""
        self._centre = [packed.read().copy() for packed in self._moving]

    def _before(self, info: StepInfo) -> None:
        self._forces = []
        if info.step % self.every:
            return
        alpha, beta = self._strengths
        for packed, centre in zip(self._moving, self._centre, strict=True):
            mean = packed.read()
            self._forces.append(alpha * (mean - centre))
            self.communicator.all_reduce(mean, timeout_s=self.timeout_s)
            mean /= self.communicator.size
            # Equation 6 as c + β (mean − c), which does not change a center that equals the mean.
            np.add(centre, beta * (mean - centre), out=centre)

    def _after(self, info: StepInfo) -> None:
        for packed, force in zip(self._moving, self._forces, strict=False):
            after = packed.read()
            after -= force
            packed.write(after)

    @property
    def _strengths(self) -> tuple[float, float]:
        if self.alpha is None or self.beta is None:
            raise UsageError("ElasticAveraging wraps no optimizer; remedy: ElasticAveraging(…).wrap(…)")
        return self.alpha, self.beta

    def average_parameters(self) -> None:
        """Set every rank's parameters and the center to the mean of all ranks' parameters."""
        super().average_parameters()
        self._begin()

    def _differing(self) -> list[Packed]:
        return []  # the center, equal on all ranks, is evaluated

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While inside, the executor holds the center, with the mean of the ranks' running statistics."""
        with super().averaged():
            own = [packed.read().copy() for packed in self._moving]
            for packed, centre in zip(self._moving, self._centre, strict=True):
                packed.write(centre)
            try:
                yield
            finally:
                for packed, values in zip(self._moving, own, strict=True):
                    packed.write(values)

    def _own_state(self) -> dict[str, Any]:
        return {
            f"centre/{packed.dtype}": centre.copy() for packed, centre in zip(self._moving, self._centre, strict=True)
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        # A checkpoint of another number of ranks holds no center: it is reset.
        if not state:
            self._begin()
            return
        found = self._own_state()
        for name, centre in found.items():
            got = np.asarray(state.get(name))
            if sorted(state) != sorted(found) or got.shape != centre.shape or got.dtype != centre.dtype:
                raise ShapeError(
                    f"the scheme's state: got {', '.join(sorted(state))}, {name} of {got.dtype}{list(got.shape)}; "
                    f"allowed: {', '.join(sorted(found))}, of {centre.dtype}{list(centre.shape)}"
                )
        self._centre = [np.array(state[name]) for name in found]
