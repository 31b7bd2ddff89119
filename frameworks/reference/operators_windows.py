"""Convolutions and pooling: operators with a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx_ir as ir

from deep5.frameworks.reference.kernels import convolution, pooling, windows
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import Call, Operator, Site, by_position, chosen, configured, plain
from deep5.frameworks.reference.window import Window
from deep5.networks.constants import FLOATS
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

_PADDED = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")}
_SMALL = (ir.DataType.INT8, ir.DataType.UINT8)


def _moved(site: Site, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the node's window, over the spatial axes of the first input."""
    rank = site.rank() - 2
    if rank >= 0:
        return partial(function, window=Window.of(site.node, rank))
    return lambda x, *rest: function(x, *rest, window=Window.of(site.node, x.ndim - 2))


def _conv(site: Site) -> Call:
    function = partial(convolution.convolution, group=site.attribute("group", 1), scratch=site.scratch)
    return Call(_moved(site, function), site.given)


def _conv_transpose(site: Site) -> Call:
    extra, shape = site.attribute("output_padding"), site.attribute("output_shape")

    def transposed(x: Array, w: Array, bias: Array | None = None, *, window: Window) -> Array:
        return convolution.transposed_convolution(
            x,
            w,
            bias,
            window=window,
            output_padding=(0,) * (x.ndim - 2) if extra is None else tuple(extra),
            output_shape=None if shape is None else tuple(shape)[-(x.ndim - 2) :],
            group=site.attribute("group", 1),
            scratch=site.scratch,
        )

    return Call(_moved(site, transposed), site.given)


def _deform_conv(site: Site) -> Call:
    function = partial(
        windows.deformable_convolution,
        group=site.attribute("group", 1),
        offset_group=site.attribute("offset_group", 1),
    )
    return Call(by_position(_moved(site, function), site.given), site.given)


def _col2im(site: Site) -> Call:
    def placed(x: Array, image: Array, block: Array) -> Array:
        return windows.col2im(x, image, block, window=Window.of(site.node, len(image)))

    return Call(placed, (0, 1, 2))


def _average_pool(site: Site) -> Call:
    counted = bool(site.attribute("count_include_pad", 0))
    return Call(_moved(site, partial(pooling.average_pool, count_include_pad=counted)), (0,))


def _max_pool(site: Site) -> Call:
    if site.outputs < 2:
        return Call(_moved(site, pooling.max_pool), (0,))
    column_major = bool(site.attribute("storage_order", 0))
    return Call(_moved(site, partial(pooling.max_pool_with_indices, column_major=column_major)), (0,))


def _max_pool_refusal(node: ir.Node) -> str | None:
    kind = node.outputs[0].dtype
    if kind not in (None, *FLOATS, *_SMALL):
        return f"got {kind}; allowed: floating-point numbers, INT8, UINT8"
    return chosen(**_PADDED)(node)


def _max_unpool(site: Site) -> Call:
    return Call(_moved(site, pooling.max_unpool), site.given)


def _lp_pool(site: Site) -> Call:
    return Call(_moved(site, partial(pooling.lp_pool, p=site.attribute("p", 2))), (0,))


def _norm_refusal(node: ir.Node) -> str | None:
    p = attribute(node, "p", 2)
    return chosen(**_PADDED)(node) if p > 0 else f"got p={p}; allowed: above 0"


OPERATORS: dict[str, Operator] = {
    "AveragePool": Operator(_average_pool, refusal=chosen(**_PADDED)),
    "Col2Im": Operator(_col2im),
    "Conv": Operator(_conv, refusal=chosen(**_PADDED)),
    "ConvTranspose": Operator(_conv_transpose, refusal=chosen(**_PADDED)),
    "DeformConv": Operator(_deform_conv),
    "GlobalAveragePool": plain(pooling.global_average_pool),
    "GlobalLpPool": configured(pooling.global_lp_pool, p=2)._replace(refusal=_norm_refusal),
    "GlobalMaxPool": plain(pooling.global_max_pool),
    "LpPool": Operator(_lp_pool, refusal=_norm_refusal),
    "MaxPool": Operator(_max_pool, refusal=_max_pool_refusal),
    "MaxUnpool": Operator(_max_unpool),
}
