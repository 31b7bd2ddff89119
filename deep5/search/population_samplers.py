"""Samplers with a population of trials: regularized evolution, and a particle swarm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.seeds import generator
from deep5.results.sweep.trial import Direction, Trial, rank_value
from deep5.search.sampler import Sampler, drawn
from deep5.search.space import Parameter, Space

__all__ = ["AgingEvolutionSampler", "SwarmSampler"]

# Trials that can be parents, and how many of them compete; Real et al. have 100 and 25 in searches of 20,000 trials.
_POPULATION, _COMPETING = 20, 5
# Standard deviation of a mutated number, as a part of its range.
_SPREAD = 0.15
# Inertia and acceleration of the standard swarm of 2007.
_INERTIA, _PULL = 1 / (2 * math.log(2)), 0.5 + math.log(2)


class AgingEvolutionSampler(Sampler):
    """Regularized evolution: the best of a few recent trials is the parent of the next, which differs in one parameter.

    Trials compete only while they are among the last 20 that have ended, however good they are: a trial that was lucky
    once dies. The first 20 are drawn. Parameters that a changed choice makes apply are drawn, too.

    References:
        Real, Aggarwal, Huang, Le, "Regularized evolution for image classifier architecture search", AAAI 2019,
        algorithm 1.
    """

    name = "evolution"

    def required(self, number: int) -> int:
        """All trials but those that may run at the same time."""
        return max(0, number - self.parallel + 1)

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`."""
        known = self.required(number)
        if known < _POPULATION:
            return self.space.chosen(drawn(self.space, self.seed, number))
        draws = generator(self.seed, "sweep", "evolution", number)
        alive = trials[known - _POPULATION : known]
        competing = [alive[place] for place in draws.choice(_POPULATION, _COMPETING, replace=False)]
        parent = min(competing, key=lambda trial: (rank_value(trial, self.direction), trial.number))
        keys = [key for key in self.space.parameters if key in parent.settings]
        changed = self.space.parameters[keys[int(draws.integers(len(keys)))]]
        value = _mutated(changed, parent.settings[changed.key], draws)
        positions = drawn(self.space, self.seed, number)
        settings: dict[str, Any] = {}
        for key, own in self.space.parameters.items():
            if self.space.applies(own, settings):
                kept = parent.settings[key] if key in parent.settings else own.at(positions[key])
                settings[key] = value if key == changed.key else kept
        return settings


class SwarmSampler(Sampler):
    """A particle swarm: particles move through the space, drawn to the best point of each and of all.

    A choice is a part of an axis as long as the others. Particles start at drawn points; all of them move, and then all
    are evaluated, so that as many trials may run at the same time.

    References:
        Kennedy, Eberhart, "Particle swarm optimization", ICNN 1995; constants and size of the swarm as of the
        standard of 2007: Clerc, hal-00764996, 2012.
    """

    name = "swarm"

    def __init__(self, space: Space, direction: Direction, *, seed: int, parallel: int) -> None:
        super().__init__(space, direction, seed=seed, parallel=parallel)
        self._size = 10 + int(2 * math.sqrt(len(space.parameters)))
        # By trial: position and velocity.
        self._states: list[tuple[dict[str, float], dict[str, float]]] = []

    def required(self, number: int) -> int:
        """All trials of earlier moves."""
        return number // self._size * self._size

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`; in the order of the numbers, or again for an earlier one."""
        while len(self._states) <= number:
            self._states.append(self._moved(len(self._states), trials))
        return self.space.chosen(self._states[number][0])

    def _moved(self, number: int, trials: Sequence[Trial]) -> tuple[dict[str, float], dict[str, float]]:
        """Position and velocity of a trial's particle."""
        if number < self._size:
            position = drawn(self.space, self.seed, number)
            return position, {key: (target - position[key]) / 2 for key, target in self._other(number).items()}
        ended = trials[: self.required(number)]
        own = self._states[self._best(ended[number % self._size :: self._size])][0]
        common = self._states[self._best(ended)][0]
        before, velocity = self._states[number - self._size]
        draws = generator(self.seed, "sweep", "swarm", number)
        position, speed = {}, {}
        for key, at in before.items():
            pull = draws.random() * (own[key] - at) + draws.random() * (common[key] - at)
            speed[key] = _INERTIA * velocity[key] + _PULL * pull
            position[key] = min(max(at + speed[key], 0.0), 1.0)
            if position[key] != at + speed[key]:  # at a wall
                speed[key] = 0.0
        return position, speed

    def _best(self, trials: Sequence[Trial]) -> int:
        return min(trials, key=lambda trial: (rank_value(trial, self.direction), trial.number)).number

    def _other(self, number: int) -> Mapping[str, float]:
        draws = generator(self.seed, "sweep", "swarm", number)
        return {key: float(draws.random()) for key in self.space.parameters}


def _mutated(own: Parameter, value: Any, draws: Any) -> Any:
    """Another value of a parameter: any other choice, or a number nearby."""
    if own.kind == "choice":
        others = [other for other in own.values if not (other == value and type(other) is type(value))]
        return others[int(draws.integers(len(others)))] if others else value
    for _ in range(100):
        position = own.position(value) + _SPREAD * float(draws.standard_normal())
        # Reflected at the ends, where a clipped number would heap up.
        position = abs(position) % 2
        found = own.at(2 - position if position > 1 else position)
        if found != value:
            return found
    return value
