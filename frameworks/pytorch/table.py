"""The operator table, ONNX's name -> a small function that emits a call of torch, and what its entries share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from deep5.core.python_source import number
from deep5.networks.kernels.table import keywords_of
from deep5.networks.nodes import axis, computed, fixed, is_whole, key, rank, spare
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__ = [
    "CHECKS",
    "EAGER",
    "OPERATORS",
    "OVERRIDES",
    "RANKED",
    "SETTINGS",
    "attribute",
    "axis",
    "call",
    "computed",
    "enter",
    "extents",
    "fixed",
    "is_whole",
    "kernel",
    "key",
    "number",
    "operator",
    "rank",
    "spare",
    "writer",
]

Emit = Callable[["Emitter", ir.Node], str | None]
"""Returns the source of a node's first output; None if it appends the lines of all outputs itself."""
Check = Callable[[ir.Node], str | None]

OPERATORS: dict[str, Emit] = {}
CHECKS: dict[str, Check] = {}
"""Why a node cannot run, or None; operators without an entry always can."""
OVERRIDES: dict[str, str] = {}
"""Operators of `deep5.networks.kernels` that are written here again, and why."""
SETTINGS: dict[str, tuple[int, ...]] = {}
"""Inputs that act as settings, by operator: computed ones are read on the host when the network runs."""
EAGER: set[str] = set()
"""Operators that read other values on the host, or whose result's shape depends on values."""
RANKED: set[str] = set()
"""Operators whose source depends on the ranks of their inputs."""


def operator(
    op_type: str,
    check: Check | None = None,
    *,
    ranked: bool = False,
    override: str = "",
) -> Callable[[Emit], Emit]:
    """Register a function in the table.

    Args:
        op_type: ONNX's name.
        check: Returns why a node cannot run, or None.
        ranked: Whether the source depends on the ranks of the inputs.
        override: Why the table does not use the operator of `deep5.networks.kernels`.
    """

    def register(emit: Emit) -> Emit:
        if override:
            OVERRIDES[op_type] = override
        enter(op_type, emit, check)
        if ranked:
            RANKED.add(op_type)
        return emit

    return register


def enter(op_type: str, emit: Emit, check: Check | None, settings: tuple[int, ...] = ()) -> None:
    """Add an operator to the tables."""
    OPERATORS[op_type] = emit
    if check is not None:
        CHECKS[op_type] = check
    if settings:
        SETTINGS[op_type] = settings


def kernel(
    op_type: str,
    check: Check | None = None,
    *,
    settings: tuple[int, ...] = (),
    eager: bool = False,
    override: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors, which the source calls with the node's inputs.

    Its keyword arguments are the node's attributes, by their names; its defaults are ONNX's. Others may be those of
    `Composite` that are no attributes.

    Args:
        op_type: ONNX's name.
        check: Returns why a node cannot run, or None.
        settings: Inputs that it takes as numbers, or lists of numbers, instead of tensors.
        eager: Whether it reads other values on the host, or its result's shape depends on values.
        override: As for `operator`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if override:
            OVERRIDES[op_type] = override
        enter(op_type, writer(function, settings), check, settings)
        if eager:
            EAGER.add(op_type)
        return function

    return register


def writer(
    function: Callable[..., Any],
    settings: tuple[int, ...] = (),
    numbers: Callable[[ir.Node], Mapping[int, Any]] = lambda node: {},
) -> Emit:
    """A function that emits the call of a kernel; see `kernel`, and for `numbers`, `Composite`."""
    takes = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }

    def emit(emitter: Emitter, node: ir.Node) -> str | None:
        known = numbers(node)
        inputs = [
            emitter.literal(known[position])
            if position in known
            else emitter.setting(value)
            if position in settings
            else emitter.name(value)
            for position, value in enumerate(node.inputs)
        ]
        inputs += keywords_of(
            takes,
            node,
            lambda name, value: emitter.literal(value),
            dtype=emitter.dtype,
            nested=emitter.nested,
            channels=lambda: "1",
            checked=lambda: "True",
            place=emitter.place,
            stream=lambda: emitter.stream(node),
            window=lambda: emitter.literal(Window.at(node)),
        )
        text = f"{emitter.function(function)}({', '.join(inputs)})"
        if "outputs" not in takes:
            return text
        names = [emitter.name(value) if value.name else "_" for value in node.outputs]
        emitter.line(f"{', '.join(names)}, = {text}")
        return None

    return emit


def call(emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str) -> str:
    """The source of function(inputs …, further arguments)."""
    inputs = [emitter.name(value) for value in node.inputs]
    return f"{emitter.function(function)}({', '.join([*inputs, *arguments])})"


def extents(node: ir.Node, position: int = 0) -> list[int | None]:
    """The dimensions of an input; None for symbolic ones."""
    shape = node.inputs[position].shape  # type: ignore[union-attr]
    return [extent if isinstance(extent, int) else None for extent in shape]  # type: ignore[union-attr]
