"""`ProgressBar`: epoch, step, loss, accuracy, samples per second, and the remaining time if it is known.

Until the first step is finished, which includes compilation, it shows the seconds so far. The samples per second are of
the current epoch, or since the previous line within it, without evaluations and the first step of each batch size.
"""

from __future__ import annotations

import sys
from time import perf_counter_ns
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.events import Event, StepInfo
from deep5.core.metric import FirstCalls
from deep5.core.progress import AGAIN_S, Ongoing
from deep5.core.quantities import duration
from deep5.core.tensors import Arrays, to_numpy
from deep5.core.terminal import console_of
from deep5.training.schedules.scheduled import plan_of

__all__ = ["ProgressBar"]

# Minimum time between two updates; an update also may not take more than this share of the time between two.
_INTERVAL_NS = 100_000_000
_SHARE = 0.005
# Time between two lines within an epoch where there is no terminal.
_LINES_NS = int(AGAIN_S * 1e9)
# Minimum number of columns for a bar beside the figures.
_WIDE = 100


class ProgressBar(Event):
    """A bar if the output is a terminal, otherwise one line per epoch, and per minute within a longer one.

    The loss is read only for an update, at most ten times per second, so that the bar never makes a device wait; a slow
    terminal is updated less often, so that updates take at most half a percent of the time. For a data set of unknown
    length, neither the bar nor the remaining time is shown.

    Args:
        console: A `rich.console.Console`; None: one for standard error.

    >>> import io
    >>> from rich.console import Console
    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, d5.Adam(0.1), d5.ShuffleSampler(data.train, 4), d5.OrderedSampler(data.test, 6))
    >>> shown = io.StringIO()  # no terminal: a line per epoch
    >>> trainer.train(epochs=2, events=[d5.ProgressBar(console=Console(file=shown))])
    >>> [line.partition("  loss")[0] for line in shown.getvalue().splitlines()]  # then accuracy, speed, time left
    ['epoch 1/2  step 3', 'epoch 2/2  step 6']
    """

    every_rank = False

    def __init__(self, *, console: Any = None) -> None:
        self._console, self._on_stderr = console, console is None
        self._progress: Any = None
        # Reports the first step. Ended when that is finished: no later step is timed with its thread.
        self._first: Ongoing | None = None
        self._task: Any = None
        self._outputs: Arrays | None = None
        self._begin = self._last = self._gap = self._first_step = 0
        # What the rate is of: samples, begin, end (None: now), and the time of first steps in between.
        self._samples = self._since = self._first_ns = 0
        self._until: int | None = None
        self._rate: float | None = None
        self._is_first = FirstCalls()
        # Total number of steps, including those before a resume; None if unknown.
        self._total: int | None = None

    def describe(self) -> dict[str, Any]:
        """The event; its console does not affect a result."""
        return {"event": "progress_bar"}

    def before_training(self, trainer: Any) -> None:
        """Prepare the bar, and report how long the first step takes."""
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = self._console or console_of(sys.stderr)
        self._begin = self._last = perf_counter_ns()
        self._gap = -1  # the first step is always due
        self._rate, self._is_first = None, FirstCalls()
        self._count_from(self._begin)
        self._first_step, self._total = trainer.step, _total_steps(trainer)
        if self._on_stderr:
            self._first = Ongoing("first step, with what it compiles")
            self._first.start()
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            return
        # A terminal of 80 columns has space for all the figures but not for the bar.
        columns: list[Any] = [TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}")]
        if self._total is not None and self._console.width >= _WIDE:
            columns += [BarColumn(bar_width=None), TextColumn("step {task.completed:.0f}/{task.total:.0f}")]
        else:
            columns.append(TextColumn("step {task.completed:.0f}"))
        columns += [TextColumn("{task.fields[figures]}")]
        self._progress = Progress(
            *columns,
            console=self._console,
            auto_refresh=False,  # no thread in parallel with the timed one
        )
        self._task = self._progress.add_task(
            "", completed=trainer.step, total=self._total, epoch=trainer.epoch + 1, epochs=trainer.epochs, figures=""
        )

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Count the samples per second anew."""
        self._count_from(perf_counter_ns())

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        """Store the outputs; update the bar if an update is due."""
        if self._is_first(info):
            self._first_ns += end_ns - begin_ns
        else:
            self._samples += info.global_batch_size or info.batch_size
        self._outputs = outputs
        if end_ns - self._last >= self._gap:
            self._update(trainer, info.epoch, end_ns)

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        """Exclude evaluation from samples per second."""
        self._until = perf_counter_ns()

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        """Show within a long evaluation that it continues, if an update is due."""
        now = perf_counter_ns()
        if now - self._last >= self._gap:
            self._update(trainer, trainer.epoch - 1, now)  # the trainer counts the epoch as finished

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Update the bar if due and after the last epoch, or print the epoch's line."""
        now = perf_counter_ns()
        if self._progress is None:
            self._print(trainer, epoch)
        elif now - self._last >= self._gap or epoch + 1 == trainer.epochs:
            self._draw(trainer, epoch)

    def after_training(self, trainer: Any) -> None:
        """Restore the terminal."""
        self._end_first()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._outputs = None

    def _update(self, trainer: Any, epoch: int, now: int) -> None:
        if self._gap < 0:
            self._end_first()
            self._gap = _LINES_NS if self._progress is None else _INTERVAL_NS
            if now - self._last < self._gap:
                return
        if self._progress is None:
            self._print(trainer, epoch)
        else:
            self._draw(trainer, epoch)

    def _end_first(self) -> None:
        if self._first is not None:
            self._first.end()
            self._first = None

    def _print(self, trainer: Any, epoch: int) -> None:
        self._console.print(
            f"epoch {epoch + 1}/{trainer.epochs}  step {trainer.step}  {self._figures(trainer)}",
            highlight=False,
            soft_wrap=True,
        )
        self._last = perf_counter_ns()
        if self._until is None:
            self._count_from(self._last)

    def _count_from(self, now: int) -> None:
        self._samples, self._since, self._first_ns, self._until = 0, now, 0, None

    def _draw(self, trainer: Any, epoch: int) -> None:
        begin = perf_counter_ns()
        self._progress.start()  # shows the bar, the first time
        self._progress.update(
            self._task,
            completed=trainer.step,
            epoch=epoch + 1,
            figures=self._figures(trainer),
            refresh=True,
        )
        self._last = perf_counter_ns()
        self._gap = max(_INTERVAL_NS, int((self._last - begin) / _SHARE))

    def _figures(self, trainer: Any) -> str:
        # Outputs may be large and on any device: read only the loss, as late as possible.
        loss = (self._outputs or {}).get(trainer.loss)
        accuracy = trainer.scores.get("accuracy")
        busy = (self._until or perf_counter_ns()) - self._since - self._first_ns
        if self._samples:  # otherwise as before: nothing to count has passed
            self._rate = self._samples / max(busy / 1e9, 1e-9)
        figures = [
            f"loss {float(to_numpy(loss)):.4f}" if loss is not None else "loss -",
            f"accuracy {accuracy:.2f} %" if accuracy is not None else "accuracy -",
            f"{self._rate:,.0f} samples/s" if self._rate is not None else "- samples/s",
        ]
        if self._total is not None:
            figures.append(f"{duration(self._left_s(trainer, self._total))} left")
        return "  ".join(figures)

    def _left_s(self, trainer: Any, total: int) -> float:
        """Seconds to the end, estimated from the steps of this process, including evaluations."""
        done, ahead = trainer.step - self._first_step, total - trainer.step
        seconds: float = (perf_counter_ns() - self._begin) / 1e9 / max(done, 1) * max(ahead, 0)
        return seconds


def _total_steps(trainer: Any) -> int | None:
    plan = plan_of(trainer)
    try:
        ahead = sum(plan.epoch_steps(epoch) for epoch in range(trainer.epoch, trainer.epochs))
    except UsageError:
        return None
    # Batches of a resumed epoch done before the resume, as steps.
    behind = -(-trainer.batch // trainer.accumulate)
    total: int = trainer.step + ahead - behind
    return total
