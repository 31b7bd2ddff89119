"""Joint actions of the ranks of one run: one result folder, one last checkpoint, one end."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.events import Event
from deep5.distributed.launch.join import Report
from deep5.distributed.launch.launcher import launched
from deep5.distributed.resuming import restore_ranks
from deep5.distributed.texts import gather_texts
from deep5.distributed.votes import Votes
from deep5.run.rank_record import RankRecord

if TYPE_CHECKING:
    from deep5.recipe.experiment import Experiment
    from deep5.results.samples_file import SampleRow
    from deep5.run.record import RunRecord
    from deep5.training.checkpointer import Checkpointer
    from deep5.training.trainer import Trainer

__all__ = ["Together", "name_folder", "train_as_rank", "write_ranks"]


class Together:
    """A rank's side of a run of several ranks.

    Args:
        communicator: Communicator of all ranks.
        trainer: This rank's trainer, with a scheme as its optimizer.
        keeper: Writes this rank's part of the checkpoints, or None.

    Attributes:
        votes: Listens after all other events.
    """

    def __init__(self, communicator: Communicator, trainer: Trainer, keeper: Checkpointer | None) -> None:
        self.communicator, self.trainer = communicator, trainer
        if keeper is not None:
            keeper.rank = communicator.rank
        limit_s = getattr(trainer.optimizer, "timeout_s", TIMEOUT_S)
        lockstep = getattr(trainer.optimizer, "lockstep", True)
        # Ranks that are not in step meet at the end of an epoch, whatever their distance.
        waits_s = limit_s if lockstep else 10 * limit_s
        self.votes = Votes(communicator, keeper, lockstep=lockstep, timeout_s=waits_s)
        Report().limit(limit_s)
        if communicator.size > 1:
            trainer.listeners.deferred = self.votes.deferred

    def folder(self, path: Path | None) -> Path:
        """The first rank's result folder, which it sends to the other ranks; they access it under the same path."""
        return name_folder(self.communicator, path)

    def go_on(
        self, run: RunRecord | RankRecord, folder: Path, report: Callable[[str], None]
    ) -> Mapping[str, Any] | None:
        """Restore the trainer from the last checkpoint of all ranks; returns the checkpoint's description.

        None if the run was interrupted before its first checkpoint: then it starts again.
        """
        if (found := restore_ranks(self.trainer, folder, self.communicator, tell=report)) is None:
            if not self.communicator.rank:
                report("the run was interrupted before all ranks had written their first checkpoint: it starts again")
            run.went_on(None, None)
            return None
        about, path = found
        run.went_on(about, path)
        return about

    def collect(self, run: RunRecord | RankRecord) -> dict[str, str]:
        """Combine the observations of the ranks after training.

        Returns:
            Files for the result folder, on every rank: the samples of the ranks other than the first, and `ranks.json`.
        """
        from deep5.results.samples_file import sample_rows
        from deep5.results.schema import metric_labels, metric_row

        communicator = self.communicator
        rows: list[SampleRow] = []
        labels = metric_labels(
            [metric_row(metric, None, evaluated=False, scope="") for metric, _ in run.experiment.metrics]
        )
        for label, (metric, _), observer in zip(labels, run.experiment.metrics, run.observers, strict=True):
            observer.combine(communicator)
            rows += sample_rows(label, metric.unit, observer.samples())
        about = {"steps": self.trainer.step, "threads": self.trainer.executor.settings().get("threads")}
        return write_ranks(communicator, rows, about, run)


def name_folder(communicator: Communicator, path: Path | None) -> Path:
    """The first rank's result folder, which it sends to the other ranks; they access it under the same path.

    Args:
        communicator: Communicator of all ranks.
        path: The folder; None on the others.
    """
    if path is not None:
        # The process that monitors the ranks marks the result there if a rank is lost.
        Report().folder(path)
    return Path(gather_texts(communicator, "" if path is None else str(path))[0])


def write_ranks(
    communicator: Communicator, rows: Sequence[SampleRow], about: Mapping[str, Any], run: RunRecord | RankRecord
) -> dict[str, str]:
    """Combine the measurements and descriptions of all ranks.

    Args:
        communicator: Communicator of all ranks.
        rows: This rank's samples; those of the first rank are not used, because it stores them in its own file.
        about: Its `steps` and `threads`.
        run: Its record; the first rank's record receives the warnings of all.

    Returns:
        Files for the result folder, on every rank: the samples of the ranks other than the first, and `ranks.json`.
    """
    from deep5.results.ranks_file import RANKS, rank_samples
    from deep5.results.samples_file import samples_text

    started = launched()
    own = {
        "rank": communicator.rank,
        "host": platform.node(),
        "pid": os.getpid(),
        "communicator": type(communicator).__name__,
        "launcher": None if started is None else started.by,
        "steps": about["steps"],
        "sent_bytes": communicator.sent_bytes,
        "messages": communicator.messages,
        "waited_s": communicator.waited_ns / 1e9,
        "threads": about["threads"],
        "warnings": run.warnings if isinstance(run, RankRecord) else [],
    }
    samples = gather_texts(communicator, "" if communicator.rank == 0 else samples_text(rows))
    everyone = [json.loads(text) for text in gather_texts(communicator, json.dumps(own))]
    run.warn(*_reported_once(everyone, run.warnings if isinstance(run, RankRecord) else run.document["warnings"]))
    files = {rank_samples(rank): text for rank, text in enumerate(samples) if rank}
    return {**files, RANKS: json.dumps(everyone, indent=2) + "\n"}


def _reported_once(everyone: Sequence[Mapping[str, Any]], known: Sequence[str]) -> list[str]:
    """The warnings of ranks, each with the ranks that gave it; those that the first rank gave too are left out.

    >>> _reported_once([{"rank": 1, "warnings": ["slow", "hot"]}, {"rank": 2, "warnings": ["hot", "odd"]}], ["slow"])
    ['ranks 1, 2: hot', 'rank 2: odd']
    """
    ranks: dict[str, list[int]] = {}
    for rank in everyone:
        for sentence in rank["warnings"]:
            if sentence not in known:
                ranks.setdefault(sentence, []).append(rank["rank"])
    return [
        f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those))}: {sentence}"
        for sentence, those in ranks.items()
    ]


def train_as_rank(
    experiment: Experiment,
    trainer: Trainer,
    communicator: Communicator,
    listeners: Iterable[Event],
    keeper: Checkpointer | None,
    *,
    resuming: bool,
) -> None:
    """Train as a rank other than the first; the counterpart of `deep5.run.train.train`.

    Args:
        experiment: The experiment to run.
        trainer: This rank's trainer.
        communicator: Communicator of all ranks.
        listeners: The recipe's own events, and the caller's.
        keeper: Writes this rank's part of the checkpoints, or None.
        resuming: Whether the run resumes in an existing folder.

    Raises:
        RunFailed: The run could not be completed.
    """
    from deep5.training.checkpointer import checkpoints
    from deep5.training.divergence import NonFiniteLoss
    from deep5.training.interruption import saved_when_interrupted

    together = Together(communicator, trainer, keeper)
    path = together.folder(None)
    run = RankRecord(experiment, path, path.name)
    folder = path / "checkpoints"
    if keeper is not None:
        keeper.folder = folder = keeper.folder or folder
        keeper.about = lambda: {"run_id": run.run_id, "ranks": communicator.size}
    with run.guarded():
        if resuming and checkpoints(folder):
            together.go_on(run, folder, run.warn)
        watch = NonFiniteLoss(run.warn)
        own = [event for event in listeners if event.every_rank]
        with nullcontext() if keeper is None else saved_when_interrupted(keeper):
            left = experiment.values["epochs"] - trainer.epoch
            trainer.train(left, [*run.observers, watch, *own, together.votes])
        together.collect(run)
        # The first rank writes the averaged weights.
        with getattr(trainer.optimizer, "averaged", nullcontext)():
            pass
