"""The machine's peaks as NumPy, ONNX Runtime and the frameworks that are timed reach them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.bench.plan import Plan
from deep5.core.errors import MissingDependency, UsageError
from deep5.core.plugins import framework
from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.measuring import loops as timing
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.contract import is_floating
from deep5.operators.roofline import PRODUCT, Roofline, best_rate, numpy_roofline

__all__ = ["peaks"]

# Measured in any case where it is there, so that the peak does not hang on which frameworks are timed: its product is
# among the fastest, it computes nothing else, and it is soon loaded.
_ALWAYS = "onnxruntime"


def peaks(plan: Plan, names: Sequence[str]) -> Roofline:
    """The peaks of NumPy and of every framework's own product, in the plan's element type, and stream of memory.

    Args:
        plan: Gives element type, threads and device.
        names: Of the frameworks that are timed; ONNX Runtime is measured beside them.
    """
    if _ALWAYS not in (name.partition(":")[0] for name in names) and _is_there(plan):
        names = (*names, _ALWAYS)
    roofline = numpy_roofline(plan.threads, plan.peak_dtype)
    draw = generator(plan.seed, "roofline")
    operands = tuple(draw.random((PRODUCT, PRODUCT)).astype(numpy_dtype(plan.peak_dtype)) for _ in range(2))
    long = np.ones(2 * timing.last_level_cache_bytes() // 4, dtype=np.float32)
    for name in names:
        # Operations on whole numbers are no floating-point ones: there is no peak of them.
        product = _rate(plan, name, "MatMul", operands, 2 * PRODUCT**3) if is_floating(plan.peak_dtype) else None
        roofline = roofline.with_library(name, product, _rate(plan, name, "Neg", (long,), 2 * long.nbytes))
    return roofline


def _is_there(plan: Plan) -> bool:
    """Whether ONNX Runtime is installed and takes the plan's threads: with others, its peak is another machine's."""
    try:
        framework(_ALWAYS).set_threads(plan.threads)
    except (MissingDependency, UsageError):
        return False
    return True


def _rate(plan: Plan, name: str, op_type: str, values: Sequence[Any], amount: int) -> float | None:
    try:
        executor = framework(name).operator_executor(ONNXOperator(op_type), device=plan.device)
        native = executor.arrays(*values)
        work = timing.Work(call=executor.inference, arguments=native, synchronize=executor.synchronize)
        return best_rate(work, amount)
    except Exception:  # whatever a framework raises: it is no peak, and shows in the framework's own rows
        return None
