"""`RunRecord`: the result folder of a running run; it exists from the start and is valid at every moment."""

from __future__ import annotations

import inspect
import itertools
import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, OutputError, RunFailed, contained, described
from deep5.core.metric import Metric, Observer
from deep5.results.clock import Session, now
from deep5.run.observers import observers_of

if TYPE_CHECKING:
    from deep5.recipe.experiment import Experiment
    from deep5.results.result import Result
    from deep5.results.samples_file import SampleRow

__all__ = ["CLOCK", "RunRecord", "thread_pools"]

CLOCK = "time.perf_counter_ns"
"""The clock of a run's times."""


class RunRecord:
    """Creates the folder, marked aborted, and fills it until the run is over.

    Args:
        experiment: The experiment that runs.
        out: Parent of the result folder.
        set_up_s: Seconds of the setup before this call.
        resume: A result folder to resume in, instead of a new one.
        begin_again: From the folder, how to start an interrupted run again there, as the end of a message.
        known: Further fields of the document, as for `blank_document`.

    Attributes:
        folder: The result folder.
        document: Content of result.json at the next write.
        observers: A fresh observer for each of the recipe's metrics, in their order.
        extra_rows: Samples in addition to those of the observers.
        series: More of them, which are too many to keep as rows.
        checkpointer: The writer of the run's checkpoints, or None.
        others_share: Share of the processors' time that other programs used, 0 to 1; None if it is unknown.

    Raises:
        OutputError: The folder cannot be written; nothing is left on disk.
        RecipeError: A metric does not return an observer.
        CheckpointError: The folder to resume in belongs to another run, or has another run's name.
        UsageError: It is not a result folder, or a run still writes there.
    """

    def __init__(
        self,
        experiment: Experiment,
        out: str | Path,
        *,
        set_up_s: float = 0.0,
        resume: Path | None = None,
        begin_again: Callable[[Path], str] = lambda folder: "",
        **known: Any,
    ) -> None:
        from deep5.measuring.environment import describe_environment
        from deep5.results.continuing import check_name, going_on
        from deep5.results.folder import ResultFolder
        from deep5.results.origin import ORIGIN, origin_text, source_name
        from deep5.results.result import load
        from deep5.results.schema import blank_document

        self.experiment, self._begin_again = experiment, begin_again
        self.observers = observers_of(experiment)
        if "threads" in known and "pools" not in known["threads"]:
            known["threads"] = {**known["threads"], "pools": thread_pools()}
        self.extra_rows: list[SampleRow] = []
        self.series: Iterable[str] = ()
        self.checkpointer: Any = None
        self.others_share: float | None = None
        self._session, self._cpu, self._set_up_s = Session(), process_time(), set_up_s
        environment = describe_environment()
        provenance = {
            **known.pop("provenance", {}),
            "recipe_source": experiment.source_hash,
            "environment": environment.hash,
        }
        self.document = blank_document(
            recipe=dict(experiment.document),
            system=environment.system,
            software=environment.software,
            provenance=provenance,
            metrics=self._rows(evaluated=False, valued=False),
            started=self._session.begun,
            **known,
        )
        # Totals of the earlier processes of a resumed run.
        self._before = {"wall_time_s": 0.0, "cpu_time_s": 0.0}
        self._unmeasured = dict(self.document["measurement"])
        if resume is not None:
            self.folder = ResultFolder.open(resume)
            try:
                left = load(resume).document
                check_name(left["run_id"], self.folder.path)
                if (version := left["recipe"].get("hash_version")) in (None, 1):
                    self.document["recipe"] |= {**experiment.first_rule, "hash_version": version}
                self.document = going_on(left, self.document, experiment.defaults)
            except BaseException:
                self.folder.close()
                raise
            return
        name = "".join(
            letter if (letter.isascii() and letter.isalnum()) or letter in "_-" else "_" for letter in experiment.name
        )
        # With the recipe, whose hash is in the document: the folder is complete whenever the process is killed.
        source = experiment.source()
        files: dict[str, bytes | str] = {} if source is None else {source_name(experiment.in_place): source}
        if experiment.origin is not None:
            files[ORIGIN] = origin_text(experiment.origin(), self.document)
        self.folder = ResultFolder.create(out, name.lstrip("-") or "recipe", self.document, files)
        self.document["run_id"] = self.folder.run_id

    def warn(self, *sentences: str) -> None:
        """Add warnings on the uncertainty of the numbers, each once."""
        warnings = self.document["warnings"]
        warnings += [sentence for sentence in sentences if sentence not in warnings]

    def _rows(self, *, evaluated: bool, valued: bool) -> list[dict[str, Any]]:
        from deep5.results.schema import metric_row

        rows = []
        for (metric, goal), observer in zip(self.experiment.metrics, self.observers, strict=True):
            seen: dict[str, Any] = {}
            if valued:
                seen = _seen(metric, observer)
            rows.append(metric_row(metric, goal, evaluated=evaluated, scope=_scope(metric), **seen))
        return rows

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Record in the folder how the run ends, whatever ends it.

        Raises:
            RunFailed: In place of every error; the message names the folder.
            KeyboardInterrupt: The run was interrupted; the message names the folder.
        """
        try:
            self.write_inputs()
            with contained():
                yield
        except KeyboardInterrupt as interruption:
            self.end("aborted", str(interruption) or "interrupted by the user")
            going_on = self._resumable() or self._begin_again(self.folder.path)
            raise KeyboardInterrupt(f"interrupted; what the run left is in {self.folder.path}{going_on}") from None
        except Deep5Error as error:
            self.end("failed", str(error))
            raise RunFailed(
                f"the run failed: {error}; what it left is in {self.folder.path}{self._resumable()}"
            ) from error
        except Exception as error:
            self.end("failed", described(error))
            raise RunFailed(
                f"the run failed: {described(error)}; what it left is in "
                f"{self.folder.path}{self._resumable()}; remedy: --debug shows where"
            ) from error
        finally:
            self.folder.close()

    def _resumable(self) -> str:
        """How to resume, if a checkpoint was written."""
        folder = getattr(self.checkpointer, "folder", None)
        if folder is None or not any(folder.glob("step-*.safetensors")):
            return ""
        return f"; to resume, add --resume {self.folder.path} to the command"

    def write_inputs(self) -> None:
        """Write environment.json: machine and software at the start of this process' part of the run."""
        environment = {"system": self.document["system"]["before"], "software": self.document["software"]}
        times = len(self.document["resumed"])
        name = f"environment-{times + 1}.json" if times else "environment.json"
        self.folder.write_file(name, json.dumps(environment, indent=2) + "\n")

    def position(self) -> dict[str, Any]:
        """State of this record in a checkpoint.

        It holds the duration so far, the measurements of the first calls, and how far the events were written: a killed
        process writes none of these to result.json.
        """
        return {
            **self._lived(),
            "measurement": dict(self.document["measurement"]),
            "events_bytes": self.folder.events_bytes(),
        }

    def _lived(self) -> dict[str, float]:
        return {
            "wall_time_s": self._before["wall_time_s"] + perf_counter() - self._session.begin_s,
            "cpu_time_s": self._before["cpu_time_s"] + process_time() - self._cpu,
        }

    def went_on(self, about: Mapping[str, Any] | None, checkpoint: Path | None) -> None:
        """Record that the run resumes from a checkpoint, and undo everything written after the checkpoint.

        Args:
            about: The checkpoint's description, including `position`; None: resume from the beginning.
            checkpoint: Its file.
        """
        about = about or {"events_bytes": 0, "step": 0, "epoch": 0, "measurement": self._unmeasured}
        self._before = {name: about.get(name, 0.0) for name in self._before}
        # The first calls in result.json may belong to steps after the checkpoint, or be missing after a kill.
        self.document["measurement"] = dict(about.get("measurement", self.document["measurement"]))
        self.document["resumed"].append(
            {
                "time": now(),
                "checkpoint": None if checkpoint is None else checkpoint.name,
                "step": about["step"],
                "epoch": about["epoch"],
                "environment": self.document["provenance"]["environment"],
            }
        )
        # Write now, for readers of the folder while the run continues or after it is killed again; and before any other
        # file changes, because the hashes of an earlier end are in the old document.
        self.folder.write_result(self.document)
        self.folder.cut_events(about["events_bytes"])

    def save_samples(self) -> None:
        """Write all samples recorded so far."""
        from deep5.results.samples_file import sample_rows
        from deep5.results.schema import metric_labels

        rows = list(self.extra_rows)
        labels = metric_labels(self.document["metrics"])
        for label, (metric, _), observer in zip(labels, self.experiment.metrics, self.observers, strict=True):
            rows += sample_rows(label, metric.unit, observer.samples())
        self.folder.write_samples(rows, self.series)

    def _write_files(self) -> None:
        written = set(_OWN)
        numbers: Counter[str] = Counter()
        for (metric, _), observer in zip(self.experiment.metrics, self.observers, strict=True):
            try:
                found = observer.files()
            except Exception as error:
                raise RunFailed(f"the metric {metric.name!r} raised {described(error)}") from error
            numbers[metric.name] += 1
            for name, content in found.items():
                unique = _apart(name, metric.name, numbers[metric.name], written)
                written.add(unique)
                self.folder.write_file(unique, content)

    def _close(self) -> None:
        from deep5.measuring.environment import describe_system

        self.document["system"]["after"] = describe_system()
        self.document["resources"] = {
            "set_up_s": self._set_up_s,
            **self._lived(),
            "others_share": self.others_share,
        }
        self.document["finished"] = ended = now()
        begun = self.document["started"] if self.document["resumed"] else None
        self.warn(*self._session.clock_warnings(ended, begun, self.document["resources"]["wall_time_s"]))
        if self.checkpointer is not None:
            keeper = self.checkpointer
            names = ("written", "seconds", "left_out")
            self.document["checkpoints"] = {name: getattr(keeper, name) for name in names}
            self.document["checkpoints"]["left_out"] = list(keeper.left_out)

    def end(self, status: str, reason: str) -> None:
        """Record a run that failed; an error here must not hide the original one."""
        reasons = [reason]
        self._close()
        for what in (self.save_samples, self._note_values, self._note_files):
            try:
                with contained():
                    what()
            except Exception as error:
                reasons.append(f"its samples are not complete: {described(error)}")
        self.document |= {"status": status, "reasons": reasons, "accepted": None}
        try:
            self.folder.write_result(self.document)
        except OutputError as error:
            # The existing result.json marks the run as aborted, which is correct as well.
            self.document["reasons"].append(str(error))

    def _note_values(self) -> None:
        self.document["metrics"] = self._rows(evaluated=False, valued=True)

    def _note_files(self) -> None:
        """Identify the raw files in the document, after the last of them was written."""
        self.document["files"] = self.folder.raw_hashes()

    def finish(self, stopped: str | None = None) -> Result:
        """Evaluate the goals, write the result, and read it back.

        Args:
            stopped: Why an event ended the run early, or None.
        """
        from deep5.results.result import load

        rows = self._rows(evaluated=True, valued=True)
        self.save_samples()
        self._write_files()
        self._close()
        self._note_files()
        failed = [row["name"] for row in rows if row["passed"] is False]
        evaluated = any(row["passed"] is not None for row in rows)
        reasons = [f"{name} did not meet its goal" for name in failed]
        if stopped is not None:
            reasons.append(f"stopped: {stopped}")
        document = {
            **self.document,
            "status": "success",
            "reasons": reasons,
            "accepted": not failed if evaluated else None,
            "metrics": rows,
        }
        self.folder.write_result(document)
        self.document = document
        return load(self.folder.path)


def _seen(metric: Metric, observer: Observer) -> dict[str, Any]:
    try:
        value, interval, samples = observer.value(), observer.interval(), observer.samples()
        missing = observer.missing() if value is None else None
        numbers = [] if value is None else [value]
        numbers += [] if interval is None else [interval[0], interval[1]]
        numbers += [sample.value for sample in samples]
        odd = [number for number in numbers if not hasattr(number, "__float__")]
    except Exception as error:
        raise RunFailed(f"the metric {metric.name!r} raised {described(error)}") from error
    if odd:
        raise RunFailed(f"the metric {metric.name!r} gave {odd[0]!r}; allowed: numbers, or None")
    return {"value": value, "interval": interval, "samples": len(samples), "missing": missing}


# The run's own files, which metrics must not overwrite.
_OWN = (
    "result.json",
    "samples.csv",
    "events.mllog",
    "recipe.py",
    "model.py",
    "model.onnx",
    "origin.json",
    "environment.json",
    "dataset.json",
    "network.onnx",
    "weights.safetensors",
)


def _apart(name: str, metric: str, number: int, taken: Container[str]) -> str:
    """The name of a metric's file, made unique among the files of the recipe's metrics.

    Args:
        name: The name given by the metric.
        metric: The metric's name.
        number: The metric's index among the recipe's metrics of its name, from 1; from 2 on, the file name contains it.
        taken: Names of the run's own files and of written files; if the name is among them, the metric's name is added.

    >>> _apart("confusion.csv", "confusion_matrix", 1, ()), _apart("confusion.csv", "confusion_matrix", 2, ())
    ('confusion.csv', 'confusion-2.csv')
    >>> _apart("confusion.csv", "worst_class", 1, ("confusion.csv",))
    'confusion-worst_class.csv'
    """
    suffix = Path(name).suffix
    stem, tag = name.removesuffix(suffix), "" if number == 1 else f"-{number}"
    further = (f"-{metric}-{count}" for count in itertools.count(number + 1))
    names = (f"{stem}{mark}{suffix}" for mark in itertools.chain((tag, f"-{metric}{tag}"), further))
    return next(free for free in names if free not in taken)


def thread_pools() -> dict[str, int]:
    """Number of threads of every pool loaded in this process, as read back from it."""
    from threadpoolctl import threadpool_info

    return {
        f"{pool['internal_api']} ({Path(pool['filepath']).name})": pool["num_threads"] for pool in threadpool_info()
    }


def _scope(metric: Metric) -> str:
    """The clock scope stated in a metric's docstring, up to its next section or example."""
    text = " ".join((inspect.getdoc(type(metric)) or "").split())
    begin = next((at for words in ("On the clock:", "Nothing is on a clock") if (at := text.find(words)) >= 0), -1)
    if begin < 0:
        return "the metric does not say what is on the clock"
    ends = (text.find(after, begin) for after in (" Args:", " Attributes:", " Raises:", " References:", " >>> "))
    return text[begin : min((end for end in ends if end > 0), default=None)].strip()
