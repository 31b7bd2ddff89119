"""A study: a recipe with several settings and seeds, its runs compared in charts and a table."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.compare.candidate import content_hash
from deep5.compare.processes import NO_SPACE
from deep5.compare.studied import load_study
from deep5.core.canonical import canonical
from deep5.core.errors import Deep5Error, OutputError, RecipeError, RunFailed, UsageError
from deep5.core.files import is_folder, write_atomically
from deep5.core.progress import Steps, Tell, unreported
from deep5.core.quantities import percent
from deep5.core.seeds import generator
from deep5.core.terminal import counted
from deep5.engines.call import forget
from deep5.engines.carry_out import Arrived, arrived, carry_out
from deep5.engines.in_flight import InFlight
from deep5.engines.make import LOCAL, make_engine
from deep5.engines.request import Refused, RunRequest
from deep5.measuring.machine_load import CROWDED
from deep5.recipe.recipe import FULL
from deep5.results.declared import other_source
from deep5.results.folder import locked, new_folder, remove_torn, tidy, tidy_attempts
from deep5.results.kind import STUDY
from deep5.results.ran_optimizers import unequal_arguments
from deep5.results.result import Result, load
from deep5.results.study.folder import folder_of, left_of
from deep5.results.study.pictures import study_pictures
from deep5.results.study.record import RUNS, TIME, Study
from deep5.results.study.resumption import DIRTY, check_same, source_note
from deep5.results.sweep.record import settings_words
from deep5.results.time_to_target import Reached, Target, time_to_target
from deep5.study.declaration import Plan, declare

__all__ = ["run_study"]

_BESIDE = "other programs took up to"
_UNFINISHED = "the study is not finished"


def run_study(
    recipe: str | Path,
    varied: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    size: str = FULL,
    only: str | Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    common: Mapping[str, Any] | None = None,
    target: Target | None = None,
    time_limit_s: float = 3600.0,
    memory_limit_bytes: int | None = None,
    engine: str = LOCAL,
    workers: int = 1,
    out: str | Path = "results",
    resume: str | Path | None = None,
    tell: Tell | None = None,
) -> Study:
    """Run a recipe with each candidate's settings and each seed, and plot accuracy over epoch and loss over time.

    Each run is a process `deep5 run`, one at a time, pinned to as many processors as the candidate with the most
    threads has, so that times are comparable. A candidate that requests ranks has one process per rank, and they share
    the processors (`deep5.study.processors`); limits apply to all of them together. For each seed, all candidates run
    in a random order drawn from that seed, so that changes of the machine affect all candidates. A run that fails,
    crashes, loses a rank, or exceeds a limit is noted and counts as one that never reached the target; the other runs
    continue. With several workers, runs have the processors that they need, and the study states no times.

    Args:
        recipe: A registered name, the path of a Python file, or a model in place of a recipe.
        varied: By candidate, settings in JSON types, in place of the STUDY in the file.
        size: One of the recipe's sizes.
        only: Candidate names, or a string with commas between them; None: all.
        seeds: Seeds of weights, order, and noise; the same for each candidate.
        common: Settings of all candidates, such as the framework.
        target: Target of the runs; None: the one stated by the recipe's metrics, if any.
        time_limit_s: Time limit of one run.
        memory_limit_bytes: Memory limit of one run with all its ranks; None: nine tenths of the free memory.
        engine: Where runs are carried out: a name of the entry points `deep5.engines`, or NAME:OPTIONS.
        workers: Number of runs at the same time.
        out: Parent of the study's folder.
        resume: The folder of an interrupted study with the same declaration, to resume in. Completed and failed runs
            count; interrupted runs resume at their last checkpoints.
        tell: Called with a `ProgressLine` before each run.

    Raises:
        RecipeError: No such recipe, no candidates, or settings that cannot be passed to another process.
        UsageError: No candidate; no seed; settings that do not fit; a target that no metric evaluates; an invalid
            limit; a folder that cannot be written; or a folder to resume in that is finished or damaged, or belongs to
            another study, other limits, another recipe file, environment, or commit of deep5.
        OutputError: A disk is full; the study can resume.
    """
    plan = declare(
        recipe, varied, size, only, seeds, common or {}, target, time_limit_s, memory_limit_bytes, engine, workers
    )
    under_way = _UnderWay(plan, tell or unreported)
    # Before there is a folder: an engine that cannot be made leaves none.
    made = make_engine(engine, workers=workers, processors_each=plan.shares.most)
    try:
        if resume is None:
            under_way.begin(Path(out))
        else:
            under_way.go_on(Path(resume))
        done = under_way.run(made)
    except BaseException as error:
        made.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, Refused) and resume is None:
            under_way.remove_empty()
        raise
    made.shutdown()
    return done


class _UnderWay:
    """A running study: its completed runs, and those that are left."""

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._runs: dict[str, dict[int, Result]] = {name: {} for name in plan.settings}
        self._failures: dict[str, dict[int, str]] = {name: {} for name in plan.settings}
        self._notes: list[str] = list(plan.notes)
        self._resumed: list[str] = []

    def begin(self, out: Path) -> None:
        """Start in a new folder."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self._folder = out.absolute() / f"{self._plan.recipe.name}-study-{now}-{secrets.token_hex(3)}"
        # With its declaration from the start: it can be read and resumed whenever this process is killed.
        new_folder(self._folder, {STUDY: _text(self._study(_UNFINISHED))}, [RUNS])
        self._lock = locked(self._folder)

    def remove_empty(self) -> None:
        """Remove the folder if no run has ended: it has nothing that is worth resuming."""
        if not any((*self._runs[name], *self._failures[name]) for name in self._plan.settings):
            shutil.rmtree(self._folder, ignore_errors=True)

    def go_on(self, path: Path) -> None:
        """Resume in the folder of an interrupted study.

        Raises:
            UsageError: It belongs to another study, is finished or damaged, or is in use by another process.
        """
        folder = folder_of(path).absolute()
        if not is_folder(folder):
            raise UsageError(f"{folder} holds no {STUDY}; allowed: a folder that 'deep5 study' wrote")
        try:
            self._lock = locked(folder)  # first, because a folder that another process still writes must not be read
        except OSError as error:
            raise UsageError(
                f"cannot open {folder}: {error.strerror}; allowed: a folder that can be written"
            ) from error
        try:
            self._take_over(folder)
        except BaseException:
            os.close(self._lock)
            raise

    def _take_over(self, folder: Path) -> None:
        """Take over completed and failed runs."""
        self._folder = folder
        left, requested = left_of(folder), self._study().document()
        check_same(left, requested)
        remove_torn(folder)
        for own in (folder / RUNS).iterdir():
            tidy_attempts(own)
        for name in self._plan.settings:
            self._runs[name] |= left.runs[name]
            self._failures[name] |= left.failures[name]
        # Notes about deep5's version exist only here.
        notes = [note for note in left.document["notes"] if note.startswith(DIRTY)]
        self._notes = list(dict.fromkeys([*self._notes, *notes, *source_note(left, requested)]))
        self._resumed = [*left.document["resumed"], datetime.now(UTC).strftime(TIME)]

    def run(self, engine: Executor) -> Study:
        """Run everything that has not run yet; however the study ends, its folder records the completed runs."""
        plan = self._plan
        try:
            self._write(self._study(_UNFINISHED), {})
            self._carry_out(engine)
            runs = {name: [own[seed] for seed in sorted(own, key=plan.seeds.index)] for name, own in self._runs.items()}
            drawn, missing = study_pictures(
                plan.recipe.name, runs, len(plan.seeds), plan.target, notes=self._study().notes, timed=plan.timed
            )
            finished = self._study(*missing, finished=True)
            self._write(finished, drawn)
        except KeyboardInterrupt:
            self._write(self._study("the study was interrupted"), {})
            left = f"interrupted; what the study left is in {self._folder}"
            shorter = f"or: deep5 study --attach {self._folder}"
            raise KeyboardInterrupt(
                f"{left}; to resume, add --resume {self._folder} to the command, {shorter}"
            ) from None
        except OSError as error:
            raise OutputError(f"the study cannot continue: {error}; {_remedy(self._folder, error)}") from error
        finally:
            os.close(self._lock)
        return finished

    def _carry_out(self, engine: Executor) -> None:
        plan = self._plan
        waiting = [
            (name, seed)
            for seed in plan.seeds
            for name in (list(plan.settings)[at] for at in generator(seed, "study").permutation(len(plan.settings)))
            if seed not in self._runs[name] and seed not in self._failures[name]
        ]
        steps = Steps(len(waiting), self._tell)
        running = InFlight[tuple[str, int]](
            engine, carry_out, plan.time_limit_s, f"what the study left is in {self._folder}", steps.say
        )
        while waiting or running:
            while waiting and len(running) < plan.workers:
                name, seed = waiting.pop(0)
                steps.say(f"{name}, seed {seed}")
                running.start((name, seed), {"run": asdict(self._request(name, seed, shared=running.shared))})
            try:
                ended = running.ended()
            except OutputError as error:  # a full disk: it says nothing about the candidate
                raise OutputError(f"the study cannot continue: {error}; {_remedy(self._folder, None)}") from error
            for (name, seed), answer in ended:
                ran = arrived(answer, self._folder / RUNS, _key(name, seed))
                self._check_content(name, seed, ran.run)
                try:
                    self._runs[name][seed] = self._result(name, ran)
                except Deep5Error as error:
                    self._failures[name][seed] = str(error)
                steps.advance()
                self._write(self._study(_UNFINISHED), {})

    def _request(self, name: str, seed: int, *, shared: bool) -> RunRequest:
        plan = self._plan
        own: Mapping[str, Any] = {} if plan.varied is None else plan.settings[name]
        words = [plan.name_or_path] if plan.size == FULL else [plan.name_or_path, "--size", plan.size]
        words += ["--candidate", name] if plan.varied is None else []
        return RunRequest(
            key=_key(name, seed),
            arguments=[*words, *settings_words(canonical({**plan.common, **own, "seed": seed}, strict=False))],
            folder=str(self._folder / RUNS),
            threads=plan.shares.threads,
            processors=plan.shares.processors[name],
            time_limit_s=plan.time_limit_s,
            memory_limit_bytes=plan.memory_limit_bytes,
            timed=plan.timed,
            shared=shared,
        )

    def _check_content(self, name: str, seed: int, run: Path | None) -> None:
        """Refuse to continue if the recipe, or a file that it names, has changed, or had when the run began."""
        plan = self._plan
        recipe, candidates = load_study(plan.name_or_path, plan.size, plan.varied)
        now = recipe.with_settings({**plan.common, **candidates[name], "seed": seed})
        if content_hash(now) != plan.contents[name, seed] or other_source(run, plan.recipe.source_hash()):
            forget(self._folder / RUNS, _key(name, seed))
            raise RecipeError(
                f"{plan.recipe.name}, or a file that it names, has changed since the start of the study; what it left "
                f"is in {self._folder}; remedy: restore the file, then the same command with --resume {self._folder}"
            )

    def _result(self, name: str, ran: Arrived) -> Result:
        """The result of a run.

        Raises:
            Deep5Error: It failed, has another environment than the others, or does not contain its duration.
        """
        plan = self._plan
        # Files that a killed process left half-written.
        tidy(Path(ran.outcome.results) if ran.run is None else ran.run.parent)
        if ran.outcome.reason is not None or ran.run is None:
            raise RunFailed(ran.outcome.reason or "it left no result")
        result = load(ran.run, root=self._folder)
        if result.status != "success":
            raise RunFailed("; ".join(result.reasons) or f"its status is {result.status}")
        # Candidates whose times are not compared may have other numbers of processors, which belong to the environment.
        beside = self._runs.values() if plan.timed else [self._runs[name]]
        first = next((own for runs in beside for own in runs.values()), None)
        if first is not None:
            environments = [own.document["provenance"]["environment"] for own in (first, result)]
            hosts = [own.document["system"]["before"]["host"] for own in (first, result)]
            if environments[0] != environments[1] or (plan.timed and hosts[0] != hosts[1]):
                raise RunFailed(
                    f"it ran on {hosts[1]}, and the first run on {hosts[0]}, {_differ(environments)}; allowed: one "
                    "machine where times are compared, and equal ones otherwise; remedy: --engine slurm:nodelist=NAME"
                )
        if plan.target is not None:
            time_to_target(result, plan.target)
        return result

    def _study(self, *notes: str, finished: bool = False) -> Study:
        plan = self._plan
        order = plan.seeds.index
        shares = [
            own.document["resources"]["others_share"] or 0.0 for runs in self._runs.values() for own in runs.values()
        ]
        crowded = [share for share in shares if share >= CROWDED] if plan.timed else []
        beside = []
        if crowded:
            runs = counted(len(crowded), "run")
            beside = [f"{_BESIDE} {percent(max(crowded))} of the processors in {runs}; remedy: a quiet machine"]
        study = Study(
            folder=self._folder,
            recipe=plan.recipe.name,
            source=plan.name_or_path,
            hash=plan.fixed_hash,
            size=plan.recipe.size,
            provenance=plan.provenance(),
            seeds=plan.seeds,
            settings=plan.all_settings(),
            runs={name: [own[seed] for seed in sorted(own, key=order)] for name, own in self._runs.items()},
            failures={
                name: [f"seed {seed}: {own[seed]}" for seed in sorted(own, key=order)]
                for name, own in self._failures.items()
            },
            target=plan.target,
            reached={} if plan.target is None else {name: self._reached(name, plan.target) for name in plan.settings},
            finished=finished,
            resumed=self._resumed,
            time_limit_s=plan.time_limit_s,
            memory_limit_bytes=plan.memory_limit_bytes,
            engine=plan.engine,
            workers=plan.workers,
        )
        return replace(study, notes=(*self._notes, *beside, *unequal_arguments(study.optimizers), *notes))

    def _reached(self, name: str, target: Target) -> dict[int, Reached]:
        ran = {seed: time_to_target(result, target) for seed, result in self._runs[name].items()}
        ran |= {seed: Reached.never(f"failed: {why}") for seed, why in self._failures[name].items()}
        return {seed: ran[seed] for seed in self._plan.seeds if seed in ran}

    def _write(self, study: Study, drawn: Mapping[str, bytes]) -> None:
        try:
            for name, content in drawn.items():
                write_atomically(self._folder / name, content)
            write_atomically(self._folder / STUDY, _text(study))
        except OSError as error:
            raise OutputError(
                f"cannot write into {self._folder}: {error.strerror or error}; {_remedy(self._folder, error)}"
            ) from error


def _key(name: str, seed: int) -> str:
    """Name of a run's folder; different candidates have different ones."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9.=-]+', '_', name)[:40].lstrip('.')}-{digest}-seed{seed}"


def _differ(environments: Sequence[str]) -> str:
    return "with other hardware or software" if environments[0] != environments[1] else "of the same kind"


def _remedy(folder: Path, error: OSError | None) -> str:
    """What remains after an operating-system error, or None if a disk is full; and the remedy."""
    first = "free some space" if error is None or error.errno in NO_SPACE else "fix this"
    return f"what it left is in {folder}; remedy: {first}, then the same command with --resume {folder}"


def _text(study: Study) -> str:
    return json.dumps(study.document(), indent=2, allow_nan=False) + "\n"
