"""Workload of a recipe that trains a network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deep5.core.events import Event
from deep5.run.workload import Options, Workload

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.recipe.part import Parts
    from deep5.results.result import Result

__all__ = ["Training"]


class Training(Workload):
    """A network trained and evaluated; interrupted, it resumes from its last checkpoint."""

    compared = ("training", "inference")
    studied = True

    def check(self) -> list[str]:
        """Check names, arguments, initial weights, and the contract of the recipe's own update rule."""
        from deep5.run.check_training import check_training

        return [*self._ranks_note(), *check_training(self.experiment)]

    def check_arguments(self, parts: Parts) -> None:
        """Check the components that load no framework."""
        from deep5.run.check_training import check_arguments

        check_arguments(parts)

    def check_shares(self) -> None:
        """Ranks share every batch."""

    def run(self, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Train into a new result folder."""
        from deep5.run.train import train

        return train(self.experiment, options, None, communicator)

    def resume(self, folder: Path, options: Options, communicator: Communicator | None = None) -> Result | None:
        """Continue training from the last checkpoint; a finished run is returned unchanged."""
        first = communicator is None or communicator.rank == 0
        if (left := self._finished(folder, quiet=options.quiet or not first)) is not None:
            return left if first else None
        from deep5.run.train import train

        return train(self.experiment, options, folder, communicator)

    def _finished(self, folder: Path, *, quiet: bool) -> Result | None:
        """The result if the run in the folder is finished and belongs to this recipe; None if it is not finished."""
        from deep5.results.continuing import check_recipe
        from deep5.results.result import load

        if (left := load(folder)).status != "success":
            return None
        own = self.experiment
        check_recipe(left.document["run_id"], left.document["recipe"], own.document, own.defaults)
        if not quiet:
            print("deep5: the run is finished; nothing was run", file=sys.stderr)  # noqa: T201 - the run's terminal
        return left

    def progress(self) -> tuple[Event, ...]:
        """A progress bar."""
        from deep5.training.progress import ProgressBar

        return (ProgressBar(),)

    def rank_device(self) -> str:
        """The recipe's device."""
        return str(self.experiment.values["device"])

    def frameworks(self) -> Sequence[str]:
        """The framework that the recipe names."""
        value = self.experiment.values["framework"]
        return [value] if isinstance(value, str) else super().frameworks()

    def begin_again(self, folder: Path) -> str:
        """The same command would start the training again."""
        from deep5.run.train import begin_again

        return begin_again(folder)
