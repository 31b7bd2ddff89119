"""`Workload`: what every kind of recipe can do: be checked, run, and resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from deep5.core.errors import UsageError
from deep5.core.events import Event
from deep5.recipe.experiment import Experiment

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.results.result import Result
    from deep5.training.checkpointer import Checkpointer

__all__ = ["Options", "Timed", "Workload"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a workload runs.

    Attributes:
        out: Where the result folder goes.
        events: Listeners beside those of the recipe.
        quiet: Print nothing.
        checkpointer: How often checkpoints are written, in place of the recipe's own; None: never.
    """

    out: str | Path = "results"
    events: tuple[Event, ...] = ()
    quiet: bool = False
    checkpointer: Checkpointer | Literal["default"] | None = "default"


@dataclass(frozen=True)
class Workload(ABC):
    """An experiment of one kind.

    Attributes:
        experiment: What to run.
        compared: What `deep5 compare` can compare of it, the default first; empty: nothing.
        compares: Where that is empty, what a run compares itself.
        shared: Whether ranks can run it.
        studied: Whether `deep5 study` can study it: it learns, and so reaches a target or does not.
    """

    experiment: Experiment
    compared: ClassVar[tuple[str, ...]]
    compares: ClassVar[str] = ""
    shared: ClassVar[bool] = True
    studied: ClassVar[bool] = False

    @abstractmethod
    def check(self) -> list[str]:
        """Check that it could run; no framework is loaded by a name, and nothing is built.

        Returns:
            Notes on what was checked beyond names and arguments.

        Raises:
            RecipeError: A component cannot be found, does not take its arguments, or breaks its contract.
        """

    @abstractmethod
    def check_shares(self) -> None:
        """Refuse a workload that ranks have nothing to share of.

        Raises:
            RecipeError: A part of it cannot be read, or takes no ranks.
            UsageError: It runs as one process.
        """

    @abstractmethod
    def run(self, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Run into a new result folder.

        Args:
            options: How.
            communicator: Of the ranks that run it together; None: there is one process and no scheme.

        Returns:
            The result; None on a rank other than the first.

        Raises:
            UsageError: It cannot be assembled, or the folder cannot be written; nothing is left behind.
            RunFailed: The run started and could not be completed; its folder is named, marked and readable.
        """

    @abstractmethod
    def resume(self, folder: Path, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Resume in the folder of an interrupted run; as `run`.

        Raises:
            CheckpointError: A run that cannot be resumed.
            UsageError: There is nothing to resume of this kind of workload.
        """

    def progress(self) -> tuple[Event, ...]:
        """The listeners that show a run on a terminal."""
        return ()

    def rank_device(self) -> str:
        """The device that the ranks of a launcher compute on; code that is timed has its own devices."""
        return "cpu"

    def frameworks(self) -> Sequence[str]:
        """The frameworks that the recipe names, by name.

        Raises:
            UsageError: It names none.
        """
        raise UsageError(f"{self.experiment.name} names no framework; remedy: --frameworks pytorch,jax, say")

    def begin_again(self, folder: Path) -> str:
        """How to begin an interrupted run again in its folder, as the end of a message; empty where that is no use."""
        return ""

    def _ranks_note(self) -> list[str]:
        ranks, launcher = self.experiment.ranks, self.experiment.values["launcher"]
        return [] if ranks is None or ranks == 1 else [f"it runs as {ranks} ranks, which {launcher} starts"]


class Timed(Workload):
    """A workload that trains nothing: there are no checkpoints, and nothing to resume."""

    def run(self, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Run into a new result folder; refuses `options` that ask for checkpoints."""
        if options.checkpointer not in ("default", None):
            raise self._trains_nothing()
        return self.time(options, communicator)

    def resume(self, folder: Path, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Always refused."""
        raise self._trains_nothing()

    @abstractmethod
    def time(self, options: Options, communicator: Communicator | None) -> Result | None:
        """Time what the recipe says, into a new result folder."""

    def _trains_nothing(self) -> UsageError:
        return UsageError(
            f"{self.experiment.name} times operators, code or collectives and trains nothing; allowed: neither "
            "--resume nor --checkpoint-every; remedy: run it again"
        )
