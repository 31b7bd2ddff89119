"""Layers with weights, windows and statistics, and the loss."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from deep5.frameworks.reference.kernels import convolution, elementwise, loss, normalization, pooling
from deep5.frameworks.reference.table import Call, Operator, Site, configured, first, plain
from deep5.networks.constants import FLOATS
from deep5.networks.gradients.window import Window, attribute

__all__ = ["OPERATORS"]


def _conv(site: Site) -> Call:
    window = Window.of(site.node, site.rank(1) - 2)
    group = site.attribute("group", 1)
    return Call(partial(convolution.convolution, window=window, group=group, scratch=site.scratch), site.given())


def _conv_transpose(site: Site) -> Call:
    rank = site.rank(1) - 2
    function = partial(
        convolution.transposed_convolution,
        window=Window.of(site.node, rank),
        output_padding=tuple(site.attribute("output_padding", (0,) * rank)),
        group=site.attribute("group", 1),
        scratch=site.scratch,
    )
    return Call(function, site.given())


def _conv_transpose_refusal(node: ir.Node) -> str | None:
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"got auto_pad={attribute(node, 'auto_pad')!r}; allowed: NOTSET, VALID"
    return "got output_shape; allowed: pads and output_padding" if "output_shape" in node.attributes else None


def _average_pool(site: Site) -> Call:
    window = Window.of(site.node, len(site.attribute("kernel_shape")))
    counted = bool(site.attribute("count_include_pad", 0))
    return Call(partial(pooling.average_pool, window=window, count_include_pad=counted), (0,))


def _max_pool(site: Site) -> Call:
    window = Window.of(site.node, len(site.attribute("kernel_shape")))
    return Call(partial(pooling.max_pool if site.outputs < 2 else pooling.max_pool_with_indices, window=window), (0,))


def _max_pool_refusal(node: ir.Node) -> str | None:
    if attribute(node, "storage_order", 0):
        return f"got storage_order={attribute(node, 'storage_order')}; allowed: 0"
    return None if node.outputs[0].dtype in (None, *FLOATS) else f"got {node.outputs[0].dtype}; allowed: floats"


def _max_unpool_refusal(node: ir.Node) -> str | None:
    return None if len(node.inputs) > 2 else "got no output_shape; allowed: with the output's shape as an input"


def _gemm(site: Site) -> Call:
    function = partial(
        elementwise.gemm,
        alpha=site.attribute("alpha", 1.0),
        beta=site.attribute("beta", 1.0),
        trans_a=bool(site.attribute("transA", 0)),
        trans_b=bool(site.attribute("transB", 0)),
    )
    return Call(function, site.given())


def _softmax_cross_entropy(site: Site) -> Call:
    function = partial(
        loss.softmax_cross_entropy,
        reduction=site.attribute("reduction", "mean"),
        ignore_index=site.attribute("ignore_index"),
    )
    return Call(first(function, site.outputs), site.given())


def _negative_log_likelihood(site: Site) -> Call:
    function = partial(
        loss.negative_log_likelihood,
        reduction=site.attribute("reduction", "mean"),
        ignore_index=site.attribute("ignore_index"),
    )
    return Call(function, site.given())


def _batch_normalization(site: Site) -> Call:
    epsilon = site.attribute("epsilon", 1e-5)
    if not site.attribute("training_mode", 0):
        return Call(partial(normalization.batch_normalization, epsilon=epsilon), (0, 1, 2, 3, 4))
    momentum = site.attribute("momentum", 0.9)
    function = partial(normalization.batch_normalization_in_training, epsilon=epsilon, momentum=momentum)
    return Call(first(function, site.outputs), (0, 1, 2, 3, 4))


def _layer_normalization(site: Site) -> Call:
    axis, epsilon = site.attribute("axis", -1), site.attribute("epsilon", 1e-5)
    return Call(
        first(partial(normalization.layer_normalization, axis=axis, epsilon=epsilon), site.outputs), site.given()
    )


def _lrn(site: Site) -> Call:
    function = partial(
        normalization.local_response_normalization,
        size=site.attribute("size"),
        alpha=site.attribute("alpha", 1e-4),
        beta=site.attribute("beta", 0.75),
        bias=site.attribute("bias", 1.0),
    )
    return Call(function, (0,))


def _group_normalization(site: Site) -> Call:
    groups, epsilon = site.attribute("num_groups", 0), site.attribute("epsilon", 1e-5)
    return Call(partial(normalization.group_normalization, groups=groups, epsilon=epsilon), (0, 1, 2))


def _lp_normalization(site: Site) -> Call:
    axis, order = site.attribute("axis", -1), site.attribute("p", 2)
    return Call(partial(normalization.lp_normalization, axis=axis, order=order), (0,))


def _lp_normalization_refusal(node: ir.Node) -> str | None:
    return None if attribute(node, "p", 2) in (1, 2) else f"got p={attribute(node, 'p')}; allowed: 1, 2"


OPERATORS: dict[str, Operator] = {
    "AveragePool": Operator(_average_pool),
    "BatchNormalization": Operator(_batch_normalization),
    "Conv": Operator(_conv),
    "ConvTranspose": Operator(_conv_transpose, refusal=_conv_transpose_refusal),
    "Gemm": Operator(_gemm),
    "GlobalAveragePool": plain(pooling.global_average_pool),
    "GroupNormalization": Operator(_group_normalization),
    "InstanceNormalization": Operator(_group_normalization),
    "LRN": Operator(_lrn),
    "LayerNormalization": Operator(_layer_normalization),
    "LpNormalization": Operator(_lp_normalization, refusal=_lp_normalization_refusal),
    "MaxPool": Operator(_max_pool, refusal=_max_pool_refusal),
    "MaxUnpool": Operator(lambda site: Call(pooling.max_unpool, (0, 1, 2)), refusal=_max_unpool_refusal),
    "NegativeLogLikelihoodLoss": Operator(_negative_log_likelihood),
    "RMSNormalization": configured(normalization.rms_normalization, axis=-1, epsilon=1e-5),
    "SoftmaxCrossEntropyLoss": Operator(_softmax_cross_entropy),
}
