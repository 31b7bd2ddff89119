"""Append a loss to a network: the losses by name, each defined once as ONNX operators."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, brief, suggestion
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.networks.edit.edited import edited, free_name, known, made_node, nodes_of, unused, values_of
from deep5.networks.onnx.fitting import shown, unlike

__all__ = ["LOSSES", "add_loss"]

LOSSES = {
    "cross_entropy": "mean over the labels of -log softmax(scores)[label], with the classes on axis 1",
    "mse": "mean over all elements of (score - label)^2",
    "binary_cross_entropy": "mean over all elements of log(1 + exp(score)) - score * label, from logits",
}
"""The losses by name, with their definitions."""

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.INT8)


def add_loss(
    model: ir.Model, scores: str, kind: str, label: str, name: str, declared: TensorSpec | None = None
) -> ir.Model:
    """See `Network.add_loss`."""

    def change(copy: ir.Model) -> list[ir.Node]:
        values = values_of(copy)
        source = known(scores, values, "value", "add_loss")
        if kind not in LOSSES:
            raise NetworkError(
                f"add_loss: unknown loss {kind!r}; allowed: {', '.join(LOSSES)}{suggestion(str(kind), LOSSES)}"
            )
        unused(name, values, "value", "add_loss")
        by_class = kind == "cross_entropy"
        if source.shape is None or source.dtype is None or (by_class and len(source.shape) < 2):
            raise NetworkError(
                f"add_loss: {scores!r} is {shown(source) if source.shape is not None else 'of unknown rank'}; allowed: "
                "a value of known rank, for cross_entropy (N, classes, …); remedy: declare its shape in the file, or "
                "name another value"
            )
        target = _target(copy, source, by_class, label, declared)
        append = _Appended(copy, name)
        if by_class:
            if target.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
                target = append("Cast", [target], to=ir.DataType.INT64)
            append.last("SoftmaxCrossEntropyLoss", [source, target], reduction="mean")
            return append.nodes
        # Before the cast, whose result has no shape yet: (N,) against (N, 1) would broadcast to (N, N).
        other_rank = target.shape is None or len(target.shape) != len(source.shape)
        if target.dtype != source.dtype:
            target = append("CastLike", [target, source])
        if other_rank:
            target = append("Reshape", [target, append("Shape", [source])])
        if kind == "mse":
            difference = append("Sub", [source, target])
            terms = append("Mul", [difference, difference])
        else:
            # Softplus, whose implementations are stable: exp(score) would overflow.
            terms = append("Sub", [append("Softplus", [source]), append("Mul", [source, target])])
        append.last("ReduceMean", [terms], keepdims=0)
        return append.nodes

    return edited(model, f"the network after add_loss({scores!r})", change)


class _Appended:
    """Appends nodes to a model.

    Attributes:
        nodes: The nodes so far.
    """

    def __init__(self, model: ir.Model, name: str) -> None:
        self._model, self._name, self._taken = model, name, nodes_of(model)
        self.nodes: list[ir.Node] = []

    def __call__(
        self, op_type: str, inputs: Sequence[ir.Value], output: str | None = None, /, **attributes: object
    ) -> ir.Value:
        """The output of a new node."""
        called = free_name(op_type, self._taken)
        output = output or f"{called}_output"
        node = made_node(self._model, op_type, inputs, [output], called, "", dict(attributes), "add_loss")
        self._model.graph.append(node)
        self.nodes.append(node)
        return node.outputs[0]

    def last(self, op_type: str, inputs: Sequence[ir.Value], **attributes: object) -> None:
        """Append the node that computes the loss, an output of the network."""
        self._model.graph.outputs.append(self(op_type, inputs, self._name, **attributes))


def _target(copy: ir.Model, source: ir.Value, by_class: bool, label: str, given: TensorSpec | None) -> ir.Value:
    """The label: an input of the network that fits the scores, declared if it is missing."""
    graph, values = copy.graph, values_of(copy)
    assert source.shape is not None and source.dtype is not None  # noqa: S101, PT018 - checked by the caller
    extents = [source.shape[0], *source.shape[2:]] if by_class else list(source.shape)
    kept = ir.Shape([one if isinstance(one, int) else one.value for one in extents])
    # Without the last dimension of size 1, the labels are the same numbers.
    column = not by_class and len(kept) > 1 and kept[-1] == 1
    if not isinstance(label, str) or not label:
        raise NetworkError(f"add_loss: got {brief(label)} as the label; allowed: a name")
    target = values.get(label)
    declared = ir.Value(name=label, shape=kept, type=ir.TensorType(ir.DataType.INT64 if by_class else source.dtype))
    if target is None:
        target = declared
        if given is not None:
            whole = all(isinstance(extent, int) for extent in given.shape[1:])
            shape = ir.Shape(given.shape) if whole and not isinstance(kept[0], int) else kept
            target = ir.Value(name=label, shape=shape, type=ir.TensorType(ir.DataType.from_numpy(_dtype(given))))
            if given.dtype.startswith("float") and not by_class:
                target.type = ir.TensorType(source.dtype)
    fits = not unlike(target.shape, kept) or (column and not unlike(target.shape, kept[:-1]))
    kinds = (*_INTEGERS, ir.DataType.BOOL) if by_class else (source.dtype, *_INTEGERS, ir.DataType.BOOL)
    if not fits or target.dtype not in kinds:
        raise NetworkError(
            f"add_loss: the label {label!r} is {shown(target)}, and the scores {source.name!r} {shown(source)}; allowed"
            f": {shown(declared)}; remedy: {_remedy(values, label, given)}"
        )
    if target is not values.get(label):
        graph.inputs.append(target)
    elif target not in graph.inputs:
        what = "an initial value" if target.is_initializer() else "computed by the network itself"
        raise NetworkError(
            f"add_loss: the label {label!r} is {what}; allowed: an input, or a name that no value has; remedy: "
            f"label={_free_target(values)!r}, which declares such an input"
        )
    return target


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    found: np.dtype[Any] = numpy_dtype(spec.dtype)
    return found


def _remedy(values: Container[str], label: str, given: TensorSpec | None) -> str:
    if given is None or label in values:
        return f"label={_free_target(values)!r}, which declares such an input, or an input that fits"
    return "a network with scores of the label's shape, or another loss"


def _free_target(values: Container[str]) -> str:
    """A name for a label that no value has."""
    names = itertools.chain(["target"], (f"target_{number}" for number in itertools.count(2)))
    return next(one for one in names if one not in values)
