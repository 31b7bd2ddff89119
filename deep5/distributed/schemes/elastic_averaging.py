"""`ElasticAveraging`: ranks explore, held by springs to a centre that follows their mean."""

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

    With P ranks, rank i's own update u and the centre c (equations 5 and 6), both from the values before the step:

    w_i ← w_i + u(w_i, ξ_i) − α (w_i − c);  c ← (1 − β) c + β (1 / P) Σ_i w_i.

    The elastic terms are there where τ divides the number of steps done so far, and left out at the other steps. The
    centre begins at the initial weights and is what evaluation uses. Every rank keeps it, and has the same bits: the
    mean comes by an all-reduce, so there is no server. One rank alone has a centre as well, and does not do what its
    optimizer does by itself.

    A rank hands over n / τ bytes a step on average, n the bytes of the parameters that are trained: one message a
    dtype every τ steps.

    Args:
        every: τ, the communication period, in steps.
        alpha: α, in (0, 1): how strongly a rank is drawn to the centre. None: β / P.
        beta: β, in (0, 1]: how strongly the centre is drawn to the mean. None: P α where that is given, else 0.9.
        timeout_s: See `DistributedOptimizer`.

    Raises:
        UsageError: An argument out of its range; on `wrap` also P α above 1, where β is not given.

    References:
        Zhang, Choromanska and LeCun, Deep learning with elastic averaging SGD, NeurIPS 2015, section 3.
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
                f"allowed: at most 1; remedy: alpha={1 / size:g} or less, or a beta of its own"
            )
        self.alpha, self.beta = float(beta / size if alpha is None else alpha), float(beta)

    def _bound(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """The centre is where this rank is, and so is every other."""
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
            # Equation 6 as c + β (mean − c), which leaves a centre that is the mean where it is.
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
        """Give every rank the mean of all ranks' parameters, and begin again from there: the centre is the mean."""
        super().average_parameters()
        self._begin()

    def _differing(self) -> list[Packed]:
        return []  # what is judged is the centre, which every rank has

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While inside, the executor holds the centre, with the mean of the ranks' running statistics."""
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
        # None at all is what a checkpoint of another number of ranks holds: it begins anew.
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
