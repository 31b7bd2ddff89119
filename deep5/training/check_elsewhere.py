"""Checks of update rules at many sizes, in float32, in other memory, after errors, and on a second thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.core.worker_threads import begin
from deep5.training.check_problem import Outcome, Problem, require_same
from deep5.training.eager import EagerRule
from deep5.training.emit_c import emit_c
from deep5.training.given import traces_of
from deep5.training.kernel import bind_rule
from deep5.training.pipeline import Stages
from deep5.training.rule import UpdateRule
from deep5.training.trace import trace_rule

__all__ = ["elsewhere_checks"]

# One, two and three elements, a prime, one above a vector's length and one above a cache block's 16,384; several ranks.
_SHAPES: dict[str, tuple[int, ...]] = {
    "one": (1,),
    "two": (2, 1),
    "three": (3,),
    "prime": (13,),
    "vector": (17,),
    "rows": (7, 11),
    "cube": (2, 3, 5),
    "block": (16_385,),
}
_STEPS = 4
# As in `check`: the order of sums, and of the factors of a power.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


def elsewhere_checks(rule: UpdateRule, seed: int) -> list[tuple[str, Callable[[], None]]]:
    """The checks, each a name and a function that raises a `RuleError` if it fails.

    Args:
        rule: The rule.
        seed: Seed of parameters and gradients.
    """
    suite = _Elsewhere(rule, seed)
    return [
        *((f"sizes from 1 to 16,385, {dtype}", partial(suite.check_sizes, dtype)) for dtype in _TOLERANCE),
        ("other memory", suite.check_layouts),
        ("a second thread", suite.check_thread),
        ("after an error", suite.check_after_error),
        ("the same rule after all checks", suite.check_trace),
    ]


class _Elsewhere:
    def __init__(self, rule: UpdateRule, seed: int) -> None:
        self.rule, self.name = rule, type(rule).__name__
        traced = traces_of(rule, Stages(), _SHAPES.values()).get(None)
        # A rule that depends on shapes has no kernel in C, and a vector may need a matrix of its length squared.
        self._text = {} if traced is None else {dtype: emit_c(traced, dtype) for dtype in _TOLERANCE}
        self.problem = Problem.make(_SHAPES if traced is not None else _SHAPES | {"block": (33, 31)}, _STEPS, seed)
        self.small = Problem.make({"a": (5, 4), "b": (7,)}, _STEPS, seed)

    def check_sizes(self, dtype: str) -> None:
        """The kernel agrees with the rule under NumPy, at each size, each parameter with all others and by itself."""
        together = self.kernel(self.problem, dtype), self.eager(self.problem, dtype)
        self._same(*together, _TOLERANCE[dtype], f"in {dtype} as a kernel differs from it run directly under NumPy")
        for name in ("one", "prime", "block") if dtype == "float64" else ():
            alone = self.problem.of(lambda arrays, name=name: {name: arrays[name]})  # type: ignore[misc]
            pair = self.kernel(alone, dtype), self.eager(alone, dtype)
            what = f"in {dtype} as a kernel differs from it run directly under NumPy, on one parameter"
            self._same(*pair, _TOLERANCE[dtype], what)

    def check_layouts(self) -> None:
        """Parameters and gradients that are not contiguous give the same result."""
        layouts: dict[str, Callable[[np.ndarray], Any]] = {
            "in Fortran order": np.asfortranarray,
            "with strides of 2": lambda value: np.repeat(value, 2, axis=-1)[..., ::2],
            "with negative strides": lambda value: np.array(value[::-1])[::-1],
        }
        for what, lay in layouts.items():
            found = self.eager(self.problem, "float64", lay)
            self._same(found, self.eager(self.problem), _TOLERANCE["float64"], f"gives another result on arrays {what}")

    def check_thread(self) -> None:
        """A second thread gets the same bits, from the rule and from its kernel."""
        with ThreadPoolExecutor(1, initializer=begin) as pool:
            for run in (self.kernel, self.eager):
                found = pool.submit(run, self.small).result()
                self._same(found, run(self.small), 0.0, "gives another result on a second thread")

    def check_after_error(self) -> None:
        """A call that failed has no effect on later ones."""
        before = [run(self.small) for run in (self.kernel, self.eager)]
        for method, count in (
            ("init_state", 1),
            ("prepare_param", 2),
            ("sums", 3),
            ("update_rule", 3),
            ("eval_param", 2),
        ):
            with suppress(Exception):  # whatever it raises for a value that is not an array
                getattr(self.rule, method)(*[object()] * count)
        for run, want in zip((self.kernel, self.eager), before, strict=True):
            self._same(run(self.small), want, 0.0, "gives another result after a call that failed")
        self.check_trace()

    def check_trace(self) -> None:
        """Traced once more, the rule has the same kernel as at first."""
        for dtype, text in self._text.items():
            if emit_c(trace_rule(self.rule), dtype) != text:
                raise RuleError(
                    f"{self.name} is traced to another kernel than at first; allowed: the same however often its "
                    "methods have been called; remedy: keep nothing from call to call outside of the state"
                )

    def kernel(self, problem: Problem, dtype: str = "float64") -> Outcome:
        live = {name: np.array(value, dtype) for name, value in problem.start.items()}
        specs = {name: TensorSpec(shape=value.shape, dtype=dtype) for name, value in live.items()}
        kernel = bind_rule(self.rule, specs, backend="numpy")
        kernel.attach(live)
        for step in range(_STEPS):
            info = StepInfo(step=step, batch_size=1)
            kernel.prepare(info)
            kernel.update(problem.gradients(live, step, dtype), info)
        found = {f"param/{name}": value.copy() for name, value in live.items()}
        with kernel.averaged():
            found |= {f"eval/{name}": value.copy() for name, value in live.items()}
        return found | kernel.state_dict()

    def eager(self, problem: Problem, dtype: str = "float64", lay: Callable[[np.ndarray], Any] = np.asarray) -> Outcome:
        run = EagerRule(
            self.rule, {name: lay(np.array(value, dtype, ndmin=1)) for name, value in problem.start.items()}
        )
        for step in range(_STEPS):
            info = StepInfo(step=step, batch_size=1)
            gradients = problem.gradients(run.prepare(info), step, dtype)
            run.update({name: lay(value) for name, value in gradients.items()}, info)
        found = {f"param/{name}": value for name, value in run.parameters.items()}
        found |= {f"eval/{name}": value for name, value in run.evaluated().items()}
        found |= {f"{key}/{name}": value for name, states in run.states.items() for key, value in states.items()}
        return {key: np.array(to_numpy(value)) for key, value in found.items()}

    def _same(self, got: Outcome, want: Outcome, tolerance: float, what: str) -> None:
        remedy = (
            "the same operations whatever the shape, the type, the memory and the thread, and nothing kept from call "
            "to call"
        )
        require_same(got, want, tolerance, f"{self.name} {what}", remedy)
