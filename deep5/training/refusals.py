"""`TraceError`: what an update rule may not do with a symbol; noted, so that a rule that catches it is refused, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from deep5.core.errors import RuleError
from deep5.core.own_files import is_standard

__all__ = ["ParameterDtype", "TraceError", "asked_by_rule", "refusals", "refuse_conversion"]

_FOUND: ContextVar[list[TraceError] | None] = ContextVar("_FOUND", default=None)
# Modules that read a symbol's class for their caller: those of abstract types.
_BETWEEN = ("abc", "typing", "functools")


class TraceError(RuleError):
    """A `RuleError` of an operation on symbols."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        found = _FOUND.get()
        if found is not None:
            found.append(self)


@contextmanager
def refusals() -> Iterator[list[TraceError]]:
    """Inside the context, the errors of operations on symbols are collected, also those that the rule catches."""
    found: list[TraceError] = []
    token = _FOUND.set(found)
    try:
        yield found
    finally:
        _FOUND.reset(token)


def asked_by_rule() -> bool:
    """Whether the caller's caller is a rule's own code in a trace: not deep5, a library or a debugger."""
    if _FOUND.get() is None:
        return False
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    if frame is None:
        return False
    name, path = frame.f_globals.get("__name__") or "", frame.f_code.co_filename
    own = name.startswith(("deep5.training.", "deep5.core.")) and not name.startswith("deep5.training.rules.")
    return not (is_standard(name) or own or "site-packages" in path)


def refuse_conversion(what: str) -> NoReturn:
    """Reject the use of a symbol as what it is not.

    Raises:
        TraceError: Always.
    """
    raise TraceError(
        f"an update rule {what}, which a trace cannot follow: arrays and hyperparameters are symbols while the rule is "
        "compiled; allowed: operators and the functions of xp = d5.array_namespace(param); remedy: "
        "xp.where(condition, a, b), a value of new_input(self, info), or, to print it, logging.debug('%s', value)"
    )


class ParameterDtype:
    """The `dtype` of a symbol: the parameter's, which a rule may pass on but not look at."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ParameterDtype):
            return True
        refuse_conversion("decided by the dtype of an array")

    def __hash__(self) -> int:
        return hash(refuse_conversion("decided by the dtype of an array"))

    def __repr__(self) -> str:
        if asked_by_rule():
            refuse_conversion("converted the dtype of an array to a string")
        return "the parameter's dtype"

    def __format__(self, specification: str) -> str:
        if asked_by_rule():
            refuse_conversion("converted the dtype of an array to a string")
        return repr(self)

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # libraries query protocols this way
            raise AttributeError(name)
        refuse_conversion(f"used '.{name}' of the dtype of an array")
