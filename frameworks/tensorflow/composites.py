"""Registers the operators that are written once, except those that the table overrides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.frameworks.tensorflow.order import Order, channels_last, without
from deep5.frameworks.tensorflow.primitives import native, on_tensors
from deep5.frameworks.tensorflow.table import (
    CONTROL,
    OPERATORS,
    OVERRIDES,
    Check,
    attribute,
    axes_of,
    computed,
    extents,
    fixed,
    number,
    operator,
    rank,
)
from deep5.networks.kernels.operators import COMPOSITES, LISTS, check_overrides
from deep5.networks.kernels.table import Composite, keywords_of
from deep5.networks.kernels.windows import check_window
from deep5.networks.nodes import poisonless, ranked
from deep5.networks.transforms.unrolling import can_unroll
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__ = ["emit_of", "register"]


def _literal(emitter: Emitter, value: Any) -> str:
    """An attribute as source."""
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)) and not any(isinstance(entry, str) for entry in value):
        return f"[{', '.join(_literal(emitter, entry) for entry in value)}]"
    return emitter.bind(value)


def emit_of(entry: Composite, instead: Callable[..., Any] | None = None) -> Callable[[Emitter, ir.Node], None]:
    """The function of the operator table that writes the call of a composite, or of a function of tensors instead."""
    run = instead or (native(entry.native) if entry.native else on_tensors(entry.function))
    keywords = entry.keywords

    def emit(emitter: Emitter, node: ir.Node) -> None:
        checked = not emitter.xla and emitter.device.startswith("/CPU")
        if entry.bounded and not checked and (reason := _unmarked(node)):
            raise Unsupported(
                f"tensorflow cannot run the node {node.name!r} ({node.op_type}) on {emitter.device}: {reason}"
            )
        order = _order(emitter, node, entry)
        numbers = entry.numbers(node)
        inputs = [
            _literal(emitter, numbers[at]) if at in numbers else _named(emitter, node, at, entry, order)
            for at in range(len(node.inputs))
        ]
        inputs += keywords_of(
            keywords,
            node,
            lambda name, value: _literal(emitter, _places(value, order) if order and name == entry.layout else value),
            dtype=emitter.dtype,
            nested=emitter.nested,
            channels=lambda: "-1" if order else "1",
            checked=lambda: str(checked),
            place=lambda: "None",
            stream=lambda: repr(attribute(node, "seed", None)),
            window=lambda: emitter.bind(Window.at(node)),
        )
        function = emitter.product(node, run) if entry.product else emitter.function(run)
        text = f"{function}({', '.join(inputs)})"
        if "outputs" in keywords:
            emitter.assign_all(node, text, *(_result(node, entry, order, at) for at in range(len(node.outputs))))
        else:
            emitter.assign(node, text, _result(node, entry, order, 0))

    return emit


def _unmarked(node: ir.Node) -> str | None:
    """Why a node cannot run whose indices out of bounds raise no error."""
    if node.op_type == "Gather":  # which marks them by NaN
        return poisonless(node)
    return "an index outside its axis would give a number; remedy: device='cpu'"


def _result(node: ir.Node, entry: Composite, order: Order | None, at: int) -> Order | None:
    """The axis order of an output."""
    if order is not None and entry.layout == "reduced" and not attribute(node, "keepdims", 1):
        return without(order, _removed(node))
    # A loss has no axis of channels.
    same = entry.layout != "image" or len(extents(node.outputs[at])) == len(order or ())
    return order if same else None


def _removed(node: ir.Node) -> list[int]:
    """The axes that a reduction removes."""
    chosen = axes_of(node, 1)
    return chosen or ([] if attribute(node, "noop_with_empty_axes", 0) else list(range(rank(node))))


def _order(emitter: Emitter, node: ir.Node, entry: Composite) -> Order | None:
    """The axis order in which the node is computed; None: ONNX's."""
    if entry.layout == "elementwise":
        return emitter.common_order(node.inputs)
    if entry.layout == "image" and not ranked(node):
        return None
    if entry.layout in ("channels last", "image"):
        return channels_last(rank(node))
    if entry.layout == "reduced" and (not ranked(node) or computed(node, 1) is not None):
        return None
    if entry.layout == "onnx" or not ranked(node) or any(value.shape is None for value in node.outputs if value.name):
        return None
    return emitter.common_order(node.inputs) if entry.alike else emitter.order(node.inputs[0])


def _named(emitter: Emitter, node: ir.Node, at: int, entry: Composite, order: Order | None) -> str:
    value = node.inputs[at]
    if value is None:
        return "None"
    if at in entry.settings:
        known = fixed(node, at)
        if known is not None and order is not None and entry.layout == "reduced":
            return _literal(emitter, _places(known.reshape(-1).tolist(), order))
        if known is not None:
            return _literal(emitter, known.reshape(-1).tolist())
        return f"{emitter.function(_row)}({emitter.name(value)})" if at in entry.traced else emitter.setting(node, at)
    if order is None or (at and entry.layout != "elementwise" and not entry.alike):
        return emitter.name(value)
    return emitter.aligned(value, order) if entry.layout == "elementwise" else emitter.ordered(value, order)


def _row(x: Any) -> Any:
    return tf.reshape(x, [-1])


def _places(axes: Any, order: Order) -> Any:
    """Axes in another order."""
    if axes is None:
        return [order.index(axis) for axis in range(len(order))]
    if isinstance(axes, int):
        return order.index(axes % len(order))
    return [order.index(axis % len(order)) for axis in axes]


def _of_known_sizes(node: ir.Node) -> str | None:
    known = all(isinstance(extent, int) for extent in extents(node.inputs[0])[2:])
    return check_window(node) if known else "windows over a dimension of unknown size"


def _squeezes_unknown(node: ir.Node) -> str | None:
    unknown = not ranked(node) or any(not isinstance(extent, int) for extent in extents(node.inputs[0]))
    given = len(node.inputs) > 1 and node.inputs[1] is not None
    return "no axes, with a dimension of unknown size" if unknown and not given else computed(node, 1)


def _slices_unknown(node: ir.Node) -> str | None:
    count = extents(node.inputs[1])
    return computed(node, 3) if count and isinstance(count[0], int) else "the number of sliced axes is unknown"


def _check_recurrent(node: ir.Node) -> str | None:
    # A loop with a gradient takes 2.1 to 2.9 times as long as cells at (7, 3, 5).
    check = COMPOSITES[node.op_type].check
    return "it is written as cells" if can_unroll(node) or check is None else check(node)


_CHECKS: dict[str, Check] = {
    "LpPool": _of_known_sizes,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _check_recurrent),
}
_HOST: dict[str, Check] = {"Slice": _slices_unknown, "Squeeze": _squeezes_unknown}


def register() -> None:
    """Add the operators to the table; call it after the overrides are in the table."""
    check_overrides(OPERATORS, OVERRIDES)
    for name, entry in {**COMPOSITES, **LISTS}.items():
        if name not in OVERRIDES:
            host = tuple(at for at in entry.settings if at not in entry.traced)
            rankless = entry.layout != "channels last" and not entry.product
            check, needs = _CHECKS.get(name, entry.check), _HOST.get(name, host)
            operator(name, check, host=needs, rankless=rankless)(emit_of(entry))
            if entry.on_host:
                CONTROL.add(name)
