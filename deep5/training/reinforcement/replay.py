"""`ReplaySampler`: batches drawn from a memory of steps, with targets of a second network, for deep Q-learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import Unsupported, UsageError, brief
from deep5.core.plugins import framework
from deep5.core.seeds import derive_seed, generator
from deep5.training.batch_source import first_batch
from deep5.training.reinforcement.environment import Environment
from deep5.training.reinforcement.online import OnlineSampler, check_discount
from deep5.training.reinforcement.play import Scores

__all__ = ["ReplaySampler"]


class ReplaySampler(OnlineSampler):
    """Steps from a replay memory: the batches of deep Q-learning with a target network.

    Before each batch the agent takes steps in the environment: the action of the largest of the network's
    `action_values`, or with probability epsilon a uniformly drawn one; epsilon falls linearly. The steps enter the
    memory, from which the batch is drawn uniformly. The target of a step is its reward plus, unless the episode ended
    there, the discounted value of the next state: the target network's value of the action that the network prefers
    (double Q-learning). An episode that is truncated, by its limit of steps, has not ended: the value of its last state
    counts. With a lookahead of n, the target is the sum of n discounted rewards of that episode, plus the value of the
    state after them; fewer where the episode or the memory ends before. So a reward reaches the values of the n steps
    before it at once, and not one step for each update of the target network; the actions in between are those that
    were taken, whatever the network prefers now.

    The target network follows the network: before each batch its parameters become
    (1 - rate) * target + rate * network.

    Memory, target network and the episode under way belong to the state of a run: it resumes bit-identically. The
    environment is restored by its episode's seed and actions, so it must depend on nothing else.

    Args:
        dataset: The environment.
        batch_size: Steps of a batch.
        seed: Seed of the episodes, of exploration and of the batches.
        batches: Batches of an epoch.
        capacity: Steps that the memory holds; the oldest are replaced.
        warm_up: Steps with uniformly drawn actions before the first batch.
        update_every: Steps in the environment for each batch.
        discount: Factor of the next state's value, above 0 and at most 1.
        lookahead: Rewards in a target.
        epsilon: Probability of a uniformly drawn action, at first and in the end.
        epsilon_steps: Batches over which it falls.
        target_rate: The rate, above 0 and at most 1.

    Raises:
        UsageError: Not an environment, or an argument is out of its range.

    References:
        Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015, algorithm 1; van
        Hasselt, Guez and Silver, Deep reinforcement learning with double Q-learning, arXiv:1509.06461, equation 4;
        Hessel et al., Rainbow: combining improvements in deep reinforcement learning, AAAI 2018, section "Multi-step
        learning"; Lillicrap et al., Continuous control with deep reinforcement learning, arXiv:1509.02971, algorithm 1,
        for the target network.

    >>> import deep5 as d5
    >>> data = d5.datasets.environment("CartPole-v1")
    >>> executor = d5.framework("reference").executor(d5.networks.q_network())
    >>> sampler = d5.ReplaySampler(data.train, 32, batches=3, warm_up=100)
    >>> sampler.bind(executor)
    >>> [batch["target"].shape for _, batch in sampler.batches(epoch=0)]
    [(32,), (32,), (32,)]
    """

    output = "action_values"

    def __init__(
        self,
        dataset: Environment,
        batch_size: int,
        *,
        seed: int = 0,
        batches: int = 1000,
        capacity: int = 10_000,
        warm_up: int = 1000,
        update_every: int = 1,
        discount: float = 0.99,
        lookahead: int = 1,
        epsilon: tuple[float, float] = (1.0, 0.05),
        epsilon_steps: int = 5000,
        target_rate: float = 0.01,
    ) -> None:
        super().__init__(dataset, batch_size, seed=seed, batches=batches)
        for name, value, least in (
            ("capacity", capacity, 1),
            ("warm_up", warm_up, 1),
            ("update_every", update_every, 1),
            ("lookahead", lookahead, 1),
            ("epsilon_steps", epsilon_steps, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"replay: got {name}={brief(value)}; allowed: an integer of at least {least}")
        if capacity < warm_up:
            raise UsageError(f"replay: got capacity={capacity} and warm_up={warm_up}; allowed: at least warm_up")
        bounds = tuple(epsilon) if isinstance(epsilon, (tuple, list)) else ()
        if len(bounds) != 2 or not all(isinstance(value, (int, float)) and 0 <= value <= 1 for value in bounds):
            raise UsageError(f"replay: got epsilon={brief(epsilon)}; allowed: two numbers from 0 to 1")
        if isinstance(target_rate, bool) or not isinstance(target_rate, (int, float)) or not 0 < target_rate <= 1:
            raise UsageError(f"replay: got target_rate={brief(target_rate)}; allowed: a number above 0 and at most 1")
        self.update_every, self.target_rate = update_every, float(target_rate)
        self.capacity, self.warm_up, self.discount = capacity, warm_up, check_discount("replay", discount)
        self.epsilon, self.epsilon_steps, self.lookahead = bounds, epsilon_steps, lookahead
        shape, dtype = dataset.shape, dataset.specs["input"].dtype
        self._memory: dict[str, np.ndarray] = {
            "input": np.zeros((capacity, *shape), dtype),
            "action": np.zeros(capacity, np.int64),
            "reward": np.zeros(capacity),
            "next": np.zeros((capacity, *shape), dtype),
            "ended": np.zeros(capacity, bool),
            # Also of an episode that is truncated.
            "last": np.zeros(capacity, bool),
        }
        self._taken = self._episodes = 0
        self._actions: list[int] = []
        self._instance: Any = None
        self._seen = np.zeros(shape, dtype)
        self._held: dict[str, np.ndarray] = {}
        self._executor: Any = None
        self._target: Any = None

    def bind(self, executor: Any) -> None:
        """See `OnlineSampler.bind`; the target network is a second executor of the same network.

        Raises:
            Unsupported: The executor runs native code, which cannot be copied.
        """
        from deep5.networks.network import Network  # it loads onnx

        name = executor.settings().get("framework")
        if not isinstance(executor.network, Network) or name is None:
            raise Unsupported(
                "the sampler 'replay' needs a second executor of the network, and native code has none; remedy: its "
                "export, such as --framework pytorch:exported"
            )
        self._executor = executor
        self._target = framework(name).executor(executor.network, device=executor.device)
        self._scores = Scores(executor, self.dataset, 1, self.output)
        self._next_scores = Scores(executor, self.dataset, self.batch_size, self.output)
        self._target_scores = Scores(self._target, self.dataset, self.batch_size, self.output)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[None, dict[str, np.ndarray]]]:
        """See `BatchSource.batches`; the steps have no indices.

        A start within an epoch continues from the restored state.
        """
        first = first_batch(start, self.steps(epoch))
        self._bound()
        return ((None, self._batch(epoch, number)) for number in range(first, self.steps(epoch)))

    def _batch(self, epoch: int, number: int) -> dict[str, np.ndarray]:
        done = epoch * self.steps(epoch) + number
        while self._taken < self.warm_up:
            self._act(1.0, generator(self.seed, "warm-up", self._taken))
        self._follow(1.0 if done == 0 else self.target_rate)
        draw = generator(self.seed, "batch", epoch, number)
        first, last = self.epsilon
        share = min(1.0, done / self.epsilon_steps) if self.epsilon_steps else 1.0
        for _ in range(self.update_every):
            self._act(first + (last - first) * share, draw)
        chosen = draw.integers(0, min(self._taken, self.capacity), self.batch_size)
        memory = self._memory
        gained, factor, reached = self._ahead(chosen)
        after = memory["next"][reached]
        preferred = self._next_scores(after).argmax(axis=1)
        values = np.take_along_axis(self._target_scores(after), preferred[:, None], axis=1)[:, 0]
        target = gained + factor * np.where(memory["ended"][reached], 0.0, values)
        return {
            "input": memory["input"][chosen],
            "action": memory["action"][chosen],
            "target": target.astype(self.dataset.specs["target"].dtype),
        }

    def _ahead(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The discounted rewards from these steps on, the factor of the value after them, and the last step of each."""
        memory, steps = self._memory, np.arange(self.lookahead)
        places = (chosen[:, None] + steps) % self.capacity
        final = memory["last"][places] | (places == (self._taken - 1) % self.capacity)
        # A step counts if none before it is final.
        counts = np.logical_or.accumulate(final, axis=1)[:, :-1]
        count = 1 + (~counts).sum(axis=1)
        weights = np.where(steps < count[:, None], self.discount**steps, 0.0)
        return (
            (memory["reward"][places] * weights).sum(axis=1),
            self.discount**count,
            places[np.arange(len(chosen)), count - 1],
        )

    def _follow(self, rate: float) -> None:
        """Move the target network towards the network."""
        followed = self._executor.state_dict()
        self._held = {
            name: value if rate == 1 else (self._held[name] + rate * (value - self._held[name])).astype(value.dtype)
            for name, value in followed.items()
        }
        self._target.load_state_dict(self._held)

    def _act(self, epsilon: float, draw: Any) -> None:
        """Take one step, and remember it."""
        if self._instance is None:
            self._begin()
        explored, drawn = draw.random(), int(draw.integers(0, self.dataset.actions))
        action = drawn if explored < epsilon else int(self._bound()([self._seen])[0].argmax())
        after, reward, ended, truncated = self.dataset.step(self._instance, action)
        place = self._taken % self.capacity
        kept = (self._seen, action, reward, after, ended, ended or truncated)
        for name, value in zip(self._memory, kept, strict=True):
            self._memory[name][place] = value
        self._taken += 1
        self._actions.append(action)
        self._seen = after
        if ended or truncated:
            if self._taken == self._episodes == self.warm_up:
                raise UsageError(
                    f"the environment {self.dataset.name!r} ended at its first step in each of {self._episodes} "
                    "episodes; allowed: episodes of several steps"
                )
            self._begin()

    def _begin(self) -> None:
        """Begin the next episode."""
        if self._instance is None:
            self._instance = self.dataset.make()
        self._episodes += 1
        self._actions = []
        self._seen = self.dataset.reset(self._instance, derive_seed(self.seed, "episode", self._episodes))

    def state_dict(self) -> dict[str, Any]:
        """Memory, target network, and the episode under way."""
        filled = min(self._taken, self.capacity)
        return {
            "memory": {name: values[:filled].copy() for name, values in self._memory.items()},
            "target": dict(self._held),
            "taken": self._taken,
            "episodes": self._episodes,
            "actions": np.array(self._actions, np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`: the actions of the episode under way are repeated.

        Raises:
            UsageError: The environment does not repeat the episode.
        """
        for name, values in state["memory"].items():
            self._memory[name][: len(values)] = values
        self._held = dict(state["target"])
        if self._held:
            self._target.load_state_dict(self._held)
        self._taken, self._episodes = state["taken"], state["episodes"] - 1
        actions = [int(action) for action in state["actions"]]
        if state["episodes"]:
            self._begin()
        for action in actions:
            self._seen, _, ended, truncated = self.dataset.step(self._instance, action)
            if ended or truncated:
                raise UsageError(
                    f"the environment {self.dataset.name!r} does not repeat an episode from its seed and actions; "
                    "allowed: one that depends on nothing else"
                )
        self._actions = actions
        last = (self._taken - 1) % self.capacity
        if actions and not np.array_equal(self._seen, self._memory["next"][last]):
            raise UsageError(
                f"the environment {self.dataset.name!r} does not repeat an episode from its seed and actions; allowed: "
                "one that depends on nothing else"
            )
