"""Composites as straight-line source: they run once with values that stand for source, instead of at every call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from deep5.core.python_source import number
from deep5.frameworks.pytorch.emitter import Emitter
from deep5.frameworks.pytorch.primitives import PRIMITIVES
from deep5.networks.constants import constant_value
from deep5.networks.kernels.table import Composite, option

__all__ = ["written"]


class _Source:
    """An array or a size, as the source that computes it.

    Args:
        text: The source.
        shape: The sizes of an array, if they are needed.
    """

    __hash__ = None  # type: ignore[assignment]  # equality is not known

    def __init__(self, text: str, shape: tuple[Any, ...] = ()) -> None:
        self._text, self.shape, self.ndim = text, shape, len(shape)

    def __str__(self) -> str:
        return self._text

    def __getitem__(self, key: Any) -> _Source:
        return _Source(f"{self}[{_text(key)}]")

    def __mul__(self, other: Any) -> _Source:
        return _Source(f"{self} * {_text(other)}")

    def __rmul__(self, other: Any) -> _Source:
        return self if other == 1 else _Source(f"{_text(other)} * {self}")

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("a decision by a size that is not known")


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_text(each)}, ' for each in value)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return number(value) if isinstance(value, float) else str(value)


class _Writing:
    """`Primitives` that return the source of their calls."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def __getattr__(self, name: str) -> Callable[..., _Source]:
        function = self._emitter.function(_primitive(name))

        def call(*inputs: Any, **options: Any) -> _Source:
            given = [*map(_text, inputs), *(f"{key}={_text(value)}" for key, value in options.items())]
            return _Source(f"{function}({', '.join(given)})")

        return call

    def table(self, function: Callable[..., Any], *numbers: Any, like: Any) -> _Source:
        if any(isinstance(each, _Source) for each in numbers):
            raise TypeError("numbers that are not known")
        return _Source(self._emitter.constant(function(np, *numbers)))


@functools.cache
def _primitive(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(PRIMITIVES, name)
    return found


def written(emitter: Emitter, node: ir.Node, entry: Composite) -> str | None:
    """The source of a composite's steps; None if they depend on what is not known."""
    if any(value is not None and value.shape is None for value in node.inputs):
        return None
    inputs, numbers = list[Any](), entry.numbers(node)
    for at, value in enumerate(node.inputs):
        known = constant_value(value) if at in entry.settings else None
        if value is None or at in numbers:
            inputs.append(numbers.get(at))
        elif at not in entry.settings:
            inputs.append(_array(emitter, value))
        elif known is None:
            return None
        else:
            inputs.append(tuple(known.reshape(-1).tolist()))
    try:
        return _text(entry.function(_Writing(emitter), *inputs, **_options(emitter, node, entry)))
    except TypeError:  # an operation that sources lack
        return None


def _array(emitter: Emitter, value: ir.Value) -> _Source:
    name, known = emitter.name(value), not emitter.is_nested(value)
    sizes = [n if known and isinstance(n, int) else f"{name}.shape[{at}]" for at, n in enumerate(value.shape or ())]
    return _Source(name, tuple(size if isinstance(size, int) else _Source(size) for size in sizes))


def _options(emitter: Emitter, node: ir.Node, entry: Composite) -> dict[str, Any]:
    known: dict[str, Callable[[], Any]] = {
        "kind": lambda: _Source(emitter.dtype(node.outputs[0])),
        "outputs": lambda: len(node.outputs),
        "place": lambda: _Source(emitter.place()),
    }
    return {
        name: known[name]() if name in known else option(node, name, default)
        for name, default in entry.keywords.items()
    }
