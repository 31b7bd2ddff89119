"""`traced_twice`: whether an update rule computes the same whenever it is called."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.training.expression import Expr, topological
from deep5.training.frozen_value import frozen
from deep5.training.reads import Reads, packages_of, recorded_copy
from deep5.training.rule import UpdateRule
from deep5.training.watched_calls import holds_impure, watched_calls

__all__ = ["check_inputs", "difference", "traced_twice"]

Traced = TypeVar("Traced", bound=Any)

_REMEDY = (
    "allowed: the same operations and constants in every call, since the step is compiled once; remedy: return a "
    "number that changes from step to step from new_input(self, info), random ones from "
    'rng = deep5.generator(info.seed, "noise", info.step) there; keep what depends on earlier steps in a state of '
    "init_state"
)


def traced_twice(rule: UpdateRule, trace: Callable[[UpdateRule], Traced]) -> Traced:
    """Trace a rule twice and compare.

    Args:
        rule: The rule.
        trace: Traces a copy of it; returns a data class that holds expressions.

    Raises:
        RuleError: The traces differ; or tracing reads the time, draws from a random generator, or changes what the rule
            reads (a counter). As for `trace`.
    """
    name, names, packages = type(rule).__name__, set[str](), packages_of(rule)
    with watched_calls(packages) as calls:
        first = trace(recorded_copy(rule, names))
    # The values of inputs and sums are symbols of the trace.
    reads, generators = Reads(rule, names - {*first.inputs, *first.sums}), _generators()
    before = {**reads.value, **calls.state}
    second = trace(recorded_copy(rule, names, reordered=True))
    if (what := difference(first, second)) is not None:
        raise RuleError(f"two traces of {name} differ: {what}; {_REMEDY}")
    for what, content in _generators().items():
        if what in generators and generators[what] != content:
            raise RuleError(f"{name} draws random numbers from {what} while it is traced; {_REMEDY}")
    after = {**reads.value, **calls.state}
    for what in {**before, **after}:
        if before.get(what) != after.get(what):
            raise RuleError(f"{name} changes {what} while it is traced, as a counter does; {_REMEDY}")
    held = map(holds_impure, (vars(rule).get(attribute) for attribute in names))
    seen = calls.impure | {what for what in held if what is not None}
    if seen:
        raise RuleError(f"{name} reads {min(seen)} while it is traced; {_REMEDY}")
    return dataclasses.replace(first, reads=reads)


def check_inputs(rule: UpdateRule) -> None:
    """Check that `new_input` depends only on the step.

    Raises:
        RuleError: Two calls for one step return different numbers.
    """
    name, seen, generators = type(rule).__name__, set[str](), _generators()
    allowed = (
        "allowed: a function of info and of the rule's attributes, so that every rank and a resumed run get the same "
        "number; remedy: info.step instead of a counter or the time, and rng = deep5.generator(info.seed, "
        '"noise", info.step) for random numbers'
    )
    for step in (0, 1, 2, 3, 10, 100, 1000):
        info = StepInfo(step=step, batch_size=1)
        tried = copy.copy(rule)  # a rule may set a hyperparameter at a later step, and has not reached it
        try:
            with watched_calls(packages_of(rule)) as calls:
                first, second = dict(tried.new_input(info)), dict(tried.new_input(info))
            seen |= calls.impure
        except Exception:  # a rule may be defined for fewer steps, or need an epoch; the step itself will report it
            if step == 0:
                raise
            continue
        for key in {**first, **second}:
            if frozen(first.get(key)) != frozen(second.get(key)):
                raise RuleError(
                    f"{name}.new_input returned {key}={first.get(key)!r}, then {key}={second.get(key)!r} for the same "
                    f"step {step}; {allowed}"
                )
    drawn = [what for what, state in _generators().items() if what in generators and generators[what] != state]
    if drawn or seen:
        raise RuleError(f"{name}.new_input reads {min([*drawn, *seen])}; {allowed}")


def difference(first: Any, second: Any, one_is: str = "in one", other_is: str = "in the other") -> str | None:
    """The first difference of two traces, in words.

    Args:
        first: A trace, a data class that holds expressions.
        second: Another one.
        one_is: How the words refer to the first.
        other_is: How they refer to the second.
    """
    one, other = _places(first), _places(second)
    if one.keys() != other.keys():
        return f"there is {', '.join(one)} {one_is}, {', '.join(other)} {other_is}"
    for what, root in one.items():
        nodes, others = topological([root]), topological([other[what]])
        numbers = ({node.serial: index for index, node in enumerate(order)} for order in (nodes, others))
        here, there = numbers
        for a, b in zip(nodes, others, strict=False):
            if a.op == b.op == "const":
                if frozen(a.args[0]) != frozen(b.args[0]):
                    return f"{what} has the constant {a.args[0]!r} {one_is} and {b.args[0]!r} {other_is}"
            elif a.op != b.op or a.dimensions != b.dimensions:
                return f"{what} is computed with {_words(a)} {one_is} and {_words(b)} {other_is}"
            elif _operands(a, here) != _operands(b, there):
                return f"{what} is computed with {_words(a)} of other operands {one_is} than {other_is}"
        if len(nodes) != len(others):
            return f"{what} is computed by {len(nodes)} operations {one_is} and by {len(others)} {other_is}"
    return None


def _places(traced: Any) -> dict[str, Expr]:
    """The expressions of a trace by what they compute."""
    found: dict[str, Expr] = {}
    for field, what in {
        "states": "the initial state",
        "sums": "the sum",
        "prepare": "the gradient's point",
        "param": "the new parameter",
        "new_states": "the new state",
        "evaluate": "the value for evaluation",
    }.items():
        value = getattr(traced, field)
        if isinstance(value, Mapping):
            found |= {f"{what} {key!r}": part for key, part in value.items()}
        elif value is not None:
            found[what] = value
    return found


def _operands(node: Expr, order: Mapping[int, int]) -> list[Any]:
    return [order[arg.serial] if isinstance(arg, Expr) else repr(arg) for arg in node.args]


def _words(node: Expr) -> str:
    if node.op == "const":
        return f"the constant {node.args[0]!r}"
    if node.op in ("input", "load"):
        return repr(node.args[0])
    return f"xp.{node.op.removeprefix('reduce_')}" + (f" of shape {node.dimensions}" if node.dimensions else "")


def _generators() -> dict[str, Any]:
    """The states of the global random generators of Python, NumPy and torch."""
    found = {"Python's 'random'": random.getstate()}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found["'numpy.random'"] = frozen(numpy.get_state())
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):  # not while it is still imported
        found["'torch'"] = frozen(torch.get_rng_state())
        if torch.cuda.is_initialized():
            found["'torch.cuda'"] = frozen(torch.cuda.get_rng_state_all())
    return found
