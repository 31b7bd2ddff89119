"""Checks of `check_executor` of calls that follow others: once more, after an error, and on other threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from deep5.core import plugins
from deep5.core.errors import Deep5Error, ShapeError
from deep5.core.events import StepInfo
from deep5.core.executors import ParameterGroup
from deep5.core.framework import Framework
from deep5.core.tensors import to_numpy
from deep5.core.worker_threads import begin
from deep5.networks.checks.pair import Feed, Pair, copied, elsewhere
from deep5.networks.checks.problems import drawn, layouts, noisy, not_finite
from deep5.networks.checks.sizes import check_layouts
from deep5.networks.zoo import mlp

__all__ = ["check_conduct", "check_modes", "check_steps"]

_THREADS = 3
_KEPT = 132  # more results than a back-end would keep in a ring of buffers, as many as a power of two


def check_conduct(framework: Framework, pair: Pair, seed: int) -> None:
    """Calls of every method: repeated, after an error, in other memory, of two executors in turn, and on threads."""
    first, second = (drawn(pair.network, seed, number, N=4) for number in (0, 1))
    _check_repeated(pair, first, second)
    _check_kept(pair, first, second)
    _check_not_finite(pair, first, second)
    check_layouts(pair, first)
    _check_after_errors(pair, first, second)
    _check_threads(pair, first, second)
    # Another executor of the same network, and of another one: nothing is shared.
    other = mlp(features=3, hidden=2, classes=3, dtype=pair.dtype)
    others = [pair, *(Pair(framework, network, pair.dtype) for network in (pair.network, other))]
    _move(others[1])
    for turn in range(2):
        for number, each in enumerate(others):
            each.backprop(drawn(each.network, seed, turn, N=4), f"of executor {number} of three")
            each.state(f"executor {number} of three")


def _check_repeated(pair: Pair, first: Feed, second: Feed) -> None:
    """Results do not depend on earlier calls, and are not changed by later ones."""
    kept: list[tuple[str, Any, Feed]] = []
    for number, feed in enumerate((first, second, first, first, second)):
        what = f"of call {number + 1}"
        for made in (pair.inference(feed, what), pair.backprop(feed, what)):
            kept.append((what, made, copied(made)))
    for what, made, before in kept:
        pair.judge.identical(made, before, f"later calls changed what was returned by that {what}:")
    # An array whose content changes: the same object, another result.
    moving = copied(first)
    for feed in (second, first):
        for name, value in feed.items():
            moving[name][...] = value
        pair.inference(moving, "of arrays that were written to since the last call")
        pair.backprop(moving, "of arrays that were written to since the last call")
    for factor in (1.5, 0.75):
        _move(pair, factor)
        pair.inference(first, "after the parameters changed")
        pair.backprop(first, "after the parameters changed")
    pair.load_start()
    pair.backprop(second, "after the first parameters were loaded again")


def _check_kept(pair: Pair, first: Feed, second: Feed) -> None:
    """Results stay as they are during many later calls, whose memory a back-end may reuse."""
    made: list[tuple[Any, Feed]] = []
    for number in range(_KEPT):
        feed = (first, second)[number % 2]
        outputs = pair.executor.inference_and_backprop(feed) if number % 4 == 0 else pair.executor.inference(feed)
        made.append((outputs, copied(outputs)))
        if number % 4 == 0:
            gradients = pair.executor.gradients()
            made.append((gradients, copied(gradients)))
    for number, (now, before) in enumerate(made):
        pair.judge.identical(now, before, f"{len(made) - number} later results changed that of an earlier call:")


def _check_not_finite(pair: Pair, first: Feed, second: Feed) -> None:
    """A NaN reaches the outputs and gradients that depend on it, and no other call; an infinity saturates tanh.

    Gradients may be infinities where the reference's are NaN, as OpenVINO's are: both stop a training.
    """
    for what, feed in not_finite(first):
        pair.inference(feed, what)
        pair.inference(second, f"after one {what}")
        outputs = [executor.inference_and_backprop(feed) for executor in (pair.executor, pair.reference)]
        pair.outputs(outputs[0], outputs[1], f"backprop {what}")
        if "NaN" in what:  # the gradient at an infinity is zero times it
            got, want = copied(pair.executor.gradients()), copied(pair.reference.gradients())
            for name, value in want.items():
                same = np.array_equal(np.isfinite(got[name]), np.isfinite(value))
                pair.judge.require(same, f"backprop {what}: the gradient by {name!r} is {got[name]}", value)
        pair.backprop(second, f"after one {what}")


def _move(pair: Pair, factor: float = 1.25) -> None:
    """Change the parameters of both executors, by `write` and by `load_state_dict`."""
    packed = np.concatenate([np.asarray(pair.executor.state_dict()[name]).reshape(-1) for name in pair.names])
    for executor in (pair.executor, pair.reference):
        executor.write(pair.names, packed * packed.dtype.type(factor))
    pair.state("after write")
    out = np.empty_like(packed)
    pair.executor.read(pair.names, out)
    pair.judge.identical({"packed": out}, {"packed": packed * packed.dtype.type(factor)}, "read after write gave")


def _errors(pair: Pair, feed: Feed) -> dict[str, Callable[[], Any]]:
    """Calls that fail, by description; what each raises is checked elsewhere."""
    executor, wrong = pair.executor, {**feed, "input": feed["input"][:, :-1]}
    unlabeled = {**feed, "label": np.full_like(feed["label"], 1000)}
    return {
        "inference on a wrong shape": lambda: executor.inference(wrong),
        "inference without inputs": lambda: executor.inference({}),
        "inference on a label that is no class": lambda: executor.inference(unlabeled),
        "backprop on a wrong shape": lambda: executor.inference_and_backprop(wrong),
        "backprop on a label that is no class": lambda: executor.inference_and_backprop(unlabeled),
        "backprop of an unknown loss": lambda: executor.inference_and_backprop(feed, "lost"),
        "backprop by an unknown name": lambda: executor.inference_and_backprop(feed, wrt=["nothing"]),
        "on_gradient that raises": lambda: executor.inference_and_backprop(feed, on_gradient=_raises),
        "load_state_dict of nothing": lambda: executor.load_state_dict({}),
        "read of an unknown name": lambda: executor.read(["nothing"], np.zeros(1, pair.dtype)),
        "write of too few numbers": lambda: executor.write(pair.names, np.zeros(1, pair.dtype)),
        "train_step of an unknown loss": lambda: executor.train_step(_sgd(), "lost"),
    }


def _raises(name: str, value: Any) -> None:
    raise _StoppedError(name)


class _StoppedError(Exception):
    """Raised by a callback."""


def _sgd() -> Any:
    return plugins.load("optimizers", "sgd")(lr=0.25)


def _check_after_errors(pair: Pair, first: Feed, second: Feed) -> None:
    """A call that failed leaves no trace: state, outputs, gradients and steps are those that they were."""
    for what, call in _errors(pair, first).items():
        with suppress(Deep5Error, _StoppedError):
            call()
        pair.state(f"after {what}")
        for feed in (first, second):
            pair.inference(feed, f"after {what}")
            pair.backprop(feed, f"after {what}")
        pair.executor.inference_and_backprop(second)
        with suppress(Deep5Error, _StoppedError):
            call()
        # A failed call may leave gradients or none; it must not spoil the sum that follows.
        pair.backprop(first, f"after {what} and with accumulate=False", accumulate=False)
        pair.backprop(second, f"that accumulates, after {what}", accumulate=True)


def _check_threads(pair: Pair, first: Feed, second: Feed) -> None:
    """On another thread than the one that made the executor, and in evaluation on several at once."""
    for feed in (first, second):
        elsewhere(partial(pair.inference, feed, "on a second thread"))
        elsewhere(partial(pair.backprop, feed, "on a second thread"))
        pair.gradients("read on the first thread after backprop on a second:")
    elsewhere(partial(_move, pair, 1.5))
    elsewhere(partial(pair.state, "on a second thread"))
    elsewhere(pair.load_start)
    pair.inference(first, "after a second thread")
    feeds = [first, second] * _THREADS
    expected = [copied(pair.reference.inference(feed)) for feed in feeds]
    with ThreadPoolExecutor(_THREADS, initializer=begin) as pool:
        found = list(pool.map(lambda feed: copied(pair.executor.inference(feed)), feeds))
    for got, want in zip(found, expected, strict=True):
        for name, value in want.items():
            pair.judge.alike(got[name], value, f"inference on {_THREADS} threads at once: the output {name!r}")


def check_steps(pair: Pair, sizes: Sequence[int], seed: int) -> None:
    """Training steps of several sizes, in other memory, whole and in halves, after errors, on threads, and resumed.

    After each, all outputs, parameters and gradients are those of the reference.
    """
    rules = [plugins.load("optimizers", "accelegrad")(lr=0.25) for _ in range(2)]
    steps = _steps(pair, rules)
    number = 0

    def feed(size: int) -> tuple[Feed, StepInfo]:
        nonlocal number
        number += 1
        return drawn(pair.network, seed, number, N=size), StepInfo(step=number, batch_size=size)

    for size in (4, *sizes, 4):
        given, info = feed(size)
        pair.step(steps, given, info, f"on a batch of {size}")
    for what, _ in layouts(drawn(pair.network, seed, N=4)):
        given, info = feed(4)
        pair.step(steps, dict(layouts(given))[what], info, f"on inputs {what}")
    given, info = feed(4)
    for wrong in ({}, {**given, "input": given["input"][:, :-1]}):
        with suppress(Deep5Error):
            steps[0](wrong, info)
        pair.state("after a training step that failed")
        pair.step(steps, given, info, "after one that failed")
        given, info = feed(4)
    elsewhere(lambda: pair.step(steps, given, info, "on a second thread"))
    with steps[0].averaged(), steps[1].averaged():
        pair.state("within averaged()")
    pair.state("after averaged()")
    _check_halves(pair, steps, feed)
    _check_resumed(pair, rules, steps, feed)


def _steps(pair: Pair, rules: list[Any], loss: str = "loss", **options: Any) -> tuple[Any, Any]:
    return (
        pair.executor.train_step(rules[0], loss, **options),
        pair.reference.train_step(rules[1], loss, **options),
    )


def _check_halves(pair: Pair, steps: tuple[Any, Any], feed: Callable[[int], tuple[Feed, StepInfo]]) -> None:
    """`backprop` and `apply`, also with a loss scale, which is divided out here, with a second batch added, after
    gradients that `apply` refused, and on a second thread.
    """
    # Sizes that are compiled already. No power of two: a scale that is divided out wrongly is seen in the mantissa.
    for size, scale in ((4, 1.0), (1, 1.0), (4, 3.0)):
        _halves(pair, steps, feed, size, scale)
    lacking = dict(list(pair.executor.gradients().items())[1:])
    bent = {name: np.zeros((2, 7), pair.dtype) for name in pair.names}
    for what, wrong in (("without a gradient", lacking), ("of gradients of another shape", bent)):
        before = pair.executor.state_dict()
        refused = partial(steps[0].apply, wrong, feed(4)[1])
        pair.judge.refuses(ShapeError, refused, f"TrainStep.apply {what}")
        pair.judge.identical(pair.executor.state_dict(), before, f"TrainStep.apply {what} changed")
        _halves(pair, steps, feed, 4, 1.0)
    elsewhere(partial(_halves, pair, steps, feed, 4, 1.0))


def _halves(
    pair: Pair, steps: tuple[Any, Any], feed: Callable[[int], tuple[Feed, StepInfo]], size: int, scale: float
) -> None:
    """A step in halves on a batch of this size; of 4, on a second batch, too, with `on_gradient`."""
    given, info = feed(size)
    what = f"TrainStep.backprop with loss_scale={scale:g}"
    got, want = (step.backprop(given, info, loss_scale=scale) for step in steps)
    pair.outputs(got, want, what)
    pair.gradients(what)
    if size == 4:
        more, info = feed(size)
        what = f"TrainStep.backprop with accumulate=True, loss_scale={scale:g}"
        seen: Feed = {}
        want = steps[1].backprop(more, info, accumulate=True, loss_scale=scale)
        got = steps[0].backprop(more, info, partial(_keep, seen), accumulate=True, loss_scale=scale)
        pair.outputs(got, want, what)
        pair.judge.identical(seen, copied(pair.gradients(what)), f"{what}: on_gradient did not get the gradient by")
    before = copied(pair.executor.gradients())
    for executor, step in zip((pair.executor, pair.reference), steps, strict=True):
        step.apply(executor.gradients(), info)
    pair.state("after TrainStep.apply")
    pair.judge.identical(pair.executor.gradients(), before, "TrainStep.apply changed the gradient by")


def _keep(seen: Feed, name: str, value: Any) -> None:
    seen[name] = np.array(to_numpy(value))


def _check_resumed(
    pair: Pair, rules: list[Any], steps: tuple[Any, Any], feed: Callable[[int], tuple[Feed, StepInfo]]
) -> None:
    """A step that starts from a saved state continues as the reference, which was not stopped."""
    saved, parameters = copied(steps[0].state_dict()), pair.executor.state_dict()
    given, info = feed(4)
    pair.step(steps, given, info, "after state_dict()")
    again, later = feed(4)
    fresh = pair.executor.train_step(rules[0])
    pair.executor.load_state_dict(parameters)
    fresh.load_state_dict(saved)
    fresh(given, info)
    pair.state("after a resume from state_dict()")
    pair.step((fresh, steps[1]), again, later, "after a resume from state_dict()")


def check_modes(framework: Framework, dtype: str, sizes: Sequence[int], seed: int) -> None:
    """Training and evaluation of normalization and dropout, running statistics, two losses, and masks by the step."""
    pair = Pair(framework, noisy(dtype), dtype)
    for number, size in enumerate(sizes):
        feed, info = drawn(pair.network, seed, number, N=size), StepInfo(step=number, seed=seed)
        pair.inference(feed, f"in evaluation, of a batch of {size}")
        pair.state("after inference in evaluation")
        pair.inference(feed, f"in training, of a batch of {size}", training=True, info=info)
        pair.state("after inference in training")
        pair.backprop(feed, f"in training, of a batch of {size}", info=info)
        pair.state("after backprop")
    feed = drawn(pair.network, seed, N=4)
    # Masks depend on the step, whatever its size, and on the seed.
    for step, scale in ((0, 1.0), (5, 3.0), (12, 1.0), (70_000, 1.0)):
        info, at = StepInfo(step=step, epoch=step // 4, seed=seed), f"at step {step}"
        pair.inference(feed, f"in training, {at}", training=True, info=info)
        pair.backprop(feed, at, info=info)
        if step < 12:
            second = f"of the second loss, {at}, with loss_scale={scale:g}"
            pair.backprop(feed, second, "second", info=info, loss_scale=scale)
    for other in (seed + 1, seed + 2**33):
        pair.backprop(feed, "with another seed", info=StepInfo(seed=other))
    steps = _steps(pair, [_sgd(), _sgd()])
    for number in (6, 7, 13, 300):
        given = drawn(pair.network, seed, number, N=5)
        pair.step(steps, given, StepInfo(step=number, batch_size=5, seed=seed), "in training")
    frozen = ParameterGroup(lambda name: name == "fc2.weight", frozen=True)
    faster = ParameterGroup(lambda name: name.endswith("bias"), lr=0.3)
    steps = _steps(pair, [_sgd(), _sgd()], "second", groups=(frozen, faster))
    for number in (14, 15):
        given = drawn(pair.network, seed, number, N=5)
        info = StepInfo(step=number, batch_size=5, seed=seed)
        pair.step(steps, given, info, "on the second loss, with two groups, one of them frozen")
