"""`OnlineSampler`: batches that depend on what the network has learned so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.training.reinforcement.environment import Environment
from deep5.training.reinforcement.play import Scores

__all__ = ["OnlineSampler", "check_discount"]


class OnlineSampler(ABC):
    """Batches of steps in an environment, chosen by the network that is trained.

    Args:
        dataset: The environment.
        batch_size: Steps of a batch.
        seed: The run's seed of the order of samples.
        batches: Batches of an epoch.

    Raises:
        UsageError: Not an environment, or an argument is out of its range.
    """

    output: ClassVar[str]
    """The network's output with a score for each action."""

    def __init__(self, dataset: Environment, batch_size: int, *, seed: int, batches: int) -> None:
        if not isinstance(dataset, Environment):
            raise UsageError(
                f"got a {type(dataset).__name__} as an environment; allowed: the data set 'environment'; remedy: the "
                "samplers 'shuffle' and 'ordered' for a d5.Dataset"
            )
        for name, value in (("batch_size", batch_size), ("batches", batches)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"got {name}={brief(value)}; allowed: an integer of at least 1")
        self.dataset, self.batch_size, self.seed, self._batches = dataset, batch_size, seed, batches
        self._scores: Scores | None = None

    @abstractmethod
    def bind(self, executor: Any) -> None:
        """Play with this executor's network; called once, before the first batch.

        Args:
            executor: Runs the network that is trained.
        """

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[None, dict[str, np.ndarray]]]:
        """See `BatchSource.batches`."""

    def steps(self, epoch: int) -> int:
        """Batches of the epoch.

        Args:
            epoch: Counted from 0.
        """
        return self._batches

    def order_hash(self, epochs: int) -> None:
        """None: what is played depends on what was learned.

        Args:
            epochs: Number of epochs, from the first.
        """
        return

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs besides seed, epoch, number of the batch and parameters; may be empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most have no state
        """Restore `state_dict`, bit-identically.

        Args:
            state: The result of `state_dict`.
        """

    def _bound(self) -> Scores:
        if self._scores is None:
            raise UsageError(
                f"{type(self).__name__}: it plays with a network, and has none; remedy: bind(executor), or a Trainer"
            )
        return self._scores


def check_discount(what: str, discount: object) -> float:
    """The discount as a number.

    Args:
        what: The name of the sampler, for the message.
        discount: As given.

    Raises:
        UsageError: It is not a number above 0 and at most 1.
    """
    if isinstance(discount, bool) or not isinstance(discount, (int, float)) or not 0 < discount <= 1:
        raise UsageError(f"{what}: got discount={brief(discount)}; allowed: a number above 0 and at most 1")
    return float(discount)
