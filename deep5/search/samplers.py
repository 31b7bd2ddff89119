"""Samplers without a population, and `make_sampler`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.core.errors import MissingDependency, UnknownName, UsageError
from deep5.core.seeds import derive_seed, generator
from deep5.results.sweep.trial import Direction, Trial, rank_value
from deep5.search.optuna_study import filled_study, optuna, suggested
from deep5.search.population_samplers import AgingEvolutionSampler, SwarmSampler
from deep5.search.sampler import Sampler, drawn
from deep5.search.space import Parameter, Space

__all__ = ["SAMPLERS", "make_sampler"]


class RandomSampler(Sampler):
    """Draws each parameter evenly from its range, on its scale."""

    name = "random"

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`."""
        return self.space.chosen(drawn(self.space, self.seed, number))


class GridSampler(Sampler):
    """All combinations, the last parameter changing fastest."""

    name = "grid"

    def __init__(self, space: Space, direction: Direction, *, seed: int, parallel: int) -> None:
        super().__init__(space, direction, seed=seed, parallel=parallel)
        self._grid = space.grid

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`."""
        return dict(self._grid[number])

    @property
    def limit(self) -> int | None:
        """The number of combinations."""
        return len(self._grid)


class QuasiRandomSampler(Sampler):
    """A scrambled Sobol' sequence, whose points fill the space more evenly than random ones.

    References:
        Owen, "Scrambling Sobol' and Niederreiter-Xing points", Journal of Complexity 14 (1998); by SciPy.
    """

    name = "qmc"

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`."""
        from scipy.stats import qmc

        keys = list(self.space.parameters)
        points = qmc.Sobol(len(keys), scramble=True, rng=generator(self.seed, "sweep", "qmc"))
        if number:
            points.fast_forward(number)
        return self.space.chosen(dict(zip(keys, map(float, points.random(1)[0]), strict=True)))


class ParzenSampler(Sampler):
    """Optuna's tree-structured Parzen estimator.

    A trial is proposed from the outcomes of all trials but the `parallel - 1` before it, which may still run: they
    count as bad ("constant liar"), so that the trials at the same time differ.

    References:
        Bergstra, Bardenet, Bengio, Kégl, "Algorithms for hyper-parameter optimization", NeurIPS 2011.
    """

    name = "tpe"

    def __init__(self, space: Space, direction: Direction, *, seed: int, parallel: int) -> None:
        super().__init__(space, direction, seed=seed, parallel=parallel)
        optuna()

    def required(self, number: int) -> int:
        """All trials but those that may run at the same time."""
        return max(0, number - self.parallel + 1)

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`."""
        seed = derive_seed(self.seed, "sweep", "tpe", number) % 2**32
        sampler = optuna().samplers.TPESampler(seed=seed, constant_liar=True)
        study = filled_study(self.space, trials[:number], self.required(number), self.direction, sampler=sampler)
        return suggested(self.space, study)


class EvolutionStrategySampler(Sampler):
    """Covariance matrix adaptation (CMA-ES) over all numbers that always apply; the other parameters are drawn.

    The trials of one generation do not depend on each other, and may run at the same time. The state of the strategy is
    computed from the stored trials, one generation after another.

    References:
        Hansen, "The CMA evolution strategy: a tutorial", arXiv:1604.00772; for integers Hamano, Saito, Nomura,
        Shirakawa, "CMA-ES with margin", GECCO 2022; by the package cmaes.
    """

    name = "cmaes"

    def __init__(self, space: Space, direction: Direction, *, seed: int, parallel: int) -> None:
        super().__init__(space, direction, seed=seed, parallel=parallel)
        self._numbers = [own for own in space.parameters.values() if own.condition is None and own.kind != "choice"]
        self._drawn = [key for key in space.parameters if key not in {own.key for own in self._numbers}]
        if len(self._numbers) < 2:
            raise UsageError(
                f"cmaes over {len(self._numbers)} numbers that always apply; allowed: at least 2; remedy: another "
                "sampler, such as tpe"
            )
        try:
            import cmaes
        except ImportError as error:
            raise MissingDependency(
                "the sampler cmaes needs the package cmaes, which is not installed; remedy: pip install 'deep5[search]'"
            ) from error
        dimensions = len(self._numbers)
        seed = derive_seed(seed, "sweep", "cmaes") % 2**32
        about: dict[str, Any] = {
            "mean": _array([0.5] * dimensions),
            "sigma": 1 / 6,
            "seed": seed,
            "bounds": _array([[0.0, 1.0]] * dimensions),
        }
        steps = [1 / (own.steps - 1) if own.steps else 0.0 for own in self._numbers]
        self._with_margin = any(steps)
        self._strategy: Any = cmaes.CMAwM(steps=_array(steps), **about) if self._with_margin else cmaes.CMA(**about)
        self._size: int = self._strategy.population_size
        # Points of the generations so far: to evaluate, and for the strategy.
        self._points: list[tuple[Any, Any]] = []

    def required(self, number: int) -> int:
        """All trials of earlier generations."""
        return number // self._size * self._size

    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """See `Sampler.propose`; in the order of the numbers, or again for an earlier one."""
        while len(self._points) <= number:
            place = len(self._points)
            if place and place % self._size == 0:
                ended = trials[place - self._size : place]
                points = self._points[place - self._size : place]
                self._strategy.tell(
                    [
                        (point, rank_value(trial, self.direction))
                        for (_, point), trial in zip(points, ended, strict=True)
                    ]
                )
            point = self._strategy.ask()
            self._points.append(point if self._with_margin else (point, point))
        settings = {}
        for own, position in zip(self._numbers, self._points[number][0], strict=True):
            settings[own.key] = _nearest(own, float(position))
        positions = drawn(self.space, self.seed, number)
        chosen: dict[str, Any] = {}
        for key, own in self.space.parameters.items():
            if self.space.applies(own, chosen):
                chosen[key] = settings[key] if key in settings else own.at(positions[key])
        return chosen

    def notes(self) -> list[str]:
        """Which parameters it draws."""
        if not self._drawn:
            return []
        return [f"cmaes searches numbers that always apply; at random it draws {', '.join(self._drawn)}"]


_ALL: tuple[type[Sampler], ...] = (
    RandomSampler, ParzenSampler, EvolutionStrategySampler, AgingEvolutionSampler, SwarmSampler, GridSampler,
    QuasiRandomSampler,
)  # fmt: skip
SAMPLERS: Mapping[str, type[Sampler]] = {own.name: own for own in _ALL}
"""By name on the command line."""


def make_sampler(name: str, space: Space, direction: Direction, *, seed: int, parallel: int) -> Sampler:
    """A sampler.

    Args:
        name: A key of `SAMPLERS`.
        space: The space.
        direction: Whether higher or lower values are better.
        seed: Seed of the search.
        parallel: Number of trials that may run at the same time.

    Raises:
        UnknownName: There is no such sampler.
        UsageError: It does not fit the space.
        MissingDependency: Its package is not installed.
    """
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)
    return SAMPLERS[name](space, direction, seed=seed, parallel=parallel)


def _nearest(own: Parameter, position: float) -> Any:
    """The value at a position from 0, the least, to 1, the greatest value."""
    if own.steps:
        place = min(max(round(position * (own.steps - 1)), 0), own.steps - 1)
        return own.values[place] if own.values else int(own.low) + place
    return own.at(min(max(position, 0.0), 1.0))


def _array(values: Sequence[Any]) -> Any:
    import numpy as np

    return np.array(values, np.float64)
