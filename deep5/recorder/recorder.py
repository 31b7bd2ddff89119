"""`record`: measure a loop that deep5 does not run, and leave the result folder that a run leaves."""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from deep5.core.errors import Deep5Error, OutputError, UsageError, brief, described
from deep5.recorder.buffers import NOWHERE, STEP
from deep5.recorder.goals import recorded_experiment
from deep5.recorder.spans import Epoch, Evaluation, Region, Step
from deep5.recorder.state import State
from deep5.recorder.values import Values

if TYPE_CHECKING:
    from deep5.recorder.outcome import Outcome
    from deep5.results.result import Result

__all__ = ["Recorder", "record"]

_HAND_WRITTEN = "hand-written"
# Regions of one loop, whose buffers are allocated when a name is first used; letters of a name.
_MOST_REGIONS, _MOST_LETTERS = 100, 100
_open: Recorder | None = None


def record(name: str, goals: Any = None, *, out: str | Path = "results", quiet: bool = False) -> Recorder:
    """Record a training loop that deep5 does not run: times, losses, accuracies, goals, verdict, machine.

    Args:
        name: Name of the loop; it names the result folder and identifies comparable results.
        goals: A dict from metrics to goals, such as `{"throughput": ">= 1000", "training_loss": None}`, or a recipe's
            METRICS; None: wall-clock time, throughput, training loss and peak memory, without goals.
        out: Parent of the result folder.
        quiet: Print no table at the end; warnings are printed anyway.

    Returns:
        The recorder, to be used in a `with` statement.

    Raises:
        UsageError: The name cannot name a result, or a metric is unknown or cannot be recorded.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with record("example", out=folder.name, quiet=True) as run:
    ...     with run.epoch():
    ...         for batch in range(3):
    ...             with run.step(batch_size=8):
    ...                 run.log(loss=1.0 / (batch + 1))
    ...         with run.evaluation():
    ...             run.log(accuracy=75.0)
    >>> run.result.status, round(run.result.metric("training_loss"), 3)
    ('success', 0.611)
    >>> folder.cleanup()
    """
    return Recorder(name, goals, out=out, quiet=quiet)


class Recorder:
    """Measures a loop; made by `record`.

    On the clock of a step: everything in its block; if `step_latency` is among the metrics, also the wait for the
    arrays that were logged in it. Nothing of a recorder's evaluating and saving is on any clock.

    Args:
        name: As for `record`, like the arguments below.
        goals: Metrics and goals.
        out: Parent of the result folder.
        quiet: Print no table at the end.
        loop: Whose loop it is.
    """

    def __init__(
        self,
        name: str,
        goals: Any = None,
        *,
        out: str | Path = "results",
        quiet: bool = False,
        loop: str = _HAND_WRITTEN,
    ) -> None:
        self._begin_s = perf_counter()
        self._experiment = recorded_experiment(name, goals)
        self.name, self._out, self._quiet, self._loop = name, out, quiet, loop
        self._outcome: Outcome | None = None
        self._values = Values()
        # Its use before the `with` statement is refused like any use outside of an epoch.
        self._state: State | None = None

    def __enter__(self) -> Self:
        """Begin the recording.

        Raises:
            UsageError: Another recorder is open in this process, or this one was used before.
            OutputError: The result folder cannot be written.
        """
        global _open  # noqa: PLW0603 - one per process
        from deep5.recorder.outcome import Outcome

        if self._outcome is not None:
            raise UsageError(
                f"the recorder {self.name!r} was used before; allowed: once; remedy: deep5.record(…) again"
            )
        if _open is not None:
            raise UsageError(
                f"the recorder {self.name!r} begins while {_open.name!r} is open; allowed: one at a time; remedy: end "
                f"{_open.name!r} first"
            )
        self._outcome = Outcome(
            self._experiment, self._out, loop=self._loop, values=self._values, set_up_s=perf_counter() - self._begin_s
        )
        waits = any(observer.synchronous for observer in self._outcome.record.observers)
        self._state = State(self._outcome.replay, self._outcome.save, self._values.wait_for, waits=waits)
        self._step, self._epoch, self._evaluation = Step(self._state), Epoch(self._state), Evaluation(self._state)
        self._regions: dict[str, Region] = {}
        _watch_process()
        _open = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the recording, evaluate the goals and write the result; the loop's own errors pass unchanged."""
        global _open  # noqa: PLW0603
        state, outcome = self._state, self._outcome
        if state is None or outcome is None or state.elsewhere:
            return
        if _open is self:
            _open = None
        unclosed = kind is None and (state.region is not None or state.place != NOWHERE)
        try:
            state.stop()
            if isinstance(error, KeyboardInterrupt):
                outcome.fail("aborted", str(error) or "interrupted by the user")
            elif error is not None:
                outcome.fail("failed", str(error) if isinstance(error, Deep5Error) else described(error))
            elif unclosed:
                outcome.fail(
                    "failed",
                    "the recording ended within an epoch, a step, an evaluation or a region; allowed: after their "
                    "ends; remedy: use 'with' for each of them",
                )
            elif not state.steps:
                outcome.fail(
                    "failed",
                    "the loop made no step, so nothing was measured; allowed: at least one; remedy: with run.epoch(): "
                    "around the batches, and with run.step(batch_size=…): around each training step",
                )
            else:
                outcome.finish(quiet=self._quiet)
        except OutputError as fault:
            _say(f"{fault}; the samples are still in memory: run.result writes them once it can")
        except Deep5Error as fault:
            if error is None:
                raise
            _say(str(fault))

    def epoch(self) -> Epoch:
        """One epoch, for a `with` statement: data, steps and, best, the evaluation.

        Raises:
            UsageError: The recording has not begun, or has ended.
        """
        self._recording()
        return self._epoch

    def step(self, *, batch_size: int) -> Step:
        """One training step, for a `with` statement in an epoch.

        Args:
            batch_size: Samples of the step.

        Raises:
            UsageError: The batch size is not an integer of at least 1.
        """
        if type(batch_size) is not int or batch_size < 1:
            batch_size = _whole(batch_size)
        step = (self if self._state is not None else self._recording())._step
        step.batch_size = batch_size
        return step

    def region(self, name: str) -> Region:
        """A named part of a step, of the time between steps, or of an evaluation, for a `with` statement.

        Its time is that of the host; `wait` at its end includes the work of a device.

        Args:
            name: The same name in every step.

        Raises:
            UsageError: It is not a name, or there are more than a hundred.
        """
        try:
            return self._regions[name]
        except (KeyError, TypeError, AttributeError):
            return self._new_region(name)

    def _new_region(self, name: object) -> Region:
        state = self._recording()._state
        assert state is not None  # noqa: S101 - for mypy
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _MOST_LETTERS:
            raise UsageError(f"got the region {brief(name)}; allowed: a name, such as 'forward'")
        if "[" in name or "]" in name or name in ("step", "epoch", "evaluation"):
            raise UsageError(
                f"got the region {name!r}; allowed: a name without brackets, other than 'step', 'epoch', 'evaluation', "
                "which have methods"
            )
        if len(self._regions) >= _MOST_REGIONS:
            raise UsageError(
                f"the region {name!r:.60} would be one of more than {_MOST_REGIONS}; allowed: a few names, used again "
                "in every step"
            )
        state.regions[name] = self._regions[name] = region = Region(name, state, state.capacity)
        return region

    def evaluation(self) -> Evaluation:
        """The evaluation of an epoch, for a `with` statement after the steps, in the epoch or after it."""
        self._recording()
        return self._evaluation

    def log(self, *, loss: Any = None, accuracy: Any = None, **others: Any) -> None:
        """Record a loss or an accuracy.

        An array on a device is kept and read later: no step waits for it, except where `step_latency` is measured.

        Args:
            loss: In a step, the loss of its batch; in an evaluation, the test loss; elsewhere, the mean training loss
                of the steps since the last logged one. A number, or an array with one element.
            accuracy: Percentage of test samples that are classified correctly, 0 to 100: in an evaluation, or after the
                steps of an epoch. Of several in an epoch, the last one counts.
            others: Refused.

        Raises:
            UsageError: Another value, a value outside its range, or a place where it has no meaning.
        """
        state = self._state
        if state is not None and state.place == STEP and not others and accuracy is None and loss is not None:
            kept = loss if type(loss) is float else self._values.loss(loss)
            if state.losses[state.slot] is None:
                state.losses[state.slot] = kept  # most calls
            else:
                state.log_loss(kept)
            if type(kept) is not float:
                state.last = kept
            return
        self._log(loss, accuracy, others)

    def _log(self, loss: Any, accuracy: Any, others: dict[str, Any]) -> None:
        state = self._recording()._state
        assert state is not None  # noqa: S101 - for mypy
        if others:
            raise UsageError(
                f"got {', '.join(others)} to log; allowed: loss, accuracy; remedy: write other values to your own log"
            )
        if loss is not None:
            kept = self._values.loss(loss)
            state.log_loss(kept)
            if type(kept) is not float:
                state.last = kept
        if accuracy is not None:
            percent = self._values.number(accuracy, "accuracy")
            if not 0 <= percent <= 100:
                raise UsageError(f"got the accuracy {percent!r}; allowed: 0 to 100, in percent")
            state.log_accuracy(percent)

    def wait(self, *arrays: Any) -> None:
        """Wait until the devices have computed these arrays; the wait is on the clock where it is called.

        Args:
            arrays: Arrays of PyTorch, JAX or TensorFlow, or dicts, lists and tuples of them. PyTorch and TensorFlow
                wait for the whole device, JAX for these arrays.
        """
        self._values.wait(arrays)

    def watch(self, array: Any) -> None:
        """Name an array, such as a parameter, for whose device the ends of epochs wait, if no loss is an array.

        With `step_latency` among the metrics, the ends of steps wait too.

        Args:
            array: An array of PyTorch or TensorFlow, which wait for the whole device.
        """
        state, owner = self._recording()._state, self._values.owner_of(array)
        if owner is not None and state is not None:
            state.always = array

    @property
    def waits(self) -> bool:
        """Whether each step waits for the device, because `step_latency` is measured."""
        return self._state is not None and self._state.waits

    @property
    def folder(self) -> Path:
        """The result folder.

        Raises:
            UsageError: The recording has not begun.
        """
        if self._outcome is None:
            self._recording()
        return self._outcome.record.folder.path  # type: ignore[union-attr]

    @property
    def result(self) -> Result:
        """The result, after the end; if the folder could not be written then, this writes it.

        Raises:
            UsageError: The recording has not ended.
            OutputError: The folder still cannot be written.
        """
        if self._outcome is None or _open is self:
            raise UsageError(f"the recorder {self.name!r} has no result yet; allowed: after its 'with' block")
        return self._outcome.result()

    def _recording(self) -> Self:
        if self._state is None or (_open is not self and not self._state.elsewhere):
            raise UsageError(
                f"the recorder {self.name!r} is not recording; allowed: in its block; remedy: with deep5.record(…) as "
                "run:"
            )
        return self

    def leave(self) -> None:
        """Give up the recording in a forked child; its parent continues."""
        if self._state is not None and self._outcome is not None:
            self._state.leave()
            self._outcome.record.folder.close()


def _whole(size: Any) -> int:
    import operator

    try:
        whole = operator.index(size)
    except TypeError:
        whole = 0
    if isinstance(size, bool) or whole < 1:
        raise UsageError(f"got batch_size={brief(size)}; allowed: an integer of at least 1")
    return whole


@cache
def _watch_process() -> None:
    os.register_at_fork(after_in_child=_leave)
    atexit.register(_end)


def _leave() -> None:
    global _open  # noqa: PLW0603
    if _open is not None:
        _open.leave()
        _open = None


def _end() -> None:
    """End a recording that the program left open, such as one of a library's loop that an error ended."""
    if _open is not None:
        error = UsageError("the program ended within the recording")
        _open.__exit__(UsageError, error, None)


def _say(message: str) -> None:
    print(f"deep5: {message}", file=sys.stderr)  # noqa: T201 - the terminal of the user's program
