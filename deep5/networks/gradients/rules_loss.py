"""Gradient of the loss."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.window import attribute

__all__ = ["RULES"]


def _softmax_cross_entropy(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """l = -log softmax(x)[label], along axis 1: dx = (softmax(x) - onehot(label)) dl.

    softmax(x) is the exponential of the node's second output; `reduction="mean"` divides dl by the number of labels.

    References:
        Bishop, Pattern Recognition and Machine Learning, 2006, equation 4.109.
    """
    x, label = operands(node, 2)
    dl, second = (*grads, None)[:2]
    if any(value is not None for value in node.inputs[2:]):
        raise refuse(node, "got class weights; allowed: none")
    if "ignore_index" in node.attributes:
        raise refuse(node, f"got ignore_index={attribute(node, 'ignore_index')}; allowed: none")
    if second is not None:
        raise refuse(node, "the loss depends on its second output, log_prob; remedy: use LogSoftmax for it")
    log_prob = b.second_output(node, x.shape, x.dtype)
    classes = extents(x)[1]
    depth = b.integer(classes) if isinstance(classes, int) else b.op("Squeeze", b.op("Shape", x, start=1, end=2))
    # ONNX Runtime takes an index and a depth of one type only.
    label = label if label.dtype == ir.DataType.INT64 else b.op("Cast", label, to=ir.DataType.INT64)
    hot = b.op("OneHot", label, depth, b.like([0.0, 1.0], x), axis=1)
    difference = b.op("Sub", b.op("Exp", log_prob), hot)
    reduction = attribute(node, "reduction", "mean")
    if reduction == "mean":
        dl = b.op("Div", dl, b.op("Cast", b.op("Size", label), to=x.dtype))
    elif reduction == "none":
        dl = b.op("Unsqueeze", dl, b.ints(1))
    return [b.op("Mul", difference, dl), *[None] * (len(node.inputs) - 1)]


RULES: dict[str, Rule] = {"SoftmaxCrossEntropyLoss": _softmax_cross_entropy}
