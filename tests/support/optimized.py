"""Sessions of plain ONNX Runtime with and without optimizations, and what differs between their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from deep5.frameworks.onnxruntime.fusions import left_out

__all__ = ["apart", "guarded_session", "outcome", "plain_session"]

_ROUNDING = {2: 1e-2, 4: 2e-4, 8: 1e-9}


def _session(model: onnx.ModelProto, disabled: Sequence[str], *, optimized: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(disabled),
        enable_fallback=False,
    )


def plain_session(model: onnx.ModelProto, *, optimized: bool) -> onnxruntime.InferenceSession:
    """A session with every optimization of ONNX Runtime's default level, or with none."""
    return _session(model, (), optimized=optimized)


def guarded_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session without the optimizations that deep5 leaves out, whose weights are constants."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return _session(model, left_out(ir.from_proto(inferred)), optimized=True)


def outcome(session: Any, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """What a session computes."""
    return list(session.run(None, dict(feeds)))


def apart(wanted: Sequence[Any], found: Sequence[Any], *, quantum: float = 0.0) -> str | None:
    """How results differ by more than rounding; None if they do not.

    Args:
        wanted: Without optimizations.
        found: With them.
        quantum: The largest step of quantized values, by which they may differ.
    """
    for number, (right, array) in enumerate(zip(wanted, found, strict=True)):
        if right.dtype != array.dtype or right.shape != array.shape:
            return f"output {number}: {array.dtype}{array.shape}, expected {right.dtype}{right.shape}"
        if right.dtype.kind not in "f":
            if quantum and right.dtype.kind in "iu":
                same = bool((np.abs(right.astype(int) - array.astype(int)) <= 1).all())
            else:
                same = np.array_equal(right, array)
        else:
            rounding = _ROUNDING[right.dtype.itemsize]
            finite = right[np.isfinite(right)].astype(np.float64)
            largest = min(float(np.abs(finite).max(initial=0)), 10.0)
            with np.errstate(invalid="ignore"):
                same = np.allclose(
                    array.astype(np.float64),
                    right.astype(np.float64),
                    rtol=rounding,
                    atol=rounding * largest + quantum * 1.001,
                    equal_nan=True,
                )
        if not same:
            return f"output {number}: {array.ravel()[:8]}, expected {right.ravel()[:8]}"
    return None
