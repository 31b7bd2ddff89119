"""Layers with weights and statistics, and the loss."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from deep5.frameworks.reference.kernels import elementwise, loss, normalization
from deep5.frameworks.reference.table import Call, Operator, Site, configured, first
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]


def _gemm(site: Site) -> Call:
    function = partial(
        elementwise.gemm,
        alpha=site.attribute("alpha", 1.0),
        beta=site.attribute("beta", 1.0),
        trans_a=bool(site.attribute("transA", 0)),
        trans_b=bool(site.attribute("transB", 0)),
    )
    return Call(function, site.given)


def _softmax_cross_entropy(site: Site) -> Call:
    function = partial(
        loss.softmax_cross_entropy,
        reduction=site.attribute("reduction", "mean"),
        ignore_index=site.attribute("ignore_index"),
    )
    return Call(first(function, site.outputs), site.given)


def _negative_log_likelihood(site: Site) -> Call:
    function = partial(
        loss.negative_log_likelihood,
        reduction=site.attribute("reduction", "mean"),
        ignore_index=site.attribute("ignore_index"),
    )
    return Call(function, site.given)


def _batch_normalization(site: Site) -> Call:
    epsilon = site.attribute("epsilon", 1e-5)
    if not site.attribute("training_mode", 0):
        return Call(partial(normalization.batch_normalization, epsilon=epsilon), (0, 1, 2, 3, 4))
    momentum = site.attribute("momentum", 0.9)
    function = partial(normalization.batch_normalization_in_training, epsilon=epsilon, momentum=momentum)
    return Call(first(function, site.outputs), (0, 1, 2, 3, 4))


def _layer_normalization(site: Site) -> Call:
    axis, epsilon = site.attribute("axis", -1), site.attribute("epsilon", 1e-5)
    return Call(first(partial(normalization.layer_normalization, axis=axis, epsilon=epsilon), site.outputs), site.given)


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


def _mean_variance_normalization(site: Site) -> Call:
    axes = tuple(int(axis) for axis in site.attribute("axes", (0, 2, 3)))
    return Call(partial(normalization.mean_variance_normalization, axes=axes), (0,))


def _lp_normalization_refusal(node: ir.Node) -> str | None:
    return None if attribute(node, "p", 2) in (1, 2) else f"got p={attribute(node, 'p')}; allowed: 1, 2"


OPERATORS: dict[str, Operator] = {
    "BatchNormalization": Operator(_batch_normalization),
    "Gemm": Operator(_gemm),
    "GroupNormalization": Operator(_group_normalization),
    "InstanceNormalization": Operator(_group_normalization),
    "LRN": Operator(_lrn),
    "LayerNormalization": Operator(_layer_normalization),
    "LpNormalization": Operator(_lp_normalization, refusal=_lp_normalization_refusal),
    "MeanVarianceNormalization": Operator(_mean_variance_normalization),
    "NegativeLogLikelihoodLoss": Operator(_negative_log_likelihood),
    "RMSNormalization": configured(normalization.rms_normalization, axis=-1, epsilon=1e-5),
    "SoftmaxCrossEntropyLoss": Operator(_softmax_cross_entropy),
}
