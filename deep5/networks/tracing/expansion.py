"""Replaces an operator's node by the ONNX operators that its Python code traces to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported
from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.networks.custom import Extent
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.extents import evaluated
from deep5.networks.tracing.namespace import Namespace
from deep5.networks.tracing.promotion import array_of
from deep5.networks.tracing.trace import Trace
from deep5.operators.backward import Backward
from deep5.operators.contract import check_gradients, check_outputs, name_of, several, specs_of

__all__ = ["expand_operator", "traced"]

# The first opset in which reductions take their axes as an input.
_OLDEST_OPSET = 18
# Trial values for symbolic dimensions, with many divisors, for comparing shapes with the operator's `specs`.
_TRIED: tuple[Callable[[int], int], ...] = (lambda n: 12, lambda n: 24 * (n + 1), lambda n: 60)


def expand_operator(graph: ir.Graph, node: ir.Node, operator: Operator) -> None:
    """Replace a node by other nodes, under the names of its outputs.

    Args:
        graph: The graph that holds it; changed in place.
        node: The node, with the shapes and types of its inputs; its outputs have names.
        operator: The node's operator; see `deep5.networks.custom.operator_of`.

    Raises:
        Unsupported: The operator's code cannot be traced, with the reason.
        OperatorError: It breaks the operator's contract.
        ShapeError: It does not accept these inputs.
    """
    if graph.opset_imports.get("", 0) < _OLDEST_OPSET:
        raise Unsupported(f"the network is of opset {graph.opset_imports.get('')}; allowed: {_OLDEST_OPSET} and newer")
    specs = _specs(node, operator)
    values = [value for value in node.inputs if value is not None]
    trace, inputs = _begin(str(node.name), values, specs)
    results = _gradients(operator, inputs) if isinstance(operator, Backward) else _outputs(operator, inputs)
    taken, outputs = set(values), list[ir.Value]()
    for result in results[: len(node.outputs)]:
        value = result.value
        if value in taken or value.producer() not in trace.nodes:
            value = trace.emit("Identity", [result], result.dtype, result.shape).value
        taken.add(value)
        outputs.append(value)
    # Constants may also be outputs: a copy separates them from their other uses.
    old = list(node.outputs)
    ir.convenience.replace_nodes_and_values(graph, node, [node], trace.nodes, old, outputs)


def traced(
    function: Callable[..., Any], inputs: Sequence[ir.Value], specs: Sequence[TensorSpec], name: str = "traced"
) -> tuple[list[ir.Node], tuple[TracedArray, ...]]:
    """The nodes that a function of arrays is traced to, and its results.

    Args:
        function: Takes as many arrays as there are inputs.
        inputs: Values of a graph.
        specs: Their shapes and element types; a string dimension is symbolic.
        name: Prefix of the nodes' names.
    """
    trace, arrays = _begin(name, inputs, specs)
    return trace.nodes, several(function(*arrays))


def _begin(name: str, values: Sequence[ir.Value], specs: Sequence[TensorSpec]) -> tuple[Trace, list[TracedArray]]:
    trace = Trace(name)
    trace.namespace = Namespace(trace)
    return trace, [
        trace.input(value, spec.shape, numpy_dtype(spec.dtype)) for value, spec in zip(values, specs, strict=True)
    ]


def _run(operator: Operator, call: Callable[[], Any], inputs: Sequence[TracedArray]) -> Any:
    """The return value of the operator's code; NumPy arrays in it become constants."""
    try:
        made = call()
        if inputs and isinstance(made, (list, tuple)):
            made = tuple(array_of(inputs[0].trace, x) if isinstance(x, np.ndarray) else x for x in made)
    except Deep5Error:
        raise
    except Exception as error:  # any kind: user code, on arrays it may not be written for
        raise Unsupported(f"{name_of(operator)} raised {type(error).__name__} while it was traced: {error}") from error
    return made


def _specs(node: ir.Node, operator: Operator) -> list[TensorSpec]:
    """Specifications of the inputs; an unnamed dimension gets a name that begins with `?`."""
    specs = []
    for value in node.inputs:
        if value is None or value.shape is None or value.dtype is None:
            called = "one that is left out" if value is None else f"{value.name!r}, whose shape is not known"
            raise Unsupported(f"an input is {called}; allowed: inputs of known rank and element type")
        shape = tuple(
            extent if isinstance(extent, int) else extent.value or f"?{value.name}.{axis}"
            for axis, extent in enumerate(value.shape)
        )
        specs.append(TensorSpec(shape=shape, dtype=str(value.dtype.numpy())))
    return _related(operator, specs) if isinstance(operator, Backward) else specs


def _related(operator: Backward, specs: list[TensorSpec]) -> list[TensorSpec]:
    """Give the inputs of a backward pass the shapes that the operator's `specs` declares, inferred or not."""
    grads, given, outputs = operator.split(specs)
    known = specs_of(operator.operator, [_symbolic(spec) for spec in given])
    lead = [spec for spec, floating in zip(known, operator.floating, strict=False) if floating]
    return [*lead[: len(grads)], *given, *known[: len(outputs)]]


def _symbolic(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(
        shape=tuple(Extent(extent) if isinstance(extent, str) else extent for extent in spec.shape), dtype=spec.dtype
    )


def _outputs(operator: Operator, inputs: Sequence[TracedArray]) -> tuple[TracedArray, ...]:
    made: tuple[TracedArray, ...] = _run(operator, lambda: several(operator.forward(*inputs)), inputs)
    for at in _batches(inputs):
        with _in_words(at):
            try:
                expected = specs_of(operator, [_spec(x, at) for x in inputs])
                got = tuple(_stand_in(x, at) for x in made)
            except ShapeError:
                if not at:
                    raise
                continue  # not an accepted batch
            check_outputs(operator, got, expected)
    return made


def _gradients(operator: Backward, inputs: Sequence[TracedArray]) -> Any:
    """The result of `Backward.forward`, without its check, which does not support symbolic dimensions."""
    inner, needs = operator.operator, operator.needs
    grads, given, outputs = operator.split(inputs)
    left = iter(grads)
    by_output = tuple(next(left) if floating else None for floating in operator.floating)
    made = _run(operator, lambda: inner.backward(by_output, given, outputs, needs), inputs)
    for at in _batches(inputs):
        with _in_words(at):
            try:
                known = [_stand_in(x, at) for x in given]
                got = [_stand_in(x, at) for x in made] if isinstance(made, (list, tuple)) else made
            except ShapeError:
                continue  # not an accepted batch
            check_gradients(inner, got, known, needs)
    return tuple(gradient for gradient, needed in zip(made, needs, strict=True) if needed)


def _batches(inputs: Sequence[TracedArray]) -> list[dict[str, int]]:
    """Trial values for the symbolic dimensions; one empty mapping if there are none."""
    names = sorted(inputs[0].trace.symbols) if inputs else []
    return [{name: number(place) for place, name in enumerate(names)} for number in _TRIED] if names else [{}]


@contextmanager
def _in_words(at: dict[str, int]) -> Iterator[None]:
    try:
        yield
    except OperatorError as error:
        if not at:
            raise
        where = ", ".join(f"{name}={number}" for name, number in at.items())
        raise OperatorError(f"{error} (for {where})") from error


def _stand_in(x: Any, at: dict[str, int]) -> Any:
    """For a traced array, an array of its shape and type for these values, without memory; other values unchanged."""
    if not isinstance(x, TracedArray):
        return x
    return np.broadcast_to(np.zeros((), x.dtype), tuple(evaluated(extent, at) for extent in x.shape))


def _spec(x: TracedArray, at: dict[str, int]) -> TensorSpec:
    return TensorSpec(shape=tuple(evaluated(extent, at) for extent in x.shape), dtype=str(x.dtype))
