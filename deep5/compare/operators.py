"""A candidate's jobs in an operator comparison: results for the proof, and timed calls of every workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from deep5.bench.agreement import tolerances, wrong_dtypes
from deep5.bench.candidates import Candidate, prepare, random_values, read, reason_of, set_numerics
from deep5.bench.measure import SCOPE, measure_series, stage_name
from deep5.bench.plan import Plan, Workload, framework_of, workloads
from deep5.bench.recipe import plan_of
from deep5.compare.settings_check import observed, peaks_of
from deep5.compare.stages import CHECKS
from deep5.core.errors import Deep5Error
from deep5.core.memory import peak_bytes
from deep5.core.tensors import TensorSpec
from deep5.measuring.machine_load import machine_between, machine_state
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe

__all__ = ["JOBS", "SCOPE", "workload_name"]


def workload_name(key: Mapping[str, str]) -> str:
    """Name of a workload: its problem, and its direction unless that is a plain forward pass."""
    return key["problem"] if key["direction"] == "forward" else f"{key['problem']}, {key['direction']}"


def _results(
    plan: Plan, request: Mapping[str, Any], report: Callable[[str], object], *, double: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of the first call of every workload, by workload and position."""
    engine = framework_of(plan, plan.frameworks[0])
    set_numerics(engine, plan)
    engine.set_threads(plan.threads)
    works, left_out = workloads(plan)
    found: dict[str, Any] = {}
    allowed: dict[str, list[float]] = {}
    reasons = {workload_name(entry): entry["reason"] for entry in left_out}
    for work in works:
        name = workload_name(work.key)
        report(f"the results of {name}")
        inputs, grads = random_values(work, plan.seed, plan.bounds)
        own = work
        if double:
            own, inputs, grads = _doubled(work, inputs, grads)
        try:
            made = prepare(Candidate(framework=plan.frameworks[0]), plan, own, inputs, grads)
            arrays = read(made.work.call(*made.work.arguments))
        except Exception as error:  # any error of a framework is its answer, and is listed
            reasons[name] = reason_of(error)
            continue
        wrong: dict[int, str] = {}
        if not double:
            allowed[name], wrong = tolerances(work, arrays), wrong_dtypes(work, arrays)
        if wrong:
            reasons[name] = "; ".join(wrong.values())
        # A result with a wrong element type is left out, however close to the reference it is.
        found |= {f"{name}/{place}": np.array(value) for place, value in enumerate(arrays) if place not in wrong}
    return {"left_out": reasons, "allowed": allowed}, found


def _doubled(work: Workload, inputs: Any, grads: Any) -> tuple[Workload, Any, Any]:
    """The same numbers in float64."""
    specs = tuple(
        TensorSpec(shape=spec.shape, dtype="float64") if value.dtype.kind in "fV" else spec
        for spec, value in zip(work.problem.inputs, inputs, strict=True)
    )

    def wide(values: Any) -> Any:
        return tuple(
            None if value is None else value.astype(np.float64) if value.dtype.kind in "fV" else value
            for value in values
        )

    return replace(work, problem=replace(work.problem, inputs=specs)), wide(inputs), wide(grads)


def _reference(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    plan = replace(_plan(recipe, request), frameworks=("reference",), device="cpu")
    answer, arrays = _results(plan, request, report, double=True)
    return {**answer, "provenance": _provenance(recipe)}, arrays


def _prove(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    answer, arrays = _results(_plan(recipe, request), request, report, double=False)
    return {
        **answer,
        "provenance": _provenance(recipe),
        "settings": observed({}),
    }, arrays


def _plan(recipe: Recipe, request: Mapping[str, Any]) -> Plan:
    return replace(
        plan_of(recipe_parts(recipe)), bare=None, mode=request["mode"], threads=request["threads"], cold=False
    )


def _provenance(recipe: Recipe) -> dict[str, Any]:
    return {"workload": recipe.fixed_hash(), "seed": recipe.value("seed")}


def _time(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    before = machine_state()
    plan = _plan(recipe, request)
    raw = measure_series(plan, request.get("round", 0), report)
    report(CHECKS)
    memory_bytes = peak_bytes()
    name = plan.frameworks[0]
    if not raw["series"]:
        reasons = [entry["reason"] for entry in raw["left_out"]]
        raise Deep5Error(f"it ran no workload; the first reason: {reasons[0] if reasons else 'none'}")
    return {
        "memory_bytes": memory_bytes,
        "workloads": [
            {
                "workload": workload_name(series),
                "stage": stage_name(series),
                "stage_begin_s": series["warm_ups"][-1][0],
                "batch_size": None,
                "flops": series["flops"],
                "bytes": series["bytes"],
                "first_call_s": series["first_call_s"],
                "samples": [
                    (at, seconds, series["calls"]) for at, seconds in (*series["warm_ups"], *series["samples"])
                ],
                "warm_up": len(series["warm_ups"]),
                "settled": series["settled"],
            }
            for series in raw["series"]
        ],
        "left_out": {workload_name(entry): entry["reason"] for entry in raw["left_out"]},
        "settings": observed(raw["settings"].get(name, {})),
        "warnings": raw["warnings"],
        "provenance": _provenance(recipe),
        "peaks": peaks_of(framework_of(plan, name), plan.device),
        "machine": machine_between(before),
        "set_up_s": None,  # belongs to individual workloads, and is not timed
    }, {}


JOBS: Mapping[str, Callable[..., tuple[dict[str, Any], dict[str, Any]]]] = {
    "reference": _reference,
    "prove": _prove,
    "time": _time,
}
"""The jobs that a process can run."""
