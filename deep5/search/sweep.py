"""`run_sweep`: a search over a recipe's mutable parts; its folder determines what comes next."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.compare.candidate import content_hash
from deep5.compare.processes import NO_SPACE
from deep5.core.errors import Deep5Error, OutputError, RecipeError, RunFailed, UsageError, brief
from deep5.core.files import is_folder, write_atomically
from deep5.core.progress import Steps, Tell, unreported
from deep5.engines.call import forget, unpack
from deep5.engines.in_flight import InFlight
from deep5.engines.make import LOCAL, make_engine
from deep5.engines.request import Refused, RunRequest
from deep5.recipe.recipe import FULL, load_recipe
from deep5.results.declared import other_source
from deep5.results.folder import locked, new_folder, remove_torn, tidy_attempts
from deep5.results.kind import SWEEP
from deep5.results.study.record import TIME
from deep5.results.sweep.log import TRIALS, TrialLog
from deep5.results.sweep.record import RUNS, Sweep, load_sweep, settings_words
from deep5.results.sweep.trial import FAILED, FINISHED, Trial
from deep5.search.declaration import UNFINISHED, Declaration, declare
from deep5.search.pruners import NONE
from deep5.search.trial_run import TrialRequest, run_trial

__all__ = ["run_sweep"]

# If so many trials fail and none has ended well, the others would fail, too.
_HOPELESS = 5
_SAME = (
    "recipe", "size", "space", "settings", "goal", "sampler", "pruner", "seed", "parallel", "time_limit_s",
    "memory_limit_bytes",
)  # fmt: skip


def run_sweep(
    recipe: str | Path,
    space: Mapping[str, str],
    *,
    goal: str,
    trials: int | None = None,
    sampler: str = "tpe",
    pruner: str = "none",
    size: str = FULL,
    seed: int = 0,
    common: Mapping[str, Any] | None = None,
    validation: float | None = None,
    engine: str = LOCAL,
    workers: int = 1,
    parallel: int | None = None,
    time_limit_s: float = 3600.0,
    memory_limit_bytes: int | None = None,
    out: str | Path = "results",
    resume: str | Path | None = None,
    tell: Tell | None = None,
) -> Sweep:
    """Search for the settings of a recipe's mutable parts that are best by one of its metrics.

    Each trial is a process `deep5 run`, pinned to processors that no other trial has. A trial is proposed from the
    seed, its number, and the outcomes of earlier trials that the sampler names: a sweep that is killed and resumed, or
    runs with another number of workers, proposes the same settings. A trial that fails, diverges or exceeds a limit
    counts as worse than the others.

    Args:
        recipe: A registered name, the path of a Python file, or a model in place of a recipe.
        space: By setting, its range or choices, as `deep5.search.space.parse_parameter` reads them.
        goal: Name or label of one of the recipe's metrics; `validation_…` for `test_…` of held-out samples.
        trials: Number of trials; None: all combinations of a grid.
        sampler: "random", "tpe", "cmaes", "evolution", "swarm", "grid" or "qmc".
        pruner: "none", "median", "hyperband" or "asha".
        size: One of the recipe's sizes.
        seed: Seed of the search; that of the runs is the recipe's.
        common: Settings of all trials.
        validation: Fraction of the training samples to hold out, by which settings are chosen; 0: test samples choose,
            and the result says so; None: the recipe's, or a tenth.
        engine: Where trials run: a name of the entry points `deep5.engines`, or NAME:OPTIONS.
        workers: Number of trials that run at the same time, on disjoint processors.
        parallel: Number of trials that a sampler allows to run at the same time; None: `workers`. A part of the
            declaration: with the same number, any number of workers gives the same trials.
        time_limit_s: Time limit of one run.
        memory_limit_bytes: Memory limit of one run; None: nine tenths of the free memory of its machine, which local
            workers share.
        out: Parent of the sweep's folder.
        resume: The folder of an interrupted sweep with the same declaration, to resume in; it may have more trials.
        tell: Called with a `ProgressLine` before each trial.

    Raises:
        RecipeError: No such recipe, or settings that cannot be passed to another process.
        UsageError: A space that names a fixed part or cannot be read, no such metric, a pruner without a curve, a limit
            out of range, too few processors, or a folder to resume in that belongs to another sweep.
        RunFailed: The first trials all failed.
        OutputError: A disk is full; the sweep can resume.
    """
    plan = declare(
        recipe, space, goal, trials, sampler, pruner, size, seed, common or {}, validation, workers, parallel,
        time_limit_s, memory_limit_bytes,
    )  # fmt: skip
    plan.document.update(engine=engine, workers=workers)
    under_way = _UnderWay(plan, tell or unreported)
    # Before there is a folder: an engine that cannot be made leaves none.
    made = make_engine(engine, workers=workers, processors_each=plan.processors)
    try:
        if resume is None:
            under_way.begin(Path(out))
        else:
            under_way.go_on(Path(resume))
        done = under_way.run(made, workers)
    except BaseException as error:
        made.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, Refused) and resume is None:
            under_way.remove_empty()
        raise
    made.shutdown()
    return done


def _refuse_difference(folder: Path, what: str, stored: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Refuse another space, or other settings, by the first key that differs."""
    for key in dict.fromkeys((*stored, *requested)):
        then, now = (brief(own[key]) if key in own else "nothing" for own in (stored, requested))
        if then != now:
            raise UsageError(
                f"the sweep in {folder} has {key} in its {what}: {then}; got {now}; allowed: the same command with "
                "--resume"
            )


def _key(number: int) -> str:
    """Name of a trial's run."""
    return f"{number:05d}"


class _UnderWay:
    """A running sweep."""

    def __init__(self, plan: Declaration, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._trials: list[Trial] = []

    def begin(self, out: Path) -> None:
        """Start in a new folder."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = self._plan.recipe.name
        self._folder = out.absolute() / f"{name}-sweep-{now}-{secrets.token_hex(3)}"
        # With its declaration from the start: it can be read and resumed whenever this process is killed.
        new_folder(self._folder, {SWEEP: self._text(), TRIALS: ""}, [RUNS])
        self._lock = locked(self._folder)

    def remove_empty(self) -> None:
        """Remove the folder if no trial has ended: it has nothing that is worth resuming."""
        if not self._ended():
            shutil.rmtree(self._folder, ignore_errors=True)

    def go_on(self, path: Path) -> None:
        """Resume in the folder of an interrupted sweep, or of a finished one with fewer trials.

        Raises:
            UsageError: It belongs to another sweep, is damaged, or is in use by another process.
        """
        path = path.parent if path.name == SWEEP else path
        if not is_folder(path):
            raise UsageError(f"{path} holds no {SWEEP}; allowed: a folder that 'deep5 sweep' wrote")
        try:
            self._lock = locked(path.absolute())  # first: what another process still writes must not be read
        except OSError as error:
            raise UsageError(f"cannot open {path}: {error.strerror}; allowed: a folder that can be written") from error
        try:
            self._take_over(path)
        except BaseException:
            os.close(self._lock)
            raise

    def _take_over(self, path: Path) -> None:
        left = load_sweep(path)
        self._folder = left.folder
        declared, document = left.document, self._plan.document
        for key in _SAME:
            if declared.get(key) != document[key]:
                if key in ("space", "settings"):
                    _refuse_difference(left.folder, key, declared[key], document[key])
                remedy = f"; remedy: --parallel {declared[key]}" if key == "parallel" else ""
                raise UsageError(
                    f"the sweep in {left.folder} has {key}: {brief(declared.get(key))}; got {brief(document[key])}; "
                    f"allowed: the same command with --resume{remedy}"
                )
        for key, what in (("contents", "recipe files"), ("environment", "hardware or software")):
            if declared["provenance"].get(key) != document["provenance"][key]:
                raise UsageError(
                    f"the sweep in {left.folder} was started with other {what}; allowed: the same ones; remedy: a new "
                    "sweep, without --resume"
                )
        commits = [(own["provenance"].get("commit") or {}).get("id") for own in (declared, document)]
        if commits[0] != commits[1]:
            raise UsageError(
                f"the sweep in {left.folder} was started by deep5's commit {commits[0]}; got {commits[1]}; allowed: "
                "the same one; remedy: that commit, or a new sweep"
            )
        if document["trials"] < len(left.trials):
            raise UsageError(
                f"the sweep in {left.folder} has {len(left.trials)} trials; got {document['trials']}; allowed: as many "
                "or more"
            )
        for trial in left.trials:
            try:
                self._plan.space.check(trial.settings)
            except UsageError as error:
                raise UsageError(f"{left.folder / TRIALS}: the trial {trial.number}: {error}; it is damaged") from error
        self._trials = list(left.trials)
        document["started"] = declared.get("started")
        document["resumed"] = [*declared["resumed"], datetime.now(UTC).strftime(TIME)]
        remove_torn(left.folder)
        for own in (left.folder / RUNS).iterdir():
            tidy_attempts(own)

    def run(self, engine: Executor, workers: int) -> Sweep:
        """Run all trials that have not ended; however the sweep ends, its folder records them."""
        plan = self._plan
        try:
            self._write()
            self._log = TrialLog(self._folder)
            self._carry_out(engine, workers)
            plan.document["finished"] = True
            plan.document["notes"].remove(UNFINISHED)
            self._write()
            return self._sweep()
        except KeyboardInterrupt:
            with suppress(Deep5Error):
                self._write()
            left = f"interrupted; what the sweep left is in {self._folder}"
            shorter = f"or: deep5 sweep --attach {self._folder}"
            raise KeyboardInterrupt(
                f"{left}; to resume, add --resume {self._folder} to the command, {shorter}"
            ) from None
        except OutputError as error:
            raise OutputError(f"the sweep cannot continue: {error}; {self._remedy(None)}") from error
        except OSError as error:
            raise OutputError(f"the sweep cannot continue: {error}; {self._remedy(error)}") from error
        finally:
            os.close(self._lock)

    def _carry_out(self, engine: Executor, workers: int) -> None:
        """Propose trials in order, each as soon as a worker is free and the trials that it depends on have ended."""
        count = self._plan.document["trials"]
        ended = sum(trial.state is not None for trial in self._trials)
        steps = Steps(count - ended, self._tell)
        # Those that an interruption left, first.
        waiting = [trial for trial in self._trials if trial.state is None]
        limit_s = float(self._plan.document["time_limit_s"])
        left = f"what the sweep left is in {self._folder}"
        running = InFlight[int](engine, run_trial, limit_s, left, steps.say)
        while waiting or running or len(self._trials) < count:
            while len(running) < workers:
                if waiting:
                    trial = waiting.pop(0)
                elif len(self._trials) < count and self._ended() >= self._required(len(self._trials)):
                    trial = self._propose()
                else:
                    break
                steps.say(f"trial {trial.number}")
                running.start(trial.number, asdict(self._request(trial, shared=running.shared)))
            for number, answer in running.ended():
                trial = self._arrived(answer)
                self._check_content(trial)
                self._trials[number] = trial
                self._log.end(trial)
                steps.advance()
                self._check_hope()

    def _arrived(self, answer: Mapping[str, Any]) -> Trial:
        """The trial in an answer; its run is in the folder of the sweep."""
        trial = Trial.of(answer["trial"])
        others = {own.host for own in self._trials if own.state == FINISHED}
        if self._plan.timed and trial.state == FINISHED and others and trial.host not in others:
            where = f"it ran on {trial.host}, the others on {', '.join(sorted(others))}; allowed: times of one machine"
            trial = replace(trial, state=FAILED, value=None, reason=f"{where}; remedy: --engine slurm:nodelist=NAME")
        if answer["archive"] is None:
            return trial
        number = unpack(answer["archive"], self._folder / RUNS, _key(trial.number))
        run = None if trial.run is None else f"{RUNS}/{_key(trial.number)}/{number}/{Path(trial.run).name}"
        return replace(trial, run=run, attempts=number)

    def _required(self, number: int) -> int:
        """Number of trials, from the first on, that must have ended before a trial starts."""
        pruned = self._plan.document["pruner"] != NONE
        return max(self._plan.sampler.required(number), self._known(number) if pruned else 0)

    def _known(self, number: int) -> int:
        """Number of trials, from the first on, that the pruner compares a trial with."""
        return max(0, number - int(self._plan.document["parallel"]) + 1)

    def _ended(self) -> int:
        """Number of trials that have ended, from the first on."""
        return next((own.number for own in self._trials if own.state is None), len(self._trials))

    def _propose(self) -> Trial:
        number = len(self._trials)
        # As it is read from the folder.
        settings = json.loads(json.dumps(self._plan.sampler.propose(number, self._trials)))
        trial = Trial(number=number, settings=settings)
        self._log.propose(trial)
        self._trials.append(trial)
        return trial

    def _request(self, trial: Trial, *, shared: bool) -> TrialRequest:
        plan, document = self._plan, self._plan.document
        size = [] if document["size"] == FULL else ["--size", document["size"]]
        words = [plan.name_or_path, *size, *settings_words({**document["settings"], **trial.settings})]
        run = RunRequest(
            key=_key(trial.number),
            arguments=[*words, "--follow", document["goal"]["metric"]],
            folder=str(self._folder / RUNS),
            threads=plan.threads,
            processors=plan.processors,
            time_limit_s=document["time_limit_s"],
            memory_limit_bytes=document["memory_limit_bytes"],
            timed=plan.timed,
            shared=shared,
        )
        return TrialRequest(
            number=trial.number,
            settings=trial.settings,
            run=asdict(run),
            earlier=[] if document["pruner"] == NONE else [own.document() for own in self._trials[: trial.number]],
            space=document["space"],
            goal=document["goal"]["metric"],
            direction=document["goal"]["direction"],
            pruner=document["pruner"],
            known=self._known(trial.number),
            epochs=plan.epochs,
        )

    def _check_content(self, trial: Trial) -> None:
        """Refuse to continue if the recipe, or a file that it names, has changed, or had when the run began."""
        plan = self._plan
        now = load_recipe(plan.name_or_path).at_size(plan.document["size"]).with_settings(plan.document["settings"])
        run = None if trial.run is None else self._folder / trial.run
        if content_hash(now) != plan.content or other_source(run, plan.recipe.source_hash()):
            forget(self._folder / RUNS, _key(trial.number))
            raise RecipeError(
                f"{plan.recipe.name}, or a file that it names, has changed since the start of the sweep; what it left "
                f"is in {self._folder}; remedy: restore the file, then the same command with --resume {self._folder}"
            )

    def _check_hope(self) -> None:
        failed = [trial for trial in self._trials if trial.state == FAILED]
        if len(failed) >= _HOPELESS and not any(trial.state not in (None, FAILED) for trial in self._trials):
            raise RunFailed(
                f"the first {len(failed)} trials of {self._folder} failed; the first because {failed[0].reason}; "
                "remedy: correct the space or the settings, and start a new sweep"
            )

    def _sweep(self) -> Sweep:
        return Sweep(folder=self._folder, document=self._plan.document, trials=self._trials)

    def _text(self) -> str:
        document = self._plan.document if not hasattr(self, "_folder") else self._sweep().full_document()
        return json.dumps(document, indent=2, allow_nan=False) + "\n"

    def _write(self) -> None:
        try:
            write_atomically(self._folder / SWEEP, self._text())
        except OSError as error:
            raise OutputError(f"cannot write into {self._folder}: {error.strerror or error}") from error

    def _remedy(self, error: OSError | None) -> str:
        first = "free some space" if error is None or error.errno in NO_SPACE else "fix this"
        return f"what it left is in {self._folder}; remedy: {first}, then the same command with --resume {self._folder}"
