"""`run_comparison`: the four steps, one candidate process at a time; all results are stored as they come in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from deep5.compare.availability import check_able
from deep5.compare.candidate import Candidate, Plan
from deep5.compare.child import ARRAYS
from deep5.compare.options import given_options
from deep5.compare.plan import make_plan
from deep5.compare.processes import Outcome, run_process
from deep5.compare.proof import ProofRow, inference_rows, is_of_an_update, operator_rows, training_rows
from deep5.compare.record import ComparisonRecord
from deep5.compare.request import request_of
from deep5.compare.resumed import options_left
from deep5.core.errors import Deep5Error, OutputError, RunFailed, UsageError
from deep5.core.progress import Steps, Tell, unreported
from deep5.measuring.calibration import Calibration, calibrate, calibration_of_this_machine, kept_calibration, said_of
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.clock import Session
from deep5.results.comparison import ComparisonResult, load_comparison
from deep5.results.round_samples import order_of_round

if TYPE_CHECKING:
    import numpy as np

__all__ = ["run_comparison"]


def run_comparison(
    recipe: str,
    *,
    out: str | Path = "results",
    resume: str | Path | None = None,
    tell: Tell | None = None,
    **options: Any,
) -> ComparisonResult:
    """Prove that candidates compute the same, time them in turn, and evaluate the times.

    A comparison starts several processes per candidate. The example shows only a call that is refused before the
    first; with `frameworks=["reference", "onnxruntime"]` it runs.

    Args:
        recipe: A registered name, or the path of a Python file.
        out: Parent of the comparison's folder.
        resume: The folder of an interrupted comparison to resume in: its complete rounds count, and its proof runs
            again. Options that are not given keep their previous values.
        tell: Called with a line before each process; those of the timing are `ProgressLine`.
        options: By name; None means not given.

            - `frameworks`: List of names, modes included, such as `["pytorch", "pytorch:compiled"]`; default: the
              recipe's own.
            - `vary`: By mutable part of the recipe, a list of values: `{"optimizer": ["adam", "momentum"]}`. Each
              framework runs with each of their combinations.
            - `settings`: Mutable parts of all candidates, by key.
            - `size`: Size of the recipe, such as `"smoke"`; default: `"full"`.
            - `kind`: `"training"`, `"inference"` or `"operators"`; default: depends on the recipe.
            - `rigorous`: Ten to thirty processes per candidate instead of two.
            - `baseline`: Label of the candidate that the others are compared with; default: the first.
            - `threads`: Threads within an operator; default: the recipe's, or one per physical core.
            - `seed`: Seed of the order of the processes; default: random.
            - `steps`: Steps of the proof; default: 100.
            - `most`: Maximum number of processes per candidate in a rigorous comparison: 10, 16, 24 or 30.
            - `time_limit_s`: Time limit of one process, in seconds; default: 600.
            - `memory_limit_bytes`: Memory limit of one process; default: nine tenths of the free memory.

    Returns:
        The comparison: the proof, all times, and a verdict for each candidate.

    Raises:
        UsageError: An unknown option or one of the wrong type, or candidates that cannot be compared; nothing is left
            on disk.
        RunFailed: Fewer than two candidates could be timed; the folder is marked and readable.

    >>> import deep5 as d5
    >>> try:
    ...     result = d5.run_comparison("digits_lenet", frameworks=["reference"], size="smoke")
    ... except d5.UsageError as error:
    ...     print(str(error).partition("; remedy")[0])
    one candidate, reference; allowed: at least two
    """
    session = Session()
    options = given_options(options)
    if resume is not None:
        options = options_left(load_comparison(resume), options, load_recipe(recipe).name)
    plan, recipes = make_plan(recipe, **options)
    checked_s = check_able(plan, recipes)
    comparison = _Comparison(
        plan, recipes, Path(out), None if resume is None else Path(resume), tell or unreported, session
    )
    comparison.processes_s += checked_s
    return comparison.run()


class _Comparison:
    """A running comparison."""

    def __init__(
        self, plan: Plan, recipes: Mapping[str, Recipe], out: Path, resume: Path | None, tell: Tell, session: Session
    ) -> None:
        self.plan, self.recipes, self.tell, self.begin = plan, recipes, tell, session.begin_s
        self.folder = ComparisonRecord(out, plan, recipes, _scope(plan.kind), resume, session)
        # A resumed comparison continues its clock, without the time between its processes.
        before, self.processes_s = self.folder.spent_s()
        self.begin -= before
        self.floors: dict[int, float] = {}

    def run(self) -> ComparisonResult:
        """All four steps; however they end, the folder records it."""
        try:
            with tempfile.TemporaryDirectory(prefix="deep5-compare-") as scratch:
                self._calibrate()
                able = self._prove(Path(scratch))
                self._time(Path(scratch), able)
            return self._finish()
        except KeyboardInterrupt:
            self._end("aborted", "interrupted by the user")
            left = f"interrupted; what the comparison left is in {self.folder.path}"
            raise KeyboardInterrupt(f"{left}; to resume, add --resume {self.folder.path} to the command") from None
        except Deep5Error as error:
            self._end("failed", str(error))
            raise RunFailed(f"{error}; what the comparison left is in {self.folder.path}") from error
        except OSError as error:
            self._end("failed", str(error))
            raise OutputError(
                f"the comparison cannot continue: {error}; what it left is in {self.folder.path}"
            ) from error
        except BaseException as error:
            self._end("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            self.folder.close()

    def _calibrate(self) -> None:
        if self.folder.document["calibration"] is not None:
            # A resumed comparison keeps its calibration: decided candidates were decided with these noise floors.
            self.calibration = Calibration.of_document(self.folder.document["calibration"])
            return
        found = calibration_of_this_machine(self.plan.threads)
        if found is None:
            self.tell("this machine has no noise floor, or one older than a day: measuring it, in about a minute")
            begin, before = perf_counter(), kept_calibration(self.plan.threads)
            found = calibrate(self.plan.threads, tell=self.tell)
            for line in said_of(found, before):
                self.tell(line)
            self.processes_s += perf_counter() - begin
        self.folder.document["calibration"] = found.document()
        self.calibration = found

    def _run(self, candidate: Candidate, job: str, folder: Path, label: str | None = None, **more: Any) -> Outcome:
        outcome = run_process(
            request_of(self.plan, self.recipes[candidate.label], candidate, job, **more),
            folder,
            threads=self.plan.threads,
            time_limit_s=self.plan.time_limit_s,
            memory_limit_bytes=self.plan.memory_limit_bytes,
            origin=self.begin,
        )
        self.processes_s += outcome.wall_s
        self.folder.note_process(label or candidate.label, job, outcome, more.get("round"))
        return outcome

    # 1. Equivalence --------------------------------------------------------------------------------------------------

    def _prove(self, scratch: Path) -> list[Candidate]:
        """Compare each candidate with the reference of its group; returns those that may be timed."""
        groups: dict[str, list[Candidate]] = {}
        for candidate in self.plan.candidates:
            groups.setdefault(candidate.group, []).append(candidate)
        able = []
        for number, members in enumerate(groups.values()):
            folder = scratch / f"reference-{number}"
            self.tell(f"proof: the reference in float64{_of_group(members, len(groups))}")
            # Uses the first member's recipe, which the process converts to the reference's.
            reference = self._run(members[0], "reference", folder, label=f"reference in float64, {number}")
            answer = None if reference.reason is not None else reference.answer
            if answer is not None:
                self.folder.note_reference(answer)
            for place, candidate in enumerate(members):
                if answer is None:
                    self.folder.fail(candidate.label, "failed", f"of the reference, in float64: {reference.reason}")
                    continue
                self.tell(f"proof: {candidate.label}")
                own = scratch / f"proof-{number}-{place}"
                if self._is_proved(candidate, answer, folder, own):
                    able.append(candidate)
                shutil.rmtree(own)  # a trajectory's arrays are large, and later ones do not need them
            shutil.rmtree(folder)
        if lost := self.folder.lost():
            raise RunFailed(f"the comparison has rounds of candidates that were not proved again: {'; '.join(lost)}")
        self.folder.judge(self._floors(), self.folder.rounds)
        self.folder.write()
        return able

    def _is_proved(self, candidate: Candidate, answer: Mapping[str, Any], reference: Path, folder: Path) -> bool:
        """Whether a candidate may be timed; an invalid answer is reported as the candidate's failure."""
        outcome = self._run(candidate, "prove", folder, waypoints=str(reference / ARRAYS))
        if outcome.answer is None or outcome.reason is not None:
            self.folder.fail(candidate.label, "failed", str(outcome.reason))
            return False
        try:
            rows, left_out = self._rows(candidate, answer, outcome.answer, reference, folder)
        except Exception as error:  # a candidate may write anything, such as arrays of other shapes or an invalid file
            why = f"its results are not those of this network ({type(error).__name__}: {error})"
            self.folder.fail(candidate.label, "different", " ".join(why.split())[:500])
            return False
        self.folder.prove(candidate.label, rows, left_out, outcome.answer["provenance"])
        if changed := self.folder.changed(candidate.label):
            self.folder.fail(candidate.label, "different", f"its {', '.join(changed)} changed since it was timed")
            return False
        parts = {row.part for row in rows if row.passed}
        wrong = next((row for row in rows if not row.passed), None)
        reason: str | None
        if self.plan.kind == "operators":
            reason = None if parts else "none of its results equals the reference's"
        elif wrong is not None:
            reason = f"{wrong.what} is off by {wrong.relative:.2g}; allowed: {wrong.allowed:.2g} (part {wrong.part})"
        else:
            missing = {"training": {"b", "c"}, "inference": {"b"}}[self.plan.kind] - parts
            reason = f"nothing of part {', '.join(sorted(missing))} could be compared" if missing else None
            if self.plan.kind == "training" and reason is None and not any(map(is_of_an_update, rows)):
                reason = "no update of its optimizer, and no result of one, could be compared"
        if reason is None:
            return True
        if left_out and (wrong is None or self.plan.kind == "operators"):
            reason += f": {left_out[0]}"
        self.folder.fail(candidate.label, "different" if wrong else "failed", reason)
        return False

    def _rows(
        self, candidate: Candidate, answer: Mapping[str, Any], own: Mapping[str, Any], reference: Path, folder: Path
    ) -> tuple[list[ProofRow], list[str]]:
        """The rows of the proof, and the parts that the candidate could not take part in.

        Raises:
            UsageError: It had other data, weights or batches.
        """
        if different := [key for key, value in answer["provenance"].items() if own["provenance"].get(key) != value]:
            raise UsageError(f"its {', '.join(different)} are not those of the reference")
        right, found = _results_in(reference / ARRAYS), _results_in(folder / ARRAYS)
        left_out = own["left_out"]
        if isinstance(left_out, Mapping):
            left_out = [f"{name}: {reason}" for name, reason in left_out.items()]
        if self.plan.kind == "operators":
            return operator_rows(candidate.label, right, found, own["allowed"]), left_out
        if self.plan.kind == "inference":
            return inference_rows(candidate.label, right, found, itself=own["itself"]), left_out
        smooth, itself = answer["smooth"], own["itself"]
        rows, undecided = training_rows(candidate.label, right, found, smooth=smooth, itself=itself)
        return rows, [*left_out, *undecided]

    # 3. Timing -------------------------------------------------------------------------------------------------------

    def _time(self, scratch: Path, able: Sequence[Candidate]) -> None:
        # A candidate that failed in a round before an interruption stays failed.
        plan, active = self.plan, [c for c in able if self.folder.status(c.label) in ("proved", "timed")]
        # Of a rigorous comparison, later rounds may find nothing left to decide.
        steps = Steps(0, self.tell, at_most=len(plan.scheme.counts(plan.mode, plan.most)) > 1)
        for number in range(plan.most):
            # An interrupted round runs again: pairing does not cancel differences between two times of day.
            whole = self.folder.is_whole(number, [candidate.label for candidate in active])
            due = [] if whole or self._too_few(active) else active
            for turn, place in enumerate(self._order(number, len(due)), 1):
                candidate = due[place]
                steps.total = steps.done + len(due) - turn + 1 + (plan.most - number - 1) * len(active)
                steps.say(f"timing: round {number + 1}, {candidate.label}")
                outcome = self._run(candidate, "time", scratch / f"time-{number}-{place}", round=number)
                if outcome.answer is None or "workloads" not in outcome.answer:
                    self.folder.fail(candidate.label, "failed", str(outcome.reason), number)
                else:
                    self.folder.note_times(candidate.label, number, outcome.answer)
                steps.advance()
                last = turn == len(due)
                if last or self.folder.status(candidate.label) == "failed":
                    self.folder.judge(self._floors(), number + last)
                self.folder.write()  # in case of a kill later: medians and verdicts refer to complete rounds
            if not due:
                self.folder.judge(self._floors(), number + 1)
            active = [c for c in active if self.folder.status(c.label) == "timed"] if due else active
            if number + 1 in plan.scheme.looks:
                undecided = self.folder.undecided()
                active = [c for c in active if c.label == plan.baseline or c.label in undecided]
            if self._too_few(active):
                return

    def _too_few(self, active: Sequence[Candidate]) -> bool:
        return len(active) < 2 or all(candidate.label != self.plan.baseline for candidate in active)

    def _order(self, number: int, count: int) -> list[int]:
        plan = self.plan
        return order_of_round(plan.seed, number, count, reverses=plan.scheme.reverses(plan.mode))

    def _floors(self) -> dict[int, float]:
        """Noise floors by number of rounds."""
        counts = self.plan.scheme.counts(self.plan.mode, self.plan.most)
        if not self.floors:
            self.floors = {rounds: self.calibration.floor(rounds) for rounds in counts}
        return self.floors

    # 4. Verdict ------------------------------------------------------------------------------------------------------

    def _finish(self) -> ComparisonResult:
        self.folder.judge(self._floors(), self.plan.most)
        # A baseline that failed after some rounds is still the reference of the others in the earlier rounds.
        measured = self.folder.measured()
        if self.plan.baseline not in measured or len(measured) < 2:
            reasons = self.folder.reasons()
            raise RunFailed(f"there is nothing to compare: {'; '.join(reasons) or 'no candidate was timed'}")
        return self.folder.finish(self._resources)

    def _resources(self) -> dict[str, float]:
        wall = perf_counter() - self.begin
        return {
            "wall_s": wall,
            "processes_s": self.processes_s,
            "harness_s": wall - self.processes_s,
            "harness_share": (wall - self.processes_s) / wall,
        }

    def _end(self, status: str, reason: str) -> None:
        """Record the reason; an error here must not hide the original one."""
        if self.folder.document["calibration"] is not None:
            with suppress(Exception):
                self.folder.judge(self._floors(), self.folder.rounds)
        with suppress(Exception):
            self.folder.end(status, reason, self._resources)


def _results_in(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a job without the states that another job starts from, which are by far the largest."""
    from safetensors import safe_open

    if not path.exists():
        return {}
    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) for name in names if not name.startswith(("executor/", "optimizer/"))}


def _of_group(members: Sequence[Candidate], groups: int) -> str:
    if groups == 1:
        return ""
    return f" for {'; '.join(member.label for member in members)}"


def _scope(kind: str) -> str:
    from deep5.compare import inference, operators, training

    return {"training": training.SCOPE, "inference": inference.SCOPE, "operators": operators.SCOPE}[kind]
