"""The cumulative product, with a gradient that does not divide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


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
