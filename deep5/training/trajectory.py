"""`prove_same_trajectory`: do these back-ends compute the same training? Four parts, over all pairs.

With ReLU and max-pooling two right float32 implementations drift apart without bound, so "the same" has parts: float64
free-running, float32 restarted from the float64 state, gradients, and float32 free-running where the network is smooth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from deep5 import plugins
from deep5.backend import Framework
from deep5.errors import Unsupported, UsageError
from deep5.events import StepInfo
from deep5.executors import GraphExecutor
from deep5.networks.network import Network
from deep5.tensors import to_numpy
from deep5.training.eager import EagerRule
from deep5.training.rule import UpdateRule

__all__ = ["Comparison", "Proof", "prove_same_trajectory"]

Batch = tuple[StepInfo, Mapping[str, np.ndarray]]

# Measured on right implementations of smooth and of kinked networks, with room: two orders of magnitude above the
# rounding of the element type times the depth, far below what one wrong hyperparameter or gradient shows.
_FREE_DOUBLE, _RESTARTED, _FREE_SINGLE = 1e-9, 1e-5, 1e-4
_GRADIENT = {True: 1e-5, False: 2e-2}
# An update is a dozen operations an element, each rounded to 6e-8, and no kink is in it.
_UPDATE = 1e-5
# Two compiled programs of one framework may round a gradient differently, and one of them fall to the other side of a
# kink; far below a percent all the same.
_WHOLE = 1e-3


class Comparison(NamedTuple):
    """One part for one pair.

    Attributes:
        part: `"a"` to `"d"`.
        what: What was compared, in words.
        first: A back-end, or `"float64"` for the reference's float64 trajectory, or for the rule in float64.
        second: Another.
        difference: The largest relative difference found.
        tolerance: What is allowed.
    """

    part: str
    what: str
    first: str
    second: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; a NaN is not."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was compared, all of it, and what could not be.

    Attributes:
        comparisons: One a part and pair.
        left_out: Back-ends that cannot take part in a part, `"NAME: REASON"`.
        losses: Losses of every free-running trajectory, by (back-end, dtype), shape (steps,).
    """

    comparisons: Sequence[Comparison]
    left_out: Sequence[str] = ()
    losses: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every comparison holds, and there is one."""
        return bool(self.comparisons) and all(comparison.passed for comparison in self.comparisons)

    def failures(self) -> list[str]:
        """One line for each comparison that does not hold."""
        return [
            f"({c.part}) {c.what}, {c.first} and {c.second}: {c.difference:.3g}; allowed: {c.tolerance:g}"
            for c in self.comparisons
            if not c.passed
        ]


def prove_same_trajectory(
    network: Callable[[str], Network],
    rule: Callable[[], UpdateRule],
    batches: Callable[[Network], Iterator[Batch]],
    frameworks: Sequence[str | Framework],
    *,
    smooth: bool = True,
    restarts: int = 11,
) -> Proof:
    """Train one network on several back-ends, from the same weights on the same batches, and compare all pairs.

    Args:
        network: Makes the network for a dtype, with initial weights that agree to rounding.
        rule: Makes the update rule.
        batches: Makes the batches for a network, in its dtype; their number is the length of the trajectory.
        frameworks: Back-ends, at least two. The reference's float64 trajectory is what the float32 parts start from.
        smooth: The network has no kinks (ReLU, max-pooling): part (d) is asked for, and part (c) to the tighter figure.
        restarts: At how many places of the trajectory parts (b) and (c) are judged.

    Returns:
        The proof: (a) float64, free-running: losses; (b) float32, from a float64 state: the loss there, the loss a
        step later, and the update, in two halves and as a whole step, against the rule in float64 on the back-end's own
        gradient, which kinks do not blur; (c) gradients there, norm of the difference over norm, over all
        parameters; (d) float32, free-running: losses.

    Raises:
        UsageError: Fewer than two back-ends, or no batches.
    """
    made = {found.name: found for found in map(_framework, frameworks)}
    if len(made) < 2:
        raise UsageError(f"got the back-ends {', '.join(made) or 'none'}; allowed: at least two different ones")
    double, single = network("float64"), network("float32")
    wide, narrow = list(batches(double)), list(batches(single))
    if len(wide) < 2 or len(wide) != len(narrow):
        raise UsageError(f"got {len(wide)} and {len(narrow)} batches; allowed: at least two, as many for every dtype")
    states = _States(plugins.framework("reference").executor(double), rule(), wide, restarts)

    losses: dict[tuple[str, str], np.ndarray] = {}
    gradients: dict[str, list[np.ndarray]] = {"float64": states.gradients}
    restarted: dict[str, np.ndarray] = {"float64": states.losses}
    updates: dict[str, tuple[float, float]] = {}
    left_out = []
    for name, found in made.items():
        for dtype, of, feeds in (("float64", double, wide), ("float32", single, narrow)):
            try:
                losses[name, dtype] = _free(found.executor(of), rule(), feeds)
                if dtype == "float32":
                    restarted[name], gradients[name], updates[name] = states.replay(found.executor(of), rule(), feeds)
            except Unsupported as error:
                left_out.append(f"{name} in {dtype}: {error}")
    comparisons = _curves("a", "losses in float64, free-running", losses, "float64", _FREE_DOUBLE)
    # Adam's first steps are as long for a gradient that is only rounding as for any other: behind a kink the loss after
    # the step is no closer than the gradient.
    later = _RESTARTED if smooth else _GRADIENT[False]
    for one, other in itertools.combinations(restarted, 2):
        for offset, what, tolerance in ((0, "loss at a float64 state", _RESTARTED), (1, "loss a step later", later)):
            difference = _relative(restarted[one][offset::2], restarted[other][offset::2])
            comparisons.append(Comparison("b", what, one, other, difference, tolerance))
    for name, (halves, whole) in updates.items():
        comparisons.append(Comparison("b", "update on its own gradient", name, "float64", halves, _UPDATE))
        comparisons.append(Comparison("b", "update of a whole step", name, "float64", whole, _WHOLE))
    for one, other in itertools.combinations(gradients, 2):
        difference = max(_distance(a, b) for a, b in zip(gradients[one], gradients[other], strict=True))
        comparisons.append(Comparison("c", "gradients at a float64 state", one, other, difference, _GRADIENT[smooth]))
    if smooth:
        comparisons += _curves("d", "losses in float32, free-running", losses, "float32", _FREE_SINGLE)
    return Proof(comparisons=tuple(comparisons), left_out=tuple(left_out), losses=losses)


class _States:
    """States along the reference's float64 trajectory, with the two losses and the gradients that follow from each."""

    def __init__(self, executor: GraphExecutor, rule: UpdateRule, batches: Sequence[Batch], restarts: int) -> None:
        step = executor.train_step(rule)
        last = len(batches) - 2
        self._places = sorted({round(last * index / max(restarts - 1, 1)) for index in range(restarts)})
        self._states: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.gradients: list[np.ndarray] = []
        curve = []
        for index, (info, inputs) in enumerate(batches):
            if index in self._places:
                self._states.append((executor.state_dict(), step.state_dict()))
                self.gradients.append(_gradient(executor, inputs, info))
                # Running statistics have moved with it.
                executor.load_state_dict(self._states[-1][0])
            curve.append(_loss(step(inputs, info)))
        self.losses = np.array([curve[place + offset] for place in self._places for offset in (0, 1)])

    def replay(
        self, executor: GraphExecutor, rule: UpdateRule, batches: Sequence[Batch]
    ) -> tuple[np.ndarray, list[np.ndarray], tuple[float, float]]:
        """The same losses and gradients by another executor, from the same states rounded to its dtype.

        Returns:
            Losses, gradients, and how far its updates are from the rule's: in two halves, and as a whole step.
        """
        step = executor.train_step(rule)
        kinds = {name: value.dtype for name, value in executor.state_dict().items()}
        own = {name: np.asarray(value).dtype for name, value in step.state_dict().items()}
        losses, gradients, halves, whole = [], [], 0.0, 0.0
        for place, (state, optimizer) in zip(self._places, self._states, strict=True):
            rounded = {name: value.astype(kinds[name]) for name, value in state.items()}
            kept = {name: np.asarray(value).astype(own[name]) for name, value in optimizer.items()}
            info, inputs = batches[place]
            executor.load_state_dict(rounded)
            gradients.append(_gradient(executor, inputs, info))

            executor.load_state_dict(rounded)
            step.load_state_dict(kept)
            step.backprop(inputs, info)
            gradient = {name: np.array(to_numpy(value), np.float64) for name, value in executor.gradients().items()}
            step.apply(executor.gradients(), info)
            update = _Update(rule, rounded, kept, gradient, info)
            halves = max(halves, update.distance(executor.state_dict()))

            executor.load_state_dict(rounded)
            step.load_state_dict(kept)
            losses.append(_loss(step(inputs, info)))
            whole = max(whole, update.weighted(executor.state_dict()))
            info, inputs = batches[place + 1]
            losses.append(_loss(step(inputs, info)))
        return np.array(losses), gradients, (halves, whole)


class _Update:
    """One update by the rule as it stands, in float64, on a gradient that a back-end found."""

    def __init__(
        self,
        rule: UpdateRule,
        state: Mapping[str, np.ndarray],
        optimizer: Mapping[str, np.ndarray],
        gradient: Mapping[str, np.ndarray],
        info: StepInfo,
    ) -> None:
        self._gradient = gradient
        self._before = {name: state[name].astype(np.float64) for name in gradient}
        eager = EagerRule(rule, self._before)
        eager.states = {
            name: {key: np.asarray(optimizer[f"{key}/{name}"], np.float64) for key in keys}
            for name, keys in eager.states.items()
        }
        eager.update(gradient, info)
        self._after = eager.parameters

    def distance(self, found: Mapping[str, Any]) -> float:
        """The norm of what is wrong with an update over the norm of the update, over all parameters."""
        wrong, right = self._both(found)
        return _ratio(np.linalg.norm(np.concatenate(wrong)), np.linalg.norm(np.concatenate(right)))

    def weighted(self, found: Mapping[str, Any]) -> float:
        """The same, each element counted by what it does to the loss to first order.

        A whole step rounds its gradient in its own way; where it is nothing but rounding, Adam's step is arbitrary.
        """
        weight = np.concatenate([np.abs(value).ravel() for value in self._gradient.values()])
        wrong, right = self._both(found)
        return _ratio(weight @ np.concatenate(wrong), weight @ np.abs(np.concatenate(right)))

    def _both(self, found: Mapping[str, Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        wrong = []
        for name in self._gradient:
            value = np.asarray(found[name])
            # The result is rounded to its neighbour, which says nothing of the update.
            rounding = np.spacing(np.abs(value)).astype(np.float64)
            wrong.append(np.maximum(np.abs(value.astype(np.float64) - self._after[name]) - rounding, 0.0).ravel())
        return wrong, [(self._after[name] - before).ravel() for name, before in self._before.items()]


def _framework(given: str | Framework) -> Framework:
    return plugins.framework(given) if isinstance(given, str) else given


def _free(executor: GraphExecutor, rule: UpdateRule, batches: Sequence[Batch]) -> np.ndarray:
    step = executor.train_step(rule)
    return np.array([_loss(step(inputs, info)) for info, inputs in batches])


def _loss(outputs: Mapping[str, Any]) -> float:
    return float(to_numpy(outputs["loss"]))


def _gradient(executor: GraphExecutor, inputs: Mapping[str, np.ndarray], info: StepInfo) -> np.ndarray:
    """All gradients as one float64 vector, in the order of the network's parameters."""
    executor.inference_and_backprop(inputs, info=info)
    found = executor.gradients()
    return np.concatenate(
        [np.asarray(to_numpy(found[name]), np.float64).ravel() for name in executor.network.parameters]
    )


def _curves(
    part: str, what: str, losses: Mapping[tuple[str, str], np.ndarray], dtype: str, tolerance: float
) -> list[Comparison]:
    names = [name for name, kind in losses if kind == dtype]
    return [
        Comparison(part, what, one, other, _relative(losses[one, dtype], losses[other, dtype]), tolerance)
        for one, other in itertools.combinations(names, 2)
    ]


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    # A loss near zero has few right digits: differences count against at least 1e-3 of the largest.
    scale = np.maximum(np.maximum(np.abs(one), np.abs(other)), 1e-3 * np.max(np.abs(one)))
    return float(np.max(np.abs(one - other) / scale))


def _ratio(wrong: Any, right: Any) -> float:
    # A rule that leaves everything where it is has a right to do so.
    return float(wrong / right) if right else float(wrong)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
