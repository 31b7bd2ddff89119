"""A candidate's jobs in a training comparison: its part of the proof, and timing of whole steps of its trainer."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.compare.settings_check import framework_of, observed, peaks_of, provenance_of
from deep5.compare.stages import CHECKS
from deep5.compare.step_clock import StepClock, timed_read, unfinished
from deep5.compare.witness import WITNESSED, not_trained
from deep5.core.errors import RecipeError, Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.memory import peak_bytes
from deep5.measuring.machine_load import machine_between, machine_state
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe

if TYPE_CHECKING:
    from deep5.training.replay import Schedules

__all__ = ["JOBS", "SCOPE", "assembled", "first_batches", "hash_of", "in_types_of", "is_smooth"]

SCOPE = (
    "whole steps of the trainer, including the batches taken from the sampler, divided by their number of samples and "
    "multiplied by the batch size; every reading follows a synchronize; no evaluation, checkpoint or progress bar"
)

_STAGE = "the training that is timed"
_RESTARTS = 11
_BUDGET_S = {"quick": 3.0, "rigorous": 1.5}


def _reference(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The float64 trajectory of the reference, and states along it."""
    from deep5.networks.transforms.precision import with_precision
    from deep5.training.replay import Waypoints

    report("the assembly")
    recipe = of_reference(recipe)
    parts = assembled(recipe)
    network = parts.executor.network
    double = with_precision(network, "float64")
    batches = first_batches(parts, request["steps"])
    report("the reference's trajectory in float64")
    make = _maker(recipe, parts.framework)
    feeds = {"float64": (double, in_types_of(double, batches)), "float32": (network, batches)}
    waypoints = Waypoints.along(executors_of(parts), make, feeds, _restarts(double), _schedules(recipe, parts))
    answer = {
        "provenance": provenance_of(parts, first_batches=hash_of(batches)),
        "steps": len(batches),
        "smooth": is_smooth(network),
    }
    return answer, waypoints.arrays()


def _prove(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """This candidate's part of the proof."""
    from safetensors.numpy import load_file

    from deep5.networks.transforms.precision import with_precision
    from deep5.training.replay import Waypoints
    from deep5.training.trajectory import play

    report("the assembly")
    parts = assembled(recipe)
    network = parts.executor.network
    _check_noise(parts)
    double = with_precision(network, "float64")
    batches = first_batches(parts, request["steps"])
    waypoints = Waypoints.of_arrays(load_file(request["waypoints"]))
    report("the proof's trajectories")
    feeds = {"float64": (double, in_types_of(double, batches)), "float32": (network, batches)}
    make, executors = _maker(recipe, parts.framework), executors_of(parts)

    def drawing(network: Any) -> GraphExecutor:
        executor = executors(network)
        _draw_as_export(parts, executor)
        return executor

    played = play(drawing, make, feeds, waypoints, _schedules(recipe, parts))
    answer = {
        "provenance": provenance_of(parts, first_batches=hash_of(batches)),
        "left_out": list(played.left_out),
        "itself": parts.network is not None and parts.network.as_it_is,
        "settings": observed(parts.executor.settings()),
    }
    return answer, played.arrays()


def _time(
    recipe: Recipe, request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """First call, warm-up and steady state of the trainer's steps."""
    from deep5.core.tensors import to_numpy
    from deep5.measuring import loops as timing
    from deep5.results.ran_optimizers import without_kernel
    from deep5.run.assemble_samples import length
    from deep5.run.description import description_of
    from deep5.training.schedules import Scheduled
    from deep5.training.trainer import Trainer

    before = machine_state()
    timing.self_test()
    report("the assembly")
    parts = assembled(recipe)
    trainer = Trainer(parts.executor, parts.optimizer, parts.train_sampler, seed=parts.seeds["noise"])
    optimizer = without_kernel(description_of(trainer.optimizer))  # before schedules change it
    timed_read(parts.executor)  # a framework's first copy to the host is not part of the training
    clock = StepClock(parts.batch_size, _BUDGET_S[request["mode"]])
    set_up_s = perf_counter() - begin
    # A schedule is part of the step; events that save, draw, or stop are not.
    own = [event for event in parts.events if isinstance(event, Scheduled)]
    with timing.collector_spared():
        report(_STAGE)
        trainer.train(1_000_000, [clock, *own])
    report(CHECKS)
    memory_bytes = peak_bytes()
    # Three times, because another program may preempt this process at a critical moment.
    fault = None
    for _ in range(3):
        fault = timing.still_busy()
        if fault is None:
            break
    fault = fault or unfinished(parts.executor, clock)
    fault = None if fault is None else f"{fault}; its work is not on the clock"
    loss = float(np.asarray(to_numpy(clock.outputs["loss"]), np.float64).reshape(-1)[0])
    warnings = list(parts.warnings)
    if _draw_as_export(parts, parts.executor):
        warnings.append(
            f"{parts.network.own.name} as it is draws its dropout from its library's random numbers in the timed "
            "steps; in the proof it has the masks of its export"
        )
    if fault is None and np.isfinite(loss) and trainer.accumulate == 1:
        other = not_trained(trainer, first_batches(parts, WITNESSED), _maker(of_reference(recipe), "reference"))
        fault = None if other is None else f"it {other}: the timed steps do not compute what the proved ones do"
    return {
        "memory_bytes": memory_bytes,
        "workloads": [
            {
                "workload": "training step",
                "stage": _STAGE,
                "stage_begin_s": -clock.first_elapsed_s,
                "batch_size": clock.batch_size,
                "first_call_s": clock.first_call_s,
                "samples": clock.samples,
                "warm_up": clock.warm_up,
                "settled": clock.settled,
            }
        ],
        **({} if fault is None else {"reason": fault}),
        **({} if np.isfinite(loss) else {"reason": f"its loss is {loss} after {trainer.step} steps"}),
        "settings": observed(parts.executor.settings())
        | {"train_samples": length(parts.splits.train), "optimizer": optimizer},
        "warnings": warnings,
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


def assembled(recipe: Recipe) -> Any:
    """A recipe's components; the reference must be able to run its network."""
    from deep5.networks.network import Network
    from deep5.run.assemble import assemble

    parts = assemble(recipe_parts(recipe), as_graph=True)
    if not isinstance(parts.executor.network, Network):
        raise UsageError(
            f"the network of {recipe.name} is native code; allowed: a network of ONNX's operators, which the reference "
            "can run; remedy: deep5 run, whose result proves nothing of other frameworks"
        )
    return parts


def _check_noise(parts: Any) -> None:
    """Reject a library's model that draws random numbers also in evaluation."""
    from deep5.networks.kernels.drawing import draws

    if parts.network is not None and parts.network.as_it_is and draws(parts.executor.network):
        raise UsageError(
            f"{parts.network.own.name} as it is draws random numbers from the stream of its library, and its export "
            "draws others; allowed: dropout; remedy: compare the exports (--frameworks pytorch:exported,jax, say)"
        )


def _draw_as_export(parts: Any, executor: GraphExecutor) -> bool:
    """Let the executor of a library's model as it is drop the elements that its export drops; whether there are any."""
    if parts.network is None or not parts.network.as_it_is:
        return False
    if all(node.op_type != "Dropout" for node in parts.executor.network.nodes):
        return False
    parts.network.own.draw_as_export(executor)
    return True


def first_batches(parts: Any, steps: int) -> list[tuple[StepInfo, dict[str, np.ndarray]]]:
    """The first training batches of the recipe, as independent NumPy arrays."""
    from deep5.core.tensors import to_numpy
    from deep5.training.reinforcement.online import OnlineSampler

    found: list[tuple[StepInfo, dict[str, np.ndarray]]] = []
    if isinstance(parts.train_sampler, OnlineSampler):
        parts.train_sampler.bind(_player(parts.executor))
    for epoch in itertools.count():
        before = len(found)
        for ids, inputs in parts.train_sampler.batches(epoch):
            arrays = {name: np.array(to_numpy(value)) for name, value in inputs.items()}
            size = len(next(iter(arrays.values())))
            found.append((StepInfo(len(found), epoch, size, ids, parts.seeds["noise"]), arrays))
            if len(found) == steps:
                return found
        if len(found) == before:
            raise UsageError("the recipe's sampler gives no batches")
    return found


def _player(executor: GraphExecutor) -> GraphExecutor:
    """The reference for the same network: with an agent, the roundings of another executor make other batches."""
    from deep5.core.plugins import framework
    from deep5.networks.network import Network

    network = executor.network
    return framework("reference").executor(network) if isinstance(network, Network) else executor


def in_types_of(
    network: Any, batches: Sequence[tuple[StepInfo, dict[str, np.ndarray]]]
) -> list[tuple[StepInfo, dict[str, np.ndarray]]]:
    """The batches in the element types of a network."""
    from deep5.core.tensors import numpy_dtype

    kinds = {name: numpy_dtype(spec.dtype) for name, spec in network.inputs.items()}
    return [
        (info, {name: value.astype(kinds.get(name, value.dtype), copy=False) for name, value in inputs.items()})
        for info, inputs in batches
    ]


def _maker(recipe: Recipe, framework: str) -> Callable[[], Any]:
    """A function that creates the recipe's optimizer for a framework."""
    from deep5.run.assemble_optimizer import make_optimizer

    parts = recipe_parts(recipe)
    return lambda: make_optimizer(parts, framework)


def _schedules(recipe: Recipe, parts: Any) -> Schedules:
    """The recipe's schedules, applied before each step of the proof, so that the proof covers the timed code."""
    from deep5.training.schedules import Scheduled

    def of(optimizer: Any) -> Callable[[StepInfo], object]:
        trainer = SimpleNamespace(
            optimizer=optimizer,
            train_sampler=parts.train_sampler,
            accumulate=1,
            epochs=recipe.value("epochs"),
            step=0,
            epoch=0,
        )
        own = [copy.copy(event) for event in parts.events if isinstance(event, Scheduled)]
        for event in own:
            event.before_training(trainer)

        def before(info: StepInfo) -> None:
            for event in own:
                event.before_step(trainer, info)

        return before

    return of


def of_reference(recipe: Recipe) -> Recipe:
    """The recipe as the reference runs it: on the host, with the rule of the same name for a native optimizer."""
    changes: dict[str, Any] = {"framework": "reference", "device": "cpu"}
    value = recipe.value("optimizer")
    if isinstance(value, str) and value.startswith("native:"):
        changes["optimizer"] = value.removeprefix("native:")
    fixed = {**recipe.fixed, **{key: value for key, value in changes.items() if key in recipe.fixed}}
    mutable = {**recipe.mutable, **{key: value for key, value in changes.items() if key not in recipe.fixed}}
    # Arguments of a framework apply only to it.
    gone = ("framework_args", "framework_kwargs", "executor", "executor_args", "executor_kwargs")
    mutable = {key: value for key, value in mutable.items() if key not in gone}
    return replace(recipe, fixed=fixed, mutable=mutable)


def executors_of(parts: Any) -> Callable[[Any], GraphExecutor]:
    """A function that creates executors of other networks like the recipe's: the proof covers the timed code."""

    def made(network: Any) -> GraphExecutor:
        try:
            return parts.build(network, parts.seeds["noise"])  # type: ignore[no-any-return]
        except RecipeError as error:
            if isinstance(error.__cause__, Unsupported):
                raise error.__cause__ from None  # the part of the proof that it cannot take part in
            raise

    return made


def _restarts(network: Any) -> int:
    """Number of positions of the trajectory at which states are kept: as many as fit into 1 GiB, but at least two.

    A position holds parameters, gradients, and about two optimizer states, in float64.
    """
    size = sum(math.prod(int(extent) for extent in spec.shape) for spec in network.parameter_specs.values())
    return max(2, min(_RESTARTS, (1 << 30) // max(1, 4 * 8 * size)))


def hash_of(batches: Sequence[tuple[StepInfo, Mapping[str, np.ndarray]]]) -> str:
    """Hash of the batches themselves, independent of the order that the sampler reports."""
    digest = hashlib.sha256()
    for _, inputs in batches:
        for name in sorted(inputs):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(inputs[name]).tobytes())
    return digest.hexdigest()


# Operators without a kink where networks are differentiated. Others, including unknown ones, may have one: the proof
# then has a wider tolerance for their gradients.
_SMOOTH = frozenset((
    "Add", "Attention", "AveragePool", "BatchNormalization", "Cast", "CastLike", "Concat", "Constant",
    "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "Div", "Dropout", "Einsum", "Equal", "Erf", "Exp", "Expand",
    "Flatten", "GRU", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "Greater", "GroupNormalization", "Identity",
    "InstanceNormalization", "LRN", "LSTM", "LayerNormalization", "Less", "Log", "LogSoftmax", "MatMul", "Mish", "Mul",
    "Neg", "NegativeLogLikelihoodLoss", "OneHot", "Pad", "Pow", "RNN", "Range", "Reciprocal", "ReduceLogSumExp",
    "ReduceMean", "ReduceSum", "ReduceSumSquare", "Reshape", "Shape", "Sigmoid", "Sin", "Slice", "Softmax",
    "SoftmaxCrossEntropyLoss", "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where",
))  # fmt: skip


def is_smooth(network: Any) -> bool:
    """Whether all operators of a network are known to have a continuous derivative."""
    return all(node.op_type in _SMOOTH and node.domain in ("", "ai.onnx") for node in network.nodes)
