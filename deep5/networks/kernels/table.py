"""The table of composites: ONNX's operator -> the function that computes it on every back-end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx_ir as ir

__all__ = ["Call", "Composite", "Keywords"]

Check = Callable[[ir.Node], str | None]
Keywords = Mapping[str, Any]


class Call(NamedTuple):
    """The call of one function of `Primitives`: its name, how many of the node's inputs it takes, further arguments."""

    name: str
    inputs: int
    arguments: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Composite:
    """An operator that is written once.

    Its function takes a back-end's `Primitives`, then the node's inputs. Its keyword-only arguments are the node's
    attributes, under ONNX's names and with ONNX's defaults. Others may be:

    - `kind`: the element type of the first output, and `place`: the device;
    - `channels`: the axis of channels, 1 or -1, and `window`: the node's `Window`;
    - `checked`: whether the back-end reports indices out of bounds;
    - `stream`: a source of random numbers;
    - `outputs`: the number of outputs: a function with this argument returns a tuple.

    Attributes:
        function: The function.
        settings: Inputs that it takes as flat tuples of Python numbers.
        traced: The settings that may also be arrays of shape (n,), where a back-end traces with unknown values.
        check: Returns why a node cannot run, or None.
        layout: The order of the axes in which it computes. `"onnx"`: ONNX's. `"elementwise"`: any; inputs broadcast.
            `"channels last"`: the channels of its first input and output come last. `"image"`: the same, or ONNX's,
            as its argument `channels` says. `"reduced"`: any; its second input lists the axes that it removes.
            Otherwise any order, and this is the name of the argument that lists its axes: an integer or a list; None
            means all.
        direct: Returns the one call that a node is, in ONNX's order, or None; a back-end may write it instead.
        native: The name of the function of `Primitives` that it is, which a back-end may call directly.
        reads: Returns the inputs of a node whose values determine sizes.
        product: Whether it sums products, which a back-end may have to compute in float32.
        bounded: The position of an input of indices, which must be within bounds; 0: none.
    """

    function: Callable[..., Any]
    settings: tuple[int, ...] = ()
    traced: tuple[int, ...] = ()
    check: Check | None = None
    layout: str = "onnx"
    reads: Callable[[ir.Node], tuple[int, ...]] | None = None
    native: str = ""
    direct: Callable[[ir.Node], Call | None] | None = None
    bounded: int = 0
    product: bool = False

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
