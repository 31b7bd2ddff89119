"""Recurrent layers that ONNX Runtime (1.31) computes otherwise: constants of functions, Softplus, a clipped cell."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.batch_first import is_batch_first, write_batch_second
from deep5.networks.draft import Draft
from deep5.networks.onnx.attributes import attribute

__all__ = ["miscomputed", "needs_rewriting", "rewrite"]

_LAYERS = ("GRU", "LSTM", "RNN")
# ONNX's defaults of alpha and beta; ONNX Runtime has 0 for Affine, ScaledTanh and ThresholdedRelu.
_ALPHA = {"affine": 1.0, "elu": 1.0, "hardsigmoid": 0.2, "leakyrelu": 0.01, "scaledtanh": 1.0, "thresholdedrelu": 1.0}
_BETA = {"affine": 0.0, "hardsigmoid": 0.5, "scaledtanh": 1.0}
_OTHERS = {"affine", "scaledtanh", "thresholdedrelu"}


def miscomputed(node: ir.Node) -> str | None:
    """Why a recurrent layer would be wrong, and cannot be rewritten; else None."""
    if node.op_type not in _LAYERS:
        return None
    x = node.inputs[0]
    if x is not None and x.shape is not None and x.shape[1 if is_batch_first(node) else 0] == 0:
        return (
            "got no time steps, for which ONNX Runtime ends the process, or leaves states unwritten; allowed: 1 and "
            "more; remedy: framework 'pytorch' or 'reference'"
        )
    if node.op_type == "LSTM" and attribute(node, "clip") is not None:
        return (
            "got clip, and ONNX Runtime does not clip the cell, which is the input of an activation as well; allowed: "
            "no clip; remedy: framework 'pytorch', 'jax', 'tensorflow' or 'reference'"
        )
    if "softplus" in _functions(node):
        return (
            "got the activation Softplus, which ONNX Runtime makes infinite above 88; allowed: other activations; "
            "remedy: framework 'pytorch', 'jax', 'tensorflow' or 'reference'"
        )
    if "thresholdedrelu" in _functions(node):
        return (
            "got the activation ThresholdedRelu, which ONNX Runtime has as 0 at its threshold; allowed: others; "
            "remedy: framework 'pytorch', 'jax', 'tensorflow' or 'reference'"
        )
    return None


def _functions(node: ir.Node) -> list[str]:
    return [str(name).lower() for name in attribute(node, "activations", ())]


def needs_rewriting(node: ir.Node) -> bool:
    """Whether the batch comes first, or ONNX Runtime would take a constant that is not written for 0, or a number at a
    threshold for too small, and the layer is right then.
    """
    return miscomputed(node) is None and (is_batch_first(node) or _has_others(node))


def rewrite(draft: Draft, node: ir.Node) -> None:
    """The layer with the batch second, and every constant of its functions written."""
    changes = _constants(node) if _has_others(node) else {}
    if is_batch_first(node):
        write_batch_second(draft, node, **changes)
    else:
        draft.replace(*draft.same(node.inputs, **changes))


def _has_others(node: ir.Node) -> bool:
    names = _functions(node)
    written = [len(attribute(node, f"activation_{each}", ())) for each in ("alpha", "beta")]
    wanted = [sum(name in table for name in names) for table in (_ALPHA, _BETA)]
    return "thresholdedrelu" in names or (bool(_OTHERS & set(names)) and written != wanted)


def _constants(node: ir.Node) -> dict[str, list[float] | None]:
    changes: dict[str, list[float] | None] = {}
    for each, table in (("alpha", _ALPHA), ("beta", _BETA)):
        given = iter(attribute(node, f"activation_{each}", ()))
        values = [_written(name, float(next(given, table[name]))) for name in _functions(node) if name in table]
        changes[f"activation_{each}"] = values or None
    return changes


def _written(name: str, value: float) -> float:
    """A constant; for a threshold, which ONNX Runtime takes for too small itself, the number before it."""
    return float(np.nextafter(np.float32(value), np.float32(-np.inf))) if name == "thresholdedrelu" else value
