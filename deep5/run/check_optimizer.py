"""Implementation of `deep5 check optimizer`: check an optimizer in isolation, in training, and on every framework."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.errors import Deep5Error, MissingDependency, UnknownName, Unsupported, UsageError, brief, suggestion
from deep5.core.executors import StepOptimizer
from deep5.core.plugins import framework, load, registered
from deep5.core.progress import Ongoing, tracked
from deep5.recipe.operator_names import found_in_file, names_file
from deep5.recipe.settings import parse_setting
from deep5.training.check import rule_checks
from deep5.training.check_training import Outcome, Workout, converged, relative
from deep5.training.optimizer_report import OptimizerReport, OptimizerRow
from deep5.training.rule import UpdateRule

__all__ = ["check_made_optimizer", "check_optimizer"]

Optimizer = UpdateRule | StepOptimizer
Made = Callable[[], Optimizer]

_METHODS = ("bind", "step", "state_dict", "load_state_dict")
# Sums in another order differ by 1e-16 (6e-8 in float32); roots and quotients of small numbers amplify this.
_ALLOWED = {"float64": 1e-9, "float32": 1e-3}
_NATIVE = 1e-6  # some frameworks have float32 constants
_SLOWER = (1.0, 0.1, 0.01, 0.001)


def check_optimizer(
    optimizer: str, *, settings: Sequence[str] = (), framework_name: str | None = None, seed: int = 0
) -> OptimizerReport:
    """Check an update rule, or an optimizer that owns its step.

    Args:
        optimizer: `FILE.py:CLASS`, a registered name, or `native:NAME` of the given framework.
        settings: Arguments of the class, each as `NAME=VALUE`.
        framework_name: Run on this framework and on the reference; None: on all installed frameworks.
        seed: Seed of the numbers for the isolated check of an update rule.

    Raises:
        UsageError: An argument cannot be read or does not fit, or a name does not exist.
    """
    return check_made_optimizer(_maker(optimizer, settings, framework_name), framework_name=framework_name, seed=seed)


def check_made_optimizer(make: Made, *, framework_name: str | None = None, seed: int = 0) -> OptimizerReport:
    """Check what a function creates: an update rule, or an optimizer that owns its step.

    Args:
        make: Creates a new one at each call.
        framework_name: As for `check_optimizer`.
        seed: As there.

    Raises:
        UsageError: The framework does not exist.
    """
    first = make()
    names = _frameworks(framework_name)
    rows: list[OptimizerRow] = []
    if isinstance(first, UpdateRule):
        kind = "update rule"
        try:
            checks = rule_checks(first, seed=seed)
        except Deep5Error as error:
            row = OptimizerRow(check="traced", verdict="FAILED", note=str(error))
            return OptimizerReport(optimizer=_name(first), kind=kind, rows=(row,))
        rows += [_row(check, function) for check, function in tracked(checks, "checking the rule", len(checks))]
    else:
        kind = "step optimizer"
    rows += _at_work(make, tracked(names, "training on frameworks", len(names)), rule=isinstance(first, UpdateRule))
    with Ongoing("checking convergence on a convex problem"):
        rows.append(_row("convex problem", partial(_convex, make)))
    if isinstance(first, UpdateRule):
        rows += _twins(first, tracked(names, "comparing with native optimizers", len(names)))
    return OptimizerReport(optimizer=_name(first), kind=kind, rows=tuple(rows))


def _at_work(make: Made, names: Iterable[str], *, rule: bool) -> Iterator[OptimizerRow]:
    """Train a network on each framework; compare with the first framework that can train it in an element type."""
    measures: dict[str, tuple[str, Outcome, Outcome | None]] = {}
    for name in names:
        try:
            workout, found = _worked(make, name, rule)
        except Unsupported as error:
            yield OptimizerRow(check=f"training on {name}", verdict="not evaluated", note=str(error))
            continue
        except Exception as error:  # user code may raise anything
            refused = isinstance(error, UsageError) and "cannot drive" in str(error)
            yield OptimizerRow(
                check=f"training on {name}", verdict="not evaluated" if refused else "FAILED", note=_reported(error)
            )
            continue
        twice = _row(f"training on {name}, the same twice", partial(_repeat, workout, found, rule))
        groups: list[OptimizerRow] = []
        grouped: Outcome | None = None
        if rule:
            try:
                grouped = workout.grouped()
            except Exception as error:
                groups = [
                    OptimizerRow(
                        check=f"groups and gradient_modifier on {name}", verdict="FAILED", note=_reported(error)
                    )
                ]
        if workout.dtype in measures:
            other, measure, measured = measures[workout.dtype]
            yield _compared(f"training on {name} against {other}, {workout.dtype}", found, measure, workout.dtype)
            if grouped is not None and measured is not None:
                what = f"groups and gradient_modifier on {name}"
                groups = [_compared(what, grouped, measured, workout.dtype)]
        else:
            measures[workout.dtype] = name, found, grouped
            yield OptimizerRow(check=f"training on {name}, {workout.dtype}", verdict="passed")
        yield from groups
        yield twice
        yield _row(f"resumed on {name}, the same bits", workout.check_resume)


def _worked(make: Made, name: str, rule: bool) -> tuple[Workout, Outcome]:
    """Train in float64 if the framework can, otherwise in float32."""
    try:
        workout = Workout(make, name, "float64")
        return workout, _finite(workout.trajectory(schedule=rule))
    except Unsupported:
        workout = Workout(make, name, "float32")
        return workout, _finite(workout.trajectory(schedule=rule))


def _finite(found: Outcome) -> Outcome:
    import numpy as np

    for key, value in found.items():
        if not np.isfinite(value).all():
            raise UsageError(f"{key} is not finite after {len(found['losses'])} steps; allowed: finite numbers")
    if all(np.array_equal(value, found["losses"][0]) for value in found["losses"]):
        raise UsageError("the loss is the same at every step; allowed: a step that changes the parameters")
    return found


def _repeat(workout: Workout, before: Outcome, rule: bool) -> None:
    error, where = relative(workout.trajectory(schedule=rule), before)
    if error:
        raise UsageError(
            f"two runs from one start differ by {error:.2g} in {where!r}; allowed: the same bits; remedy: noise as a "
            "function of info.seed and info.step, and nothing kept outside of the optimizer"
        )


def _compared(what: str, found: Outcome, measure: Outcome, dtype: str) -> OptimizerRow:
    error, where = relative(found, measure)
    allowed = _ALLOWED[dtype]
    if error <= allowed:
        return OptimizerRow(check=what, verdict="passed", error=error, allowed=allowed)
    return OptimizerRow(
        check=what,
        verdict="FAILED",
        error=error,
        allowed=allowed,
        note=f"the largest relative difference is in {where!r}; remedy: only functions of d5.array_namespace(param), "
        "the same whatever the framework",
    )


def _convex(make: Made) -> OptimizerRow:
    """Convergence on penalized softmax regression, with a smaller learning rate if it diverges."""
    first, what = make(), "convex problem, 400 steps"
    rate = getattr(first, "lr", None) if "lr" in getattr(first, "hyper", ()) else None
    reported = []
    for factor in _SLOWER if rate else (1.0,):
        try:
            fell = converged(make, None if factor == 1.0 else factor * float(rate or 0.0))
        except (Unsupported, UsageError) as error:
            return OptimizerRow(check=what, verdict="not evaluated", note=str(error))
        at = f" at lr={factor * rate:g}" if rate else ""
        if fell < 1:
            return OptimizerRow(
                check=what, verdict="passed", note=f"|gradient|² is {fell:.2g} of its initial value{at}"
            )
        reported.append(f"{fell:.2g}{at}")
    return OptimizerRow(
        check=what,
        verdict="FAILED",
        note=f"|gradient|² is {', '.join(reported)} of its initial value; allowed: below 1; remedy: a step against "
        "the gradient",
    )


def _twins(rule: UpdateRule, names: Iterable[str]) -> Iterator[OptimizerRow]:
    """Compare with the frameworks' own optimizers of the same name, if they accept the same arguments."""
    for name in names:
        for known, made in framework(name).optimizers().items():
            if getattr(made, "twin", None) is not type(rule):
                continue
            what = f"native {known} of {name}"
            taken = [own for own in inspect.signature(made).parameters if own != "loss" and hasattr(rule, own)]
            arguments = {own: getattr(rule, own) for own in taken}
            try:
                ours = Workout(lambda: rule, name, "float64").trajectory()
                theirs = Workout(partial(made, **arguments), name, "float64").trajectory()
            except (MissingDependency, Unsupported) as error:
                yield OptimizerRow(check=what, verdict="not evaluated", note=str(error))
                continue
            except Exception as error:
                yield OptimizerRow(check=what, verdict="FAILED", note=_reported(error))
                continue
            apart, _ = relative(ours, theirs)
            if apart <= _NATIVE:
                yield OptimizerRow(check=what, verdict="passed", error=apart, allowed=_NATIVE)
            else:
                about = " ".join((made.__doc__ or "").split("\n\n")[0].split())
                yield OptimizerRow(
                    check=what, verdict="not evaluated", error=apart, allowed=_NATIVE, note=f"it differs: {about}"
                )


def _row(check: str, function: Callable[[], Any]) -> OptimizerRow:
    """The row of a check that raises on failure, or returns its own row."""
    try:
        found = function()
    except Exception as error:  # user code may raise anything
        return OptimizerRow(check=check, verdict="FAILED", note=_reported(error))
    return found if isinstance(found, OptimizerRow) else OptimizerRow(check=check, verdict="passed")


def _reported(error: Exception) -> str:
    return str(error) if isinstance(error, Deep5Error) else f"raised {type(error).__name__}: {error}"


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__


def _frameworks(wanted: str | None) -> list[str]:
    """The frameworks, the reference first, because the others are compared with it."""
    if wanted is not None:
        framework(wanted)
        return list(dict.fromkeys(["reference", wanted]))
    found = []
    for name in sorted(registered("frameworks"), key=lambda name: (name != "reference", name)):
        try:
            framework(name)
        except MissingDependency:
            continue
        found.append(name)
    return found


def _maker(text: str, settings: Sequence[str], framework_name: str | None) -> Made:
    """A function that creates the optimizer named on the command line anew at each call.

    Raises:
        UsageError: It does not exist, its arguments do not fit, or it is not an optimizer.
    """
    pairs = [parse_setting(setting) for setting in settings]
    arguments = dict(pairs)
    if len(arguments) < len(pairs):
        raise UsageError("an argument is given twice by --set; allowed: once")
    if text.startswith("native:"):
        if framework_name is None:
            raise UsageError(f"{text} is a framework's own optimizer; allowed: with --framework NAME")
        found: Any = framework(framework_name).optimizer(text.removeprefix("native:"))
    elif names_file(text):
        found = found_in_file(text, "CLASS", "optimizers", _is_optimizer)
    elif text in registered("optimizers"):
        found = load("optimizers", text)
    else:
        raise UnknownName("optimizer", text, registered("optimizers"), "remedy: FILE.py:CLASS for your optimizer")
    name = getattr(found, "__name__", type(found).__name__)
    if not callable(found) or (_is_optimizer(found) and not isinstance(found, type)):
        if arguments:
            raise UsageError(f"{name} is an object already; allowed: no --set, or a class instead")
        _check_kind(found, name)
        return partial(copy.deepcopy, found)
    _check_arguments(found, name, arguments)

    def make() -> Optimizer:
        try:
            made = found(**arguments)
        except Deep5Error as error:
            raise error if isinstance(error, UsageError) else UsageError(str(error)) from error
        except Exception as error:
            reported = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            raise UsageError(
                f"{name}({reported}) raised {type(error).__name__}: {error}; remedy: other arguments"
            ) from error
        _check_kind(made, name)
        for key, value in arguments.items():
            if isinstance(made, UpdateRule) and key in made.hyper and not is_finite(value):
                raise UsageError(f"{name}: got {key}={brief(value)}; allowed: a finite number")
        kind: Optimizer = made
        return kind

    return make


def _check_arguments(found: Any, name: str, arguments: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    taken = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        for key in arguments:
            if key not in taken:
                raise UsageError(
                    f"{name} has no argument {key!r}; allowed: {', '.join(taken) or 'none'}{suggestion(key, taken)}; "
                    "remedy: --set NAME=VALUE with one of these"
                )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"the arguments of {name} do not fit: {error}; allowed: {signature}; remedy: --set NAME=VALUE"
        ) from error


def _check_kind(made: Any, name: str) -> None:
    if isinstance(made, (UpdateRule, StepOptimizer)):
        return
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    lacks = f"; it has no {', '.join(missing)}" if len(missing) < len(_METHODS) else ""
    raise UsageError(
        f"{name} gives {brief(made)}; allowed: a d5.UpdateRule, or an object with bind, step, state_dict and "
        f"load_state_dict{lacks}"
    )


def _is_optimizer(value: Any) -> bool:
    if isinstance(value, type):
        own = [method for method in _METHODS if hasattr(value, method)]
        return (issubclass(value, UpdateRule) and value is not UpdateRule) or len(own) == len(_METHODS)
    return isinstance(value, UpdateRule | StepOptimizer)
