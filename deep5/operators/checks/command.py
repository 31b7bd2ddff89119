"""What `deep5 check operator` does: it makes an operator, draws inputs for it, and checks forward and backward."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.errors import Deep5Error, ShapeError, Unsupported, UsageError, brief
from deep5.operators.check import forward_report, gradient_report
from deep5.operators.checks.report import OperatorReport
from deep5.operators.checks.subject import numpy_dtype, specs
from deep5.operators.contract import check_inputs, is_floating, name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.kernel import CODES
from deep5.operators.native import NativeOperator
from deep5.operators.operator import Operator
from deep5.seeds import generator

__all__ = ["check_operator", "drawn_inputs", "made_operator", "parse_shape"]

_SHAPE = (3, 4)


def check_operator(
    operator: Operator,
    inputs: Sequence[np.ndarray],
    *,
    reference: Callable[..., Any] | None = None,
    against: str | None = None,
    framework: str | None = None,
    strict: bool = True,
    out: str | Path | None = None,
    time_limit_s: float,
) -> OperatorReport:
    """`check_forward` and `check_gradient` in one report, in which failures are rows.

    Raises:
        Deep5Error: The operator does not run at all: it does not take the inputs, does not compile, or crashes.
    """
    report = forward_report(
        operator,
        inputs,
        reference=reference,
        against=against,
        framework=framework,
        strict=strict,
        out=out,
        time_limit_s=time_limit_s,
    )
    if isinstance(operator, CppOperator) and not operator.differentiable:
        return report.noting("gradient", "the C++ class has no backward")
    try:
        return report + gradient_report(
            operator, inputs, framework=framework, strict=strict, out=out, time_limit_s=time_limit_s
        )
    except Unsupported as error:
        return report.noting("gradient", str(error))


def made_operator(made: Any, settings: Mapping[str, Any]) -> Operator:
    """An operator from a class or function and its arguments, or one that is there already.

    Raises:
        UsageError: The arguments do not fit, or what comes of it is no operator.
    """
    name = getattr(made, "__name__", type(made).__name__)
    if isinstance(made, Operator):
        if settings:
            raise UsageError(f"{name} is an operator already; allowed: no --set, or a class instead")
        return made
    if not callable(made):
        raise UsageError(
            f"got {brief(made)}; allowed: a class of d5.Operator, an operator, or a function that gives one"
        )
    try:
        inspect.signature(made).bind(**settings)
    except TypeError as error:
        raise UsageError(
            f"the arguments of {name} do not fit: {error}; allowed: {inspect.signature(made)}; remedy: --set NAME=VALUE"
        ) from error
    try:
        operator = made(**settings)
    except Deep5Error:
        raise
    except Exception as error:
        told = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise UsageError(f"{name}({told}) raised {type(error).__name__}: {error}; remedy: other arguments") from error
    if not isinstance(operator, Operator):
        raise UsageError(f"{name} gives {brief(operator)}; allowed: a d5.Operator")
    return operator


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a shape.

    Raises:
        UsageError: Something else.

    >>> parse_shape("3x4"), parse_shape("7"), parse_shape("scalar")
    ((3, 4), (7,), ())
    """
    if text == "scalar":
        return ()
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UsageError(f"got the shape {text!r}; allowed: extents such as 3x4 or 7, or scalar")
    return tuple(int(extent) for extent in text.split("x"))


def drawn_inputs(
    operator: Operator,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Inputs for an operator: normal numbers; whole ones from 0 on, below every extent, so that they may be indices.

    Args:
        operator: Its `specs` says how many there are.
        shapes: One an input, or one for all; none: 3 x 4.
        dtypes: The same of element types; none: float32.
        bounds: Numbers evenly between these instead.
        seed: Of the numbers.

    Raises:
        UsageError: Not as many shapes or element types as inputs, or a type that is none.
        ShapeError: The operator does not take such inputs.
    """
    taken = [p for p in inspect.signature(operator.specs).parameters.values() if p.kind is not p.VAR_KEYWORD]
    open_ended = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in taken)
    count = max(len(shapes), len(dtypes), 1) if open_ended else len(taken)
    for what, given in (("--shape", shapes), ("--dtype", dtypes)):
        if len(given) not in (0, 1, count):
            names = ", ".join(parameter.name for parameter in taken)
            raise UsageError(f"got {len(given)} times {what}; allowed: once, or once an input, {count} times ({names})")
    for dtype in dtypes:
        if dtype not in CODES:
            raise UsageError(f"got the element type {dtype!r}; allowed: {', '.join(CODES)}")
    if not isinstance(operator, NativeOperator):
        check_inputs(operator, count)
    shapes = list(shapes or (_SHAPE,)) * (1 if len(shapes) == count else count)
    dtypes = list(dtypes or ("float32",)) * (1 if len(dtypes) == count else count)
    below = max(1, min((extent for shape in shapes for extent in shape), default=2))
    inputs = []
    for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False)):
        rng = generator(seed, "check operator", number)
        if is_floating(dtype):
            drawn = rng.standard_normal(shape) if bounds is None else rng.uniform(*bounds, shape)
        elif bounds is None:
            drawn = rng.integers(0, 2 if dtype == "bool" else below, shape)
        else:
            drawn = rng.integers(int(bounds[0]), int(bounds[1]), shape, endpoint=True)
        inputs.append(np.asarray(drawn).astype(numpy_dtype(dtype)))
    try:
        operator.specs(*specs(inputs))
    except ShapeError as error:
        raise ShapeError(f"{name_of(operator)}: {error}; remedy: --shape and --dtype, once an input") from error
    except Exception:  # noqa: S110  # what is wrong with `specs` itself the checks tell
        pass
    return inputs
