"""Mean return of the trained agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.seeds import derive_seed
from deep5.training.reinforcement.online import OnlineSampler
from deep5.training.reinforcement.play import Scores, play

__all__ = ["MeanReturn"]


class _Returns(Observer):
    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._samples: list[Sample] = []
        self._returns: list[float] = []

    def before_training(self, trainer: Any) -> None:
        sampler = trainer.train_sampler
        if not isinstance(sampler, OnlineSampler):
            raise UsageError(
                f"mean_return of a training by {type(sampler).__name__}; allowed: the samplers 'episodes' and "
                "'replay', which act in an environment"
            )

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        environment = trainer.train_sampler.dataset
        scores = Scores(trainer.executor, environment, self._episodes)
        seeds = [derive_seed(trainer.seed, "test episode", number) for number in range(self._episodes)]
        instances = [environment.make() for _ in seeds]
        played = play(environment, instances, seeds, lambda seen, step: scores(seen).argmax(axis=1))
        for instance in instances:
            instance.close()
        self._returns = [sum(episode.rewards) for episode in played]
        mean = float(np.mean(self._returns))
        self._samples.append(Sample(mean, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None

    def files(self) -> dict[str, bytes | str]:
        if not self._returns:
            return {}
        rows = [f"{number},{value!r}" for number, value in enumerate(self._returns)]
        return {"returns.csv": "\n".join(["episode,return", *rows]) + "\n"}


class MeanReturn(Metric):
    """Mean of the sum of an episode's rewards over test episodes after the last epoch, with the best-scored actions.

    The test episodes begin from other seeds than those of training, the same after every epoch. The result's file
    `returns.csv` has the return of each episode after the last epoch.

    Nothing is on a clock.

    Args:
        episodes: Number of test episodes, which are played side by side.

    >>> import deep5 as d5
    >>> data = d5.datasets.environment("CartPole-v1")
    >>> executor = d5.framework("reference").executor(d5.networks.policy_network())
    >>> trainer = d5.Trainer(executor, d5.Adam(), d5.EpisodeSampler(data.train, 64, batches=2))
    >>> observer = d5.MeanReturn(episodes=5).observer()
    >>> trainer.train(epochs=1, events=[observer])
    >>> 8 <= observer.value() <= 500  # no pole falls in fewer steps, and an episode has at most 500
    True
    """

    name = "mean_return"
    unit = "reward"
    direction = "higher"

    def __init__(self, episodes: int = 100) -> None:
        if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
            raise UsageError(f"mean_return with episodes={episodes!r:.60}; allowed: an integer of at least 1")
        self.episodes = episodes

    def observer(self) -> Observer:
        """Samples: the mean after every epoch."""
        return _Returns(self.episodes)
