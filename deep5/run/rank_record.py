"""`RankRecord`: the record of a run on a rank other than the first, which owns the result folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, RunFailed
from deep5.run.observers import observers_of

if TYPE_CHECKING:
    from deep5.recipe.experiment import Experiment

__all__ = ["RankFailed", "RankRecord", "bare_reason", "how_to_go_on"]


class RankFailed(RunFailed):
    """A rank other than the first could not complete the run; `folder` is the first rank's result folder."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


def bare_reason(error: BaseException) -> str:
    """Why a run failed, without the location of its result and how to resume.

    Args:
        error: The error, as raised by `RankRecord.guarded` or `RunRecord.guarded`, or any other.

    >>> bare_reason(ValueError("a slip"))
    'ValueError: a slip'
    """
    if isinstance(error, RunFailed) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (Deep5Error, KeyboardInterrupt)):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"


def how_to_go_on(folder: Path) -> str:
    """How to resume a run, as the end of a message; empty if it left no checkpoint."""
    from deep5.training.checkpointer import checkpoints

    return f"; to resume, add --resume {folder} to the command" if checkpoints(folder / "checkpoints") else ""


class RankRecord:
    """Observes as `RunRecord` does, and writes nothing.

    Args:
        experiment: The experiment to run.
        path: The result folder of the first rank.
        run_id: Name of the run.

    Attributes:
        observers: A fresh observer for each of the recipe's metrics, in their order.
        warnings: Causes of uncertainty in this rank's numbers.
    """

    def __init__(self, experiment: Experiment, path: Path, run_id: str) -> None:
        self.experiment, self.path, self.run_id = experiment, path, run_id
        self.observers = observers_of(experiment)
        self.warnings: list[str] = []
        self.checkpointer: Any = None

    def warn(self, *sentences: str) -> None:
        """Add warnings on the uncertainty of the numbers, each once."""
        self.warnings += [sentence for sentence in sentences if sentence not in self.warnings]

    def position(self) -> dict[str, Any]:
        """State of this record in a checkpoint: empty, because nothing is written that a resume would have to undo."""
        return {}

    def went_on(self, about: Mapping[str, Any] | None, checkpoint: Path | None) -> None:
        """Does nothing: the first rank records the resume."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Handle errors like `RunRecord.guarded`.

        Raises:
            RankFailed: In place of every error.
            KeyboardInterrupt: The run was interrupted.
        """
        try:
            yield
        except Deep5Error as error:
            raise RankFailed(f"the run failed: {error}; {self._left()}", self.path) from error
        except Exception as error:
            message = f"the run failed: {type(error).__name__}: {error}; {self._left()}; remedy: --debug shows where"
            raise RankFailed(message, self.path) from error

    def _left(self) -> str:
        return f"what it left is in {self.path}{how_to_go_on(self.path)}"
