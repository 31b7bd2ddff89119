"""`check_optimizer`: the conformance suite for update rules, deep5's and third-party ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from deep5.core import compiler
from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.training.check_elsewhere import elsewhere_checks
from deep5.training.check_problem import Outcome, Problem, equal, half, require_same
from deep5.training.eager import EagerRule
from deep5.training.expression import Expr, topological
from deep5.training.given import traces_of
from deep5.training.kernel import RuleKernel, bind_rule
from deep5.training.pipeline import Stages
from deep5.training.rule import UpdateRule

__all__ = ["check_optimizer", "rule_checks"]

Schedule = Callable[[int], None]

# Relative to the largest element of a tensor. Scalars round alike and elements nearly so; the order of sums and powers
# written as products may differ: some 1e-16 per step. A wrong rule differs by 1e-3.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
# The C library and NumPy round these differently; all other operations round as IEEE 754 specifies.
_INEXACT = {"pow", "exp", "expm1", "log", "log1p", "tanh", "sin", "cos"}
# Enough elements that a kernel uses a second thread.
_LARGE = (1 << 17) + 1000


def check_optimizer(rule: UpdateRule, *, steps: int = 20, seed: int = 0) -> None:
    """Check that an update rule meets its contract, so that every back-end computes the same update.

    The rule is traced. The kernels (C if a compiler is available, and NumPy) and the rule itself on arrays of
    `array_api_strict` and NumPy compute a short trajectory over parameters of several shapes. All must agree, each
    hyperparameter must be read at every step, the sums must run over the scope that the rule declares, and zero
    gradients must leave every number finite.

    Args:
        rule: The rule; the checks change its hyperparameters temporarily.
        steps: Length of the trajectory, at least 6.
        seed: The seed of parameters and gradients.

    Raises:
        RuleError: A check fails; the message has the actual result, the allowed one and the remedy.

    >>> import deep5 as d5
    >>> d5.check_optimizer(d5.SGD())  # returns, since every check passes
    >>> class Constant(d5.UpdateRule):
    ...     hyper = ("lr",)
    ...     def __init__(self, lr=0.1): self.lr = lr
    ...     def update_rule(self, grad, param, state): return param - 0.1 * grad, state  # not self.lr
    >>> try:
    ...     d5.check_optimizer(Constant())
    ... except d5.Deep5Error as error:
    ...     print(str(error).partition(";")[0])
    the hyperparameter Constant.lr has no effect
    """
    for _, check in rule_checks(rule, steps=steps, seed=seed):
        check()


def rule_checks(rule: UpdateRule, *, steps: int = 20, seed: int = 0) -> list[tuple[str, Callable[[], None]]]:
    """The checks of `check_optimizer` separately: the name of each, and a function that raises if it fails.

    Args:
        rule: As for `check_optimizer`.
        steps: As there.
        seed: As there.

    Raises:
        RuleError: The rule cannot be traced.
    """
    suite = _Suite(rule, max(steps, 6), seed)
    found: list[tuple[str, Callable[[], None]]] = [
        ("the same twice", suite.check_deterministic),
        ("kernel against the rule under array_api_strict", suite.check_against_itself),
        ("kernel against the rule under NumPy", suite.check_against_numpy),
        (f"scope {rule.scope!r}", suite.check_scope),
        ("gradients of zero", suite.check_zero),
        ("states", suite.check_states),
        *elsewhere_checks(rule, seed),
        *((f"hyperparameter {name}", partial(suite.check_hyper, name)) for name in rule.hyper),
    ]
    # A rule that depends on shapes has no kernel in C.
    if compiler.compiles() and not suite.shaped:
        found += [("kernel in C against NumPy", suite.check_compiled), ("threads", suite.check_threads)]
    return found


class _Suite:
    def __init__(self, rule: UpdateRule, steps: int, seed: int) -> None:
        shapes: dict[str, tuple[int, ...]] = {"a": (5, 4), "b": (7,), "c": (1,), "d": ()}
        found = traces_of(rule, Stages(), shapes.values())
        if None not in found:  # also a wide matrix, and more axes than two
            shapes |= {"e": (3, 8), "f": (2, 3, 2, 2)}
            found = traces_of(rule, Stages(), shapes.values())
        self.rule, self.traces, self.steps, self.seed = rule, list(found.values()), steps, seed
        self.shaped = None not in found
        self.name = type(rule).__name__
        self.problem = Problem.make(shapes, steps, seed)

    def check_deterministic(self) -> None:
        """Repeated runs agree, for the kernel and the rule itself."""
        for run in (self.kernel, self.eager):
            require_same(
                run(self.problem),
                run(self.problem),
                0.0,
                f"{self.name} is not deterministic: two runs from one start differ",
                "what changes from step to step must come from info in new_input, or be a state",
            )

    def check_against_itself(self) -> None:
        """The kernel agrees with the rule."""
        require_same(
            self.kernel(self.problem),
            self.eager(self.problem),
            _TOLERANCE["float64"],
            f"{self.name} as a kernel differs from {self.name} run directly under array_api_strict",
            "the methods must do the same whenever they are called: no decision by Python values that change, no "
            "values kept from call to call",
        )

    def check_against_numpy(self) -> None:
        """The kernel agrees with the rule's own code on plain arrays, step by step, in float64."""
        require_same(
            self.kernel(self.problem),
            self.eager(self.problem, xp=np),
            _TOLERANCE["float64"],
            f"{self.name} as a kernel differs from {self.name} run directly under NumPy",
            "the methods must do the same whatever library the arrays are of: no decision by their type",
        )

    def check_zero(self) -> None:
        """A zero gradient, as an unused weight has, leaves every number finite."""
        start = Problem.make({"a": (3, 2), "zero": (2,)}, 1, self.seed).start
        start["zero"] = np.zeros_like(start["zero"])
        for what, scale in {"from the first step on": 0.0, "after a step of another": 1.0}.items():
            live = {name: value.copy() for name, value in start.items()}
            specs = {name: TensorSpec(shape=value.shape, dtype="float64") for name, value in live.items()}
            kernel = bind_rule(self.rule, specs, backend="numpy")
            kernel.attach(live)
            for step in range(4):
                kernel.prepare(_info(step))
                given = scale if step == 0 else 0.0
                kernel.update({name: np.full_like(value, given) for name, value in live.items()}, _info(step))
            for key, value in {**live, **kernel.state_dict()}.items():
                odd = np.asarray(value)[~np.isfinite(value)]
                if odd.size:
                    raise RuleError(
                        f"{self.name} makes {key!r} {odd.flat[0]} where the gradient is zero {what}; allowed: finite "
                        "numbers; remedy: an epsilon beside what divides, or xp.where(condition, a, b)"
                    )

    def check_scope(self) -> None:
        """The rule sums over the scope that it declares."""
        if self.shaped:  # a part of a parameter has another shape
            if self.rule.scope != "model":
                self._check_others()
            return
        if self.rule.scope == "element":
            self._check_split()
            return
        if self.rule.scope == "tensor":
            self._check_others()
        self._check_shards()

    def _check_split(self) -> None:
        parts = self.problem.of(lambda arrays: {**half(arrays, 0), **half(arrays, 1)})
        for run in (self.kernel, self.eager):
            whole, split = run(self.problem), run(parts)
            joined = {
                key: np.concatenate([split[f"{key}[0]"], split[f"{key}[1]"]]) if value.size > 1 else value
                for key, value in whole.items()
                if f"{key}[0]" in split
            }
            require_same(
                joined,
                {key: whole[key].reshape(-1) for key in joined},
                _TOLERANCE["float64"],
                f"{self.name} declares the scope 'element', but gives another result where a parameter is split in two",
                "scope = 'tensor' or 'model' with sums, and no values kept from call to call",
            )

    def _check_others(self) -> None:
        others = Problem.make({"other1": (3, 3), "other2": (2,)}, self.steps, self.seed)
        more = Problem(
            start={**others.start, **self.problem.start},
            target={**others.target, **self.problem.target},
            noise=tuple({**a, **b} for a, b in zip(others.noise, self.problem.noise, strict=True)),
        )
        for run in (self.kernel, self.eager):
            alone, together = run(self.problem), run(more)
            require_same(
                {key: together[key] for key in alone},
                alone,
                _TOLERANCE["float64"],
                f"{self.name} declares the scope {self.rule.scope!r}, but a parameter depends on the others",
                "scope = 'model', and no values kept from call to call",
            )

    def _check_shards(self) -> None:
        """Sums over two shards, added, are the sums over the whole."""
        problem = self.problem.of(lambda arrays: {name: arrays[name] for name in ("a", "b")})
        whole = self.kernel(problem)
        halves = [problem.of(partial(half, part=part, rename=False)) for part in (0, 1)]
        runs = [_KernelRun(self.rule, own, "float64", "numpy") for own in halves]
        for step in range(self.steps):
            info = _info(step)
            sums = [run.partial_sums(info) for run in runs]
            total = sums[0] + sums[1]
            for run, part in zip(runs, sums, strict=True):
                part[...] = total
                run.kernel.update_after_sums()
        first, second = (run.outcome() for run in runs)
        scalars = {key for key, value in whole.items() if value.ndim == 0}
        joined = {key: first[key] if key in scalars else np.concatenate([first[key], second[key]]) for key in whole}
        require_same(
            joined,
            {key: value if key in scalars else value.reshape(-1) for key, value in whole.items()},
            _TOLERANCE["float64"],
            f"{self.name} gives another result where its sums are added over two shards",
            "every sum is xp.sum of an expression of single elements",
        )

    def check_hyper(self, hyper: str) -> None:
        """A hyperparameter is read at every step, and only there."""
        value = getattr(self.rule, hyper)
        changed = 0.75 * value if value else 0.05
        remedy = f"read self.{hyper} in the methods, and keep nothing that was computed from it"

        def schedule(step: int) -> None:
            setattr(self.rule, hyper, changed if step >= self.steps // 2 else value)

        with _restored(self.rule, hyper):
            got, want = self.kernel(self.problem, schedule), self.eager(self.problem, schedule)
        what = f"the hyperparameter {self.name}.{hyper}, changed from {value} to {changed} in mid-run, "
        require_same(
            got, want, _TOLERANCE["float64"], f"{what}does not change the kernel as it changes the rule", remedy
        )
        with _restored(self.rule, hyper):
            setattr(self.rule, hyper, changed)
            assigned, inputs = self.kernel(self.problem), self._inputs()
        fresh = _rebuilt(self.rule, {hyper: changed})
        if fresh is not None and equal(self.kernel(self.problem), self._of(_rebuilt(self.rule, {}))):
            what = f"{self.name}({hyper}={changed}) differs from one whose {hyper} was set to {changed} afterwards"
            require_same(assigned, self._of(fresh), 0.0, f"{what}: a value computed from it was kept", remedy)
        if inputs == self._inputs() and not any(node.op == "input" and node.args == (hyper,) for node in self._nodes()):
            raise RuleError(f"the hyperparameter {self.name}.{hyper} has no effect; allowed: {remedy}")

    def _inputs(self) -> list[Mapping[str, float]]:
        """The rule's inputs at early and late steps: some effects start late."""
        return [
            self.rule.new_input(_info(step)) for step in (*range(self.steps), *(10**power for power in range(2, 8)))
        ]

    def check_states(self) -> None:
        """Every state changes from its initial value, unless that is the initial parameter."""
        for traced, key in ((each, key) for each in self.traces for key in each.states):
            expression = traced.new_states[key]
            kept = expression.op in ("input", "load") and expression.args[0] == f"state:{key}"
            begins = topological([traced.states[key]])
            if kept and not any(node.op in ("input", "load") for node in begins):
                raise RuleError(
                    f"the state {key!r} of {self.name} is never changed; allowed: a state that update_rule changes; "
                    f"remedy: return its new value under {key!r}, or leave it out of init_state"
                )

    def check_compiled(self) -> None:
        """The C kernel agrees with NumPy: bit-identical except for sums and transcendental functions."""
        exact = not self.traces[0].sums and not _INEXACT & {node.op for node in self._nodes()}
        for dtype, tolerance in _TOLERANCE.items():
            require_same(
                self.kernel(self.problem, dtype=dtype, backend="c"),
                self.kernel(self.problem, dtype=dtype),
                0.0 if exact else tolerance,
                f"{self.name} compiled differs in {dtype} from {self.name} in NumPy",
                "please report it: the fault is deep5's",
            )

    def check_threads(self) -> None:
        """The result does not depend on the number of threads, bit for bit."""
        problem = Problem.make({"large": (_LARGE,), "small": (3,)}, 2, self.seed)
        one, two = (_KernelRun(self.rule, problem, "float32", "c", threads=threads) for threads in (1, 2))
        for step in range(2):
            one.step(step)
            two.step(step)
        require_same(
            one.outcome(),
            two.outcome(),
            0.0,
            f"{self.name} depends on the number of threads",
            "please report it: the fault is deep5's",
        )

    def _nodes(self) -> list[Expr]:
        return [node for traced in self.traces for node in topological(traced.roots())]

    def _of(self, rule: UpdateRule | None) -> Outcome:
        return self.kernel(self.problem, rule=rule)

    def kernel(
        self,
        problem: Problem,
        schedule: Schedule | None = None,
        *,
        dtype: str = "float64",
        backend: str = "numpy",
        rule: UpdateRule | None = None,
    ) -> Outcome:
        if schedule is not None:
            schedule(0)  # the state before the first step may depend on it
        run = _KernelRun(rule or self.rule, problem, dtype, backend)
        for step in range(self.steps):
            if schedule is not None:
                schedule(step)
            run.step(step)
        return run.outcome()

    def eager(self, problem: Problem, schedule: Schedule | None = None, *, xp: Any = None) -> Outcome:
        if xp is None:
            import array_api_strict

            xp = array_api_strict
        if schedule is not None:
            schedule(0)
        run = EagerRule(self.rule, {name: xp.asarray(value) for name, value in problem.start.items()})
        for step in range(self.steps):
            if schedule is not None:
                schedule(step)
            points = run.prepare(_info(step))
            gradients = problem.gradients(points, step, "float64")
            run.update({name: xp.asarray(value) for name, value in gradients.items()}, _info(step))
        found = {f"param/{name}": value for name, value in run.parameters.items()}
        found |= {f"eval/{name}": value for name, value in run.evaluated().items()}
        found |= {f"{key}/{name}": value for name, states in run.states.items() for key, value in states.items()}
        return {key: np.array(to_numpy(value)) for key, value in found.items()}


class _KernelRun:
    def __init__(self, rule: UpdateRule, problem: Problem, dtype: str, backend: str, *, threads: int = 1) -> None:
        self.problem, self.dtype = problem, dtype
        self.live = {name: np.array(value, dtype) for name, value in problem.start.items()}
        specs = {name: TensorSpec(shape=value.shape, dtype=dtype) for name, value in self.live.items()}
        self.kernel: RuleKernel = bind_rule(rule, specs, threads=threads, backend=backend)
        self.kernel.attach(self.live)

    def step(self, step: int) -> None:
        self.kernel.prepare(_info(step))
        self.kernel.update(self.problem.gradients(self.live, step, self.dtype), _info(step))

    def partial_sums(self, info: StepInfo) -> np.ndarray:
        self.kernel.prepare(info)
        self.gradients = self.problem.gradients(self.live, info.step, self.dtype)
        addresses = [array.ctypes.data for array in self.kernel.check_gradients(self.gradients)]
        return self.kernel.partial_sums(addresses, info)

    def outcome(self) -> Outcome:
        found = {f"param/{name}": value.copy() for name, value in self.live.items()}
        with self.kernel.averaged():
            found |= {f"eval/{name}": value.copy() for name, value in self.live.items()}
        return found | self.kernel.state_dict()


def _info(step: int) -> StepInfo:
    return StepInfo(step=step, batch_size=1)


@contextmanager
def _restored(rule: UpdateRule, hyper: str) -> Iterator[None]:
    own, value = hyper in vars(rule), getattr(rule, hyper)
    try:
        yield
    finally:
        if own:
            setattr(rule, hyper, value)
        else:
            delattr(rule, hyper)


def _rebuilt(rule: UpdateRule, changed: Mapping[str, float]) -> UpdateRule | None:
    """The rule rebuilt from its attributes, or None if its constructor has other arguments or rejects the values."""
    parameters = list(inspect.signature(type(rule)).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in parameters]
    if not all(parameter.kind in plain and hasattr(rule, parameter.name) for parameter in parameters):
        return None
    if not changed.keys() <= set(names):
        return None
    try:
        return type(rule)(**{name: changed.get(name, getattr(rule, name)) for name in names})
    except Exception:  # the constructor rejects a value, for any reason: no comparison is possible
        return None
