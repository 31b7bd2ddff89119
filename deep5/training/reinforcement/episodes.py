"""`EpisodeSampler`: batches of the current policy's own episodes, for policy gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import derive_seed, generator
from deep5.training.batch_source import first_batch
from deep5.training.reinforcement.environment import Environment
from deep5.training.reinforcement.online import OnlineSampler, check_discount
from deep5.training.reinforcement.play import Episode, Scores, play

__all__ = ["EpisodeSampler", "returns"]


class EpisodeSampler(OnlineSampler):
    """Steps of episodes that the network plays before each update: the batches of REINFORCE.

    Actions are drawn from the softmax of the network's `action_logits`. The target of a step is the discounted sum of
    the rewards from it on (its return), minus the mean over all steps of the batch, divided by the standard deviation.
    Episodes are played in groups until their steps fill a batch; the batch is the first steps of the episodes in the
    order of their seeds, so that short episodes are not preferred.

    Between two updates it has no state: the episodes of a batch depend only on the seed, the epoch, the number of the
    batch and the parameters, so that a run resumes bit-identically.

    Args:
        dataset: The environment.
        batch_size: Steps of a batch.
        seed: Seed of the episodes and of the actions.
        batches: Batches of an epoch.
        side_by_side: Episodes of a group, whose actions are computed in one call.
        discount: Factor of the reward of each later step, above 0 and at most 1.

    Raises:
        UsageError: Not an environment, or an argument is out of its range.

    References:
        Williams, Simple statistical gradient-following algorithms for connectionist reinforcement learning, Machine
        Learning 8, 1992, equation 11, with a baseline.

    >>> import deep5 as d5
    >>> data = d5.datasets.environment("CartPole-v1")
    >>> executor = d5.framework("reference").executor(d5.networks.policy_network())
    >>> sampler = d5.EpisodeSampler(data.train, 64, batches=2)
    >>> sampler.bind(executor)
    >>> [(batch["input"].shape, float(batch["target"].std().round(3))) for _, batch in sampler.batches(epoch=0)]
    [((64, 4), 1.0), ((64, 4), 1.0)]
    """

    output = "action_logits"

    def __init__(
        self,
        dataset: Environment,
        batch_size: int,
        *,
        seed: int = 0,
        batches: int = 10,
        side_by_side: int = 8,
        discount: float = 0.99,
    ) -> None:
        super().__init__(dataset, batch_size, seed=seed, batches=batches)
        if isinstance(side_by_side, bool) or not isinstance(side_by_side, int) or side_by_side < 1:
            raise UsageError(f"episodes: got side_by_side={brief(side_by_side)}; allowed: an integer of at least 1")
        self.side_by_side, self.discount = side_by_side, check_discount("episodes", discount)
        self._instances: list[Any] = []

    def bind(self, executor: Any) -> None:
        """See `OnlineSampler.bind`."""
        self._scores = Scores(executor, self.dataset, self.side_by_side, self.output)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[None, dict[str, np.ndarray]]]:
        """See `BatchSource.batches`; the steps have no indices."""
        first = first_batch(start, self.steps(epoch))
        self._bound()
        return ((None, self._batch(epoch, number)) for number in range(first, self.steps(epoch)))

    def _batch(self, epoch: int, number: int) -> dict[str, np.ndarray]:
        while len(self._instances) < self.side_by_side:
            self._instances.append(self.dataset.make())
        episodes: list[Episode] = []
        draw, scores_of = generator(self.seed, "actions", epoch, number), self._bound()

        def choose(observations: list[np.ndarray], step: int) -> np.ndarray:
            scores = scores_of(observations)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True)).cumsum(axis=1)
            drawn = draw.random((len(observations), 1)) * weights[:, -1:]
            chosen: np.ndarray = np.minimum((weights <= drawn).sum(axis=1), scores.shape[1] - 1)
            return chosen

        while sum(map(len, episodes)) < self.batch_size:
            seeds = [
                derive_seed(self.seed, "episode", epoch, number, len(episodes) + place)
                for place in range(self.side_by_side)
            ]
            episodes += play(self.dataset, self._instances, seeds, choose)
            if len(episodes) == self.side_by_side and all(len(episode) == 1 for episode in episodes):
                raise UsageError(
                    f"the environment {self.dataset.name!r} ended at its first step in each of {len(episodes)} "
                    "episodes; allowed: episodes of several steps"
                )
        gained = np.concatenate([returns(episode.rewards, self.discount) for episode in episodes])[: self.batch_size]
        spread = float(gained.std())
        target = (gained - gained.mean()) / (spread or 1.0)
        specs = self.dataset.specs
        observations = [seen for episode in episodes for seen in episode.observations][: self.batch_size]
        actions = [action for episode in episodes for action in episode.actions][: self.batch_size]
        return {
            "input": np.array(observations, dtype=specs["input"].dtype),
            "action": np.array(actions, dtype=np.int64),
            "target": target.astype(specs["target"].dtype),
        }


def returns(rewards: list[float], discount: float) -> np.ndarray:
    """The discounted sum of the rewards from each step on: G_t = r_t + discount * G_{t+1}.

    Args:
        rewards: The rewards of an episode.
        discount: The factor.

    Returns:
        float64, shape (steps,).

    >>> returns([1.0, 1.0, 1.0], 0.5).tolist()
    [1.75, 1.5, 1.0]
    """
    found, total = np.empty(len(rewards)), 0.0
    for place in range(len(rewards) - 1, -1, -1):
        total = rewards[place] + discount * total
        found[place] = total
    return found
