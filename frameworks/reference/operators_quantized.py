"""Operators on quantized numbers and bits: quantization, integer products, casts and shifts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import bits, casting, linear, quantization
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import Call, Operator, Site, by_position, first, plain
from deep5.frameworks.reference.window import Window
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]


def _optional(site: Site, function: Callable[..., Array]) -> Call:
    return Call(by_position(function, site.given), site.given)


def _quantize(site: Site) -> Call:
    zero = site.node.inputs[2] if len(site.node.inputs) > 2 else None
    kind = site.attribute("output_dtype", 0) or (zero.dtype if zero is not None else None) or ir.DataType.UINT8
    precision = site.attribute("precision", 0)
    function = partial(
        quantization.quantize,
        kind=ir.DataType(kind),
        precision=ir.DataType(precision).numpy() if precision else None,
        axis=site.attribute("axis", 1),
        block=site.attribute("block_size", 0),
        saturate=bool(site.attribute("saturate", 1)),
    )
    return _optional(site, function)


def _dequantize(site: Site) -> Call:
    kind = site.attribute("output_dtype", 0)
    function = partial(
        quantization.dequantize,
        dtype=ir.DataType(kind).numpy() if kind else None,
        axis=site.attribute("axis", 1),
        block=site.attribute("block_size", 0),
    )
    return _optional(site, function)


def _convolution(site: Site, function: Callable[..., Array], weights: int) -> Call:
    bound = partial(
        function,
        window=Window.of(site.node, site.rank(weights) - 2),
        group=site.attribute("group", 1),
        scratch=site.scratch,
    )
    return _optional(site, bound)


def _cast(site: Site) -> Call:
    function = partial(
        casting.cast,
        kind=ir.DataType(site.attribute("to")),
        saturate=bool(site.attribute("saturate", 1)),
        round_mode=site.attribute("round_mode", "up"),
    )
    return Call(lambda x: function(np.asarray(x)), (0,))


def _cast_refusal(node: ir.Node) -> str | None:
    mode, allowed = attribute(node, "round_mode", "up"), ("up", "down", "nearest")
    return None if mode in allowed else f"got round_mode={mode!r}; allowed: {', '.join(allowed)}"


def _kind(node: ir.Node) -> ir.DataType | None:
    """The dtype of the input."""
    return None if node.inputs[0] is None else node.inputs[0].dtype


def _bit_cast(site: Site) -> Call:
    was = _kind(site.node)
    assert was is not None  # noqa: S101 - not refused
    return Call(partial(bits.bit_cast, kind=ir.DataType(site.attribute("to")), was=was), (0,))


def _bit_cast_refusal(node: ir.Node) -> str | None:
    was, kind = _kind(node), ir.DataType(attribute(node, "to"))
    if was is None or ir.DataType.STRING in (was, kind) or was.bitwidth != kind.bitwidth:
        return f"got {was.name if was else 'an unknown type'} as {kind.name}; allowed: types of one width"
    return None


def _bit_shift(site: Site) -> Call:
    return Call(partial(bits.bit_shift, left=site.attribute("direction") == "LEFT"), (0, 1))


def _bit_shift_refusal(node: ir.Node) -> str | None:
    direction = attribute(node, "direction")
    return None if direction in ("LEFT", "RIGHT") else f"got direction={direction!r}; allowed: LEFT, RIGHT"


OPERATORS: dict[str, Operator] = {
    "BitCast": Operator(_bit_cast, refusal=_bit_cast_refusal, exact=True),
    "BitShift": Operator(_bit_shift, refusal=_bit_shift_refusal),
    "BitwiseAnd": plain(np.bitwise_and),
    "BitwiseNot": plain(np.bitwise_not),
    "BitwiseOr": plain(np.bitwise_or),
    "BitwiseXor": plain(np.bitwise_xor),
    "Cast": Operator(_cast, view=True, refusal=_cast_refusal, exact=True),
    "ConvInteger": Operator(partial(_convolution, function=linear.integer_convolution, weights=1)),
    "DequantizeLinear": Operator(_dequantize),
    "DynamicQuantizeLinear": Operator(
        lambda site: Call(first(quantization.dynamic_quantize, site.outputs), (0,)),
    ),
    "MatMulInteger": Operator(lambda site: _optional(site, linear.integer_product)),
    "QLinearConv": Operator(partial(_convolution, function=quantization.quantized_convolution, weights=3)),
    "QLinearMatMul": plain(quantization.quantized_product),
    "QuantizeLinear": Operator(_quantize),
}
