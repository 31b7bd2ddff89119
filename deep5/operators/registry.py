"""Operators by domain and name, which makes user-defined operators usable as nodes of any network."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from deep5.core.errors import OperatorError, UsageError, brief
from deep5.core.operator import Operator

__all__ = ["forget_operator", "make_operator", "register_operator", "registered_operator", "registered_operators"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOMAIN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_OWN = "deep5"
_OPERATORS: dict[tuple[str, str], type[Operator]] = {}
_Class = TypeVar("_Class", bound=type[Operator])


def register_operator(name: str, *, domain: str) -> Callable[[_Class], _Class]:
    """Class decorator that makes an operator usable as a node of any network.

    The node's attributes are the arguments of the class's constructor.

    A class redefined under its own name, in a notebook or a reloaded module, replaces the previous one.

    Args:
        name: The node's operator: letters, digits and `_`, as in C.
        domain: Its domain, such as `"org.example"`: letters, digits, `_` and `-` between dots; any except ONNX's
            (`ai.onnx`), deep5's (`deep5`), and their subdomains.

    Raises:
        UsageError: The name or domain is invalid, the class is not an `Operator`, or the name is taken by another
            class.

    >>> @register_operator("Twice", domain="org.example")
    ... class Twice(Operator):
    ...     def specs(self, x): return (x,)
    ...     def forward(self, x): return 2 * x
    ...     def backward(self, output_grads, inputs, outputs, needs): return (2 * output_grads[0],)
    >>> registered_operator("org.example", "Twice").__name__
    'Twice'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"register_operator: got name={brief(name)}; allowed, as in ONNX: letters, digits and _, no digit first; "
            "remedy: 'IPow', say"
        )
    if not isinstance(domain, str) or not _DOMAIN.fullmatch(domain):
        raise UsageError(
            f"register_operator: got domain={brief(domain)}; allowed: letters, digits, _ and - between dots; remedy: "
            "'org.example', say"
        )
    if _within(domain, "ai.onnx"):
        raise UsageError(f"register_operator: got the domain {domain!r}, which belongs to ONNX; remedy: another one")

    def register(made: _Class) -> _Class:
        if not isinstance(made, type) or not issubclass(made, Operator):
            raise UsageError(f"register_operator: got {brief(made)}; allowed: a class of d5.Operator")
        # A name taken here would conflict when a later import loads deep5's own operator of that name.
        if _within(domain, _OWN) and not _within(made.__module__, _OWN):
            raise UsageError(
                f"register_operator: got the domain {domain!r} for {made.__qualname__}, which belongs to deep5; "
                "remedy: another one, such as 'org.example'"
            )
        before = _OPERATORS.get((domain, name))
        same = before is not None and (before.__module__, before.__qualname__) == (made.__module__, made.__qualname__)
        if before is not None and not same:
            raise UsageError(
                f"register_operator: {name!r} of the domain {domain!r} is taken by {before.__module__}."
                f"{before.__qualname__}; remedy: another name or domain"
            )
        _OPERATORS[domain, name] = made
        return made

    return register


def _within(name: str, root: str) -> bool:
    """Whether a dotted name is another, or below it."""
    return name == root or name.startswith(f"{root}.")


def registered_operator(domain: str, name: str) -> type[Operator] | None:
    """The class for a node's domain and operator; None if nothing is registered.

    Operators that ship with deep5, or with a package that registers them by an entry point, are loaded when a node
    requires them.
    """
    if (domain, name) not in _OPERATORS and domain:
        from deep5.core.plugins import load, registered

        for entry in registered("operators"):
            if entry == f"{domain}.{name}":
                load("operators", entry)
    return _OPERATORS.get((domain, name))


def forget_operator(name: str, *, domain: str) -> None:
    """Undo `register_operator`; does nothing if there is no such operator."""
    _OPERATORS.pop((domain, name), None)


def registered_operators() -> Mapping[tuple[str, str], type[Operator]]:
    """All operators registered in this process, by domain and name."""
    return dict(_OPERATORS)


def make_operator(domain: str, name: str, attributes: Mapping[str, Any]) -> Operator:
    """Create an operator of a registered class.

    Args:
        domain: As registered.
        name: As registered.
        attributes: The constructor's arguments, by name.

    Raises:
        UsageError: No such operator is registered.
        OperatorError: The class does not accept these attributes.
    """
    made = registered_operator(domain, name)
    if made is None:
        raise UsageError(f"no operator {name!r} of the domain {domain!r} is registered; remedy: d5.register_operator")
    try:
        operator = made(**attributes)
    except Exception as error:
        raise OperatorError(
            f"{domain}.{name} with the attributes {dict(attributes)} cannot be made: {error}; remedy: the arguments of "
            f"{made.__name__}"
        ) from error
    return operator
