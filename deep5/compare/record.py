"""The folder of a running comparison; it exists from the start and is valid at every moment."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.compare.candidate import MODES, Plan
from deep5.compare.processes import Outcome
from deep5.compare.proof import ProofRow
from deep5.compare.resumption import refuse_another
from deep5.compare.settings_check import fault_of
from deep5.core.errors import OutputError
from deep5.measuring.pinning import processors
from deep5.measuring.statistics import STATED
from deep5.recipe.recipe import Recipe
from deep5.results.clock import Session, now
from deep5.results.comparison import (
    COMPARISON_VERSION,
    ComparisonResult,
    comparison_schema,
    load_comparison,
)
from deep5.results.comparison_summary import counted, results_of, verdicts_in
from deep5.results.comparison_warnings import warnings_in
from deep5.results.folder import locked, new_folder, remove_torn
from deep5.results.kind import COMPARISON
from deep5.results.origin import source_name
from deep5.results.round_samples import RoundSample, round_samples_text
from deep5.results.samples_file import SAMPLES
from deep5.results.validation import check_document, encode

__all__ = ["ComparisonRecord"]

_CLOCK = "time.perf_counter_ns"
_ORDERS = {
    1: "round by round: each candidate once per round in a fresh process, in a new random order",
    2: "round by round: each candidate once per round in a fresh process, in an order drawn for each round",
}
_QUICK_ORDER = "two rounds: each candidate once per round in a fresh process, the second round in reversed order"


class ComparisonRecord:
    """Creates the folder, marked aborted, and fills it until the comparison is over.

    Args:
        out: Parent of the folder.
        plan: The plan of the comparison.
        recipes: By candidate, the recipe that it runs.
        scope: Description of the timed work.
        resume: The folder of an interrupted comparison to resume in, instead of a new one.
        session: This process's part of the comparison; None: it begins now.

    Attributes:
        path: The folder.
        document: Content of comparison.json at the next write.
    """

    def __init__(
        self,
        out: Path,
        plan: Plan,
        recipes: Mapping[str, Recipe],
        scope: str,
        resume: Path | None = None,
        session: Session | None = None,
    ) -> None:
        from deep5.measuring.environment import describe_environment

        self._plan, self._recipes, self._session = plan, recipes, session or Session()
        recipe = recipes[plan.baseline]
        self._samples: list[RoundSample] = []
        self._batch_sizes: dict[tuple[str, str], int | None] = {}
        self.rounds = 0  # number of rounds that medians and verdicts refer to
        name = "".join(
            letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in recipe.name
        )
        run_id = f"{name}-compare-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self.path = out.absolute() / run_id
        environment = describe_environment()
        self.document: dict[str, Any] = {
            "schema_version": COMPARISON_VERSION,
            "run_id": run_id,
            "status": "aborted",
            "reasons": ["the comparison has not finished"],
            "warnings": [],
            "recipe": recipe.document(),
            "kind": plan.kind,
            "mode": plan.mode,
            "baseline": plan.baseline,
            "threads": plan.threads,
            "seed": plan.seed,
            "measurement": {
                "clock": _CLOCK,
                "scope": scope,
                "order": _ORDERS[plan.scheme.version]
                if plan.mode == MODES[True] or plan.scheme.pairs
                else _QUICK_ORDER,
                "most_processes": plan.most,
                "processors": processors(plan.threads),
                "time_limit_s": plan.time_limit_s,
                "memory_limit_bytes": plan.memory_limit_bytes,
                "proof_steps": plan.steps,
            },
            "candidates": [
                {
                    "label": candidate.label,
                    "framework": candidate.framework,
                    "settings": dict(candidate.settings),
                    "recipe": recipes[candidate.label].describe()["mutable"],
                    "status": "waiting",
                    "reason": None,
                    "failed_rounds": [],
                    "observed": None,
                    "peaks": None,
                    "memory_bytes": None,
                    "provenance": None,
                    "proved_on": None,
                    "left_out": [],
                }
                for candidate in plan.candidates
            ],
            "proof": {"steps": None, "smooth": None},
            "equivalence": [],
            "processes": [],
            "calibration": None,
            "statistics": {
                "scheme": plan.scheme.version,
                "looks": list(plan.scheme.looks),
                "confidence": STATED,
            },
            "workloads": [],
            "results": [],
            "verdicts": [],
            "system": {"before": environment.system, "after": None},
            "software": environment.software,
            "provenance": {
                "recipe_source": recipe.source_hash(),
                "environment": environment.hash,
            },
            "resources": None,
            "resumed": [],
            "started": self._session.begun,
            "finished": None,
        }
        if resume is not None:
            # Another process may have finished it since its folder was located.
            self._lock = locked(load_comparison(resume).folder)
            try:
                self._go_on(load_comparison(resume))
            except BaseException:
                self.close()
                raise
            return
        source = recipe.stored_source()
        name = source_name(None if recipe.in_place is None else recipe.in_place.text)
        new_folder(self.path, {**({} if source is None else {name: source}), **self._files()})
        self._lock = locked(self.path)

    def _go_on(self, left: ComparisonResult) -> None:
        """Take over the state of an interrupted comparison: its complete rounds count, and its proof runs again.

        Raises:
            UsageError: It is finished, or is another comparison than this one.
        """
        document, asked = left.document, encode(self.document)
        refuse_another(left, asked)
        self.path = left.folder.absolute()
        remove_torn(self.path)
        self.document = {**document, "reasons": ["the comparison has not finished"], "status": "aborted"}
        self.document.pop("files", None)  # of the earlier end
        self.document["resumed"] = [*document["resumed"], now()]
        if any((reported["software"].get("commit") or {}).get("dirty") for reported in (document, asked)):
            self.warn(
                "the comparison was resumed, and deep5's source has uncommitted changes: whether all rounds ran the "
                "same code is not known; remedy: commit them, and start a new comparison"
            )
        self.document["equivalence"], self.document["proof"] = [], {"steps": None, "smooth": None}
        for row in self.document["candidates"]:
            row["left_out"] = []
            if not row["failed_rounds"]:
                row["status"], row["reason"] = "waiting", None
        self._samples = left.samples()
        self._batch_sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
        self.rounds = max((row["processes"] for row in document["results"]), default=0)

    def close(self) -> None:
        """Release the lock, so that another process can write here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def spent_s(self) -> tuple[float, float]:
        """End of the last process, in seconds since the comparison began, and the total duration of all processes.

        Includes the processes of a calibration if the comparison made one and recorded it.
        """
        rows, reported = self.document["processes"], self.document["resources"]
        lived = sum(row["wall_s"] for row in rows)
        end = max((row["begin_s"] + row["wall_s"] for row in rows), default=0.0)
        return end, lived if reported is None else max(lived, reported["processes_s"])

    def is_whole(self, number: int, labels: Sequence[str]) -> bool:
        """Whether candidates have already run in a round, one after another and without an interruption."""
        ran: dict[str, int] = {}
        proofs = 0
        for row in self.document["processes"]:
            if row["job"] != "time":
                proofs += 1  # a resumed comparison proves it again
            elif row["round"] == number:
                ran[row["candidate"]] = proofs
        return len({ran.get(label) for label in labels}) == 1 and ran.keys() >= set(labels)

    def _candidate(self, label: str) -> dict[str, Any]:
        found: dict[str, Any] = next(row for row in self.document["candidates"] if row["label"] == label)
        return found

    def status(self, label: str) -> str:
        """State of a candidate so far: "waiting", "proved", "timed", "different" or "failed"."""
        return str(self._candidate(label)["status"])

    def reasons(self) -> list[str]:
        """Why candidates are not timed, one sentence each."""
        return [f"{row['label']}: {row['reason']}" for row in self.document["candidates"] if row["reason"]]

    def fail(self, label: str, status: str, reason: str, number: int | None = None) -> None:
        """Exclude a candidate that cannot be compared or failed in a round; the others continue."""
        row = self._candidate(label)
        row["status"], row["reason"] = status, reason
        if number is not None:
            row["failed_rounds"].append(number)

    def note_reference(self, answer: Mapping[str, Any]) -> None:
        """Record the length of the reference's trajectory, and whether all networks are smooth."""
        before = self.document["proof"]["smooth"]
        own = answer.get("smooth")
        smooth = own if before is None or own is None else before and own
        self.document["proof"] = {"steps": answer.get("steps"), "smooth": smooth}

    def prove(
        self, label: str, rows: Sequence[ProofRow], left_out: Sequence[str], provenance: Mapping[str, Any]
    ) -> None:
        """Record a candidate's proof: its rows, the parts left out, and hashes of its inputs."""
        self.document["equivalence"] += [row.reported() for row in rows]
        own = self._candidate(label)
        own["left_out"] += list(left_out)
        own["proved_on"] = dict(provenance)
        if own["status"] == "waiting":
            own["status"] = "timed" if own["observed"] is not None else "proved"

    def note_process(self, label: str, job: str, outcome: Outcome, number: int | None) -> None:
        """Record that a process ran, whatever its outcome."""
        self.document["processes"].append(
            {
                "candidate": label,
                "job": job,
                "round": number,
                "begin_s": outcome.begin_s,
                "wall_s": outcome.wall_s,
                "memory_bytes": outcome.memory_bytes,
                "reason": outcome.reason,
                "unsettled": [
                    own["workload"] for own in (outcome.answer or {}).get("workloads", ()) if not own["settled"]
                ],
                "set_up_s": None if outcome.answer is None else outcome.answer.get("set_up_s"),
                "machine": None if outcome.answer is None else outcome.answer.get("machine"),
            }
        )

    def note_times(self, label: str, number: int, answer: Mapping[str, Any]) -> None:
        """Store the measurements of a process: every sample, its reported settings, and its provenance."""
        row, process = self._candidate(label), len(self.document["processes"]) - 1
        fault = answer.get("reason") or fault_of(self._plan, self._recipes[label], row["proved_on"], answer)
        row["status"] = "timed"
        if fault is not None:
            # The measurements of a failed candidate are kept anyway.
            self.fail(label, "failed", fault, number)
        peaks = {
            key: value if value is not None and math.isfinite(value) else None for key, value in answer["peaks"].items()
        }
        if row["observed"] is None:
            row |= {"observed": answer["settings"], "provenance": answer["provenance"], "peaks": peaks}
        else:
            changed = [key for key, value in answer["settings"].items() if row["observed"].get(key) != value]
            if changed:
                self.warn(f"{label}: {', '.join(changed)} changed from one process to the next")
            for key, value in peaks.items():
                row["peaks"][key] = max(
                    filter(None, (row["peaks"][key], value)), default=None
                )  # the worst row, counting an error as the worst
        row["memory_bytes"] = max(row["memory_bytes"] or 0, self.document["processes"][process]["memory_bytes"])
        self.warn(*(f"{label}: {reported}" for reported in answer["warnings"]))
        for name, reason in answer.get("left_out", {}).items():
            if (reported := f"{name}: {reason}") not in row["left_out"]:
                row["left_out"].append(reported)
        proved = {(row["workload"], row["candidate"]) for row in self.document["equivalence"]}
        for own in answer["workloads"]:
            key = own["workload"], label
            if self._plan.kind == "operators" and key not in proved:
                reported = f"{own['workload']}: nothing of it could be compared with the reference"
                if reported not in row["left_out"]:
                    row["left_out"].append(reported)
                continue
            about = {name: own.get(name) for name in ("workload", "flops", "bytes")}
            if about not in self.document["workloads"]:
                self.document["workloads"].append(about)
            self._batch_sizes[key] = own["batch_size"]
            place = label, own["workload"], number, process
            self._samples.append(RoundSample(*place, "first", 0, own["first_call_s"], 1, 0.0))
            for index, (at, seconds, calls) in enumerate(own["samples"]):
                phase = "warm-up" if index < own["warm_up"] else "steady"
                self._samples.append(RoundSample(*place, phase, index, seconds, calls, at))

    def warn(self, *reported: str) -> None:
        """Add warnings on the uncertainty of the numbers, each once."""
        warnings = self.document["warnings"]
        warnings += [sentence for sentence in dict.fromkeys(reported) if sentence not in warnings]

    def judge(self, floors: Mapping[int, float], rounds: int) -> None:
        """Compute medians and verdicts from the samples of the first `rounds` rounds."""
        samples = [sample for sample in self._samples if sample.round < rounds]
        self.rounds = rounds
        self.document["results"] = results_of(counted(self.document, samples), self._batch_sizes)
        self.document["verdicts"] = verdicts_in(self.document, samples, floors, self._batch_sizes)

    def undecided(self) -> set[str]:
        """The candidates with a workload that is still undecided."""
        return {row["candidate"] for row in self.document["verdicts"] if row["word"] == "no difference shown"}

    def write(self) -> None:
        """Write the current state; each file appears complete or not at all."""
        from deep5.core.files import write_atomically

        files = self._files()
        with _writing(self.path):
            for name, text in files.items():
                write_atomically(self.path / name, text)

    def _files(self) -> dict[str, str]:
        """The current state, by file name, in the order in which the files are written."""
        encoded = encode(self.document)
        check_document(encoded, comparison_schema())
        return {
            SAMPLES: round_samples_text(self._samples),
            COMPARISON: json.dumps(encoded, indent=2, allow_nan=False) + "\n",
        }

    def finish(self, resources: Callable[[], Mapping[str, float]]) -> ComparisonResult:
        """Write the comparison as successful, and read it back.

        Args:
            resources: Returns its times, up to now.
        """
        self.warn(*warnings_in(self.document, self._samples))
        self._close("success", [], resources)
        return load_comparison(self.path)

    def end(self, status: str, reason: str, resources: Callable[[], Mapping[str, float]]) -> None:
        """Record a comparison that failed; arguments as for `finish`."""
        self._close(status, [reason], resources)

    def changed(self, label: str) -> list[str]:
        """Inputs of a candidate that differ between its rounds before an interruption and the proof after it."""
        row = self._candidate(label)
        before, now = row["provenance"] or {}, row["proved_on"]
        return sorted(key for key in before.keys() & now.keys() if before[key] != now[key])

    def lost(self) -> list[str]:
        """Candidates timed before an interruption that failed the proof after it, each with the reason.

        The failure may be temporary; if the comparison ends without these candidates, all their rounds are lost.
        """
        return [
            f"{row['label']}: {row['reason']}"
            for row in self.document["candidates"]
            if row["observed"] is not None and not row["failed_rounds"] and row["status"] != "timed"
        ]

    def measured(self) -> set[str]:
        """Candidates with valid times, whatever their state."""
        return {sample.candidate for sample in counted(self.document, self._samples)}

    def _close(self, status: str, reasons: list[str], resources: Callable[[], Mapping[str, float]]) -> None:
        from deep5.measuring.environment import describe_system

        self.document["system"]["after"] = describe_system()
        # The two clocks are read together.
        used, ended = dict(resources()), now()
        self.document |= {"status": status, "reasons": reasons, "resources": used, "finished": ended}
        begun = self.document["started"] if self.document["resumed"] else None
        self.warn(*self._session.clock_warnings(ended, begun, used["wall_s"]))
        text = round_samples_text(self._samples)
        self.document["files"] = {SAMPLES: hashlib.sha256(text.encode()).hexdigest()}
        self.write()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert errors of the file system to messages."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; allowed: a writable folder; remedy: --out"
        ) from error
