"""`Checkpointer`: writes checkpoints while training goes on; `latest_checkpoint` and `restore` go on from one."""

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
from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint

__all__ = ["BEST", "Checkpointer", "checkpoints", "name_of", "restore", "step_of"]

BEST = "best.safetensors"
_UNREADABLE = ".unreadable"
_NAME = re.compile(r"step-(\d{10,})(?:\.rank-(\d+))?\.safetensors")
# Where nobody says how often.
_DEFAULT_S = 30.0
_BETTER: dict[str, Callable[[float, float], bool]] = {"accuracy": lambda a, b: a > b, "loss": lambda a, b: a < b}


class Checkpointer(Event):
    """Writes everything that training goes on from to `step-<steps done>.safetensors`, between two steps.

    A file is whole or not there. Writing is a part of the run's time, and of no step's.

    Args:
        folder: Where the files go; made where it is not there. None: a run's own folder of checkpoints.
        every_steps: Write after so many steps.
        every_s: Write when so many seconds have passed since the last one; with `every_steps`, whatever comes first.
            Where neither is given: 30 s.
        keep: How many of the last are kept.
        best: Keep the one of the best evaluation too, as `best.safetensors`: by the highest `"accuracy"` or the lowest
            `"loss"`; None: not.

    Raises:
        UsageError: An argument out of its range.

    Attributes:
        about: Gives what is written into each file beside its state, in JSON's types; a run puts in its own.
        rank: Whose part of the state is written: that of rank r > 0 goes to `step-<steps done>.rank-<r>.safetensors`.
        confirm: Called when a checkpoint is written and older ones are not deleted yet: ranks wait here for each other,
            so that all have a step in common, whenever one of them is lost.
        interruption: Ends the training once the next checkpoint, which does not wait, is written; None: nobody asked.
        written: Checkpoints written.
        seconds: What writing them took.
        left_out: Places in the state that no file can hold.
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
                raise UsageError(f"Checkpointer: got {name}={count!r:.60}; allowed: a whole number of at least 1")
        if every_s is not None and (not is_finite(every_s) or isinstance(every_s, bool) or every_s < 0):
            raise UsageError(f"Checkpointer: got every_s={every_s!r:.60}; allowed: seconds, a number of at least 0")
        if best is not None and best not in _BETTER:
            raise UsageError(f"Checkpointer: got best={best!r:.60}; allowed: {', '.join(map(repr, _BETTER))}, None")
        self.folder = None if folder is None else Path(folder)
        self.every_steps, self.every_s, self.keep, self.best = every_steps, every_s, keep, best
        self.about: Callable[[], Mapping[str, Any]] = dict
        self.rank = 0
        self.confirm: Callable[[], None] = _nobody_else
        self.interruption: Callable[[], None] | None = None
        self.written, self.seconds = 0, 0.0
        self.left_out: tuple[str, ...] = ()
        if every_s is None:
            every_s = math.inf if every_steps is not None else _DEFAULT_S
        self._every_s = float(every_s)
        self._last_s, self._last_step, self._judged = perf_counter(), 0, 0
        self._best_score: float | None = None

    def describe(self) -> dict[str, Any]:
        """How often and how many; where does not matter to a result."""
        names = ("every_steps", "every_s", "keep", "best")
        return {"event": "checkpointer", **{name: getattr(self, name) for name in names}}

    def before_training(self, trainer: Any) -> None:
        """Make the folder, and see that nothing of another training's is in the way.

        Raises:
            UsageError: Nobody said where, or the folder holds checkpoints of a training that is further on.
            OutputError: It cannot be made.
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
            for torn in self.folder.glob(".step-*.tmp"):
                torn.unlink(missing_ok=True)  # of a process that was killed while it wrote
            self._clear_ahead(trainer.step)
        if trainer.step == 0:
            self._best_score = None  # a new training; that of one that goes on comes with its state
        self._last_s, self._last_step, self._judged = perf_counter(), trainer.step, trainer.epoch

    def _clear_ahead(self, step: int) -> None:
        """Refuse checkpoints of later steps, which would be taken for this training's newest.

        Those that cannot be read, by one rank at least, which a resume passed over, are renamed.
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
                    "allowed: checkpoints of steps before it; remedy: go on from it (restore), delete it, or name "
                    "another folder"
                )
            path.replace(path.with_suffix(_UNREADABLE))

    def after_all(self, trainer: Any) -> None:
        """Write where it is time, where an evaluation was the best so far, and before an interruption."""
        # The best first: a checkpoint behind it knows that it was judged.
        self.judge(trainer)
        if self.due(trainer):
            self.write(trainer)
        if self.interruption is not None:
            self.write(trainer)
            self.interruption()

    def due(self, trainer: Any) -> bool:
        """Whether it is time to write."""
        return self.due_by_steps(trainer) or perf_counter() - self._last_s >= self._every_s

    def due_by_steps(self, trainer: Any) -> bool:
        """Whether so many steps were done: what ranks in step agree on without a word."""
        return self.every_steps is not None and trainer.step - self._last_step >= self.every_steps

    def judge(self, trainer: Any, judged: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Write the best where the last evaluation, not judged yet, was the best so far.

        Args:
            trainer: As everywhere.
            judged: While inside, the executor holds what was evaluated, where that is not what this rank trains on.

        Raises:
            UsageError: The best is asked for by an accuracy, and there is none.
        """
        if self.best is not None and trainer.epoch != self._judged:
            self._judged = trainer.epoch
            if trainer.scores and self.best not in trainer.scores:
                raise UsageError(f"Checkpointer(best='accuracy'): there is none: {NO_CLASSES}; remedy: best='loss'")
            score = trainer.scores.get(self.best, math.nan)
            if not math.isnan(score) and (self._best_score is None or _BETTER[self.best](score, self._best_score)):
                self._best_score = score
                with judged():
                    if not self.rank:
                        self._write(trainer, BEST)

    def write(self, trainer: Any) -> Path:
        """Write a checkpoint now, and delete those that are too many.

        Raises:
            OutputError: It cannot be written; the ones before it are as they were.
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
        """The best score so far, and where it was judged last; nothing where nobody asks for the best."""
        return {"best_score": self._best_score, "judged": self._judged} if self.best is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self._best_score, self._judged = state["best_score"], state["judged"]

    def clear(self) -> None:
        """Delete all checkpoints, those of other ranks too, and the folder where nothing else is in it."""
        if self.folder is not None and self.folder.is_dir():
            ranks = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
            for path in [*ranks, *self.folder.glob(f"step-*{_UNREADABLE}"), self.folder / BEST]:
                path.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()


def _nobody_else() -> None:
    """There is one rank."""


def name_of(step: int, rank: int = 0) -> str:
    """The file of a rank's part of the state after so many steps.

    >>> name_of(20), name_of(20, rank=1)
    ('step-0000000020.safetensors', 'step-0000000020.rank-1.safetensors')
    """
    return f"step-{step:010d}{f'.rank-{rank}' if rank else ''}.safetensors"


def checkpoints(folder: str | Path, rank: int = 0) -> list[Path]:
    """A rank's checkpoints in a folder, the one of most steps first; `best.safetensors` is not among them."""
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
    """The steps that were done when a checkpoint was written, by its name."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else 0


def restore(
    trainer: Any, path: str | Path, *, tell: Callable[[str], None] | None = None
) -> tuple[dict[str, Any], Path]:
    """Put a trainer where a checkpoint stands; its next `train` does the rest.

    Args:
        trainer: Made as the one that wrote it: same network, optimizer, samplers.
        path: A checkpoint, or a folder of them: then the last that can be read.
        tell: Takes a sentence about each that cannot be read; None: that is an error.

    Returns:
        What the checkpoint says that it is of, and its path.

    Raises:
        CheckpointError: There is none, none can be read, it is of another network or optimizer, or the folder has the
            parts of several ranks.
    """
    path = Path(path)
    candidates = checkpoints(path) if path.is_dir() else [path]
    if not candidates:
        raise CheckpointError(f"there is no checkpoint in {path}; allowed: a folder that a Checkpointer wrote to")
    for number, candidate in enumerate(candidates, start=1):
        try:
            state, about = read_checkpoint(candidate)
            break
        except CheckpointError as error:
            if tell is None or number == len(candidates):
                raise
            tell(f"{error}, which is tried now")
    # Who names a file takes the part that is in it.
    if path.is_dir() and (writers := about.get("ranks", 1)) > 1:
        raise CheckpointError(
            f"{writers} ranks wrote the checkpoint {candidate}, and no rank is to go on from it; allowed: any number "
            f"of ranks; remedy: --ranks {writers}, or --ranks 1, or any other number"
        )
    try:
        trainer.load_state_dict(state)
    except (Deep5Error, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {candidate} is of another network or optimizer: {error}") from error
    return about, candidate
