"""Reductions, and operators along one axis: cumulative sums and products, argmax and argmin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.order import without
from deep5.frameworks.tensorflow.table import attribute, axes_of, computed, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _largest(x: Any, axes: Sequence[int] | None, keep: bool) -> Any:
    return (tf.reduce_any if x.dtype == tf.bool else tf.reduce_max)(x, axes, keep)


def _smallest(x: Any, axes: Sequence[int] | None, keep: bool) -> Any:
    return (tf.reduce_all if x.dtype == tf.bool else tf.reduce_min)(x, axes, keep)


def _reduction(op_type: str, function: Callable[..., Any]) -> None:
    def emit(emitter: Emitter, node: ir.Node) -> None:
        noop, keep = bool(attribute(node, "noop_with_empty_axes", 0)), bool(attribute(node, "keepdims", 1))
        value, name = node.inputs[0], emitter.function(function)
        if value is None or value.shape is None or computed(node, 1) is not None:
            axes = emitter.setting(node, 1)
            nothing = "[]" if noop else "None"
            emitter.assign(node, f"{name}({emitter.name(value)}, {axes} or {nothing}, {keep})")
            return
        order, chosen = emitter.order(value), axes_of(node, 1)
        if not chosen:
            chosen = [] if noop else list(range(rank(node)))
        places = sorted(order.index(entry) for entry in chosen)
        text = f"{name}({emitter.ordered(value, order)}, {places}, {keep})"
        emitter.assign(node, text, order if keep else without(order, chosen))

    operator(op_type, host=(1,), rankless=True)(emit)


_reduction("ReduceLogSumExp", tf.reduce_logsumexp)
_reduction("ReduceMax", _largest)
_reduction("ReduceMean", tf.reduce_mean)
_reduction("ReduceMin", _smallest)
_reduction("ReduceProd", tf.reduce_prod)
_reduction("ReduceSum", tf.reduce_sum)


def _cumulative_product(x: Any, along: Any, exclusive: bool, reverse: bool) -> Any:
    """`tf.math.cumprod`, with a gradient that does not divide by possible zeros.

    The gradient of an element is the product of the preceding elements times a sum over the following ones, a
    recurrence: s[i] = dy[i] + x[i + 1] s[i + 1].
    """
    if not x.dtype.is_floating:
        return tf.math.cumprod(x, along, exclusive, reverse)

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
    def product(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            place = along % x.shape.rank
            turn = [place, *(other for other in range(x.shape.rank) if other != place)]
            if x.shape[place] == 0:  # tf.scan requires a first element
                return dy
            factors, slopes = tf.transpose(x, turn), tf.transpose(dy, turn)
            if reverse:
                factors, slopes = tf.reverse(factors, [0]), tf.reverse(slopes, [0])
            none = tf.zeros_like(factors[:1])
            if exclusive:
                slopes = tf.concat([slopes[1:], none], 0)
            pairs = (slopes, tf.concat([factors[1:], none], 0))
            sums = tf.scan(lambda s, pair: pair[0] + pair[1] * s, pairs, tf.zeros_like(none[0]), reverse=True)
            found = sums * tf.math.cumprod(factors, 0, exclusive=True)
            found = tf.reverse(found, [0]) if reverse else found
            return tf.transpose(found, [turn.index(other) for other in range(len(turn))])

        return tf.math.cumprod(x, along, exclusive, reverse), gradient

    return product(x)


@operator(
    "CumProd", host=(1,), override="the gradient of TensorFlow's kernel divides by the factors, which may be zero"
)
def _cumulative(emitter: Emitter, node: ir.Node) -> None:
    how = ", ".join(str(bool(attribute(node, name, 0))) for name in ("exclusive", "reverse"))
    x, place = emitter.name(node.inputs[0]), f"{emitter.setting(node, 1)}[0]"
    emitter.assign(node, f"{emitter.function(_cumulative_product)}({x}, {place}, {how})")
