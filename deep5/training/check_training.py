"""Optimizer checks in training: a real network on every framework, resuming, and a convex problem."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, RuleError, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup, StepOptimizer
from deep5.core.plugins import framework
from deep5.core.seeds import generator
from deep5.core.tensors import to_numpy
from deep5.networks.zoo import mlp
from deep5.training.hyper_state import KEY
from deep5.training.optimizer import RuleOptimizer
from deep5.training.rule import UpdateRule

__all__ = ["Workout", "converged", "relative"]

Outcome = dict[str, np.ndarray]
Made = Callable[[], "UpdateRule | StepOptimizer"]

_STEPS, _BATCH, _FEATURES, _CLASSES = 6, 8, 12, 4
_HALF = _STEPS // 2
_SIZES = 2  # number of batch sizes


class Workout:
    """Trains a small smooth network with an optimizer on one framework and checks all results.

    Args:
        make: Makes a new optimizer; it may reuse the same update rule.
        name: The framework.
        dtype: The parameters' dtype.
    """

    def __init__(self, make: Made, name: str, dtype: str) -> None:
        self._make, self.name, self.dtype = make, name, dtype
        self._network = mlp(features=_FEATURES, hidden=6, classes=_CLASSES, dtype=dtype)
        self.first = self._made()

    def _made(self) -> Any:
        made = self._make()
        return copy.copy(made) if isinstance(made, UpdateRule) else made

    def begin(self, **options: Any) -> tuple[GraphExecutor, Any]:
        """A new executor and a new optimizer, bound to it."""
        executor = framework(self.name).executor(self._network)
        made = self._made()
        optimizer = RuleOptimizer(made, **options) if isinstance(made, UpdateRule) else made
        optimizer.bind(executor)
        return executor, optimizer

    def go(self, optimizer: Any, begin: int = 0, end: int = _STEPS, *, schedule: bool = False) -> list[float]:
        """Run some steps, the last batch of each epoch smaller; return their losses.

        Raises:
            UsageError: A step returns no outputs, or outputs without the loss.
        """
        losses = []
        for step in range(begin, end):
            if schedule and step == _HALF:
                _change(optimizer)
            size = _BATCH if step % 3 < 2 else _BATCH - 3
            feed, ids = _samples(step % 3, size, self.dtype)
            outputs = optimizer.step(feed, StepInfo(step=step, epoch=step // 3, batch_size=size, sample_ids=ids))
            if not isinstance(outputs, Mapping) or "loss" not in outputs:
                raise UsageError(
                    f"step returned {brief(outputs)}; allowed: the network's outputs by name, 'loss' among them"
                )
            losses.append(float(to_numpy(outputs["loss"])))
        return losses

    def trajectory(self, *, schedule: bool = False, **options: Any) -> Outcome:
        """The parameters after some steps, the evaluation values, and the losses.

        Args:
            schedule: Whether the first hyperparameter of an update rule changes halfway.
            options: Arguments of `RuleOptimizer`.

        Raises:
            RuleError: The step was traced more often than once per batch size.
            UsageError: The evaluation values remain after evaluation.
        """
        executor, optimizer = self.begin(**options)
        losses = self.go(optimizer, schedule=schedule)
        traces = optimizer.train_step.traces if isinstance(optimizer, RuleOptimizer) else 0
        if traces > _SIZES:
            raise RuleError(
                f"{traces} traces in {_STEPS} steps of {_SIZES} batch sizes, in which {self.first.hyper[0]} changed; "
                "allowed: one a size; remedy: hyper names every float, and the methods read it as self.<name>"
            )
        found = _copied(executor.state_dict())
        with getattr(optimizer, "averaged", nullcontext)():
            found |= {f"{key} in evaluation": value for key, value in _copied(executor.state_dict()).items()}
        after = executor.state_dict()
        for key, value in after.items():
            if not np.array_equal(value, found[key]):
                raise UsageError(f"averaged() does not give the parameter {key!r} back when it ends")
        return {**found, "losses": np.array(losses)}

    def check_resume(self) -> None:
        """A run that resumes halfway ends bit-identically to an uninterrupted one.

        Raises:
            UsageError: It does not, or a checkpoint cannot hold the state.
        """
        executor, optimizer = self.begin()
        self.go(optimizer, 0, _HALF + 1)
        state, parameters = optimizer.state_dict(), executor.state_dict()
        self._check_state(state)
        kept = copy.deepcopy(dict(state))
        self.go(optimizer, _HALF + 1)
        for key, value in kept.items():
            if not _equal(state[key], value):
                raise UsageError(f"state_dict() gave {key!r} that later steps changed; allowed: copies")
        other, resumed = self.begin()
        self.go(resumed, 0, 1)  # leftovers of an earlier run must have no effect
        other.load_state_dict(parameters)
        resumed.load_state_dict(kept)
        self.go(resumed, _HALF + 1)
        for what, got, want in (
            ("parameter", other.state_dict(), executor.state_dict()),
            ("state", resumed.state_dict(), optimizer.state_dict()),
        ):
            for key in want:
                if key not in got or not _equal(got[key], want[key]):
                    raise UsageError(
                        f"the {what} {key!r} differs after a resume from a run that never stopped, by "
                        f"{_off(got.get(key), want[key])}; allowed: the same bits; remedy: everything that a step "
                        "changes is in state_dict(), and load_state_dict() restores it"
                    )
        self._check_refusals(resumed, kept)

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
            raise UsageError(f"state_dict() gave {brief(state)}; allowed: a dict with names as keys")
        for key, value in state.items():
            if not isinstance(value, (np.ndarray, np.generic)):
                try:
                    json.dumps(value, allow_nan=True)
                except (TypeError, ValueError):
                    raise UsageError(
                        f"state_dict() gave {key!r} as {type(value).__name__}; allowed: NumPy arrays and JSON "
                        "types, the only contents of a checkpoint"
                    ) from None

    def _check_refusals(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        # States from before hyperparameters were part of them lack this entry.
        for key in [key for key in state if key != KEY][:1]:
            try:
                optimizer.load_state_dict({name: value for name, value in state.items() if name != key})
            except (Deep5Error, LookupError, ValueError, TypeError):
                continue
            raise UsageError(
                f"load_state_dict() took a state without {key!r}; allowed: to refuse what does not fit; remedy: "
                "raise deep5.ShapeError where a name is missing"
            )

    def grouped(self) -> Outcome:
        """A trajectory with a group, a frozen parameter and a gradient modifier."""
        rule = self.first
        hyper = {name: 0.5 * getattr(rule, name) for name in rule.hyper[:1]}
        groups = [
            ParameterGroup(lambda name: name == "fc1.bias", frozen=True),
            ParameterGroup(lambda name: name.endswith("bias"), **hyper),
        ]
        return self.trajectory(groups=groups, modifier=_halved)


def _change(optimizer: Any) -> None:
    """Set another value for the first hyperparameter."""
    rule = getattr(optimizer, "rule", None)
    if isinstance(rule, UpdateRule):
        for name in rule.hyper[:1]:
            setattr(rule, name, 0.5 * getattr(rule, name))


def _halved(name: str, param: Any, grad: Any) -> Any:
    return grad * 0.5 if name.startswith("fc1") else grad


def converged(make: Made, rate: float | None, steps: int = 400) -> float:
    """The relative excess on a strongly convex problem: (f(w_T) - f*) / (f(w_0) - f*).

    Softmax regression with a penalty, full batches, on the reference; f* from the gradient norm g: f - f* <= g² / 2μ.

    Args:
        make: Makes the optimizer.
        rate: Its learning rate; None: unchanged.
        steps: Number of steps.
    """
    network, decay = _convex()
    executor = framework("reference").executor(network)
    made = make()
    optimizer: Any = RuleOptimizer(copy.copy(made)) if isinstance(made, UpdateRule) else made
    if rate is not None:
        _set_rate(optimizer, rate)
    optimizer.bind(executor)
    feed, ids = _samples(0, 24, "float64")
    before = _excess(executor, feed, decay)
    for step in range(steps):
        optimizer.step(feed, StepInfo(step=step, epoch=step, batch_size=24, sample_ids=ids))
    with getattr(optimizer, "averaged", nullcontext)():
        return _excess(executor, feed, decay) / before


def _set_rate(optimizer: Any, rate: float) -> None:
    if isinstance(optimizer, RuleOptimizer):
        optimizer.rule.lr = rate  # type: ignore[attr-defined]
    else:
        optimizer.set_hyper("lr", rate)


def _convex() -> tuple[Any, float]:
    from deep5.networks.edit.builder import NetworkBuilder

    decay = 0.1
    build = NetworkBuilder("convex", dtype="float64")
    x, label = build.input("input", ("N", _FEATURES)), build.input("label", ("N",), "int64")
    w = build.parameter("w", (_FEATURES, _CLASSES), lambda rng, shape: rng.standard_normal(shape))
    entropy = build.op("SoftmaxCrossEntropyLoss", build.op("MatMul", x, w), label)
    square = build.op("ReduceSum", build.op("Mul", w, w), keepdims=0)
    return build.network({"loss": build.op("Add", entropy, build.op("Mul", build.scalar(decay / 2), square))}), decay


def _excess(executor: GraphExecutor, feed: Mapping[str, Any], decay: float) -> float:
    """An upper bound of f - f*: the loss is strongly convex with the penalty factor."""
    executor.inference_and_backprop(feed)
    gradient = np.asarray(to_numpy(executor.gradients()["w"]))
    return float(np.sum(gradient * gradient)) / (2 * decay)


def _samples(number: int, size: int, dtype: str) -> tuple[dict[str, Any], np.ndarray]:
    """A deterministic batch: the samples by their ids."""
    draw = generator(0, "check optimizer", number)
    images = np.asarray(draw.standard_normal((24, _FEATURES)))
    labels = np.asarray(draw.integers(0, _CLASSES, 24), np.int64)
    feed = {"input": images[:size].astype(dtype), "label": labels[:size]}
    return feed, np.arange(size) + 24 * number


def relative(one: Outcome, other: Outcome) -> tuple[float, str]:
    """The largest relative distance between two outcomes, and its location."""
    worst, where = 0.0, ""
    for key, value in other.items():
        scale = float(np.linalg.norm(value)) or 1.0
        apart = float(np.linalg.norm(np.asarray(one[key], np.float64) - value)) / scale
        if not apart <= worst:  # a NaN is the worst
            worst, where = apart, key
    return worst, where


def _copied(state: Mapping[str, Any]) -> Outcome:
    return {key: np.array(value) for key, value in state.items()}


def _equal(one: Any, other: Any) -> bool:
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _off(one: Any, other: Any) -> str:
    try:
        return f"{np.max(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64))):.2g}"
    except (TypeError, ValueError):
        return "its kind"
