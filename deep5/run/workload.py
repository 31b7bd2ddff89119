"""`Workload`: the common interface of all kinds of recipes: check, run, and resume."""

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
    from deep5.recipe.part import Parts
    from deep5.results.result import Result
    from deep5.training.checkpointer import Checkpointer

__all__ = ["Options", "Timed", "Workload"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a workload's run.

    Attributes:
        out: Parent of the result folder.
        events: Listeners in addition to the recipe's.
        quiet: Print nothing.
        checkpointer: Checkpoint interval, in place of the recipe's; None: no checkpoints.
        follow: The metric of a training whose value is written to `curve.jsonl` after each epoch; None: none.
    """

    out: str | Path = "results"
    events: tuple[Event, ...] = ()
    quiet: bool = False
    checkpointer: Checkpointer | Literal["default"] | None = "default"
    follow: str | None = None


@dataclass(frozen=True)
class Workload(ABC):
    """An experiment of one kind.

    Attributes:
        experiment: The experiment to run.
        compared: What `deep5 compare` can compare in it, the default first; empty: nothing.
        compares: If that is empty, what a run compares itself.
        shared: Whether ranks can run it.
        studied: Whether `deep5 study` can study it: it trains, and so can reach a target.
    """

    experiment: Experiment
    compared: ClassVar[tuple[str, ...]]
    compares: ClassVar[str] = ""
    shared: ClassVar[bool] = True
    studied: ClassVar[bool] = False

    @abstractmethod
    def check(self) -> list[str]:
        """Check that it can run, without loading a framework by name or building anything.

        Returns:
            Notes on checks beyond names and arguments.

        Raises:
            RecipeError: A component cannot be found, does not accept its arguments, or breaks its contract.
        """

    def check_arguments(self, parts: Parts) -> None:  # noqa: B027  # only trainings have several variants
        """Check that the components of another size or candidate of the recipe accept their arguments.

        Args:
            parts: By key, its parts.

        Raises:
            RecipeError: One does not, or cannot be found.
            MissingDependency: A package that one needs is not installed.
        """

    @abstractmethod
    def check_shares(self) -> None:
        """Reject a workload that has no work to share among ranks.

        Raises:
            RecipeError: A part of it cannot be read, or does not support ranks.
            UsageError: It runs as one process.
        """

    @abstractmethod
    def run(self, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Run into a new result folder.

        Args:
            options: The options of the run.
            communicator: Communicator of the ranks that run it together; None: a single process without a scheme.

        Returns:
            The result; None on a rank other than the first.

        Raises:
            UsageError: It cannot be assembled, or the folder cannot be written; nothing is left on disk.
            RunFailed: The run started but could not be completed; the message names its folder, which is marked and
                readable.
        """

    @abstractmethod
    def resume(self, folder: Path, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Resume in the folder of an interrupted run; as `run`.

        Raises:
            CheckpointError: A run that cannot be resumed.
            UsageError: This kind of workload cannot be resumed.
        """

    def progress(self) -> tuple[Event, ...]:
        """The listeners that show a run on a terminal."""
        return ()

    def rank_device(self) -> str:
        """The device of ranks started by a launcher; code that is timed chooses its own devices."""
        return "cpu"

    def frameworks(self) -> Sequence[str]:
        """Names of the frameworks in the recipe.

        Raises:
            UsageError: It names none.
        """
        raise UsageError(f"{self.experiment.name} names no framework; remedy: --frameworks pytorch,jax, say")

    def begin_again(self, folder: Path) -> str:
        """How to start an interrupted run again in its folder, as the end of a message; empty if that is of no use."""
        return ""

    def _ranks_note(self) -> list[str]:
        ranks, launcher = self.experiment.ranks, self.experiment.values["launcher"]
        return [] if ranks is None or ranks == 1 else [f"it runs as {ranks} ranks, which {launcher} starts"]


class Timed(Workload):
    """A workload that trains nothing: it has no checkpoints and cannot resume."""

    def run(self, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Run into a new result folder; rejects `options` that are for trainings."""
        if options.checkpointer not in ("default", None) or options.follow is not None:
            raise self._trains_nothing()
        return self.time(options, communicator)

    def resume(self, folder: Path, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Always rejected."""
        raise self._trains_nothing()

    @abstractmethod
    def time(self, options: Options, communicator: Communicator | None) -> Result | None:
        """Time the recipe's code into a new result folder."""

    def _trains_nothing(self) -> UsageError:
        return UsageError(
            f"{self.experiment.name} times operators, code, collectives or requests and trains nothing; allowed: "
            "neither --resume nor --checkpoint-every nor --follow; remedy: run it again"
        )
