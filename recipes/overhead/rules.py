"""Update rules and the frameworks' own optimizers of the same names: what is timed, and with which arguments.

An optimizer alone: deep5's kernel and PyTorch's fastest implementation, on PyTorch's memory. A whole step: deep5's, and
that of a network written by hand with PyTorch's, Keras's or Optax's optimizer, plain, with parameter groups, or with
gradients that are modified before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.core.plugins import load
from deep5.recipes.overhead import by_deep5, optimizers

__all__ = ["DECAY", "PENALTY", "native_alone", "rule_alone", "rule_of", "step", "twin_of"]

Work = Callable[[], object]

DECAY = 0.01
"""Weight decay of the group that has some."""

PENALTY = 1e-4
"""What the modifier adds to a gradient, as a share of its parameter."""

_SHAPES = {"small": optimizers.SMALL, "large": optimizers.LARGE}
# Arguments that a framework's optimizer is given: what both frameworks leave out of the step where it is zero.
_THEIRS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    (framework, "lion"): {"weight_decay": DECAY} for framework in ("tensorflow", "jax")
}
# Arguments of deep5's with which it computes what the framework's optimizer does.
_OURS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("pytorch", "amsgrad"): {"bias_correction": True},
    ("tensorflow", "amsgrad"): {"bias_correction": True},
    ("tensorflow", "nadam"): {"momentum_decay": 1.0},
    ("jax", "nadam"): {"momentum_decay": 1e9},
    ("tensorflow", "lamb"): {"weight_decay": 0.0},
    **_THEIRS,
}
_TRIALS = 9


def rule_of(framework: str, rule: str) -> Any:
    """deep5's update rule with the arguments with which it computes what the framework's own does."""
    return load("optimizers", rule)(**_OURS.get((framework, rule), {}))


def twin_of(framework: str, rule: str) -> Any:
    """deep5's name for the framework's own optimizer; its `native` makes it."""
    return d5.framework(framework).optimizer(rule)(**_THEIRS.get((framework, rule), {}))


def rule_alone(*, steps: int, seed: int, threads: int, rule: str, shapes: str) -> Work:
    """Updates by deep5's kernel on PyTorch's memory.

    Args:
        steps: Updates a call.
        seed: Of parameters and gradients.
        threads: Of the kernel.
        rule: Registered name of an update rule.
        shapes: "small" (431 thousand parameters in 8 tensors) or "large" (11 million in 62).
    """
    made = partial(rule_of, "pytorch", rule)
    return optimizers.rule_alone(steps=steps, seed=seed, threads=threads, rule=made, shapes=_shapes(shapes))


def native_alone(*, steps: int, seed: int, threads: int, rule: str, shapes: str) -> Work:
    """Updates by PyTorch's own optimizer, in the implementation that is the fastest here.

    Arguments as `rule_alone`. The implementations are tried once a process: fused, for all tensors at once (`foreach`)
    and tensor by tensor, as far as the optimizer has them.
    """
    how = fastest(rule, shapes, threads)
    parameters = _parameters(shapes, seed)
    update = _implementations(rule, parameters)[how]

    def work() -> None:
        for _ in range(steps):
            update.step()

    return work


@cache
def fastest(rule: str, shapes: str, threads: int) -> str:
    """Which of PyTorch's implementations of an optimizer takes the least time for a step: by the median of a few."""
    import torch

    torch.set_num_threads(threads)
    updates = _implementations(rule, _parameters(shapes, 0))
    times: dict[str, list[int]] = {how: [] for how in updates}
    for trial in range(_TRIALS + 1):
        for how, update in updates.items():
            begin = perf_counter_ns()
            update.step()
            if trial:  # the first step makes the state
                times[how].append(perf_counter_ns() - begin)
    return min(times, key=lambda how: median(times[how]))


def _implementations(rule: str, parameters: list[Any]) -> dict[str, Any]:
    import torch

    twin, made = twin_of("pytorch", rule), {}
    for how, options in {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}.items():
        try:
            made[how] = getattr(torch.optim, twin.made)(parameters, **twin.arguments(twin.hyper), **options)
        except TypeError:  # it has no such argument
            continue
    return made


def _parameters(shapes: str, seed: int) -> list[Any]:
    import torch

    values, gradients = (optimizers.arrays(_shapes(shapes), seed, purpose) for purpose in ("parameters", "gradients"))
    parameters = [torch.nn.Parameter(torch.from_numpy(array).clone()) for array in values]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient).clone()
    return parameters


def _shapes(shapes: str) -> tuple[tuple[int, ...], ...]:
    if shapes not in _SHAPES:
        raise UsageError(f"shapes {shapes!r:.60}; allowed: {', '.join(map(repr, _SHAPES))}")
    return _SHAPES[shapes]


def step(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    rule: str,
    batch_size: int,
    variant: str = "plain",
) -> Work:
    """Whole training steps of LeNet by deep5, under an update rule.

    Args:
        steps: Steps a call.
        seed: Of weights and batches.
        threads: Of the framework.
        framework: Name of the back-end.
        rule: Registered name of an update rule.
        batch_size: Samples a batch.
        variant: "plain"; "groups": biases without weight decay, for a rule that has some; "modifier": a share of each
            parameter is added to its gradient.

    Returns:
        A call returns the last loss and logits.
    """
    options: dict[str, Any] = {}
    made = rule_of(framework, rule)
    if variant == "groups":
        made.weight_decay = DECAY
        options = {"groups": (d5.ParameterGroup(_is_bias, weight_decay=0.0),)}
    elif variant == "modifier":
        options = {"modifier": _penalised}
    elif variant != "plain":
        raise UsageError(f"variant {variant!r:.60}; allowed: 'plain', 'groups', 'modifier'")
    executor = by_deep5.executor(framework, threads, d5.networks.lenet, {}, seed)
    train = executor.train_step(made, **options)
    feeds = by_deep5.batches(executor.network, batch_size, seed)
    infos = [d5.StepInfo(step=index, batch_size=batch_size) for index in range(steps)]

    def work() -> tuple[Any, Any]:
        for info in infos:
            outputs = train(feeds[info.step % len(feeds)], info)
        executor.synchronize()
        return outputs["loss"], outputs["logits"]

    return work


def _is_bias(name: str) -> bool:
    return name.endswith("bias")


def _penalised(name: str, param: Any, grad: Any) -> Any:
    return grad + PENALTY * param
