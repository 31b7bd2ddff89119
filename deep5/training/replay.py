"""Replays a training from waypoints: one back-end's part of the proof that several train alike.

The waypoints are states along the float64 trajectory of one back-end. Each other back-end replays independently, and
its results are arrays, so that it may run in a separate process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.tensors import to_numpy
from deep5.networks.network import Network
from deep5.training.eager import EagerRule
from deep5.training.optimizer import RuleOptimizer, as_step_optimizer
from deep5.training.rule import UpdateRule

__all__ = ["Batch", "Make", "Replayed", "Rounding", "Schedules", "Waypoints", "free_running", "unscheduled"]

_LONGER = 0.01
# As in the comparison of losses, which is relative to at least this part of the largest.
_SMALL = 1e-3

Batch = tuple[StepInfo, Mapping[str, np.ndarray]]
Make = Callable[[], UpdateRule | StepOptimizer]
"""Creates a new optimizer for each training."""
Schedules = Callable[[StepOptimizer], Callable[[StepInfo], object]]
"""Returns, for an optimizer, a function that sets its hyperparameters before a step; a new one for each training."""


def unscheduled(optimizer: StepOptimizer) -> Callable[[StepInfo], object]:
    """The `Schedules` of a training with constant hyperparameters."""
    return lambda info: None


def free_running(
    executor: GraphExecutor, make: Make, batches: Sequence[Batch], schedules: Schedules = unscheduled
) -> np.ndarray:
    """The losses of an independent training, one per step, shape (steps,), float64."""
    optimizer = _bound(executor, make)
    schedule, losses = schedules(optimizer), []
    for info, inputs in batches:
        schedule(info)
        losses.append(_loss(optimizer.step(inputs, info)))
    return np.array(losses)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A back-end's results at the waypoints.

    Attributes:
        losses: The loss at each waypoint, shape (waypoints,).
        later: The loss a step later, likewise; empty for an optimizer whose state cannot be set.
        gradients: All gradients at each waypoint, concatenated.
        updates: For a bare update rule (no groups, no pipeline): the largest relative error of its updates in two
            halves against the rule in float64; that of whole steps, with each element weighted by its effect on the
            loss; and the largest error of a parameter after an update in halves, in units in the last place. Otherwise
            None.
        seen: The error of an update that is 1 % too long, beyond the rounding of the parameters, relative to the norm
            of the update; the largest of all waypoints.
    """

    losses: np.ndarray
    later: np.ndarray
    gradients: Sequence[np.ndarray]
    updates: tuple[float, float, float] | None = None
    seen: float = 0.0

    def arrays(self) -> dict[str, np.ndarray]:
        """All fields by name, for storage in a file."""
        found = {f"gradient/{place}": value for place, value in enumerate(self.gradients)}
        found |= {"losses": self.losses, "later": self.later, "updates": np.array(self.updates or ())}
        return {**found, "seen": np.array(self.seen)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Replayed:
        """The inverse of `arrays`."""
        gradients = [arrays[f"gradient/{place}"] for place in range(arrays["losses"].size)]
        updates = tuple(arrays["updates"].tolist()) or None
        return cls(
            losses=arrays["losses"],
            later=arrays["later"],
            gradients=gradients,
            updates=updates,
            seen=float(arrays["seen"]),
        )


class Rounding(NamedTuple):
    """How far the trajectory's own back-end is from it in float32: errors of arithmetic, absolute.

    Attributes:
        losses: Of the loss at each waypoint, shape (waypoints,).
        later: Of the loss a step later, likewise; empty for an optimizer whose state cannot be set.
        gradients: Norms of the errors of each parameter's gradient, shape (waypoints, parameters).
        curve: Of the losses of an independent training, shape (steps,).
    """

    losses: np.ndarray
    later: np.ndarray
    gradients: np.ndarray
    curve: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Waypoints:
    """States along a float64 trajectory, each with the two subsequent losses and its gradients.

    Attributes:
        places: The steps before which they were taken.
        executors: The executor's state at each.
        optimizers: The step's state at each; empty for an optimizer whose state cannot be set.
        replayed: Losses and gradients of the trajectory itself.
        losses: The losses of the whole trajectory, shape (steps,).
        sizes: The number of elements of each parameter, in the order of the gradients, shape (parameters,).
        rounding: The errors of the same back-end in float32.
        effect: How much a step size that is 1 % larger changes a loss of the trajectory, relative to the loss: the
            largest at the waypoints, to first order.
    """

    places: Sequence[int]
    executors: Sequence[Mapping[str, np.ndarray]]
    optimizers: Sequence[Mapping[str, np.ndarray]]
    replayed: Replayed
    losses: np.ndarray
    sizes: np.ndarray
    rounding: Rounding
    effect: float

    @classmethod
    def along(
        cls,
        executor: Callable[[Network], GraphExecutor],
        make: Make,
        feeds: Mapping[str, tuple[Network, Sequence[Batch]]],
        count: int,
        schedules: Schedules = unscheduled,
    ) -> Waypoints:
        """Train in float64 and record the states; then train in float32, from each of them and freely.

        Args:
            executor: Creates the back-end's executor of a network.
            make: Creates the optimizer.
            feeds: By dtype, `"float64"` and `"float32"`, the network and the batches of the whole trajectory, at least
                two.
            count: The number of states, evenly spaced.
            schedules: The optimizer's hyperparameter schedules.
        """
        network, batches = feeds["float64"]
        found = cls._recorded(executor(network), make, batches, count, schedules)
        network, batches = feeds["float32"]
        curve = free_running(executor(network), make, batches, schedules)
        single = found.replay(executor(network), make, batches, schedules)
        return replace(found, rounding=found._errors(single, curve))

    @classmethod
    def _recorded(
        cls, executor: GraphExecutor, make: Make, batches: Sequence[Batch], count: int, schedules: Schedules
    ) -> Waypoints:
        optimizer = _bound(executor, make)
        schedule = schedules(optimizer)
        # An update rule's state is the same on every back-end; other optimizers' states are back-end-specific.
        step = optimizer.train_step if isinstance(optimizer, RuleOptimizer) else None
        last = len(batches) - 2
        places = sorted({round(last * index / max(count - 1, 1)) for index in range(count)})
        executors, optimizers, gradients, curve = [], [], [], []
        for index, (info, inputs) in enumerate(batches):
            if index in places:
                executors.append(executor.state_dict())
                if step is not None:
                    optimizers.append(step.state_dict())
                gradients.append(_gradient(executor, inputs, info)[0])
                # The backward pass has updated the running statistics.
                executor.load_state_dict(executors[-1])
            schedule(info)
            curve.append(_loss(optimizer.step(inputs, info)))
        there, later = (np.array([curve[place + offset] for place in places]) for offset in (0, 1))
        specs = executor.network.trained_specs.values()
        none = np.zeros(0)
        # What the training has changed the losses by; a larger step size changes them by as much more.
        untrained = [there[0]]
        for place in places[1:]:
            executor.load_state_dict(executors[0])
            info, inputs = batches[place]
            untrained.append(_gradient(executor, inputs, info)[1])
        return cls(
            places=places,
            executors=executors,
            optimizers=optimizers,
            replayed=Replayed(losses=there, later=later if step is not None else later[:0], gradients=gradients),
            losses=np.array(curve),
            sizes=np.array([math.prod(int(extent) for extent in spec.shape) for spec in specs], np.int64),
            rounding=Rounding(none, none, none, none),
            effect=_effect(there, np.array(untrained)),
        )

    def norms(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Norms of each parameter's part of vectors like the gradients, shape (vectors, parameters)."""
        ends = np.cumsum(self.sizes)[:-1]
        return np.array([[np.linalg.norm(part) for part in np.split(vector, ends)] for vector in vectors])

    def _errors(self, single: Replayed, curve: np.ndarray) -> Rounding:
        pairs = zip(single.gradients, self.replayed.gradients, strict=True)
        return Rounding(
            losses=np.abs(single.losses - self.replayed.losses),
            later=np.abs(single.later - self.replayed.later),
            gradients=self.norms([one - other for one, other in pairs]),
            curve=np.abs(curve - self.losses),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """All fields by name, for storage in a file."""
        found = {"places": np.array(self.places), "curve": self.losses, "sizes": self.sizes}
        found["effect"] = np.array(self.effect)
        found |= {f"rounding/{name}": value for name, value in self.rounding._asdict().items()}
        found |= {f"replayed/{name}": value for name, value in self.replayed.arrays().items()}
        for what, states in (("executor", self.executors), ("optimizer", self.optimizers)):
            for place, state in enumerate(states):
                found |= {f"{what}/{place}/{name}": np.asarray(value) for name, value in state.items()}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Waypoints:
        """The inverse of `arrays`."""

        def under(prefix: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

        places = arrays["places"].tolist()
        replayed = Replayed.of_arrays(under("replayed/"))
        return cls(
            places=places,
            executors=[under(f"executor/{place}/") for place in range(len(places))],
            # A stateless optimizer, such as plain SGD, has an empty state at every waypoint.
            optimizers=[under(f"optimizer/{place}/") for place in range(len(places) if replayed.later.size else 0)],
            replayed=replayed,
            losses=arrays["curve"],
            sizes=arrays["sizes"],
            rounding=Rounding(**under("rounding/")),
            effect=float(arrays["effect"]),
        )

    def gradients(self, executor: GraphExecutor, batches: Sequence[Batch]) -> list[np.ndarray]:
        """All gradients of another executor at each waypoint, concatenated; its network is in float64."""
        found = []
        for place, state in zip(self.places, self.executors, strict=True):
            executor.load_state_dict(state)
            info, inputs = batches[place]
            found.append(_gradient(executor, inputs, info)[0])
        return found

    def replay(
        self, executor: GraphExecutor, make: Make, batches: Sequence[Batch], schedules: Schedules = unscheduled
    ) -> Replayed:
        """Losses and gradients of another executor, from the same states rounded to its dtype.

        Args:
            executor: For the same network, in any dtype.
            make: Creates the same optimizer.
            batches: The same batches, in the network's dtype.
            schedules: The same schedules.
        """
        kinds = {name: value.dtype for name, value in executor.state_dict().items()}
        rounded = [{name: value.astype(kinds[name]) for name, value in state.items()} for state in self.executors]
        losses, gradients = [], []
        for place, state in zip(self.places, rounded, strict=True):
            executor.load_state_dict(state)
            info, inputs = batches[place]
            gradient, loss = _gradient(executor, inputs, info)
            gradients.append(gradient)
            losses.append(loss)
        optimizer = _bound(executor, make)
        schedule = schedules(optimizer)
        if not isinstance(optimizer, RuleOptimizer) or not self.optimizers:
            return Replayed(losses=np.array(losses), later=np.array([]), gradients=gradients)
        # An update without groups and pipeline can be compared with the rule itself: another one than the back-end has,
        # which may change it.
        right = as_step_optimizer(make())
        step, rule = optimizer.train_step, right.rule if isinstance(right, RuleOptimizer) and right.bare else None
        right_schedule = schedules(right)
        own = {name: np.asarray(value).dtype for name, value in step.state_dict().items()}
        later, worst, seen = [], np.zeros(3), 0.0
        for index, (place, state, state_64) in enumerate(zip(self.places, rounded, self.optimizers, strict=True)):
            kept = {name: np.asarray(value).astype(own[name]) for name, value in state_64.items()}
            info, inputs = batches[place]
            schedule(info)
            update = None
            if rule is not None:
                right_schedule(info)
                executor.load_state_dict(state)
                step.load_state_dict(kept)
                step.backprop(inputs, info)
                own_gradient = {
                    name: np.array(to_numpy(value), np.float64) for name, value in executor.gradients().items()
                }
                step.apply(executor.gradients(), info)
                update = _Update(rule, state, kept, own_gradient, info)
                found = executor.state_dict()
                worst = np.maximum(worst, (update.distance(found), 0.0, update.ulps(found)))
                seen = max(seen, update.seen(found))
            executor.load_state_dict(state)
            step.load_state_dict(kept)
            losses[index] = _loss(step(inputs, info))
            if update is not None:
                worst[1] = max(worst[1], update.weighted(executor.state_dict()))
            info, inputs = batches[place + 1]
            schedule(info)
            later.append(_loss(step(inputs, info)))
        return Replayed(
            losses=np.array(losses),
            later=np.array(later),
            gradients=gradients,
            updates=None if rule is None else (float(worst[0]), float(worst[1]), float(worst[2])),
            seen=seen,
        )


def _bound(executor: GraphExecutor, make: Make) -> StepOptimizer:
    optimizer = as_step_optimizer(make())
    optimizer.bind(executor)
    return optimizer


class _Update:
    """One update of the original rule in float64, with a back-end's gradient."""

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
        """The norm of an update's error relative to the norm of the update, over all parameters."""
        wrong, right = self._both(found)
        return _ratio(np.linalg.norm(np.concatenate(wrong)), np.linalg.norm(np.concatenate(right)))

    def weighted(self, found: Mapping[str, Any]) -> float:
        """The same, with each element weighted by its effect on the loss, to first order.

        A whole step rounds its gradient differently; if a gradient is only rounding error, Adam's step is arbitrary.
        """
        weight = np.concatenate([np.abs(value).ravel() for value in self._gradient.values()])
        wrong, right = self._both(found)
        return _ratio(weight @ np.concatenate(wrong), weight @ np.abs(np.concatenate(right)))

    def ulps(self, found: Mapping[str, Any]) -> float:
        """The largest error of a parameter, in units in the last place."""
        return max(
            float(np.max(np.abs(value.astype(np.float64) - self._after[name]) / np.spacing(np.abs(value)), initial=0.0))
            for name in self._gradient
            for value in (np.asarray(found[name]),)
        )

    def seen(self, found: Mapping[str, Any]) -> float:
        """The distance of an update that is 1 % too long."""
        right = self._both(found)[1]
        rounding = [np.spacing(np.abs(np.asarray(found[name]))).astype(np.float64).ravel() for name in self._gradient]
        wrong = [np.maximum(_LONGER * np.abs(each) - own, 0.0) for each, own in zip(right, rounding, strict=True)]
        return _ratio(np.linalg.norm(np.concatenate(wrong)), np.linalg.norm(np.concatenate(right)))

    def _both(self, found: Mapping[str, Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        wrong = []
        for name in self._gradient:
            value = np.asarray(found[name])
            # The result is rounded to the nearest value, which is unrelated to the update.
            rounding = np.spacing(np.abs(value)).astype(np.float64)
            wrong.append(np.maximum(np.abs(value.astype(np.float64) - self._after[name]) - rounding, 0.0).ravel())
        return wrong, [(self._after[name] - before).ravel() for name, before in self._before.items()]


def _effect(losses: np.ndarray, untrained: np.ndarray) -> float:
    """How much an update that is 1 % too long changes losses, relative to them."""
    sizes = np.maximum(np.abs(losses), np.abs(untrained))
    floor = _SMALL * float(sizes.max())
    found = _LONGER * np.abs(losses - untrained) / np.maximum(sizes, floor or 1.0)
    return float(found.max()) if np.isfinite(found).all() else math.inf


def _loss(outputs: Mapping[str, Any]) -> float:
    return float(to_numpy(outputs["loss"]))


def _gradient(executor: GraphExecutor, inputs: Mapping[str, np.ndarray], info: StepInfo) -> tuple[np.ndarray, float]:
    """All gradients as one float64 vector, in the order of the network's parameters; and the loss."""
    loss = _loss(executor.inference_and_backprop(inputs, info=info))
    found = executor.gradients()
    names = executor.network.trained_specs
    return np.concatenate([np.asarray(to_numpy(found[name]), np.float64).ravel() for name in names]), loss


def _ratio(wrong: Any, right: Any) -> float:
    # A rule may change nothing.
    return float(wrong / right) if right else float(wrong)
