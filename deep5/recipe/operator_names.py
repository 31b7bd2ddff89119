"""Create the operator named by a command line or a plan, with its arguments; and parse shapes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error, UnknownName, UsageError, brief, suggestion
from deep5.core.files import is_file
from deep5.core.operator import Operator
from deep5.core.plugins import registered
from deep5.operators.native import NativeOperator
from deep5.operators.registry import registered_operator, registered_operators
from deep5.recipe.file import named_in_file

__all__ = ["found_in_file", "made_operator", "names_file", "parse_shape"]

_SHOWN = 8
# Kinds of parameters that can receive a positional array.
_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def made_operator(
    text: str, arguments: Mapping[str, Any], *, folder: Path | None = None, framework: str | None = None
) -> Operator:
    """Create an operator by its name.

    A function in a file is called with the arguments if it requires nothing else, and returns an operator; otherwise it
    is a function of arrays, which runs as a `NativeOperator` with the arguments.

    Args:
        text: `FILE.py:NAME`, a registered `DOMAIN.NAME`, or the name of an ONNX operator, such as `Conv`.
        arguments: Arguments of its class, or attributes of an ONNX operator.
        folder: Folder of a relative file; None: the working directory.
        framework: The framework of a function of arrays in a file; None: functions of arrays are not accepted.

    Raises:
        UsageError: It does not exist, the arguments do not fit, or the result is not an operator.
    """
    import onnx

    from deep5.networks.onnx.versions import OPSET
    from deep5.networks.onnx_operator import ONNXOperator

    if names_file(text):
        found = found_in_file(text, "CLASS", "operators", _is_operator, folder)
        if framework is not None and callable(found) and not isinstance(found, (type, Operator)):
            return _of_function(found, arguments, framework)
        return _made(found, arguments)
    domain, _, name = text.rpartition(".")
    if (kind := registered_operator(domain, name)) is not None:
        return _made(kind, arguments)
    if onnx.defs.has(text, OPSET, ""):
        return ONNXOperator(text, **arguments)
    known = {*registered("operators"), *(f"{domain}.{name}" for domain, name in registered_operators())}
    standard = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
    others = f"remedy: FILE.py:CLASS for your operator, or one of ONNX's, such as Conv{suggestion(text, standard)}"
    raise UnknownName("operator", text, known, others)


def names_file(text: str) -> bool:
    """Whether the name refers to a file."""
    return text.endswith(".py") or ".py:" in text


def found_in_file(text: str, what: str, kind: str, wanted: Callable[[Any], bool], folder: Path | None = None) -> Any:
    """The value that `FILE.py:NAME` names.

    Args:
        text: File, colon, name.
        what: Word for such a name in messages.
        kind: Word for such values in messages, which list those in the file.
        wanted: Whether a value is of this kind.
        folder: Folder of a relative file; None: the working directory.

    Raises:
        UsageError: The file or the name does not exist, or the file cannot be run.
    """
    file, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    path = Path(folder or "", file)
    if not is_file(path):
        near = sorted(each.name for each in path.parent.glob("*.py"))
        raise UsageError(
            f"the file {file} cannot be read, since it is not there; allowed: FILE.py:{what}; Python files beside it: "
            f"{', '.join(near[:_SHOWN]) or 'none'}{', …' if len(near) > _SHOWN else ''}"
            f"{suggestion(path.name, near)}"
        )
    # Every file defines `__name__`, under which its module is registered after it has run.
    scope = vars(sys.modules[named_in_file(f"{file}:__name__", folder)])
    if name in scope:
        return scope[name]
    there = [
        known
        for known, value in scope.items()
        if not known.startswith("_") and wanted(value)
        # Functions of other modules are only imported for use.
        if not inspect.isfunction(value) or value.__module__ == scope["__name__"]
    ]
    says = f"{file} has no {name!r}" if name else f"{file} names only a file"
    raise UsageError(
        f"{says}; allowed: {file}:{what}, of the {kind} in it: {', '.join(there) or 'none'}{suggestion(name, there)}"
    )


def _of_function(function: Any, arguments: Mapping[str, Any], framework: str) -> Operator:
    """The operator that a function returns if it requires only the arguments, otherwise the function of arrays itself.

    Raises:
        UsageError: It takes no arrays and does not return an operator.
    """
    native = partial(NativeOperator, function, framework=framework, **arguments)
    try:
        taken = inspect.signature(function)
        taken.bind(**arguments)
    except (TypeError, ValueError):
        return native()  # it requires more, or its signature is unknown: a function of arrays
    arrays = [p for p in taken.parameters.values() if p.name not in arguments and p.kind in _PLACES]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in arrays):
        return native()
    try:
        return _made(function, arguments)
    except UsageError:
        if arrays:  # its arrays are optional, and it does not return an operator
            return native()
        raise


def _is_operator(value: Any) -> bool:
    if inspect.isfunction(value):
        return True
    if isinstance(value, type):
        return issubclass(value, Operator) and not inspect.isabstract(value)
    return isinstance(value, Operator)


def _made(made: Any, settings: Mapping[str, Any]) -> Operator:
    """Create an operator from a class or function and its arguments, or return an existing one.

    Raises:
        UsageError: The arguments do not fit, or the result is not an operator.
    """
    name = getattr(made, "__name__", type(made).__name__)
    if isinstance(made, Operator):
        if settings:
            raise UsageError(f"{name} is an operator already; allowed: no --set, or a class instead")
        return made
    if not callable(made):
        raise UsageError(
            f"got {brief(made)}; allowed: a class of d5.Operator, an operator, or a function that returns one or "
            "takes arrays"
        )
    taken = inspect.signature(made).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        for key in settings:
            if key not in taken:
                raise UsageError(
                    f"{name} has no argument {key!r}; allowed: {', '.join(taken) or 'none'}{suggestion(key, taken)}; "
                    "remedy: --set NAME=VALUE with one of these"
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
        shown = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise UsageError(f"{name}({shown}) raised {type(error).__name__}: {error}; remedy: other arguments") from error
    if not isinstance(operator, Operator):
        raise UsageError(f"{name} gives {brief(operator)}; allowed: a d5.Operator")
    return operator


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a shape.

    Raises:
        UsageError: It is not a shape.

    >>> parse_shape("3x4"), parse_shape("7"), parse_shape("scalar")
    ((3, 4), (7,), ())
    """
    if text == "scalar":
        return ()
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UsageError(f"got the shape {text!r}; allowed: sizes such as 3x4 or 7, or scalar")
    return tuple(int(extent) for extent in text.split("x"))
