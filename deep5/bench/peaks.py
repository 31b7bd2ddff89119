"""The machine's peaks as reached by NumPy, ONNX Runtime, and the timed frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.bench.plan import Plan, framework_of
from deep5.core.errors import MissingDependency, UsageError
from deep5.core.plugins import framework
from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.measuring import loops as timing
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.contract import is_floating
from deep5.operators.roofline import PRODUCT, Roofline, best_rate, numpy_roofline

__all__ = ["peaks"]

# Measured whenever it is installed, so that the peak does not depend on which frameworks are timed: its product is
# among the fastest, it does nothing else, and it loads fast.
_ALWAYS = "onnxruntime"


def peaks(plan: Plan, names: Sequence[str], before: Roofline | None = None) -> Roofline:
    """Peaks of the products of NumPy and of all frameworks, in the plan's element type, and the memory stream rate.

    Only the highest rate counts, and a copy takes seconds where the cache is large: of libraries that were measured
    before, only the one with the fastest copy copies again.

    Args:
        plan: Defines element type, threads, and device.
        names: Names of the timed frameworks; ONNX Runtime is measured in addition.
        before: An earlier measurement in this process.
    """
    if _ALWAYS not in (name.partition(":")[0] for name in names) and _is_there(plan):
        names = (*names, _ALWAYS)
    copying = {"numpy", *names} if before is None else {before.fastest_copy}
    roofline = numpy_roofline(plan.threads, plan.peak_dtype, copies="numpy" in copying)
    draw = generator(plan.seed, "roofline")
    operands = tuple(draw.random((PRODUCT, PRODUCT)).astype(numpy_dtype(plan.peak_dtype)) for _ in range(2))
    long = np.ones(2 * timing.last_level_cache_bytes() // 4, dtype=np.float32)
    for name in names:
        # Integer operations are not floating-point operations: they have no peak.
        product = _rate(plan, name, "MatMul", operands, 2 * PRODUCT**3) if is_floating(plan.peak_dtype) else None
        copy = _rate(plan, name, "Neg", (long,), 2 * long.nbytes) if name in copying else None
        roofline = roofline.with_library(name, product, copy)
    return roofline


def _is_there(plan: Plan) -> bool:
    """Whether ONNX Runtime is installed and accepts the plan's threads; otherwise its peak would not be comparable."""
    try:
        framework(_ALWAYS).set_threads(plan.threads)
    except (MissingDependency, UsageError):
        return False
    return True


def _rate(plan: Plan, name: str, op_type: str, values: Sequence[Any], amount: int) -> float | None:
    try:
        executor = framework_of(plan, name).operator_executor(ONNXOperator(op_type), device=plan.device)
        native = executor.arrays(*values)
        work = timing.Work(call=executor.inference, arguments=native, synchronize=executor.synchronize)
        return best_rate(work, amount)
    except Exception:  # any error of a framework: it sets no peak, and the error appears in its own rows
        return None
