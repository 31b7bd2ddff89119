"""The table of composites: ONNX's operator -> the function that computes it on every back-end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

__all__ = ["Composite", "Keywords"]

Check = Callable[[ir.Node], str | None]
Keywords = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Composite:
    """An operator that is written once.

    Its function takes a back-end's `Primitives`, then the node's inputs. Its keyword-only arguments are the node's
    attributes, under ONNX's names and with ONNX's defaults. Others may be `kind`, the element type of the first output,
    `place`, the device, and `outputs`, the number of outputs: a function with this argument returns a tuple.

    Attributes:
        function: The function.
        settings: Inputs that it takes as flat tuples of Python numbers.
        traced: The settings that may also be arrays of shape (n,), where a back-end traces with unknown values.
        check: Returns why a node cannot run, or None.
        layout: The order of the axes in which it computes. `"onnx"`: ONNX's. `"elementwise"`: any; inputs broadcast.
            `"channels last"`: the channels of its first input and output come last. Otherwise any order, and this is
            the name of the argument that lists its axes: an integer or a list; None means all.
        native: The name of the function of `Primitives` that it is, which a back-end may call directly.
        reads: Returns the inputs of a node whose values determine sizes, by `Primitives.size_of`.
    """

    function: Callable[..., Any]
    settings: tuple[int, ...] = ()
    traced: tuple[int, ...] = ()
    check: Check | None = None
    layout: str = "onnx"
    reads: Callable[[ir.Node], tuple[int, ...]] | None = None
    native: str = ""

    @property
    def keywords(self) -> Keywords:
        """The keyword-only arguments with their defaults; `inspect.Parameter.empty` if ONNX requires the attribute."""
        parameters = inspect.signature(self.function).parameters
        return MappingProxyType(
            {
                name: parameter.default
                for name, parameter in parameters.items()
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY
            }
        )
