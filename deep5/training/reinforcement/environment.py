"""`Environment`: a Gymnasium environment as the source of a recipe's samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief, contained, described
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Splits, fitted

__all__ = ["Environment", "environment"]


class Environment:
    """A registered environment with observations of numbers and a finite set of actions.

    A sample is a step: its observation `input`, the chosen `action`, and the `target` that a sampler computes for it.

    Args:
        name: Name in Gymnasium's registry, `"MODULE:NAME"` for a package that registers it.
        arguments: Arguments of the environment, by name.
        step_limit: Steps after which an episode is truncated; None: the environment's own limit.

    Attributes:
        specs: See `deep5.training.dataset.Dataset`.
        name: As given.
        actions: The number of actions.
        step_limit: Most steps of an episode.
        shape: The shape of an observation.

    Raises:
        MissingDependency: Gymnasium is not installed.
        UsageError: The environment is unknown or fails, its observations are not arrays of numbers or its actions not a
            finite set, or its episodes have no limit.

    References:
        Towers et al., Gymnasium: a standard interface for reinforcement learning environments, arXiv:2407.17032.

    >>> import deep5 as d5
    >>> pole = d5.Environment("CartPole-v1", step_limit=100)
    >>> pole.actions, pole.step_limit, pole.shape
    (2, 100, (4,))
    """

    def __init__(self, name: str, *, arguments: Mapping[str, Any] | None = None, step_limit: int | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"environment: got the name {brief(name)}; allowed: a name, such as 'CartPole-v1'")
        if step_limit is not None and (
            isinstance(step_limit, bool) or not isinstance(step_limit, int) or step_limit < 1
        ):
            raise UsageError(f"environment: got step_limit={brief(step_limit)}; allowed: an integer of at least 1")
        self.name, self._arguments, self._given_limit = name, dict(arguments or {}), step_limit
        spaces, made = _gymnasium().spaces, self.make()
        seen, acted = made.observation_space, made.action_space
        if not isinstance(seen, spaces.Box) or seen.dtype.kind not in "fiu":
            raise UsageError(
                f"the environment {name!r} has observations of {brief(seen)}; allowed: arrays of numbers (Box)"
            )
        if not isinstance(acted, spaces.Discrete):
            raise UsageError(
                f"the environment {name!r} has actions of {brief(acted)}; allowed: a finite set (Discrete)"
            )
        self.actions, self._first_action = int(acted.n), int(acted.start)
        limit = step_limit or getattr(made.spec, "max_episode_steps", None)
        if limit is None:
            raise UsageError(
                f"the episodes of the environment {name!r} have no limit; remedy: step_limit=500, say, in "
                "dataset_kwargs"
            )
        self.step_limit: int = limit
        self.shape: tuple[int, ...] = tuple(seen.shape)
        self._type = "float32"
        self.specs = {
            "input": TensorSpec(shape=self.shape, dtype=self._type),
            "action": TensorSpec(shape=(), dtype="int64"),
            "target": TensorSpec(shape=(), dtype=self._type),
        }
        made.close()

    def make(self) -> Any:
        """A new instance of the environment."""
        options = dict(self._arguments)
        if self._given_limit is not None:
            options["max_episode_steps"] = self._given_limit
        return self.called(lambda: _gymnasium().make(self.name, **options), "cannot be made")

    def called(self, call: Any, what: str) -> Any:
        """The result of a function of the environment.

        Args:
            call: A function without arguments.
            what: What failed if it raises, after the environment's name.

        Raises:
            UsageError: It raises.
        """
        try:
            with contained():
                return call()
        except Exception as error:
            raise UsageError(f"the environment {self.name!r} {what}: {described(error)}") from error

    def reset(self, made: Any, seed: int) -> np.ndarray:
        """Begin an episode.

        Args:
            made: A result of `make`.
            seed: The episode's seed.

        Returns:
            The first observation.
        """
        seen, _ = self.called(lambda: made.reset(seed=seed % (1 << 31)), "failed at the beginning of an episode")
        return self._observation(seen)

    def step(self, made: Any, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Act once.

        Args:
            made: A result of `make`, after `reset`.
            action: From 0 to `actions` - 1.

        Returns:
            The next observation, the reward, whether the episode ended there, and whether it was truncated.
        """
        seen, reward, ended, truncated, _ = self.called(
            lambda: made.step(action + self._first_action), "failed in a step"
        )
        number = float(reward)
        if not np.isfinite(number):
            raise UsageError(f"the environment {self.name!r} gave the reward {number}; allowed: a finite number")
        return self._observation(seen), number, bool(ended), bool(truncated)

    def _observation(self, seen: Any) -> np.ndarray:
        found = np.asarray(seen, dtype=self._type)
        if found.shape != self.shape or not np.isfinite(found).all():
            raise UsageError(
                f"the environment {self.name!r} gave the observation {brief(seen)}; allowed: finite numbers of shape "
                f"{self.shape}"
            )
        return found

    def content_hash(self) -> str:
        """SHA-256 of the environment's name, version and arguments; what it computes is code."""
        about = [self.name, self._arguments, self.step_limit, _gymnasium().__version__]
        return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> Environment:
        """This environment with observations and targets in the element types of a network's inputs.

        Args:
            specs: The network's inputs, including the batch dimension.
        """
        dtypes = fitted(self.specs, specs)
        other = object.__new__(Environment)
        other.__dict__.update(self.__dict__)
        other._type = dtypes["input"]
        other.specs = {name: TensorSpec(shape=spec.shape, dtype=dtypes[name]) for name, spec in self.specs.items()}
        return other


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise missing_dependency("an environment", error) from error
    return gymnasium


def environment(
    name: str = "CartPole-v1", *, arguments: Mapping[str, Any] | None = None, step_limit: int | None = None
) -> Splits:
    """An environment of Gymnasium, for the samplers `episodes` and `replay`, which play in it.

    Training and test part are the same environment; the seeds of their episodes differ.

    Args:
        name: As for `Environment`.
        arguments: As for `Environment`.
        step_limit: As for `Environment`.

    Raises:
        MissingDependency: Gymnasium is not installed (`pip install 'deep5[reinforcement]'`).
        UsageError: As for `Environment`.

    >>> import deep5 as d5
    >>> data = d5.datasets.environment("CartPole-v1")
    >>> data.train.actions, data.train.step_limit, {name: str(spec) for name, spec in data.train.specs.items()}
    (2, 500, {'input': 'float32[4]', 'action': 'int64[]', 'target': 'float32[]'})
    """
    made = Environment(name, arguments=arguments, step_limit=step_limit)
    about = {"source": f"the environment {name} of Gymnasium {_gymnasium().__version__} (MIT license)"}
    return Splits(train=made, test=made, split_hash=made.content_hash(), description=about)
