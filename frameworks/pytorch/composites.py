"""Registers the operators that are written once, except those that the table overrides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.frameworks.pytorch.primitives import PRIMITIVES
from deep5.frameworks.pytorch.table import EAGER, OPERATORS, OVERRIDES, call, enter, writer
from deep5.frameworks.pytorch.written import written
from deep5.networks.kernels.operators import COMPOSITES, LISTS, check_overrides
from deep5.networks.kernels.table import Call, Composite

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__ = ["emit_of", "on_torch", "register"]


def on_torch(entry: Composite) -> Callable[..., Any]:
    """A composite as a function of torch's tensors."""
    function, settings = entry.function, entry.settings

    @functools.wraps(function)
    def run(*inputs: Any, **attributes: Any) -> Any:
        given = [*inputs]
        for at in settings:
            if at < len(given):
                given[at] = _flat(given[at])
        return function(PRIMITIVES, *given, **attributes)

    @functools.wraps(function)
    def run_channels_last(x: Any, *inputs: Any, **attributes: Any) -> Any:
        return run(x.movedim(1, -1), *inputs, **attributes).movedim(-1, 1)

    return run_channels_last if entry.layout == "channels last" else run


def _flat(value: Any) -> tuple[Any, ...] | None:
    """A setting as a tuple of numbers."""
    if value is None:
        return None
    return tuple(value) if isinstance(value, list) else (value,)


def emit_of(entry: Composite) -> Callable[[Emitter, ir.Node], str | None]:
    """The function of the operator table that writes the call of a composite."""
    if entry.native:
        function = getattr(PRIMITIVES, entry.native)
        return lambda emitter, node: call(emitter, node, function)
    write, direct = writer(on_torch(entry), entry.settings, entry.numbers), entry.direct

    def steps(emitter: Emitter, node: ir.Node) -> str | None:
        text = written(emitter, node, entry)
        if text is None or "outputs" not in entry.keywords:
            return write(emitter, node) if text is None else text
        emitter.line(f"{', '.join(emitter.name(value) if value.name else '_' for value in node.outputs)}, = {text}")
        return None

    if direct is None:
        return steps if entry.written else write

    def emit(emitter: Emitter, node: ir.Node) -> str | None:
        known = node.inputs[0] is not None and node.inputs[0].shape is not None
        return write(emitter, node) if not known or (found := direct(node)) is None else _written(emitter, node, found)

    return emit


def _written(emitter: Emitter, node: ir.Node, found: Call) -> str:
    inputs = map(emitter.name, [*node.inputs, *[None] * found.inputs][: found.inputs])
    function = emitter.function(getattr(PRIMITIVES, found.name))
    return f"{function}({', '.join([*inputs, *map(emitter.literal, found.arguments)])})"


def register() -> None:
    """Add the operators to the table; call it after the overrides are in the table."""
    check_overrides(OPERATORS, OVERRIDES)
    for name, entry in {**COMPOSITES, **LISTS}.items():
        if name not in OVERRIDES:
            enter(name, emit_of(entry), entry.check, entry.settings)
            # Each call draws new values: torch would compile a single draw.
            if entry.on_host or entry.reads is not None or "stream" in entry.keywords:
                EAGER.add(name)
