"""Candidate, baseline and the arguments of both, for each kind of overhead case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deep5.core.plugins import load
from deep5.frameworks.pytorch import AdamOptimizer
from deep5.recipes.overhead import (
    all_reduces,
    by_deep5,
    feeding,
    jax_by_hand,
    onnxruntime_by_hand,
    operators,
    optimizers,
    products,
    pytorch_by_hand,
    ranks_training,
    rules,
    saving,
    tensorflow_by_hand,
    training,
)
from deep5.recipes.overhead.workloads import jax_step, pytorch_step, workload

__all__ = ["KINDS"]

Side = Callable[..., object]
Sides = dict[str, Any]

_WRITTEN_FOR: Mapping[str, Any] = {
    "jax": jax_by_hand,
    "onnxruntime": onnxruntime_by_hand,
    "pytorch": pytorch_by_hand,
    "tensorflow": tensorflow_by_hand,
}
_WORKLOADS_FOR: Mapping[str, Any] = {"jax": jax_step, "pytorch": pytorch_step}
_NETWORKS: Mapping[str, Any] = {"small_gpt": by_deep5.small_gpt}
"""Networks of these recipes only; others have their registered name."""
_SHAPES = {"small": optimizers.SMALL, "large": optimizers.LARGE}
_OPERATORS: Mapping[str, tuple[Side, Side]] = {
    "python_numpy": (operators.python_by_deep5, operators.python_by_hand),
    "cpp_numpy": (operators.cpp_by_numpy, operators.nothing),
    "cpp_pytorch": (operators.cpp_in_pytorch, operators.nothing),
    "cpp_pytorch_gradient": (operators.cpp_in_pytorch_with_gradient, operators.nothing),
    "cpp_onnxruntime": (operators.cpp_in_onnxruntime, operators.nothing),
    "cpp_jax": (operators.cpp_in_jax, operators.nothing),
    "cpp_tensorflow": (operators.cpp_in_tensorflow, operators.square_in_tensorflow),
}


def _pair(candidate: Side, baseline: Side, ours: Sides, theirs: Sides | None = None) -> Sides:
    """Both sides; the baseline takes the candidate's arguments if `theirs` is None."""
    return {
        "candidate": candidate,
        "candidate_kwargs": ours,
        "baseline": baseline,
        "baseline_kwargs": ours if theirs is None else theirs,
    }


def _step(*, engine: str, opponent: str, network: str, batch_size: int) -> Sides:
    same = {"network": _NETWORKS.get(network) or load("networks", network), "batch_size": batch_size}
    theirs = _WRITTEN_FOR[opponent].training_step
    return _pair(by_deep5.training_step, theirs, {"framework": engine, **same}, same)


def _workload(*, engine: str, recipe: str, size: str = "full") -> Sides:
    same = {"recipe": recipe, "size": size}
    theirs = _WORKLOADS_FOR[engine].training_step
    return _pair(workload.training_step, theirs, {"framework": engine, **same}, same)


def _inference(*, engine: str, network: str, batch_size: int) -> Sides:
    same = {"network": load("networks", network), "batch_size": batch_size}
    return _pair(by_deep5.inference, _WRITTEN_FOR[engine].inference, {"framework": engine, **same}, same)


def _training(*, engine: str, batch_size: int) -> Sides:
    same = {"batch_size": batch_size}
    return _pair(by_deep5.training_run, _WRITTEN_FOR[engine].training_run, {"framework": engine, **same}, same)


def _update(*, rule: str, optimizer: str, shapes: str) -> Sides:
    made = _SHAPES[shapes]
    ours, theirs = {"rule": _rule(rule), "shapes": made}, {"optimizer": optimizer, "shapes": made}
    return _pair(optimizers.rule_alone, optimizers.fused_alone, ours, theirs)


def _lenet(*, rule: str, optimizer: str, batch_size: int) -> Sides:
    ours, theirs = {"optimizer": _rule(rule)}, {"optimizer": optimizer}
    same = {"batch_size": batch_size}
    return _pair(training.lenet_by_trainer, training.lenet_by_hand, {**same, **ours}, {**same, **theirs})


def _rule(name: str) -> Any:
    of_recipes = {"yogi": optimizers.Yogi, "native": AdamOptimizer}
    return of_recipes[name] if name in of_recipes else load("optimizers", name)


def _step_under(*, engine: str, **variant: str) -> Sides:
    same = {"rule": "adamw", "batch_size": 1, **variant}
    theirs = {"network": load("networks", "lenet"), **same}
    return _pair(rules.step, _WRITTEN_FOR[engine].training_step, {"framework": engine, **same}, theirs)


def _native_update() -> Sides:
    return _pair(rules.rule_alone, rules.native_alone, {"rule": "adamw", "shapes": "small"})


def _operator(*, route: str) -> Sides:
    candidate, baseline = _OPERATORS[route]
    return {"candidate": candidate, "baseline": baseline}


def _all_reduce(*, library: str, size_bytes: int) -> Sides:
    if library == "gloo":
        return _pair(all_reduces.by_process_groups, all_reduces.by_gloo, {"size_bytes": size_bytes})
    return _pair(all_reduces.by_communicator, all_reduces.by_mpi4py, {"size_bytes": size_bytes})


def _trainer() -> Sides:
    return {"candidate": training.noop_trainer, "baseline": training.bare_loop}


def _logging(*, busy_us: float) -> Sides:
    return _pair(training.logging_trainer, training.bare_loop, {"busy_us": busy_us})


def _sampling(*, like: str, batch_size: int) -> Sides:
    return _pair(feeding.by_sampler, feeding.by_hand, {"like": like, "batch_size": batch_size})


def _checkpoint(*, size: int) -> Sides:
    return _pair(saving.checkpoint, saving.bytes_by_hand, {"features": size, "hidden": size})


def _product(*, size: int) -> Sides:
    return _pair(products.onnxruntime_product, products.pytorch_product, {"size": size})


def _ranks(*, depth: int, batch_size: int) -> Sides:
    same = {"depth": depth, "batch_size": batch_size}
    return _pair(ranks_training.by_trainer, ranks_training.by_distributed_data_parallel, same)


def _single_rank(*, batch_size: int) -> Sides:
    return _pair(ranks_training.lenet_as_one_rank, ranks_training.lenet_alone, {"batch_size": batch_size})


KINDS: Mapping[str, Callable[..., Sides]] = {
    "all_reduce": _all_reduce,
    "checkpoint": _checkpoint,
    "inference": _inference,
    "lenet": _lenet,
    "logging": _logging,
    "native_update": _native_update,
    "operator": _operator,
    "product": _product,
    "ranks": _ranks,
    "sampling": _sampling,
    "single_rank": _single_rank,
    "step": _step,
    "step_under": _step_under,
    "trainer": _trainer,
    "training": _training,
    "update": _update,
    "workload": _workload,
}
"""By kind, the function that makes the two sides of FIXED from a case's arguments."""
