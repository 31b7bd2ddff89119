"""`AfterTraining`: values measured once, with the final weights, after training ended normally."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from deep5.core.metric import Observer, Sample

__all__ = ["AfterTraining"]


class AfterTraining(Observer):
    """Measures a value of the trained network and its test set; its sample has the last step and epoch."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._missing: str | None = None

    @abstractmethod
    def measured(self, trainer: Any) -> float | None:
        """The value; None: there is none, and `self._missing` may say why.

        Args:
            trainer: The trainer, whose `validation_sampler` has the test set.
        """

    def after_training(self, trainer: Any) -> None:
        """Measure, if training was not interrupted and there is a test set."""
        if trainer.status not in ("success", "stopped"):
            self._missing = "training did not finish"
        elif trainer.validation_sampler is None:
            self._missing = "there is no test set"
        else:
            value = self.measured(trainer)
            if value is not None:
                self._samples = [Sample(value, trainer.step, trainer.epoch)]

    def samples(self) -> list[Sample]:
        """The value."""
        return list(self._samples)

    def value(self) -> float | None:
        """The value."""
        return self._samples[-1].value if self._samples else None

    def missing(self) -> str | None:
        """Why there is none."""
        return None if self._samples else self._missing
