"""Which nodes JAX runs, according to the operator table."""

from __future__ import annotations

import onnx_ir as ir

from deep5.core.errors import Deep5Error
from deep5.core.framework import Support
from deep5.frameworks.jax.operator_check import check_operator
from deep5.frameworks.jax.operators_math import FEW_BITS
from deep5.frameworks.jax.table import CHECKS, OPERATORS, RANKED
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.kernels.updates import DOMAIN
from deep5.networks.nodes import supported

__all__ = ["supports"]

_WHOLE = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_DTYPES = {getattr(ir.DataType, name) for name in ("BOOL", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE", *_WHOLE)}
# These move or cast elements, also of dtypes in which JAX does not compute.
_MOVING = {
    "BitCast", "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "DequantizeLinear", "Expand", "Flatten",
    "Identity", "If", "Loop", "QuantizeLinear", "Reshape", "Scan", "Shape", "Size", "Slice", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
}  # fmt: skip
# Their source depends on the rank of their inputs.
_RANKED = {"BatchNormalization", "Conv", "ConvInteger", "DeformConv", "MaxUnpool", "QLinearConv"}


def supports(node: ir.Node) -> Support:
    """Whether the node can run, and if not, why."""
    if is_custom(node):
        reason = _unfit(node)
        return Support(reason is None, reason or "")
    if node.domain == DOMAIN and f"{DOMAIN}.{node.op_type}" in OPERATORS:
        return Support(True)
    dtypes = _DTYPES | FEW_BITS if node.op_type in _MOVING else _DTYPES
    return supported(node, "JAX", OPERATORS, CHECKS, dtypes, shapeless=_is_rankless)


def _is_rankless(node: ir.Node) -> bool:
    """Whether the source of a node does not depend on the rank of its inputs."""
    return node.op_type in OPERATORS and node.op_type not in _RANKED | RANKED


def _unfit(node: ir.Node) -> str | None:
    """Why a node of a registered operator cannot run."""
    if None in node.inputs:
        return f"the input {node.inputs.index(None)} is left out; allowed: all inputs of a registered operator"
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype not in _DTYPES:
            return f"the element type {value.dtype.name} of {value.name!r}"
    try:
        if (operator := operator_of(node)) is not None:
            check_operator(operator)
    except Deep5Error as error:
        return str(error)
    return None
