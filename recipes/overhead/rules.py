"""Update rules and the frameworks' own optimizers of the same names: the timed functions and their arguments.

Only an optimizer: deep5's kernel and PyTorch's fastest implementation, on PyTorch's memory. A whole step: deep5's, and
that of a hand-written network with PyTorch's, Keras's or Optax's optimizer, plain, with parameter groups, or with
gradients modified before the update.
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
"""Weight decay of the group that has it."""

PENALTY = 1e-4
"""The multiple of its parameter that the modifier adds to a gradient."""

_SHAPES = {"small": optimizers.SMALL, "large": optimizers.LARGE}
# Arguments of a framework's optimizer: values that both frameworks drop from the step if they are zero.
_THEIRS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    (framework, "lion"): {"weight_decay": DECAY} for framework in ("tensorflow", "jax")
}
# Arguments of deep5's rule that match the framework's optimizer.
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
    """deep5's update rule, with arguments that match the framework's optimizer."""
    return load("optimizers", rule)(**_OURS.get((framework, rule), {}))


def twin_of(framework: str, rule: str) -> Any:
    """deep5's wrapper of the framework's optimizer; its `native` creates it."""
    return d5.framework(framework).optimizer(rule)(**_THEIRS.get((framework, rule), {}))


def rule_alone(*, steps: int, seed: int, threads: int, rule: str, shapes: str) -> Work:
    """Updates by deep5's kernel on PyTorch's memory.

    Args:
        steps: Updates per call.
        seed: Seed of parameters and gradients.
        threads: Threads of the kernel.
        rule: Registered name of an update rule.
        shapes: "small" (431 thousand parameters in 8 tensors) or "large" (11 million in 62).
    """
    made = partial(rule_of, "pytorch", rule)
    return optimizers.rule_alone(steps=steps, seed=seed, threads=threads, rule=made, shapes=_shapes(shapes))


def native_alone(*, steps: int, seed: int, threads: int, rule: str, shapes: str) -> Work:
    """Updates by PyTorch's optimizer, in its fastest implementation on this machine.

    Arguments as in `rule_alone`. The implementations are tried once per process: fused, all tensors at once
    (`foreach`), and tensor by tensor, as far as the optimizer has them.
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
    """The name of PyTorch's fastest implementation of an optimizer, by the median of a few steps."""
    import torch

    torch.set_num_threads(threads)
    updates = _implementations(rule, _parameters(shapes, 0))
    times: dict[str, list[int]] = {how: [] for how in updates}
    for trial in range(_TRIALS + 1):
        for how, update in updates.items():
            begin = perf_counter_ns()
            update.step()
            if trial:  # the first step creates the state
                times[how].append(perf_counter_ns() - begin)
    return min(times, key=lambda how: median(times[how]))


def _implementations(rule: str, parameters: list[Any]) -> dict[str, Any]:
    import torch

    twin, made = twin_of("pytorch", rule), {}
    for how, options in {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}.items():
        try:
            made[how] = getattr(torch.optim, twin.made)(parameters, **twin.arguments(twin.hyper), **options)
        except TypeError:  # the optimizer has no such argument
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
    """Whole training steps of LeNet by deep5, with an update rule.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of the framework.
        framework: Name of the back-end.
        rule: Registered name of an update rule.
        batch_size: Samples per batch.
        variant: "plain"; "groups": biases without weight decay, for a rule that has it; "modifier": a multiple of each
            parameter is added to its gradient.

    Returns:
        A function that returns the last loss and logits.
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
