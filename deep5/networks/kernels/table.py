"""The table of composites: ONNX's operator -> the function that computes it on every back-end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx_ir as ir

from deep5.networks.nodes import fixed
from deep5.networks.onnx.attributes import attribute
from deep5.networks.transforms.control_flow import never_stops

__all__ = ["Call", "Composite", "Keywords", "keywords_of", "option"]

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
    attributes, under ONNX's names and with ONNX's defaults; a subgraph is a function that returns a tuple.
    Others may be:

    - `kind`: the element type of the first output, and `place`: the device;
    - `kinds`: a pair of the shape (0 where it is unknown) and the element type for each output of the subgraph `body`;
    - `counted`: whether only the number of iterations ends a loop;
    - `channels`: the axis of channels, 1 or -1, and `window`: the node's `Window`;
    - `checked`: whether the back-end reports indices out of bounds;
    - `stream`: a source of random numbers;
    - `outputs`: the number of outputs: a function with this argument returns a tuple.

    Attributes:
        function: The function.
        settings: Inputs that it takes as flat tuples of Python numbers.
        traced: The settings that may also be arrays of shape (n,), where a back-end traces with unknown values.
        scalars: Inputs that it takes as a number if they are a constant of one element, as None if of no element.
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
        alike: Whether all inputs have the axes of the first one.
        written: Whether its steps may become source, if all settings are known: it uses each array that it makes once.
        on_host: Whether its values must be known when it runs: it reads them, or runs subgraphs in Python.
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
    scalars: tuple[int, ...] = ()
    alike: bool = False
    written: bool = False
    on_host: bool = False

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

    def numbers(self, node: ir.Node) -> dict[int, Any]:
        """The values of `scalars` that are constants, by position."""
        given = {at: fixed(node, at) for at in self.scalars}
        one = {at: value.reshape(-1) for at, value in given.items() if value is not None and value.size < 2}
        return {at: value[0].item() if value.size else None for at, value in one.items()}


def keywords_of(
    keywords: Keywords,
    node: ir.Node,
    literal: Callable[[str, Any], str],
    *,
    dtype: Callable[[ir.Value], str],
    nested: Callable[[ir.Graph], str],
    **others: Callable[[], str],
) -> list[str]:
    """The keyword-only arguments as source.

    Args:
        keywords: Their names and defaults.
        node: The node.
        literal: The source of an attribute, from its name and value.
        dtype: The source of a value's element type.
        nested: The source of a subgraph.
        others: The sources of arguments that are no attributes.
    """
    made = []
    for name, default in keywords.items():
        if name in others:
            text = others[name]()
        elif name == "kind":
            text = dtype(node.outputs[0])
        elif name == "kinds":
            text = _kinds(node, dtype)
        elif name == "counted":
            text = str(never_stops(node))
        elif name == "outputs":
            text = str(len(node.outputs))
        else:
            value = option(node, name, default)
            text = nested(value) if isinstance(value, ir.Graph) else literal(name, value)
        made.append(f"{name}={text}")
    return made


def _kinds(node: ir.Node, dtype: Callable[[ir.Value], str]) -> str:
    outputs = node.attributes["body"].as_graph().outputs
    shapes = ([extent if isinstance(extent, int) else 0 for extent in value.shape or ()] for value in outputs)
    return f"[{', '.join(f'({shape}, {dtype(value)})' for shape, value in zip(shapes, outputs, strict=True))}]"


def option(node: ir.Node, name: str, default: Any) -> Any:
    """The value of an attribute; of one that is a tensor, its number."""
    value = attribute(node, name, None if default is inspect.Parameter.empty else default)
    return value.numpy().reshape(-1)[0].item() if isinstance(value, ir.TensorProtocol) else value
