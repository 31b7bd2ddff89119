"""Gradients of the losses over classes."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands
from deep5.networks.onnx.attributes import attribute

__all__ = ["RULES"]


def _softmax_cross_entropy(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """l = -v log softmax(x)[label], along axis 1: dx = (softmax(x) - onehot(label)) v dl.

    v is the weight of the label's class, 1 without weights, and 0 where the label is `ignore_index`. softmax(x) is the
    exponential of the node's second output; `reduction="mean"` divides dl by the sum of v.

    References:
        ONNX, SoftmaxCrossEntropyLoss-13. Bishop, Pattern Recognition and Machine Learning, 2006, equation 4.109.
    """
    x, label = operands(node, 2)
    dl, second = (*grads, None)[:2]
    log_prob = b.output(node, 1, x.shape, x.dtype)
    probability, parts = b.op("Exp", log_prob), list[ir.Value]()
    if dl is not None:
        hot, dl = _chosen(b, node, x, label, dl)
        parts.append(b.op("Mul", b.op("Sub", probability, hot), dl))
    if second is not None:  # log_prob, whose gradient is that of LogSoftmax
        total = b.op("ReduceSum", second, b.ints(1), keepdims=1)
        parts.append(b.op("Sub", second, b.op("Mul", probability, total)))
    dx = parts[0] if len(parts) == 1 else b.op("Add", *parts)
    return [dx, *[None] * (len(node.inputs) - 1)]


def _negative_log_likelihood(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """l = -v x[label], along axis 1: dx = -onehot(label) v dl, with v and the mean as for softmax cross-entropy.

    References:
        ONNX, NegativeLogLikelihoodLoss-13.
    """
    x, label = operands(node, 2)
    hot, dl = _chosen(b, node, x, label, grads[0])
    return [b.op("Neg", b.op("Mul", hot, dl)), *[None] * (len(node.inputs) - 1)]


def _chosen(
    b: Backward, node: ir.Node, x: ir.Value, label: ir.Value, dl: ir.Value | None
) -> tuple[ir.Value, ir.Value | None]:
    """onehot(label) in the shape of x, and v dl in a shape that broadcasts to it."""
    classes = extents(x)[1]
    depth = b.integer(classes) if isinstance(classes, int) else b.op("Squeeze", b.op("Shape", x, start=1, end=2))
    # ONNX Runtime takes an index and a depth of one type only.
    label = label if label.dtype == ir.DataType.INT64 else b.op("Cast", label, to=ir.DataType.INT64)
    label, share = _share(b, node, x, label)
    hot = b.op("OneHot", label, depth, b.like([0.0, 1.0], x), axis=1)
    reduction = attribute(node, "reduction", "mean")
    if reduction == "mean":
        count = b.op("Cast", b.op("Size", label), to=x.dtype) if share is None else b.op("ReduceSum", share, keepdims=0)
        dl = b.op("Div", dl, count)
    if share is not None:
        dl = b.op("Mul", share, dl)
    if share is not None or reduction == "none":
        dl = b.op("Unsqueeze", dl, b.ints(1))
    return hot, dl


def _share(b: Backward, node: ir.Node, x: ir.Value, label: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Labels that are all valid classes, and the weight of each; None if all weights are 1."""
    weights = node.inputs[2] if len(node.inputs) > 2 else None
    ignored = attribute(node, "ignore_index")
    if ignored is None:
        return label, None if weights is None else b.op("Gather", weights, label, axis=0)
    out = b.op("Equal", label, b.integer(ignored))
    label = b.op("Where", out, b.integer(0), label)
    counted = b.like(1.0, x) if weights is None else b.op("Gather", weights, label, axis=0)
    return label, b.op("Where", out, b.like(0.0, x), counted)


RULES: dict[str, Rule] = {
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
}
