"""Which nodes PyTorch runs: the operator table, filled by the other modules of this package."""

from __future__ import annotations

import onnx_ir as ir

from deep5.core.errors import Deep5Error
from deep5.core.framework import Support
from deep5.frameworks.pytorch import (
    operators_attention,
    operators_elementwise,
    operators_image,
    operators_index,
    operators_layers,
    operators_math,
    operators_normalization,
    operators_recurrent,
    operators_shape,
    operators_signal,
    operators_windows,
)
from deep5.frameworks.pytorch.composites import register
from deep5.frameworks.pytorch.operator_check import check_operator
from deep5.frameworks.pytorch.table import CHECKS, EAGER, OPERATORS, RANKED, SETTINGS
from deep5.networks.custom import is_custom, operator_of
from deep5.networks.nodes import computed, subgraphs, supported

__all__ = ["OPERATORS", "supports"]

# fmt: off
_DTYPES = {
    getattr(ir.DataType, name)
    for name in (
        "BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64",
        "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE",
    )
}
# torch has some kernels for these, `unsigned.py` others; a registered operator would find neither.
_UNSIGNED = {ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
# Eight-bit storage types: converted and moved, but arithmetic uses other types.
_NARROW = {
    getattr(ir.DataType, name) for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
}
_NARROW_OPERATORS = {
    "BitCast", "Cast", "CastLike", "Constant", "DequantizeLinear", "Expand", "Flatten", "Identity", "QuantizeLinear",
    "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze",
}
# Referenced, so that the imports are not removed: they fill the table.
_FILLED_BY = (
    operators_attention, operators_elementwise, operators_image, operators_index,
    operators_layers, operators_math, operators_normalization,
    operators_recurrent, operators_shape, operators_signal, operators_windows,
)
# fmt: on
register()
_FLOATING = {"AveragePool", "Conv", "Gemm"}


def supports(node: ir.Node, *, compiled: bool = False) -> Support:
    """Whether this node can run, and the reason if not.

    Args:
        node: The node.
        compiled: Whether torch compiles the program: then no computed value can be read on the host.
    """
    if is_custom(node):
        reason = _unfit(node)
        return Support(reason is None, reason or "")
    kinds = _DTYPES | _NARROW if node.op_type in _NARROW_OPERATORS else _DTYPES
    answer = supported(node, "PyTorch", OPERATORS, CHECKS, kinds, _FLOATING, _is_shapeless)
    if answer.yes and compiled and (reason := _read_on_host(node)):
        return Support(False, reason)
    for graph in subgraphs(node).values() if answer.yes else ():
        for inner in graph:
            if not (found := supports(inner, compiled=compiled)).yes:
                return Support(False, f"{inner.name or inner.op_type} ({inner.op_type}) inside it: {found.reason}")
    return answer


def _is_shapeless(node: ir.Node) -> bool:
    return node.op_type not in RANKED or all(value is None or value.shape is not None for value in node.inputs)


def _read_on_host(node: ir.Node) -> str | None:
    """Why a node cannot be part of a compiled program."""
    if node.op_type in EAGER or subgraphs(node):
        return "what it does depends on computed values, which a compiled program cannot look at"
    if any(value is not None and not isinstance(value.type, ir.TensorType) for value in (*node.inputs, *node.outputs)):
        return "it takes or gives a list or an optional value, which a compiled program does not hold"
    return computed(node, *SETTINGS.get(node.op_type, ()))


def _unfit(node: ir.Node) -> str | None:
    """Why a node of a registered operator cannot run."""
    if None in node.inputs:
        return f"the input {node.inputs.index(None)} is left out; allowed: all inputs of a registered operator"
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype not in _DTYPES - _UNSIGNED:
            return f"the element type {value.dtype.name} of {value.name!r}"
    try:
        if (operator := operator_of(node)) is not None:
            check_operator(operator)
    except Deep5Error as error:
        return str(error)
    return None
