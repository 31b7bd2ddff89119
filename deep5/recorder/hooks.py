"""`Hooked`: a recorder for libraries that own the loop and call hooks: no `with` statement spans two hooks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError
from deep5.recorder.recorder import Recorder
from deep5.recorder.spans import Epoch, Evaluation, Step

__all__ = ["Hooked"]


class Hooked:
    """Begins and ends the parts of a recording hook by hook; every training of the library has its own result.

    Args:
        name: As for `deep5.record`, like goals, out and quiet.
        goals: Metrics and goals.
        out: Parent of the result folders.
        quiet: Print no table.
        loop: The library with its version.

    Attributes:
        run: The recorder of the current or last training.
    """

    def __init__(self, name: str, goals: Any, out: str | Path, *, quiet: bool, loop: str) -> None:
        self._make = partial(Recorder, name, goals, out=out, quiet=quiet, loop=loop)
        self.run = self._make()
        self._open: list[Epoch | Step | Evaluation] = []
        self._begun = self.recording = False

    def begin(self) -> None:
        """A training begins; one that an error of the library ended without a hook is ended first."""
        if self.recording:
            self.end(UsageError("the library began another training before the end of this one"))
        if self._begun:
            self.run = self._make()
        self._begun = True
        self.run.__enter__()
        self.recording = True

    def enter(self, part: Epoch | Step | Evaluation) -> None:
        """A part begins."""
        part.__enter__()
        self._open.append(part)

    def leave(self, kind: type[Epoch | Step | Evaluation]) -> None:
        """The innermost part ends, if it is of this kind."""
        if self._open and isinstance(self._open[-1], kind):
            self._open.pop().__exit__(None, None, None)

    def inside(self, kind: type[Epoch | Step | Evaluation]) -> bool:
        """Whether a part of this kind is the innermost one."""
        return bool(self._open) and isinstance(self._open[-1], kind)

    def log_scores(self, scores: Mapping[str, Any], loss: str, accuracy: str) -> None:
        """Record the scores of an evaluation.

        Args:
            scores: Of the library, by name.
            loss: Name of the test loss; it is recorded if it is among the scores and an evaluation is open.
            accuracy: Name of the accuracy, a fraction; it is recorded as percent if it is among the scores.

        Raises:
            UsageError: The accuracy is not a fraction.
        """
        if loss in scores and self.inside(Evaluation):
            self.run.log(loss=scores[loss])
        if accuracy in scores:
            fraction = float(scores[accuracy])
            if not 0 <= fraction <= 1:
                raise UsageError(
                    f"got {accuracy}={fraction!r}; allowed: a fraction, 0 to 1; remedy: name another score"
                )
            self.run.log(accuracy=100 * fraction)

    def end(self, error: BaseException | None = None) -> None:
        """The training has ended.

        Args:
            error: What ended it, or None.
        """
        if not self.recording:
            return
        self.recording = False
        kind = None if error is None else type(error)
        trace = None if error is None else error.__traceback__
        while self._open:
            self._open.pop().__exit__(kind, error, trace)
        self.run.__exit__(kind, error, trace)
