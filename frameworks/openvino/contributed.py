"""Which of ONNX Runtime's own operators, domain com.microsoft, OpenVINO (2026.4) computes as it does.

It reads about forty of them. Quantized ones wrap around where ONNX Runtime saturates, and round otherwise; others
ignore attributes. So only those of this list run, each compared with ONNX Runtime in a test.

References:
    ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx.contributed_types import CONTRIBUTED
from deep5.networks.strings import elsewhere

__all__ = ["differs"]


def differs(node: ir.Node) -> str | None:
    """Why OpenVINO does not compute a node of the domain, or may compute other values than ONNX Runtime; else None."""
    if node.op_type not in _CHECKS:
        return (
            f"OpenVINO is not known to compute {node.op_type} of the domain '{CONTRIBUTED}' as ONNX Runtime does; "
            f"allowed: ONNX's own operators, and {', '.join(sorted(_CHECKS))}; remedy: {elsewhere(node)}"
        )
    refused = _CHECKS[node.op_type](node)
    return None if refused is None else f"{refused}; remedy: {elsewhere(node)}"


def _all_runs(node: ir.Node) -> str | None:
    return None


def _transposed_batch(node: ir.Node) -> str | None:
    for name in ("transBatchA", "transBatchB"):
        if attribute(node, name, 0):
            return f"got {name}=1, which OpenVINO ignores; allowed: 0"
    return None


def _activation(node: ir.Node) -> str | None:
    name = attribute(node, "activation", "")
    known = ("Relu", "LeakyRelu")
    return None if name in known else f"got activation={name!r}, which OpenVINO ignores; allowed: {', '.join(known)}"


def _one_direction(node: ir.Node) -> str | None:
    if attribute(node, "unidirectional", 0):
        return "got unidirectional=1, and OpenVINO counts positions otherwise; allowed: 0"
    if attribute(node, "mask_filter_value") is not None:
        return "got mask_filter_value, which OpenVINO ignores; allowed: its default"
    if len(node.outputs) > 3:
        return "got an output of scores; allowed: the others"
    given = [number for number, value in enumerate(node.inputs) if value is not None]
    query = node.inputs[0]
    if given[:3] != [0, 1, 2] or given[-1] > 5 or query is None or query.shape is None or len(query.shape) != 3:
        return "got packed or cached inputs, or some of unknown rank; allowed: query, key and value of rank 3"
    return None


def _statistics(node: ir.Node) -> str | None:
    if len(node.inputs) > 4 and node.inputs[3] is None:
        return "got a bias without beta, which OpenVINO does not read; allowed: both, or none"
    used = [value for value in node.outputs[1:3] if value.is_graph_output() or value.uses()]
    return "got outputs of the mean or the deviation; allowed: the others" if used else None


_CHECKS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "BiasGelu": _all_runs,
    "DequantizeLinear": _all_runs,
    "FastGelu": _all_runs,
    "FusedConv": _all_runs,
    "FusedGemm": _activation,
    "FusedMatMul": _transposed_batch,
    "Gelu": _all_runs,
    "MatMulIntegerToFloat": _all_runs,
    "MultiHeadAttention": _one_direction,
    "QuickGelu": _all_runs,
    "SkipLayerNormalization": _statistics,
    "SkipSimplifiedLayerNormalization": _statistics,
}
