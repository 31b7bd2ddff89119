"""Settings and peaks read back in a candidate's process, checked against those requested and proved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from deep5.compare.candidate import Plan
from deep5.core.errors import Deep5Error, UsageError
from deep5.core.tensors import to_numpy
from deep5.measuring.loops import Work
from deep5.measuring.pinning import processors
from deep5.operators.roofline import best_rate
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe

if TYPE_CHECKING:
    from deep5.core.framework import Framework

__all__ = ["fault_of", "framework_of", "observed", "peaks_of", "provenance_of"]

# Size of the square matrices and of the vector that measure the framework's peak rates.
_PRODUCT, _COPY = 1024, 1 << 24
_PEAK_S = 0.1
# Variables that control how long threads spin before they sleep.
_WAITING = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT")
# Relative error of a float32 product of size 1024: twenty times its rounding error, a fifth of that of TF32.
_EXACT = 2e-5


def framework_of(recipe: Recipe) -> Framework:
    """The framework that a recipe names.

    Raises:
        UsageError: The recipe has its own function instead.
    """
    from deep5.run.assemble_executor import executor_factory

    _, known, _ = executor_factory(recipe_parts(recipe))
    if known is None:
        raise UsageError(f"the recipe {recipe.name} has its own executor; allowed: a framework")
    return known


def observed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings read back in this process: of the framework, the thread pools, and the pinning.

    Args:
        settings: An executor's settings as read back: threads, element type, TF32, determinism, spinning.
    """
    from deep5.run.record import thread_pools

    return {
        **{name: _plain(value) for name, value in settings.items()},
        "pools": thread_pools(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "waiting": {name: os.environ[name] for name in _WAITING if name in os.environ},
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def provenance_of(parts: Any, **more: str) -> dict[str, Any]:
    """Hashes of the components that must be the same in all candidates of a group.

    Args:
        parts: A recipe's components.
        more: Further ones.
    """
    from deep5.core.canonical import canonical_hash

    data = canonical_hash([part.content_hash() for part in (parts.splits.train, parts.splits.test)])
    return {
        "data": data,
        "split": parts.splits.split_hash or data,
        "initial_weights": parts.executor.network.weights_hash(),
        "network": parts.executor.network.structure_hash(),
        **more,
    }


def peaks_of(framework: Framework, device: Any) -> dict[str, float | None]:
    """Peak rates of a framework's own matrix product and copy in this process, and the accuracy of the product.

    Args:
        framework: The framework.
        device: The device.

    Returns:
        `product_flop_s`, `copy_byte_s`, and `product_error`: the float32 product compared with float64, as the norm of
        the difference over the norm. It is about 1e-7; if products are silently rounded to TF32, 1e-4 and more.
    """
    import numpy as np

    draw = np.random.Generator(np.random.Philox(0))
    left, right = (draw.standard_normal((_PRODUCT, _PRODUCT), np.float32) for _ in range(2))
    vector = np.ones(_COPY, np.float32)

    def work_of(op_type: str, *values: Any) -> Work | None:
        from deep5.networks.onnx_operator import ONNXOperator

        try:
            executor = framework.operator_executor(ONNXOperator(op_type), device=device)
            return Work(call=executor.inference, arguments=executor.arrays(*values), synchronize=executor.synchronize)
        except Deep5Error:
            return None  # the framework has no such operator by itself, so no peak is known

    found: dict[str, float | None] = {"product_flop_s": None, "copy_byte_s": None, "product_error": None}
    product, copy = work_of("MatMul", left, right), work_of("Neg", vector)
    with suppress(Exception):  # any error of a framework only means that it has no peak; its times remain valid
        _measure(found, product, copy, (left, right))
    return found


def _measure(found: dict[str, float | None], product: Work | None, copy: Work | None, factors: Any) -> None:
    """Measure the peaks and add them to `found`."""
    import numpy as np

    left, right = factors
    if product is not None:
        made = np.asarray(to_numpy(product.call(*product.arguments)[0]), np.float64)
        exact = left.astype(np.float64) @ right.astype(np.float64)
        found["product_error"] = float(np.linalg.norm(made - exact) / np.linalg.norm(exact))
        found["product_flop_s"] = best_rate(product, 2 * _PRODUCT**3, _PEAK_S)
    if copy is not None:
        found["copy_byte_s"] = best_rate(copy, 2 * 4 * _COPY, _PEAK_S)


def fault_of(plan: Plan, recipe: Recipe, proved_on: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> str | None:
    """The discrepancy in a process, or None.

    Args:
        plan: The comparison as declared.
        recipe: As the candidate runs it.
        proved_on: Hashes of the inputs of the candidate's proof.
        answer: Answer of its timed process: `settings` and `provenance` as read back, and `peaks`.
    """
    found, error = answer["settings"], answer["peaks"]["product_error"]
    for key, value in (proved_on or {}).items():
        if key in answer["provenance"] and answer["provenance"][key] != value:
            return f"its {key} changed after the proof of the candidate"
    declared = plan.kind != "operators" and bool(recipe.value("tf32"))
    # Recipes of operators have no such key.
    remedy = "" if plan.kind == "operators" else "; remedy: tf32=True in the recipe, which allows it for all candidates"
    if plan.kind != "operators" and found.get("dtype") not in (None, "float32"):
        return f"it computes in {found['dtype']}; requested: float32"
    for what, requested, got in (
        ("threads", plan.threads, found.get("threads")),
        ("processors", processors(plan.threads), found.get("affinity")),
    ):
        if got is not None and got != requested:
            return f"it has {got} as {what}; requested: {requested}"
    if found.get("tf32") is True and not declared:
        return f"it reports that it rounds float32 to TF32; requested: float32{remedy}"
    if error is not None and not error <= _EXACT and not declared:
        return f"its matrix products in float32 are off by {error:.1g}; allowed: {_EXACT:g}{remedy}"
    return None
