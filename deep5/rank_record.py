"""`RankRecord`: what a rank other than the first keeps of a run, whose result folder is the first one's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.errors import Deep5Error, RunFailed
from deep5.record import observer_of

if TYPE_CHECKING:
    from deep5.recipe import Recipe

__all__ = ["RankRecord"]


class RankRecord:
    """Observes as `RunRecord` does, and writes nothing.

    Args:
        recipe: What is run.
        path: The result folder of the first rank.
        run_id: Its name.

    Attributes:
        observers: A fresh observer for each of the recipe's metrics, in their order.
        warnings: What makes this rank's numbers less certain.
    """

    def __init__(self, recipe: Recipe, path: Path, run_id: str) -> None:
        self.recipe, self.path, self.run_id = recipe, path, run_id
        self.observers = [observer_of(recipe, metric) for metric, _ in recipe.metrics]
        self.warnings: list[str] = []
        self.checkpointer: Any = None

    def warn(self, *told: str) -> None:
        """Note what makes the numbers less certain; each once."""
        self.warnings += [sentence for sentence in told if sentence not in self.warnings]

    def position(self) -> dict[str, Any]:
        """What a checkpoint holds of this record: nothing is written, so nothing is to be taken back."""
        return {}

    def went_on(self, about: Mapping[str, Any] | None, checkpoint: Path | None) -> None:
        """The first rank notes it."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Errors as those of `RunRecord.guarded`.

        Raises:
            RunFailed: In place of every error.
            KeyboardInterrupt: The run was interrupted.
        """
        try:
            yield
        except Deep5Error as error:
            raise RunFailed(f"the run failed: {error}; what it left is in {self.path}") from error
        except Exception as error:
            raise RunFailed(
                f"the run failed: {type(error).__name__}: {error}; what it left is in {self.path}; remedy: --debug "
                "shows where"
            ) from error
