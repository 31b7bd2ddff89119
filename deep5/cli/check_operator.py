"""Implementation of `deep5 check operator`: create an operator, draw inputs, and check forward and backward passes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil

from deep5.core.errors import (
    NetworkError,
    OperatorError,
    ShapeError,
    Unsupported,
    UsageError,
    brief,
    suggestion,
)
from deep5.core.operator import Operator
from deep5.core.progress import Ongoing
from deep5.core.quantities import size
from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.networks.onnx.versions import OPSET
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.check import TIME_LIMIT_S, check_forward, check_gradient, check_time_limit
from deep5.operators.checks.inputs import floating
from deep5.operators.checks.report import OperatorReport
from deep5.operators.checks.subject import specs
from deep5.operators.checks.survival import survive_again
from deep5.operators.checks.truth import own_dtype
from deep5.operators.contract import check_inputs, is_floating, name_of
from deep5.operators.cpp import CppOperator
from deep5.operators.drawn import below_extents, check_bounds, check_held, each_input, whole_numbers
from deep5.operators.native import NativeOperator
from deep5.operators.plan import CODES
from deep5.recipe.operator_names import found_in_file, made_operator, names_file, parse_shape
from deep5.recipe.settings import parse_setting

__all__ = ["check_made", "check_operator", "draw_inputs", "made_again"]

_SHAPE = (3, 4)


def check_operator(
    operator: str,
    *,
    settings: Sequence[str] = (),
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
    framework: str | None = None,
    against: str | None = None,
    strict: bool = True,
    time_limit_s: float = TIME_LIMIT_S,
    out: str | Path | None = None,
) -> OperatorReport:
    """Run `check_forward` and `check_gradient` on a command line's operator, in one report with failures as rows.

    Args:
        operator: `FILE.py:NAME`, a registered name, or the name of an ONNX operator.
        settings: Arguments of the class, each as `NAME=VALUE`.
        shapes: Shapes of the inputs, each as `3x4`; one for all, or one per input.
        dtypes: Element types, likewise.
        bounds: Inputs are uniform between these; None: normal numbers.
        seed: Seed of the inputs.
        framework: As for `check_forward`.
        against: The reference: a framework, or `FILE.py:FUNCTION`.
        strict: As for `check_forward`.
        time_limit_s: Time limit in seconds of one call in a separate process.
        out: As for `check_forward`.

    Raises:
        UsageError: An argument that cannot be read, or a name that does not exist.
        Deep5Error: The operator does not run at all: it does not accept the inputs, does not compile, or crashes.
    """
    check_time_limit("--time-limit", time_limit_s)
    if bounds is not None:
        check_bounds(bounds)
    # A plain function receives arrays of the named framework, or of NumPy.
    own = made_again(operator, settings, (framework or "reference").partition(":")[0])
    inputs = draw_inputs(own, list(map(parse_shape, shapes)), dtypes, bounds, seed)
    reference = None if against is None else _named_reference(against)
    if not isinstance(own, (CppOperator, NativeOperator, ONNXOperator)):
        # A crash occurs with any element type, so two are enough; a hang would otherwise exhaust the limit for each
        # type twice.
        tried = tuple(dict.fromkeys((own_dtype(inputs), "float64")))
        again = f"{__name__}:{made_again.__name__}"
        survive_again(name_of(own), again, (operator, list(settings)), inputs, tried, time_limit_s)
    options: dict[str, Any] = {"framework": framework, "strict": strict, "out": out, "time_limit_s": time_limit_s}
    with Ongoing(f"checking {name_of(own)}"):
        return check_made(own, inputs, reference=reference, against=None if reference else against, **options)


def check_made(
    operator: Operator,
    inputs: Sequence[np.ndarray],
    *,
    reference: Callable[..., Any] | None,
    against: str | None,
    **options: Any,
) -> OperatorReport:
    """Run `check_forward` and `check_gradient` on an operator, in one report with failures as rows.

    Args:
        operator: The operator.
        inputs: Its inputs.
        reference: As for `check_forward`, like `against` and `options`.
        against: As there.
        options: Options of both.

    Raises:
        OperatorError: The operator does not run at all.
        NetworkError: It does not accept the inputs.
    """
    try:
        report = check_forward(operator, inputs, reference=reference, against=against, raises=False, **options)
        if isinstance(operator, CppOperator) and not operator.differentiable:
            return report.noting("gradient", "the C++ class has no backward")
        try:
            return report + check_gradient(operator, inputs, raises=False, **options)
        except Unsupported as error:
            return report.noting("gradient", str(error))
    except (OperatorError, NetworkError) as error:
        raise type(error)(f"{error}; {_drawn_text(operator, inputs)}") from error


def made_again(text: str, settings: Sequence[str], framework: str = "reference") -> Operator:
    """Create an operator by its name and arguments as on a command line; separate processes call this, too.

    Args:
        text: Name of the operator.
        settings: Each as `NAME=VALUE`.
        framework: Framework of a function of arrays in a file.

    Raises:
        UsageError: An argument that cannot be read or is given twice; as for `made_operator`.
    """
    pairs = [parse_setting(setting) for setting in settings]
    if len({key for key, _ in pairs}) < len(pairs):
        raise UsageError("an argument is given twice by --set; allowed: once")
    try:
        return made_operator(text, dict(pairs), framework=framework)
    except UsageError as error:
        raise _unfinished(text, error) or error from error.__cause__


def _unfinished(text: str, error: UsageError) -> UsageError | None:
    """The message on a class that lacks methods of an operator; None for other errors."""
    found = re.search(r"abstract class \w+ .*abstract methods? (.*)", str(error.__cause__))
    if found is None:
        return None
    missing = re.findall(r"\w+", found[1])
    none = (
        '; in an operator without gradients, such as one of integers, it is `raise NotImplementedError("no gradient")`'
    )
    return UsageError(
        f"{text} has no {' and no '.join(missing)}; allowed: a class with specs, forward and backward; remedy: write "
        f"{'it' if len(missing) == 1 else 'them'}{none if 'backward' in missing else ''}"
    )


def _drawn_text(operator: Operator, inputs: Sequence[np.ndarray]) -> str:
    """Description of the inputs of an operator, and how to change them."""
    names, _, _ = _taken(operator)
    shown = [
        f"{names[number] if number < len(names) else f'input {number}'} {spec}"
        for number, spec in enumerate(specs(inputs))
    ]
    whole = "; integers, such as indices, by --dtype int64" if all(floating(inputs)) else ""
    count = f"its inputs are {', '.join(names)}; " if isinstance(operator, ONNXOperator) else ""
    return f"{count}the inputs were {', '.join(shown)} (change them by --shape and --dtype, one per input{whole})"


def _taken(operator: Operator) -> tuple[list[str], int, bool]:
    """The names of an operator's inputs, their minimum number, and whether there may be more."""
    if isinstance(operator, ONNXOperator):
        schema = onnx.defs.get_schema(operator.op_type, OPSET, "")
        names = [
            f"{each.name} (optional)" if n >= schema.min_input else each.name for n, each in enumerate(schema.inputs)
        ]
        return names, max(1, schema.min_input), schema.max_input > schema.min_input
    taken = [p for p in inspect.signature(operator.specs).parameters.values() if p.kind is not p.VAR_KEYWORD]
    open_ended = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in taken)
    return [parameter.name for parameter in taken if parameter.kind < 2], 1 if open_ended else len(taken), open_ended


def _named_reference(text: str) -> Callable[..., Any] | None:
    """The function that `FILE.py:FUNCTION` names; None if the string names no file.

    Raises:
        UsageError: It does not exist, or is not a function.
    """
    if not names_file(text):
        return None
    found = found_in_file(text, "FUNCTION", "functions", inspect.isfunction)
    if not callable(found):
        raise UsageError(f"{text} is {brief(found)}; allowed: a function of NumPy arrays")
    made: Callable[..., Any] = found
    return made


def draw_inputs(
    operator: Operator,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Draw inputs for an operator: normal numbers, or for integer types, numbers usable as indices.

    Integers start at 0 and are smaller than every dimension.

    Args:
        operator: Its `specs` defines the number of inputs.
        shapes: One per input, or one for all; none: 3 x 4.
        dtypes: Element types, likewise; none: float32.
        bounds: Draw uniform numbers between these instead.
        seed: Seed of the numbers.

    Raises:
        UsageError: The number of shapes or element types differs from that of inputs, or an element type is unknown.
        ShapeError: The operator does not accept such inputs.
        UsageError: There is not enough memory, or an element type cannot hold numbers between the bounds.
    """
    names, least, open_ended = _taken(operator)
    count = max(len(shapes), len(dtypes), least) if open_ended else least
    shapes = each_input("--shape", shapes or (_SHAPE,), count, names)
    dtypes = each_input("--dtype", dtypes or ("float32",), count, names)
    for dtype in dtypes:
        if dtype not in CODES:
            raise UsageError(f"got the element type {dtype!r}; allowed: {', '.join(CODES)}{suggestion(dtype, CODES)}")
    if not isinstance(operator, NativeOperator):
        check_inputs(operator, count)
    _check_room(shapes, dtypes)
    if bounds is not None:
        for dtype in dtypes:
            check_held(bounds, dtype)
    below = below_extents(shapes)
    inputs = []
    for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False)):
        rng = generator(seed, "check operator", number)
        if is_floating(dtype):
            drawn = _of_both_signs(rng.standard_normal(shape)) if bounds is None else rng.uniform(*bounds, shape)
            inputs.append(np.asarray(drawn).astype(numpy_dtype(dtype)))
        else:
            inputs.append(whole_numbers(rng, shape, dtype, below, bounds))
    try:
        operator.specs(*specs(inputs))
    except ShapeError as error:
        name = "" if str(error).startswith(f"{name_of(operator)}:") else f"{name_of(operator)}: "
        raise ShapeError(f"{name}{error}; {_drawn_text(operator, inputs)}") from error
    except NetworkError as error:
        raise NetworkError(f"{error}; {_drawn_text(operator, inputs)}") from error
    except Exception:  # noqa: S110  # the checks report faults of `specs`
        pass
    return inputs


def _of_both_signs(drawn: Any) -> np.ndarray:
    """Numbers of both signs: if all happen to have one sign, the first gets the other."""
    values = np.asarray(drawn)
    if values.size > 1 and ((values > 0).all() or (values < 0).all()):
        values.reshape(-1)[0] *= -1
    return values


def _check_room(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
    """Reject inputs that do not fit into this machine's memory; they are drawn in float64, and then cast.

    Raises:
        UsageError: The message states how much they require.
    """
    sizes = [math.prod(shape) for shape in shapes]
    needed = sum(size * numpy_dtype(dtype).itemsize for size, dtype in zip(sizes, dtypes, strict=False)) + 8 * max(
        sizes, default=0
    )
    free = psutil.virtual_memory().available
    if needed > free:
        shown = ", ".join("x".join(map(str, shape)) or "scalar" for shape in dict.fromkeys(shapes))
        raise UsageError(
            f"drawing inputs of the shape {shown} takes {size(needed)}, and {size(free)} of memory "
            "are free; allowed: inputs that fit; remedy: smaller ones by --shape"
        )
