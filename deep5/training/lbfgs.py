"""`LBFGS`: quasi-Newton steps from the latest changes of parameters and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from deep5.core.arguments import is_finite
from deep5.core.errors import ShapeError, UsageError, brief
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Arrays, aligned_empty, to_numpy
from deep5.training.hyper_state import KEY, apart, restore_rate
from deep5.training.line_search import Trial, strong_wolfe
from deep5.training.packed import Packed, vector
from deep5.training.state_check import check_entries

__all__ = ["LBFGS"]

_LINE = 8  # numbers of float64 in 64 bytes


class LBFGS:
    """Limited-memory BFGS with a strong Wolfe line search; a `StepOptimizer`.

    p = −H g, H from the last pairs s = w' − w, y = g' − g by the two-loop recursion, starting from γ = sᵀy / yᵀy;
    w ← w + α p with α by the line search, which tries `lr` first (on the first step lr · min(1, 1 / ‖g‖)).

    Every evaluation in a step, also for the pairs, is a forward and a backward pass on the step's own batch, with the
    random masks of one step and the running statistics of its first pass. With small batches the steps fit the batch:
    L-BFGS is for full batches, or nearly full ones. Vectors are in float64.

    If the line search finds no decrease, the pairs are cleared and steepest descent is tried. If that finds none either
    (the minimum, to the precision of the loss), or if the loss or its gradient is not finite, the parameters do not
    change.

    Args:
        lr: The initial step length; 1 is Newton's.
        history: Number of pairs to keep, each twice the size of the parameters in float64.
        iterations: Updates per step.
        evaluations: Maximum number of network evaluations per line search.
        c1: The constant of the sufficient decrease condition.
        c2: The constant of the curvature condition.
        loss: Name of the scalar output to minimize.

    Raises:
        UsageError: A number is out of range.

    Attributes:
        calls: Number of forward and backward passes since `bind`, including those before a resume.

    References:
        Nocedal and Wright, Numerical optimization, 2nd edition, 2006, algorithms 7.4 and 7.5, equation 7.20.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> executor, optimizer = d5.framework("reference").executor(network), d5.LBFGS(iterations=3)
    >>> optimizer.bind(executor)
    >>> outputs = optimizer.step({"input": np.array([[4.0], [2.0]])}, d5.StepInfo(batch_size=2))
    >>> executor.parameters()["w"].round(6).tolist(), optimizer.calls  # the minimum is the mean of the samples
    ([3.0], 3)
    """

    hyper: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(
        self,
        lr: float = 1.0,
        history: int = 10,
        *,
        iterations: int = 1,
        evaluations: int = 20,
        c1: float = 1e-4,
        c2: float = 0.9,
        loss: str = "loss",
    ) -> None:
        for name, count in {"history": history, "iterations": iterations, "evaluations": evaluations}.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise UsageError(f"LBFGS: got {name}={brief(count)}; allowed: an integer of at least 1")
        if not (is_finite(c1) and is_finite(c2) and 0 < c1 < c2 < 1):
            raise UsageError(f"LBFGS: got c1={brief(c1)}, c2={brief(c2)}; allowed: 0 < c1 < c2 < 1")
        self.history, self.iterations, self.evaluations = history, iterations, evaluations
        self.c1, self.c2, self.loss = float(c1), float(c2), loss
        self.set_hyper("lr", lr)
        self.calls = 0
        self._packed: Packed | None = None

    def set_hyper(self, name: str, value: float) -> None:
        """Change the initial step length, `lr`.

        Args:
            name: `"lr"`.
            value: The new value.

        Raises:
            UsageError: Another hyperparameter, or not a positive finite number.
        """
        if name != "lr":
            raise UsageError(f"no hyperparameter {name!r}; allowed: lr")
        if not is_finite(value) or value <= 0:
            raise UsageError(f"LBFGS: got lr={brief(value)}; allowed: a positive finite number")
        self.lr = float(value)

    def bind(self, executor: GraphExecutor) -> None:
        """Bind the executor's parameters.

        Args:
            executor: Runs the network.

        Raises:
            UsageError: The parameters have several types.
        """
        self._packed = Packed(executor, self.loss, "LBFGS")
        self._pairs = _Pairs(self.history, self._packed.size)
        self.calls = 0

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Run `iterations` updates on one batch.

        Args:
            inputs: The batch, as for `GraphExecutor.inference`.
            info: The step.

        Returns:
            The outputs before the first update.

        Raises:
            UsageError: `bind` was not called, or `info` is not a `StepInfo`.
        """
        problem = _Problem(self._bound(), inputs, check_info(info))
        here, outputs = problem.first()
        for _ in range(self.iterations):
            after = self._update(problem, here)
            if after is None:
                break
            here = after
        self.calls += problem.calls
        problem.settle(here.point)
        return outputs

    def _update(self, problem: _Problem, here: _Evaluated) -> _Evaluated | None:
        """One update; None if no improvement is possible."""
        if not here.finite or not here.gradient.any():
            return None
        after = self._searched(problem, here, -self._pairs.product(here.gradient)) if len(self._pairs) else None
        if after is None:
            self._pairs.forget()
            after = self._searched(problem, here, -here.gradient)
        if after is not None:
            self._pairs.add(after.point - here.point, after.gradient - here.gradient)
        return after

    def _searched(self, problem: _Problem, here: _Evaluated, direction: np.ndarray) -> _Evaluated | None:
        slope = float(np.dot(here.gradient, direction))
        if not slope < 0 or not math.isfinite(slope):
            return None
        first = self.lr if len(self._pairs) else self.lr * min(1.0, 1.0 / float(np.linalg.norm(here.gradient)))
        seen: dict[float, _Evaluated] = {}

        def phi(alpha: float) -> tuple[float, float]:
            found = seen[alpha] = problem.at(here.point + alpha * direction)
            return found.loss, float(np.dot(found.gradient, direction))

        start = Trial(0.0, here.loss, slope)
        found = strong_wolfe(phi, start, first, c1=self.c1, c2=self.c2, evaluations=self.evaluations)
        return None if found is None else seen[found.alpha]

    def _bound(self) -> Packed:
        if self._packed is None:
            raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")
        return self._packed

    def state_dict(self) -> dict[str, Any]:
        """The pairs, oldest first: `s` and `y`, float64, shape (pairs, numbers); `calls`, a number; `hyper`."""
        self._bound()
        return {**self._pairs.state(), "calls": self.calls, KEY: {"values": {"lr": self.lr}}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` exactly.

        Args:
            state: A result of `state_dict`, for the same network.

        Raises:
            ShapeError: An entry is missing, unknown, or does not fit the network or `history`.
        """
        packed = self._bound()
        state, held = apart(state)
        check_entries(state, ("calls", "s", "y"))
        s, y, calls = np.asarray(state["s"]), np.asarray(state["y"]), np.asarray(state["calls"])
        whole = calls.shape == () and calls.dtype.kind in "iu"
        fits = s.ndim == 2 and s.shape == y.shape and s.dtype == y.dtype == np.float64
        if not whole or not fits or s.shape[1] != packed.size or len(s) > self.history:
            raise ShapeError(
                f"the optimizer's state: got s {s.dtype}{s.shape}, y {y.dtype}{y.shape}, calls {calls.dtype}"
                f"{calls.shape}; allowed: s and y of float64 with at most {self.history} rows of {packed.size} "
                "numbers, and an integer for calls"
            )
        restore_rate(self, held)
        self._pairs.load(s, y)
        self.calls = int(calls)

    def describe(self) -> dict[str, Any]:
        """The optimizer and its arguments."""
        names = ("lr", "history", "iterations", "evaluations", "c1", "c2", "loss")
        return {"optimizer": "LBFGS", **{name: getattr(self, name) for name in names}}


class _Evaluated(NamedTuple):
    """A point with its loss and gradient, in float64."""

    point: np.ndarray
    loss: float
    gradient: np.ndarray

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and bool(np.isfinite(self.gradient).all())


class _Problem:
    """The loss of one batch as a function of the packed parameters."""

    def __init__(self, packed: Packed, inputs: Arrays, info: StepInfo) -> None:
        self._packed, self._inputs, self._info = packed, inputs, info
        self._written = vector(packed.read())
        self.calls = 0

    def first(self) -> tuple[_Evaluated, Arrays]:
        """The current parameters, and the outputs there."""
        outputs = self._packed.backprop(self._inputs, self._info)
        # Later passes may reuse the memory.
        kept = {name: np.array(to_numpy(value)) for name, value in outputs.items()}
        self.calls = 1
        self._packed.keep_buffers()
        return _Evaluated(self._written, self._packed.loss(kept), vector(self._packed.gradient())), kept

    def at(self, point: np.ndarray) -> _Evaluated:
        """Evaluate another point, rounded to the parameters' type."""
        self._written = vector(self._packed.write(point))
        outputs = self._packed.backprop(self._inputs, self._info)
        self.calls += 1
        return _Evaluated(self._written, self._packed.loss(outputs), vector(self._packed.gradient()))

    def settle(self, point: np.ndarray) -> None:
        """Set the parameters to a point, and the running statistics to those after the first pass."""
        if self._written is not point:
            self._packed.write(point)
        if self.calls > 1:
            self._packed.restore_buffers()


class _Pairs:
    """The latest changes of parameters and gradients, oldest first."""

    def __init__(self, history: int, size: int) -> None:
        # Rows begin at cache lines, so that equal rows have equal products at any position.
        padded = -(-size // _LINE) * _LINE
        self._s, self._y = (aligned_empty((history, padded), "float64")[:, :size] for _ in range(2))
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._order)

    def add(self, s: np.ndarray, y: np.ndarray) -> None:
        """Add a pair in place of the oldest; one without curvature, which the line search excludes, is omitted."""
        curvature = float(np.dot(s, y))
        if not curvature > np.finfo(np.float64).eps * float(np.dot(y, y)):
            return
        full = len(self._order) == len(self._s)
        row = self._order.pop(0) if full else len(self._order)
        self._s[row], self._y[row] = s, y
        self._order.append(row)

    def forget(self) -> None:
        self._order = []

    def product(self, gradient: np.ndarray) -> np.ndarray:
        """H g by the two-loop recursion (algorithm 7.4)."""
        q, alphas = vector(gradient), {}
        for row in reversed(self._order):
            s, y = self._s[row], self._y[row]
            alphas[row] = float(np.dot(s, q)) / float(np.dot(s, y))
            q -= alphas[row] * y
        s, y = self._s[self._order[-1]], self._y[self._order[-1]]
        q *= float(np.dot(s, y)) / float(np.dot(y, y))
        for row in self._order:
            s, y = self._s[row], self._y[row]
            q += (alphas[row] - float(np.dot(y, q)) / float(np.dot(s, y))) * s
        return q

    def state(self) -> dict[str, np.ndarray]:
        return {"s": self._s[self._order].copy(), "y": self._y[self._order].copy()}

    def load(self, s: np.ndarray, y: np.ndarray) -> None:
        self._s[: len(s)], self._y[: len(y)] = s, y
        self._order = list(range(len(s)))
