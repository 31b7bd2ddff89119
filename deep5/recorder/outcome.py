"""`Outcome`: the result folder of a recorded loop, from its begin to its verdict."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from deep5.core.errors import OutputError
from deep5.recipe.experiment import Experiment
from deep5.recorder.breakdown import breakdown_text
from deep5.recorder.replay import Replay
from deep5.recorder.series import Series
from deep5.recorder.values import Values, loaded_frameworks
from deep5.results.mllog import MLLog
from deep5.results.result import Result, load
from deep5.run.load import MachineLoad, load_warnings, timed_goals, timed_metrics
from deep5.run.record import CLOCK, RunRecord, thread_pools
from deep5.training.divergence import NonFiniteLoss

__all__ = ["BREAKDOWN", "Outcome"]

BREAKDOWN = "time_breakdown.csv"
"""The file with the time of every region, in the format of the metric `time_breakdown`."""

# Minimum interval between saves of the samples, and its minimum in units of the duration of a save.
_INTERVAL_NS, _MULTIPLE = 5_000_000_000, 300
_UNKNOWN = ("seeds", "data", "order of the batches", "network", "initial weights", "optimizer", "element type")
# Variables by which launchers give each process its number of processes.
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


class Outcome:
    """Creates the folder, marked aborted, saves samples into it, and ends it.

    Args:
        experiment: The loop with its metrics and goals.
        out: Parent of the result folder.
        loop: Whose loop it is.
        values: Knows whose arrays the loop reported.
        set_up_s: Seconds before this call.

    Attributes:
        record: The folder and its document.
        replay: Shows the loop to the metrics.

    Raises:
        OutputError: The folder cannot be written; nothing is left on disk.
    """

    def __init__(self, experiment: Experiment, out: str | Path, *, loop: str, values: Values, set_up_s: float) -> None:
        self._machine, self._values = MachineLoad(), values
        self.record = RunRecord(
            experiment,
            out,
            level=2,
            recorded={"loop": loop, "unknown": list(_UNKNOWN)},
            threads={"asked": None, "framework": None},
            measurement={
                "mode": "quick",
                "clock": CLOCK,
                "scope": "as each metric says",
                "processes": 1,
                "first_call_s": None,
            },
            set_up_s=set_up_s,
        )
        self.record.write_inputs()
        self._lines: list[str] = []
        self._series = self.record.series = Series()
        self._said: set[str] = set()
        self._finished: Result | None = None
        self._quiet = True
        log = MLLog(
            self._lines.append,
            keys={"submission_benchmark": experiment.name, "submission_division": "open"},
            target=next((goal for metric, goal in experiment.metrics if metric.name == "test_accuracy"), None),
            clock=self._now,
        )
        self.replay = Replay(
            log, self.record.observers, NonFiniteLoss(self._warn), self._series, self.record.document["measurement"]
        )

    def _now(self) -> int:
        replay = getattr(self, "replay", None)
        return perf_counter_ns() if replay is None or not replay.log_ns else int(replay.log_ns)

    def _warn(self, warning: str) -> None:
        self.record.warn(warning)
        self._say(f"warning: {warning}")

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            print(f"deep5: {message}", file=sys.stderr)  # noqa: T201 - the terminal of the user's program

    def save(self) -> int:
        """Write the samples so far; a disk that is full does not end the loop.

        Returns:
            When the next save is due, in `time.perf_counter_ns`.
        """
        begin = perf_counter_ns()
        try:
            self._write()
        except OutputError as error:
            self._say(f"warning: {error}; the loop continues, and its samples stay in memory")
        end = perf_counter_ns()
        return end + max(_INTERVAL_NS, _MULTIPLE * (end - begin))

    def _write(self) -> None:
        while self._lines:
            self.record.folder.append_event(self._lines[0])
            del self._lines[0]
        self.record.save_samples()

    def fail(self, status: str, reason: str) -> None:
        """End a recording that is not a success.

        Args:
            status: "failed" or "aborted".
            reason: The reason, in one sentence.
        """
        self.replay.end(status)
        self._describe()
        self.save()
        self.record.end(status, reason)
        self.record.folder.close()
        self._say(f"{reason}; what was recorded is in {self.record.folder.path}")

    def finish(self, *, quiet: bool) -> None:
        """Evaluate the goals and write the result.

        Args:
            quiet: Print no table.

        Raises:
            OutputError: The folder cannot be written; `result` tries again.
        """
        self._quiet = quiet
        self.replay.end("success")
        self._describe()
        self._warn_of_values()
        metrics = self.record.experiment.metrics
        goals, reported = timed_goals(metrics), timed_metrics(metrics)
        self.record.others_share = self._machine.others_share(wait=bool(goals))
        self.record.warn(*load_warnings(goals, self.record.others_share, self._machine.processors, None, reported))
        self.result()

    def result(self) -> Result:
        """The result; writes it, if the folder could not be written before.

        Raises:
            OutputError: The folder cannot be written.
        """
        if self.replay.status != "success":
            return load(self.record.folder.path)
        if self._finished is None:
            self._write()
            self.record.folder.write_file(BREAKDOWN, breakdown_text(self._series))
            self._finished = self.record.finish()
            self.record.folder.close()
            if not self._quiet:
                from deep5.core.terminal import printed
                from deep5.results.table import verdict_table

                print(printed(partial(verdict_table, self._finished)))  # noqa: T201 - the output of the loop
        return self._finished

    def _describe(self) -> None:
        """Read the settings back from the framework whose arrays were given, or from the only loaded one."""
        document, owner = self.record.document, self._values.owner
        unknown = document["recorded"]["unknown"] = list(_UNKNOWN)
        loaded = [own for own in loaded_frameworks() if own.owns_arrays]
        if owner is None and len(loaded) == 1:
            owner = loaded[0]
        found = {} if owner is None else owner.process_settings(self._values.example)
        if owner is None:
            unknown.append("framework")
        else:
            document["framework"] = {"name": owner.name, "version": found["version"], "device": found.get("device")}
        if found.get("device") is None:
            unknown.append("device")
        if found.get("threads") is None:
            unknown.append("number of threads")
        document["threads"] = {"asked": None, "framework": found.get("threads"), "pools": thread_pools()}
        numerics = {key: found[key] for key in ("tf32", "deterministic") if found.get(key) is not None}
        document["numerics"] = numerics or None
        if self._values.example is None and any(own.process_settings(None)["asynchronous"] for own in loaded):
            self._warn(
                "no array was given, so the recorder waited for no device, and the times are those of the host; "
                "remedy: run.log(loss=loss) with the array, not its number"
            )
        worlds = [int(os.environ[name]) for name in _WORLDS if os.environ.get(name, "").isdigit()]
        if max(worlds, default=1) > 1:
            self._warn(
                f"this process is one of {max(worlds)}, and the result is of this process only; remedy: compare the "
                "results of all of them"
            )

    def _warn_of_values(self) -> None:
        steps, losses = self.replay.step, self.replay.losses
        metrics = {metric.name for metric, _ in self.record.experiment.metrics}
        if "training_loss" in metrics and not losses:
            self._warn("training_loss has no value: the loop logged no loss; remedy: run.log(loss=loss) in each step")
        elif "training_loss" in metrics and losses < steps and not self.replay.mean_losses:
            self._warn(f"training_loss is of {losses} of {steps} steps: the loop logged no more")
        scored = {"test_accuracy": "accuracy", "time_to_accuracy": "accuracy", "epochs_to_accuracy": "accuracy"}
        for name, value in {**scored, "test_loss": "loss"}.items():
            if name in metrics and value not in self.replay.seen:
                self._warn(
                    f"{name} has no value: no evaluation logged its {value}; remedy: run.log({value}=…) in a block "
                    "with run.evaluation():"
                )
        if "test_accuracy" in metrics and 0 < self.replay.scored_epoch < self.replay.epoch:
            self._warn(
                f"the last epoch has no accuracy: test_accuracy is of epoch {self.replay.scored_epoch} of "
                f"{self.replay.epoch}"
            )
        if self.replay.seen.get("accuracy", 100.0) <= 1.0:
            self._warn(
                "no accuracy is above 1 %, which looks like fractions; allowed: percent, 0 to 100; remedy: 100 times "
                "the fraction"
            )
