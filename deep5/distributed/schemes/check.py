"""Checks of user-defined schemes and compressions, made before training starts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from deep5.core.deep500 import PAGE, stated_form
from deep5.core.errors import UsageError

__all__ = ["check_initialised", "check_method", "checked_step", "shown"]


def check_initialised(made: object, base: type, attribute: str) -> None:
    """Check that the base of an object's class was initialized.

    Args:
        made: The object.
        base: The class whose `__init__` must have been called.
        attribute: The attribute that it sets on every object.

    Raises:
        UsageError: It was not called.
    """
    if attribute not in vars(made):
        name = type(made).__name__
        raise UsageError(
            f"{name}.__init__ did not call that of {base.__name__}; allowed: a class that initializes its base; "
            f"remedy: call super().__init__() first of all in {name}.__init__"
        )


def check_method(made: object, name: str, base: type) -> None:
    """Check that a method can be called as its base's, with optional arguments given and omitted.

    Args:
        made: Object of a subclass.
        name: Name of the method.
        base: The class that defines the signature.

    Raises:
        UsageError: It cannot; the message contains both signatures.

    >>> class Base:
    ...     def size(self, count, *, step=None): ...
    >>> class Own(Base):
    ...     def size(self, count): ...
    >>> check_method(Own(), "size", Base)
    Traceback (most recent call last):
    ...
    deep5.core.errors.UsageError: Own.size is size(self, count); allowed: size(self, count, *, step=None)
    """
    wanted, method = inspect.signature(getattr(base, name)), getattr(type(made), name)
    _, *parameters = wanted.parameters.values()
    required = [each for each in parameters if each.default is each.empty]
    try:
        found = inspect.signature(getattr(made, name))
        for given in (parameters, required):
            by_name = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
            found.bind(*(each for each in given if each.name not in by_name), **by_name)
    except TypeError as error:
        got = shown(name, method) if callable(method) else f"a {type(method).__name__}"
        former = name == "step" and inspect.isfunction(method) and stated_form(method, ("inputs",)) is not None
        remedy = f"; remedy: {PAGE}, which has a scheme in Deep500's form and in this one" if former else ""
        raise UsageError(
            f"{type(made).__name__}.{name} is {got}; allowed: {shown(name, getattr(base, name))}{remedy}"
        ) from error


def shown(name: str, function: Callable[..., Any]) -> str:
    """A function's definition without annotations.

    >>> def size(self, count: int, *, step: int | None = None) -> int: ...
    >>> shown("size", size)
    'size(self, count, *, step=None)'
    """
    signature = inspect.signature(function)
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return f"{name}{signature.replace(parameters=plain, return_annotation=signature.empty)}"


def checked_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a scheme's `step` to raise an error if it returns no outputs; costs about 0.1 us per call.

    Raises:
        UsageError: On a call that returns no mapping.
    """

    @functools.wraps(step)
    def checked(self: Any, inputs: Any, info: Any) -> Any:
        outputs = step(self, inputs, info)
        if type(outputs) is not dict and not isinstance(outputs, Mapping):
            got = "None" if outputs is None else f"a {type(outputs).__name__}"
            raise UsageError(
                f"step() of {type(self).__name__} returned {got}; allowed: the outputs of backprop; remedy: end it "
                "with 'return outputs'"
            )
        return outputs

    return checked
