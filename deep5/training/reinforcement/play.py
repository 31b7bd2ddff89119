"""`play`: whole episodes of an environment, several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.tensors import to_numpy
from deep5.training.reinforcement.environment import Environment

__all__ = ["Episode", "Scores", "play"]


@dataclass
class Episode:
    """What happened in an episode.

    Attributes:
        observations: The observation before each action.
        actions: The actions, from 0.
        rewards: The reward after each.
    """

    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.rewards)


class Scores:
    """A network's score of each action: the output `action_logits` or `action_values`.

    Args:
        executor: Runs the network.
        environment: Its environment.
        rows: Observations per call: a fixed number, so that no framework compiles again.
        output: The output; None: the one of these two names that the network has.

    Raises:
        UsageError: The network has no such output, or not one score for each action.
    """

    def __init__(self, executor: Any, environment: Environment, rows: int, output: str | None = None) -> None:
        self._executor, self._rows = executor, rows
        outputs = executor.network.outputs
        names = ("action_logits", "action_values") if output is None else (output,)
        found = next((name for name in names if name in outputs), None)
        if found is None:
            raise UsageError(
                f"the network has the outputs {', '.join(outputs)}; allowed: an output {' or '.join(names)}, with one "
                "score for each action; remedy: the networks policy_network and q_network"
            )
        self._output: str = found
        if (spec := outputs[found]) is not None and spec.shape[-1] != environment.actions:
            raise UsageError(
                f"the network's {found} is {spec}, and the environment {environment.name!r} has {environment.actions} "
                f"actions; remedy: model_kwargs={{'actions': {environment.actions}}}"
            )
        self._feed: dict[str, np.ndarray] = {
            "input": np.zeros((rows, *environment.shape), environment.specs["input"].dtype),
            "action": np.zeros(rows, np.int64),
            "target": np.zeros(rows, environment.specs["target"].dtype),
        }

    def __call__(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        """The scores, float64 of shape (observations, actions).

        Args:
            observations: At most `rows`.
        """
        count = len(observations)
        feed = dict(self._feed, input=self._feed["input"].copy())
        feed["input"][:count] = observations
        outputs = self._executor.inference(feed)
        scores: np.ndarray = to_numpy(outputs[self._output])[:count].astype(np.float64)
        if not np.isfinite(scores).all():
            raise UsageError(
                f"the network's {self._output} are not finite: training has diverged; remedy: a smaller learning rate"
            )
        return scores


def play(
    environment: Environment, instances: list[Any], seeds: Sequence[int], choose: Callable[[list[np.ndarray], int], Any]
) -> list[Episode]:
    """Play one episode for each seed, in lockstep.

    Args:
        environment: The environment.
        instances: At least as many results of `environment.make()` as seeds.
        seeds: The seed of each episode.
        choose: Called with the observations of the episodes that continue and the number of the step; returns an action
            for each.

    Returns:
        The episodes in the order of the seeds.
    """
    episodes = [Episode() for _ in seeds]
    seen = [environment.reset(instances[number], seed) for number, seed in enumerate(seeds)]
    running, step = list(range(len(seeds))), 0
    while running and step < environment.step_limit:
        actions = choose([seen[number] for number in running], step)
        left = []
        for number, action in zip(running, actions, strict=True):
            after, reward, ended, truncated = environment.step(instances[number], int(action))
            episode = episodes[number]
            episode.observations.append(seen[number])
            episode.actions.append(int(action))
            episode.rewards.append(reward)
            seen[number] = after
            if not (ended or truncated):
                left.append(number)
        running, step = left, step + 1
    return episodes
