"""`Sampler`: the next settings of a search as a function of its seed, the trial's number, and the trials before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from deep5.core.seeds import generator
from deep5.results.sweep.trial import Direction, Trial
from deep5.search.space import Space

__all__ = ["Sampler", "drawn"]


class Sampler(ABC):
    """Proposes settings; the same ones for the same trials, in any process and at any time.

    Args:
        space: The space.
        direction: Whether higher or lower values are better.
        seed: Seed of the search.
        parallel: Number of trials that may run at the same time.

    Attributes:
        name: Its name on the command line.
    """

    name: ClassVar[str]

    def __init__(self, space: Space, direction: Direction, *, seed: int, parallel: int) -> None:
        self.space, self.direction, self.seed, self.parallel = space, direction, seed, parallel

    def required(self, number: int) -> int:
        """Number of trials, from the first on, that must have ended before a trial can be proposed.

        Args:
            number: The trial's number.
        """
        return 0

    @abstractmethod
    def propose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """The settings of a trial.

        Args:
            number: Its number.
            trials: All trials before it, in order; the outcome of those from `required(number)` on is not used.
        """

    @property
    def limit(self) -> int | None:
        """Number of trials after which there are no more settings; None: no limit."""
        return None

    def notes(self) -> list[str]:
        """What a reader of the results has to know about it, one sentence each."""
        return []


def drawn(space: Space, seed: int, number: int) -> dict[str, float]:
    """A random position for each parameter, from 0 to 1.

    Args:
        space: The space.
        seed: Seed of the search.
        number: The trial.
    """
    draws = generator(seed, "sweep", "trial", number)
    return {key: float(draws.random()) for key in space.parameters}
