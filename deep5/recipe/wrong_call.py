"""Explain a call with wrong arguments: what the called object takes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from deep5.core.errors import suggestion
from deep5.core.python_source import parse

__all__ = ["wrong_call"]

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
# Python's own messages for a call that does not fit a signature.
_CALLS = re.compile(rf"\(\) (?:{_UNEXPECTED.pattern}|got multiple values|missing \d|takes )")


def wrong_call(error: BaseException, file: str, source: bytes) -> str | None:
    """What a file called with wrong arguments and what that takes; None for another error.

    Args:
        error: What the file raised.
        file: Its path, as it was compiled.
        source: Its source.

    >>> code = b"def area(width, height): ...\\narea(width=1, hight=2)"
    >>> try:
    ...     exec(compile(code, "own.py", "exec"), {})
    ... except TypeError as error:
    ...     print(wrong_call(error, "own.py", code))
    area got the argument 'hight'; allowed: width, height; did you mean 'height'?
    """
    if type(error) is not TypeError or error.__traceback__ is None:
        return None
    message = str(error)  # of Python's own type: others may raise here
    if _CALLS.search(message) is None:
        return None
    step = error.__traceback__
    while step.tb_next is not None:
        step = step.tb_next
    frame = step.tb_frame
    if frame.f_code.co_filename != file:  # raised further inside, where the arguments are not the file's
        return None
    begin_line, end_line, begin, end = list(frame.f_code.co_positions())[step.tb_lasti // 2]
    for node in ast.walk(parse(source)):
        place = (getattr(node, name, None) for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"))
        if isinstance(node, ast.Call) and (*place,) == (begin_line, end_line, begin, end):
            return _explained(node, {**frame.f_globals, **frame.f_locals}, message)
    return None


def _explained(call: ast.Call, names: Mapping[str, Any], message: str) -> str | None:
    try:
        called = _named(call.func, names)
        signature = inspect.signature(called)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    allowed = [name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD]
    name = ast.unparse(call.func)
    if (wrong := _UNEXPECTED.search(message)) is not None:
        return f"{name} got the argument {wrong[1]!r}; allowed: {', '.join(allowed) or 'none'}" + suggestion(
            wrong[1], allowed
        )
    plain = signature.replace(return_annotation=signature.empty)
    return f"{name}{message[message.index('()') + 2 :]}; allowed: {name}{plain}"


def _named(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """The object that a dotted name stands for."""
    if isinstance(expression, ast.Name):
        return names[expression.id]
    if isinstance(expression, ast.Attribute):
        return getattr(_named(expression.value, names), expression.attr)
    raise TypeError("not a dotted name")
