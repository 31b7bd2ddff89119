"""`Checkpointer`: writes checkpoints during training; `latest_checkpoint` and `restore` resume from one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from deep5.core.arguments import is_finite
from deep5.core.errors import CheckpointError, Deep5Error, OutputError, UsageError
from deep5.core.events import NO_CLASSES, Event
from deep5.core.files import is_folder
from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint

__all__ = ["BEST", "Checkpointer", "checkpoints", "name_of", "restore", "step_of"]

BEST = "best.safetensors"
_UNREADABLE = ".unreadable"
_NAME = re.compile(r"step-(\d{10,})(?:\.rank-(\d+))?\.safetensors")
# The default interval.
_DEFAULT_S = 30.0
_BETTER: dict[str, Callable[[float, float], bool]] = {"accuracy": lambda a, b: a > b, "loss": lambda a, b: a < b}


class Checkpointer(Event):
    """Writes everything that a resume needs to `step-<steps done>.safetensors`, between two steps.

    Files are written atomically. The writing time counts toward the run, not toward any step.

    Args:
        folder: Where the files go; created if it does not exist. None: the run's checkpoint folder.
        every_steps: Write after this number of steps.
        every_s: Write if this many seconds have passed since the last checkpoint; with `every_steps`, whichever comes
            first. If neither is given: 30 s.
        keep: Number of recent checkpoints to keep.
        best: Also keep the checkpoint of the best evaluation, as `best.safetensors`: by the highest `"accuracy"` or the
            lowest `"loss"`; None: no.

    Raises:
        UsageError: An argument out of its range.

    Attributes:
        about: Returns the description that is written into each file beside its state, in JSON types; set by a run.
        rank: The rank whose part of the state is written: that of rank r > 0 goes to
            `step-<steps done>.rank-<r>.safetensors`.
        confirm: Called after a checkpoint is written and before older ones are deleted: ranks wait here for each other,
            so that all have a common step even if one of them is lost.
        interruption: Ends the training after the next checkpoint, which is then written without delay; None: not
            requested.
        written: Number of checkpoints written.
        seconds: Time spent writing them.
        left_out: Places in the state that no file can hold.

    >>> import tempfile
    >>> import deep5 as d5
    >>> from deep5.training.checkpointer import restore
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> def trainer():
    ...     executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    ...     return d5.Trainer(executor, d5.Adam(0.1), d5.ShuffleSampler(data.train, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer().train(epochs=2, events=[d5.Checkpointer(folder, every_steps=4)])
    ...     resumed = trainer()
    ...     about, path = restore(resumed, folder)
    >>> path.name, resumed.step, resumed.epoch, resumed.batch  # within the second epoch
    ('step-0000000004.safetensors', 4, 1, 1)
    >>> resumed.train(epochs=1); resumed.step, resumed.epoch  # the rest of it
    (6, 2)
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        every_steps: int | None = None,
        every_s: float | None = None,
        keep: int = 2,
        best: Literal["accuracy", "loss"] | None = None,
    ) -> None:
        for name, count in (("every_steps", every_steps), ("keep", keep)):
            if count is None and name == "every_steps":
                continue
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise UsageError(f"Checkpointer: got {name}={count!r:.60}; allowed: an integer of at least 1")
        if every_s is not None and (not is_finite(every_s) or isinstance(every_s, bool) or every_s < 0):
            raise UsageError(f"Checkpointer: got every_s={every_s!r:.60}; allowed: seconds, a number of at least 0")
        if best is not None and best not in _BETTER:
            raise UsageError(f"Checkpointer: got best={best!r:.60}; allowed: {', '.join(map(repr, _BETTER))}, None")
        self.folder = None if folder is None else Path(folder)
        self.every_steps, self.every_s, self.keep, self.best = every_steps, every_s, keep, best
        self.about: Callable[[], Mapping[str, Any]] = dict
        self.rank = 0
        self.confirm: Callable[[], None] = _only_process
        self.interruption: Callable[[], None] | None = None
        self.written, self.seconds = 0, 0.0
        self.left_out: tuple[str, ...] = ()
        if every_s is None:
            every_s = math.inf if every_steps is not None else _DEFAULT_S
        self._every_s = float(every_s)
        self._last_s, self._last_step, self._considered = perf_counter(), 0, 0
        self._best_score: float | None = None

    def describe(self) -> dict[str, Any]:
        """The interval and the number kept; the location does not affect a result."""
        names = ("every_steps", "every_s", "keep", "best")
        return {"event": "checkpointer", **{name: getattr(self, name) for name in names}}

    def before_training(self, trainer: Any) -> None:
        """Create the folder, and check that it holds no conflicting files of another training.

        Raises:
            UsageError: No folder is set, or it holds checkpoints of a training with more steps.
            OutputError: It cannot be created.
        """
        if self.folder is None:
            raise UsageError(
                "Checkpointer: got no folder; allowed: the name of one; remedy: Checkpointer('checkpoints')"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"the folder of checkpoints {self.folder} cannot be made ({error.strerror}); allowed: one that can be "
                "written"
            ) from error
        if not self.rank:
            for torn in [*self.folder.glob(".step-*.tmp"), *self.folder.glob(".best.*.tmp")]:
                torn.unlink(missing_ok=True)  # from a process that was killed while writing
            self._clear_later(trainer.step)
        if trainer.step == 0:
            self._best_score = None  # a new training; a resumed one restores the score from its state
        self._last_s, self._last_step, self._considered = perf_counter(), trainer.step, trainer.epoch

    def _clear_later(self, step: int) -> None:
        """Reject checkpoints of later steps, which would be mistaken for this training's newest.

        Those that at least one rank cannot read, which a resume skipped, are renamed.
        """
        for path in checkpoints(self.folder or ""):
            if step_of(path) <= step:
                return
            with suppress(CheckpointError):
                _, about = read_checkpoint(path)
                for rank in range(1, int(about.get("ranks", 1))):
                    read_checkpoint(path.with_name(name_of(step_of(path), rank)))
                raise UsageError(
                    f"the folder of checkpoints {self.folder} holds {path.name}, and this training is at step {step}; "
                    "allowed: checkpoints of steps before it; remedy: resume from it (restore), delete it, or name "
                    "another folder"
                )
            path.replace(path.with_suffix(_UNREADABLE))

    def after_all(self, trainer: Any) -> None:
        """Write if a checkpoint is due, if an evaluation is the best so far, and before an interruption."""
        # The best first: a checkpoint after it records that it was evaluated.
        self.consider_best(trainer)
        if self.due(trainer):
            self.write(trainer)
        if self.interruption is not None:
            self.write(trainer)
            self.interruption()

    def due(self, trainer: Any) -> bool:
        """Whether a checkpoint is due.

        Args:
            trainer: The trainer, between two steps.
        """
        return self.due_by_steps(trainer) or perf_counter() - self._last_s >= self._every_s

    def due_by_steps(self, trainer: Any) -> bool:
        """Whether enough steps were done: synchronous ranks agree on this without communication.

        Args:
            trainer: The trainer, between two steps.
        """
        return self.every_steps is not None and trainer.step - self._last_step >= self.every_steps

    def consider_best(self, trainer: Any, evaluated: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Write the best checkpoint if the last evaluation, not yet considered, is the best so far.

        Args:
            trainer: The trainer.
            evaluated: A context in which the executor holds the evaluated values, if they differ from those that this
                rank trains.

        Raises:
            UsageError: The best is selected by accuracy, and there is none.
        """
        if self.best is not None and trainer.epoch != self._considered:
            self._considered = trainer.epoch
            if trainer.scores and self.best not in trainer.scores:
                raise UsageError(f"Checkpointer(best='accuracy'): there is none: {NO_CLASSES}; remedy: best='loss'")
            score = trainer.scores.get(self.best, math.nan)
            if not math.isnan(score) and (self._best_score is None or _BETTER[self.best](score, self._best_score)):
                self._best_score = score
                with evaluated():
                    if not self.rank:
                        self._write(trainer, BEST)

    def write(self, trainer: Any) -> Path:
        """Write a checkpoint now, and delete the surplus ones.

        Args:
            trainer: The trainer, between two steps.

        Returns:
            The path of the file.

        Raises:
            OutputError: It cannot be written; earlier ones are unchanged.
        """
        path = self._write(trainer, name_of(trainer.step, self.rank))
        self._last_s, self._last_step = perf_counter(), trainer.step
        self.confirm()
        for old in checkpoints(path.parent, self.rank)[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def _write(self, trainer: Any, name: str) -> Path:
        begin = perf_counter()
        path = Path(self.folder or "") / name
        state = trainer.state_dict(copy=False)
        position = {key: state["trainer"][key] for key in ("step", "epoch", "batch")}
        self.left_out = write_checkpoint(path, state, {**self.about(), **position})
        self.written += 1
        self.seconds += perf_counter() - begin
        return path

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, and the step of its last evaluation; empty if `best` is None."""
        return {"best_score": self._best_score, "judged": self._considered} if self.best is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._best_score, self._considered = state["best_score"], state["judged"]

    def clear(self) -> None:
        """Delete all checkpoints, including those of other ranks, and the folder if it is empty then."""
        if self.folder is not None and is_folder(self.folder):
            ranks = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
            for path in [*ranks, *self.folder.glob(f"step-*{_UNREADABLE}"), self.folder / BEST]:
                path.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()


def _only_process() -> None:
    """The default `confirm`: there is one rank."""


def name_of(step: int, rank: int = 0) -> str:
    """The file of a rank's part of the state after this number of steps.

    >>> name_of(20), name_of(20, rank=1)
    ('step-0000000020.safetensors', 'step-0000000020.rank-1.safetensors')
    """
    return f"step-{step:010d}{f'.rank-{rank}' if rank else ''}.safetensors"


def checkpoints(folder: str | Path, rank: int = 0) -> list[Path]:
    """A rank's checkpoints in a folder, newest step first, without `best.safetensors`."""
    try:
        found = [
            path for path in Path(folder).iterdir() if (name := _NAME.fullmatch(path.name)) and _rank(name) == rank
        ]
    except OSError:
        return []
    return sorted(found, key=step_of, reverse=True)


def _rank(name: re.Match[str]) -> int:
    return int(name[2] or 0)


def step_of(path: Path) -> int:
    """The number of steps done at a checkpoint, from its name."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else 0


def restore(
    trainer: Any, path: str | Path, *, tell: Callable[[str], None] | None = None
) -> tuple[dict[str, Any], Path]:
    """Restore a trainer from a checkpoint; its next `train` does the rest.

    Args:
        trainer: Made like the one that wrote the checkpoint: same network, optimizer, samplers.
        path: A checkpoint, or a folder of them: then the newest readable one.
        tell: Receives a sentence about each unreadable one; None: that is an error.

    Returns:
        The checkpoint's description, and its path.

    Raises:
        CheckpointError: There is none, none is readable, it belongs to another network or optimizer, or the folder has
            the parts of several ranks.
    """
    path = Path(path)
    candidates = checkpoints(path) if is_folder(path) else [path]
    if not candidates:
        raise CheckpointError(f"there is no checkpoint in {path}; allowed: a folder that a Checkpointer wrote to")
    for number, candidate in enumerate(candidates, start=1):
        try:
            state, about = read_checkpoint(candidate)
            break
        except CheckpointError as error:
            if tell is None or number == len(candidates):
                raise
            tell(f"{error}; trying it now")
    # A path of a file selects the part in it.
    if is_folder(path) and (writers := about.get("ranks", 1)) > 1:
        raise CheckpointError(
            f"{writers} ranks wrote the checkpoint {candidate}, but this training has none; allowed: any number "
            f"of ranks; remedy: --ranks {writers}, or --ranks 1, or any other number"
        )
    try:
        trainer.load_state_dict(state)
    except (Deep5Error, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {candidate} is of another network or optimizer: {error}") from error
    return about, candidate
