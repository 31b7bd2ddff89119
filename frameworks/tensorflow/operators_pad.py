"""Padding: constant, edge, reflect and wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, axes_of, computed, fixed, number, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _check_pad(node: ir.Node) -> str | None:
    mode = attribute(node, "mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        return f"the mode {mode!r}; allowed: constant, edge, reflect, wrap"
    fill = fixed(node, 2)
    return "no padding value of one element" if fill is not None and fill.size > 1 else None


def _padded(x: Any, pads: list[tuple[int, int]], fill: Any) -> Any:
    """Padding by a constant; negative padding crops."""
    x = _filled(x, [(max(a, 0), max(b, 0)) for a, b in pads], fill)
    if pads and min(min(pair) for pair in pads) < 0:
        x = x[tuple(slice(max(-a, 0), b if b < 0 else None) for a, b in pads)]
    return x


def _filled(x: Any, pads: Any, fill: Any) -> Any:
    """Padding by a number or a tensor; the kernel has no gradient with respect to the tensor."""
    if tf.is_tensor(fill) and x.dtype.is_floating:
        inside = tf.pad(tf.ones(tf.shape(x), tf.bool), pads, constant_values=False)
        return tf.where(inside, tf.pad(x, pads), tf.reshape(fill, []))
    return tf.pad(x, pads, constant_values=tf.reshape(tf.cast(fill, x.dtype), []))


def _place(index: Any, extent: Any, mode: str) -> Any:
    """The source index of each index of the padded axis."""
    if mode == "edge":
        return tf.clip_by_value(index, 0, extent - 1)
    if mode == "wrap":
        return tf.math.floormod(index, extent)
    period = tf.maximum(2 * (extent - 1), 1)
    there = tf.math.floormod(index, period)
    return tf.minimum(tf.minimum(there, period - there), extent - 1)


def _repeated(x: Any, pads: list[tuple[Any, Any]], mode: str) -> Any:
    """Padding by elements of the axis itself; negative padding crops."""
    for along, (before, behind) in enumerate(pads):
        if isinstance(before, int) and isinstance(behind, int) and before == behind == 0:
            continue
        extent = tf.shape(x)[along]
        x = tf.gather(x, _place(tf.range(-before, extent + behind), extent, mode), axis=along)
    return x


def _padded_as_computed(x: Any, pads: Any, fill: Any, axes: list[int] | None, mode: str) -> Any:
    """Same as above, with the padding given as tensors."""
    axes = list(range(x.shape.rank)) if axes is None else axes
    pads = tf.cast(pads, tf.int32)
    both: list[tuple[Any, Any]] = [(0, 0)] * x.shape.rank
    for index, along in enumerate(axes):
        both[along] = (pads[index], pads[index + len(axes)])
    if mode != "constant":
        return _repeated(x, both, mode)
    x = _filled(x, [(tf.maximum(a, 0), tf.maximum(b, 0)) for a, b in both], fill)
    extents = tf.shape(x)
    return x[tuple(slice(tf.maximum(-a, 0), extents[at] + tf.minimum(b, 0)) for at, (a, b) in enumerate(both))]


@operator("Pad", _check_pad, host=(3,))
def _pad(emitter: Emitter, node: ir.Node) -> None:
    mode = repr(attribute(node, "mode", "constant"))  # one of four strings
    fill, value = fixed(node, 2), node.inputs[2] if len(node.inputs) > 2 else None
    text = "0.0" if value is None else emitter.name(value)
    if fill is not None:
        text = number(fill.reshape(-1)[0].item() if fill.size else 0.0)
    if computed(node, 1, 3) is not None:
        x, pads = (emitter.name(each) for each in node.inputs[:2])
        how = f"{text}, {emitter.setting(node, 3)}, {mode}"
        emitter.assign(node, f"{emitter.function(_padded_as_computed)}({x}, {pads}, {how})")
        return
    pads, axes = fixed(node, 1).tolist(), axes_of(node, 3)
    axes = list(range(rank(node))) if axes is None else axes
    both = {along: (pads[index], pads[index + len(axes)]) for index, along in enumerate(axes)}
    order = emitter.order(node.inputs[0])
    pairs = [both.get(along, (0, 0)) for along in order]
    x = emitter.ordered(node.inputs[0], order)
    if mode != "'constant'":
        emitter.assign(node, f"{emitter.function(_repeated)}({x}, {pairs}, {mode})", order)
        return
    emitter.assign(node, f"{emitter.function(_padded)}({x}, {pairs}, {text})", order)
