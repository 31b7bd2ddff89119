"""A candidate's jobs in an inference comparison: outputs for the proof, and timed forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from deep5.compare.settings_check import framework_of, observed, peaks_of, provenance_of
from deep5.compare.stages import CHECKS
from deep5.compare.training import (
    assembled,
    executors_of,
    first_batches,
    hash_of,
    in_types_of,
    is_smooth,
    of_reference,
)
from deep5.compare.witness import reuses_inference
from deep5.core.errors import Unsupported
from deep5.core.memory import peak_bytes
from deep5.core.tensors import to_numpy
from deep5.measuring.machine_load import machine_between, machine_state
from deep5.measuring.statistics import steady_part
from deep5.recipe.recipe import Recipe

__all__ = ["JOBS", "SCOPE"]

SCOPE = (
    "whole calls of the network in evaluation, from a batch of NumPy arrays to outputs in the framework's memory, each "
    "finished by synchronize before the next begins"
)

_STAGE = "the timed calls"
_BATCHES = 8
_BUDGET_S = {"quick": 2.0, "rigorous": 1.0}
_FEWEST, _PATIENCE = 20, 4


def _outputs(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float, name: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs on the first batches, in float64 and float32, of the recipe's framework or of another one by name."""
    from deep5.networks.transforms.precision import with_precision
    from deep5.training.trajectory import reason_without

    report("the assembly")
    if name is not None:
        recipe = of_reference(recipe)
    parts = assembled(recipe)
    network, make = parts.executor.network, executors_of(parts)
    batches = first_batches(parts, min(request["steps"], _BATCHES))
    found: dict[str, Any] = {}
    left_out = []
    for dtype in ("float64", "float32") if name is None else ("float64",):
        report(f"the outputs in {dtype}")
        of = with_precision(network, dtype)
        try:
            executor = make(of)
            for place, (_, inputs) in enumerate(in_types_of(of, batches)):
                outputs = executor.inference(inputs)
                found |= {f"{dtype}/{place}/{key}": np.array(to_numpy(value)) for key, value in outputs.items()}
        except Unsupported as error:
            left_out.append(reason_without(dtype, error))
    answer = {
        "provenance": provenance_of(parts, first_batches=hash_of(batches)),
        "steps": len(batches),
        "smooth": is_smooth(network),
        "left_out": left_out,
        "itself": parts.network is not None and parts.network.as_it_is,
        "settings": observed(parts.executor.settings()),
    }
    return answer, found


def _reference(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    return _outputs(recipe, request, report, begin, "reference")


def _prove(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    return _outputs(recipe, request, report, begin, None)


def _read(outputs: Mapping[str, Any]) -> list[np.ndarray]:
    return [np.array(to_numpy(value)) for value in outputs.values()]


def _time(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    from deep5.measuring import loops as timing

    before = machine_state()
    timing.self_test()
    report("the assembly")
    parts = assembled(recipe)
    executor = parts.executor
    inputs = first_batches(parts, 1)[0][1]
    size = len(next(iter(inputs.values())))
    work = timing.Work(call=executor.inference, arguments=(inputs,), synchronize=executor.synchronize)
    set_up_s = perf_counter() - begin
    report("the first call")
    first_call_s = timing.time_loop(work, 1)
    budget_s = _BUDGET_S[request["mode"]]
    samples: list[tuple[float, float, int]] = []
    found = steady_part([])
    with timing.collector_spared():
        report(_STAGE)
        origin = perf_counter()
        fault = timing.untimed_work(work, _read)
        if fault is not None:
            return {"reason": f"{fault}; its work is not on the clock"}, {}
        calls = 1
        while (spent := perf_counter() - origin) < _PATIENCE * budget_s:
            if spent >= budget_s and len(samples) >= _FEWEST:
                found = steady_part([seconds for _, seconds, _ in samples])
                if found.reached and spent - samples[found.begin][0] >= budget_s / 2:
                    break
            seconds = timing.time_loop(work, calls)
            samples.append((perf_counter() - origin, seconds, calls))
            if seconds * calls < timing.LEAST_SAMPLE_S:
                calls *= 2
        report(CHECKS)
        memory_bytes = peak_bytes()
        if (fault := timing.untimed_work(work, _read)) is not None:
            return {"reason": f"{fault}; its work is not on the clock"}, {}
        if (fault := reuses_inference(executor, inputs, first_batches(parts, _BATCHES))) is not None:
            return {"reason": fault}, {}
    found = steady_part([seconds for _, seconds, _ in samples])
    outputs = executor.inference(inputs)
    finite = all(np.isfinite(np.asarray(to_numpy(value), np.float64)).all() for value in outputs.values())
    return {
        "memory_bytes": memory_bytes,
        "workloads": [
            {
                "workload": "inference",
                "stage": _STAGE,
                "stage_begin_s": 0.0,
                "batch_size": size,
                "first_call_s": first_call_s,
                "samples": samples,
                "warm_up": found.begin,
                "settled": found.reached,
            }
        ],
        **({} if finite else {"reason": "its outputs are not finite"}),
        "settings": observed(executor.settings()),
        "warnings": list(parts.warnings),
        "provenance": provenance_of(parts),
        "peaks": peaks_of(framework_of(recipe), recipe.value("device")),
        "machine": machine_between(before),
        "set_up_s": set_up_s,
    }, {}


JOBS: Mapping[str, Callable[..., tuple[dict[str, Any], dict[str, Any]]]] = {
    "reference": _reference,
    "prove": _prove,
    "time": _time,
}
"""The jobs that a process can run."""
