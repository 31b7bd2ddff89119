"""Elementwise operators, matrix products, and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import activation, elementwise, linear, reduction
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import (
    Call,
    Operator,
    Site,
    axes_refusal,
    by_position,
    configured,
    plain,
    with_constants,
)

__all__ = ["OPERATORS"]


def _divide(site: Site) -> Call:
    kind = site.node.outputs[0].dtype or (site.node.inputs[0].dtype if site.node.inputs[0] else None)
    return Call(np.divide if kind is None or not kind.is_integer() else elementwise.divide_integers, (0, 1))


def _combination(ufunc: np.ufunc) -> Operator:
    return plain(partial(elementwise.combine, ufunc=ufunc))


def _reduction(
    function: Callable[..., Array], refusal: Callable[[ir.Node], str | None] = axes_refusal, **settings: Any
) -> Operator:
    def make(site: Site) -> Call:
        bound = partial(
            function,
            **settings,
            keepdims=bool(site.attribute("keepdims", 1)),
            noop_with_empty_axes=bool(site.attribute("noop_with_empty_axes", 0)),
        )
        return with_constants(site, bound, "axes")

    return Operator(make, refusal=refusal)


def _mean_refusal(node: ir.Node) -> str | None:
    kind = node.outputs[0].dtype
    if kind is not None and kind.is_integer():
        return f"the mean of {kind.name} would pass through floating-point numbers; allowed: floating-point inputs"
    return axes_refusal(node)


def _clip(site: Site) -> Call:
    return Call(by_position(activation.clip, site.given), site.given)


def _modulo(site: Site) -> Call:
    return Call(partial(elementwise.modulo, truncated=bool(site.attribute("fmod", 0))), (0, 1))


def _einsum(site: Site) -> Call:
    return Call(partial(linear.einsum, equation=site.attribute("equation")), site.given)


def _is_inf(site: Site) -> Call:
    negative, positive = (bool(site.attribute(f"detect_{sign}", 1)) for sign in ("negative", "positive"))
    return Call(partial(elementwise.is_infinite, negative=negative, positive=positive), (0,))


OPERATORS: dict[str, Operator] = {
    "Abs": plain(np.abs, in_place=True),
    "Acos": plain(np.arccos, in_place=True),
    "Acosh": plain(np.arccosh, in_place=True),
    "Add": plain(np.add, in_place=True),
    "And": plain(np.logical_and),
    "Asin": plain(np.arcsin, in_place=True),
    "Asinh": plain(np.arcsinh, in_place=True),
    "Atan": plain(np.arctan, in_place=True),
    "Atanh": plain(np.arctanh, in_place=True),
    "Celu": configured(activation.celu, alpha=1.0),
    "Ceil": plain(np.ceil, in_place=True),
    "Clip": Operator(_clip),
    "Cos": plain(np.cos, in_place=True),
    "Cosh": plain(np.cosh, in_place=True),
    "Det": plain(linear.determinant),
    "Div": Operator(_divide),
    "Einsum": Operator(_einsum, view=True),
    "Elu": configured(activation.elu, alpha=1.0),
    "Equal": plain(np.equal),
    "Erf": plain(activation.erf),
    "Exp": plain(np.exp, in_place=True),
    "Floor": plain(np.floor, in_place=True),
    "Gelu": configured(activation.gelu, approximate="none"),
    "Greater": plain(np.greater),
    "GreaterOrEqual": plain(np.greater_equal),
    "HardSigmoid": configured(activation.hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": plain(activation.hard_swish),
    "IsInf": Operator(_is_inf),
    "IsNaN": plain(np.isnan),
    "LeakyRelu": configured(activation.leaky_relu, alpha=0.01),
    "Less": plain(np.less),
    "LessOrEqual": plain(np.less_equal),
    "Log": plain(np.log, in_place=True),
    "LogSoftmax": configured(activation.log_softmax, axis=-1),
    "MatMul": plain(np.matmul),
    "Max": _combination(np.maximum),
    "Mean": plain(elementwise.mean),
    "Min": _combination(np.minimum),
    "Mod": Operator(_modulo),
    "Mul": plain(np.multiply, in_place=True),
    "Neg": plain(np.negative, in_place=True),
    "Not": plain(np.logical_not),
    "Or": plain(np.logical_or),
    "Pow": plain(elementwise.power),
    "Reciprocal": plain(lambda x: x.dtype.type(1) / x),
    "ReduceL2": _reduction(reduction.root_of_squares),
    "ReduceMax": _reduction(reduction.reduce, ufunc=np.maximum),
    "ReduceMean": _reduction(reduction.mean, refusal=_mean_refusal),
    "ReduceMin": _reduction(reduction.reduce, ufunc=np.minimum),
    "ReduceProd": _reduction(reduction.reduce, ufunc=np.multiply),
    "ReduceSum": _reduction(reduction.reduce, ufunc=np.add),
    "ReduceSumSquare": _reduction(reduction.sum_of_squares),
    "Relu": plain(activation.relu, in_place=True),
    "Round": plain(np.rint, in_place=True),
    "Sigmoid": plain(activation.sigmoid),
    "Sign": plain(np.sign, in_place=True),
    "Sin": plain(np.sin, in_place=True),
    "Sinh": plain(np.sinh, in_place=True),
    "Softmax": configured(activation.softmax, axis=-1),
    "Softplus": plain(activation.softplus),
    "Sqrt": plain(np.sqrt, in_place=True),
    "Sub": plain(np.subtract, in_place=True),
    "Sum": _combination(np.add),
    "Tan": plain(np.tan, in_place=True),
    "Tanh": plain(np.tanh, in_place=True),
    "Where": plain(elementwise.where),
    "Xor": plain(np.logical_xor),
}
