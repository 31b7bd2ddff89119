"""Parts of the table of operators: a node to compile, its call, and ways to create one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from deep5.frameworks.reference.kernels.memory import Array, Scratch
from deep5.networks.onnx.attributes import attribute

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = [
    "Call",
    "Operator",
    "Site",
    "axes_refusal",
    "by_position",
    "chosen",
    "configured",
    "first",
    "plain",
    "with_constants",
]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A node to compile.

    Attributes:
        node: The node.
        given: Positions of the inputs that are not omitted.
        constants: Constant values, known while compiling.
        scratch: The shared buffer of the network's convolutions.
        outputs: The number of outputs that are read.
        nested: Creates a function of a subgraph, which takes the graph's inputs, then the node's captured values, and
            returns a tuple.
        ranks: Exchanges statistics between ranks; None: there are no other ranks.
    """

    node: ir.Node
    given: tuple[int, ...]
    constants: Mapping[ir.Value, Array]
    scratch: Scratch
    outputs: int
    nested: Callable[[ir.Graph], Callable[..., tuple[Any, ...]]]
    ranks: RankStatistics | None = None

    def constant(self, position: int) -> Array | None:
        """An input's value if it is constant, else None."""
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        return None if value is None else self.constants.get(value)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return attribute(self.node, name, default)

    def rank(self, position: int = 0) -> int:
        """The rank of an input."""
        value = self.node.inputs[position]
        return 0 if value is None or value.shape is None else len(value.shape)


class Call(NamedTuple):
    """The function that the generated code calls for a node, the node's inputs to pass, and whether to pass the
    captured values of its subgraphs, too."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    captures: bool = False


class Operator(NamedTuple):
    """How to run an operator.

    Attributes:
        make: Converts a node to a call.
        view: The result may share memory with the first input.
        in_place: The call takes `out=`, which may be one of its inputs.
        keeps: The results may share memory with any input, or with memory kept between calls.
        refusal: Returns why a node cannot run, or None; left out: it always can.
        exact: Short floats are passed unchanged, not as float32.
    """

    make: Callable[[Site], Call]
    view: bool = False
    in_place: bool = False
    refusal: Callable[[ir.Node], str | None] | None = None
    keeps: bool = False
    exact: bool = False


def plain(function: Callable[..., Any], *, view: bool = False, in_place: bool = False) -> Operator:
    """An operator without attributes: the function takes the inputs in order."""
    return Operator(lambda site: Call(function, site.given), view=view, in_place=in_place)


def configured(function: Callable[..., Any], **defaults: Any) -> Operator:
    """An operator whose attributes are the function's keywords, with ONNX's defaults."""

    def make(site: Site) -> Call:
        settings = {name: site.attribute(name, default) for name, default in defaults.items()}
        return Call(partial(function, **settings), site.given)

    return Operator(make)


def with_constants(site: Site, function: Callable[..., Any], *names: str) -> Call:
    """Bind constant inputs after the first as tuples of Python integers; pass the others."""
    bound: dict[str, Any] = {}
    for position, name in enumerate(names, start=1):
        known = site.constant(position)
        if known is None:
            if position < len(site.node.inputs) and site.node.inputs[position] is not None:
                return Call(by_position(function, site.given), site.given)
            continue
        bound[name] = tuple(int(number) for number in known.reshape(-1))
    return Call(partial(function, **bound), (0,))


def by_position(function: Callable[..., Any], given: tuple[int, ...]) -> Callable[..., Any]:
    """Pass None for omitted optional inputs."""
    if given == tuple(range(len(given))):
        return function

    def call(*values: Array) -> Any:
        found = dict(zip(given, values, strict=True))
        return function(*(found.get(position) for position in range(given[-1] + 1)))

    return call


def first(function: Callable[..., tuple[Array, ...]], outputs: int) -> Callable[..., Any]:
    """The function with only the results that are read; a single one is not a tuple."""
    if outputs == 1:
        return lambda *values: function(*values)[0]
    return lambda *values: function(*values)[:outputs]


def axes_refusal(node: ir.Node) -> str | None:
    """Why an operator whose axes became an input in a later opset cannot run."""
    found = "axes" in node.attributes
    return "got axes as an attribute, of an older opset; allowed: axes as an input" if found else None


def chosen(**allowed: Sequence[str]) -> Callable[[ir.Node], str | None]:
    """Why an operator cannot run whose string attributes must have one of these values."""

    def refusal(node: ir.Node) -> str | None:
        for name, texts in allowed.items():
            got = attribute(node, name, texts[0])
            if got not in texts:
                return f"got {name}={got!r}; allowed: {', '.join(texts)}"
        return None

    return refusal
