"""A study: a recipe with several settings and seeds, its runs compared in charts and a table."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.compare.candidate import check_plain, content_hash
from deep5.compare.processes import NO_SPACE, check_limits, run_process
from deep5.compare.studied import chosen, load_study, target_of
from deep5.core.canonical import canonical, canonical_hash
from deep5.core.errors import Deep5Error, OutputError, RunFailed, UsageError
from deep5.core.files import is_folder
from deep5.core.progress import Steps, Tell, unreported
from deep5.core.quantities import percent
from deep5.core.seeds import generator
from deep5.core.terminal import counted
from deep5.measuring.environment import describe_software, environment_hash
from deep5.measuring.machine_load import CROWDED
from deep5.recipe.recipe import FULL, Recipe
from deep5.recipe.register import check_reachable
from deep5.results.folder import locked, new_folder, remove_torn, tidy
from deep5.results.kind import STUDY
from deep5.results.ran_optimizers import unequal_arguments
from deep5.results.result import Result, load
from deep5.results.study.folder import folder_of, left_of
from deep5.results.study.pictures import study_pictures
from deep5.results.study.record import RUNS, TIME, Study
from deep5.results.study.resumption import DIRTY, check_same, source_note
from deep5.results.time_to_target import Reached, Target, time_to_target
from deep5.study.processors import Shares, share_processors

__all__ = ["run_study"]

_BESIDE = "other programs took up to"


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A study as declared; `contents` holds a hash of the content of each candidate and seed.

    Runs with other contents, or from another environment (machine and software) or commit of deep5, do not belong to
    the same study. `memory_bytes` is the effective memory limit, also if none was requested.
    """

    recipe: Recipe
    name_or_path: str
    size: str
    varied: Mapping[str, Mapping[str, Any]] | None
    settings: Mapping[str, Mapping[str, Any]]
    common: Mapping[str, Any]
    seeds: Sequence[int]
    target: Target | None
    notes: Sequence[str]
    contents: Mapping[tuple[str, int], str]
    fixed_hash: str
    environment: str
    commit: Mapping[str, Any] | None
    shares: Shares
    time_limit_s: float
    memory_limit_bytes: int | None
    memory_bytes: int

    def all_settings(self) -> dict[str, Any]:
        """By candidate, all its settings, in JSON types."""
        return {name: canonical({**self.common, **own}, strict=False) for name, own in self.settings.items()}

    def provenance(self) -> dict[str, Any]:
        """Hashes of the runs' contents and of their environment; the commit of deep5 in a checkout."""
        contents = canonical_hash([self.contents[key] for key in sorted(self.contents)])
        return {"contents": contents, "environment": self.environment, "commit": self.commit}


def run_study(
    recipe: str | Path,
    varied: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    size: str = FULL,
    only: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    common: Mapping[str, Any] | None = None,
    target: Target | None = None,
    time_limit_s: float = 3600.0,
    memory_limit_bytes: int | None = None,
    out: str | Path = "results",
    resume: str | Path | None = None,
    tell: Tell | None = None,
) -> Study:
    """Run a recipe with each candidate's settings and each seed, and plot accuracy over epoch and loss over time.

    Each run has a fresh process, one at a time, pinned to as many processors as the candidate with the most threads
    has, so that times are comparable. A candidate that requests ranks has one process per rank, and they share the
    processors (`deep5.study.processors`); limits apply to all of them together. For each seed, all candidates run in a
    random order drawn from that seed, so that changes of the machine affect all candidates. A run that fails, crashes,
    loses a rank, or exceeds a limit is noted and counts as one that never reached the target; the other runs continue.

    Args:
        recipe: A registered name, the path of a Python file, or a model in place of a recipe.
        varied: By candidate, settings in JSON types, in place of the STUDY in the file.
        size: One of the recipe's sizes.
        only: Candidate names separated by commas; None: all.
        seeds: Seeds of weights, order, and noise; the same for each candidate.
        common: Settings of all candidates, such as the framework.
        target: Target of the runs; None: the one stated by the recipe's metrics, if any.
        time_limit_s: Time limit of one run.
        memory_limit_bytes: Memory limit of one run with all its ranks; None: nine tenths of the free memory.
        out: Parent of the study's folder.
        resume: The folder of an interrupted study with the same declaration, to resume in. Completed and failed runs
            count; the interrupted run starts again.
        tell: Called with a `ProgressLine` before each run.

    Raises:
        RecipeError: No such recipe, no candidates, or settings that cannot be passed to another process.
        UsageError: No candidate; no seed; settings that do not fit; a target that no metric evaluates; an invalid
            limit; a folder that cannot be written; or a folder to resume in that is finished or damaged, or belongs to
            another study, other limits, another recipe file, environment, or commit of deep5.
    """
    plan = _plan(recipe, varied, size, only, seeds, common or {}, target, time_limit_s, memory_limit_bytes)
    under_way = _UnderWay(plan, tell or unreported)
    if resume is None:
        under_way.begin(Path(out))
    else:
        under_way.go_on(Path(resume))
    return under_way.run()


def _plan(
    name_or_path: str | Path,
    varied: Mapping[str, Mapping[str, Any]] | None,
    size: str,
    only: str | None,
    seeds: Sequence[int],
    common: Mapping[str, Any],
    asked: Target | None,
    time_limit_s: float,
    memory_limit_bytes: int | None,
) -> _Plan:
    """Check everything that can be checked before a process is started."""
    recipe, candidates = load_study(name_or_path, size, varied)
    settings = chosen(candidates, only)
    if not settings or not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"a study of {list(settings)} with the seeds {list(seeds)}; allowed: at least one each, once")
    for name, own in settings.items():
        if both := sorted(set(own) & set(common)):
            raise UsageError(f"{both[0]!r} is set for all and by the candidate {name!r}; allowed: one of them")
    check_plain([varied or {}, common], "the settings")
    memory_bytes = check_limits(time_limit_s, memory_limit_bytes)
    made = {
        (name, seed): recipe.with_settings({**common, **own, "seed": seed})
        for name, own in settings.items()
        for seed in seeds
    }
    for each in made.values():
        check_reachable(each)
    contents = {key: content_hash(own) for key, own in made.items()}  # contents that cannot be hashed are rejected
    shares = share_processors({name: made[name, seeds[0]] for name in settings})
    target, reported = target_of(recipe, asked)
    software = describe_software()
    return _Plan(
        recipe=recipe,
        name_or_path=recipe.name if name_or_path == recipe.name else str(Path(name_or_path).resolve()),
        size=size,
        varied=varied,
        settings=settings,
        common=common,
        seeds=seeds,
        target=target,
        notes=[*reported, *shares.notes],
        contents=contents,
        # Arguments of a model in place of a recipe are common settings.
        fixed_hash=recipe.with_settings(common).fixed_hash(),
        environment=environment_hash(software=software),
        commit=software["commit"],
        shares=shares,
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        memory_bytes=memory_bytes,
    )


class _UnderWay:
    """A running study: its completed runs, and those that are left."""

    def __init__(self, plan: _Plan, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._runs: dict[str, dict[int, Result]] = {name: {} for name in plan.settings}
        self._failures: dict[str, dict[int, str]] = {name: {} for name in plan.settings}
        self._crowded: list[float] = []
        self._notes: list[str] = list(plan.notes)
        self._resumed: list[str] = []

    def begin(self, out: Path) -> None:
        """Start in a new folder."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self._folder = out.absolute() / f"{self._plan.recipe.name}-study-{now}-{secrets.token_hex(3)}"
        # With its declaration from the start: it can be read and resumed whenever this process is killed.
        new_folder(self._folder, {STUDY: _text(self._study("the study is not finished"))}, [RUNS])
        self._lock = locked(self._folder)

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
        left, asked = left_of(folder), self._study().document()
        check_same(left, asked)
        remove_torn(folder)
        tidy(folder / RUNS)
        for name in self._plan.settings:
            self._runs[name] |= left.runs[name]
            self._failures[name] |= left.failures[name]
        # Notes about other load during these runs, and about their version of deep5, exist only here.
        notes = [note for note in left.document["notes"] if note.startswith((_BESIDE, DIRTY))]
        self._notes = list(dict.fromkeys([*self._notes, *notes, *source_note(left, asked)]))
        self._resumed = [*left.document["resumed"], datetime.now(UTC).strftime(TIME)]

    def run(self) -> Study:
        """Run everything that has not run yet; however the study ends, its folder records the completed runs."""
        plan = self._plan
        try:
            self._write(self._study("the study is not finished"), {})
            steps = Steps(len(plan.seeds) * len(plan.settings) - self._count(), self._tell)
            for seed in plan.seeds:
                order = generator(seed, "study").permutation(len(plan.settings))
                for name in (list(plan.settings)[place] for place in order):
                    if seed in self._runs[name] or seed in self._failures[name]:
                        continue
                    steps.say(f"{name}, seed {seed}")
                    try:
                        self._runs[name][seed] = self._one(name, seed)
                    except OutputError as error:  # a full disk: it says nothing about the candidate
                        raise OutputError(
                            f"the study cannot continue: {error}; what it left is in {self._folder}"
                        ) from error
                    except Deep5Error as error:
                        self._failures[name][seed] = str(error)
                    steps.advance()
                    self._write(self._study("the study is not finished"), {})
            runs = {name: [own[seed] for seed in sorted(own, key=plan.seeds.index)] for name, own in self._runs.items()}
            drawn, missing = study_pictures(
                plan.recipe.name, runs, len(plan.seeds), plan.target, notes=self._study().notes
            )
            finished = self._study(*missing, finished=True)
            self._write(finished, drawn)
        except KeyboardInterrupt:
            self._write(self._study("the study was interrupted"), {})
            left = f"interrupted; what the study left is in {self._folder}"
            raise KeyboardInterrupt(f"{left}; to resume, add --resume {self._folder} to the command") from None
        except OSError as error:
            raise OutputError(f"the study cannot continue: {error}; {_remedy(self._folder, error)}") from error
        finally:
            os.close(self._lock)
        return finished

    def _count(self) -> int:
        """Number of runs that have finished or failed."""
        return sum(len(own) for runs in (self._runs, self._failures) for own in runs.values())

    def _one(self, name: str, seed: int) -> Result:
        """One run, in a separate process.

        Raises:
            Deep5Error: It failed, or its result does not contain its duration.
        """
        plan = self._plan
        request = {
            "kind": "study",
            "job": "run",
            "recipe": plan.name_or_path,
            "size": plan.size,
            "varied": plan.varied,
            "candidate": name,
            "settings": {**plan.common, "seed": seed},
            "content": plan.contents[name, seed],
            "out": str(self._folder / RUNS),
        }
        with tempfile.TemporaryDirectory(prefix="deep5-study-") as scratch:
            outcome = run_process(
                request,
                Path(scratch),
                threads=plan.shares.threads,
                pinned=plan.shares.processors,
                time_limit_s=plan.time_limit_s,
                memory_limit_bytes=plan.memory_bytes,
            )
        if outcome.answer is None or outcome.reason is not None:
            tidy(self._folder / RUNS)
            raise RunFailed(str(outcome.reason))
        result = load(self._folder / RUNS / Path(outcome.answer["run"]).name, root=self._folder)
        if plan.target is not None:
            time_to_target(result, plan.target)
        if (outcome.answer["others_share"] or 0.0) >= CROWDED:
            self._crowded.append(outcome.answer["others_share"])
        return result

    def _study(self, *notes: str, finished: bool = False) -> Study:
        plan = self._plan
        order = plan.seeds.index
        beside = []
        if self._crowded:
            runs = counted(len(self._crowded), "run")
            beside = [f"{_BESIDE} {percent(max(self._crowded))} of the processors in {runs}; remedy: a quiet machine"]
        study = Study(
            folder=self._folder,
            recipe=plan.recipe.name,
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
        )
        return replace(study, notes=(*self._notes, *beside, *unequal_arguments(study.optimizers), *notes))

    def _reached(self, name: str, target: Target) -> dict[int, Reached]:
        ran = {seed: time_to_target(result, target) for seed, result in self._runs[name].items()}
        ran |= {seed: Reached.never(f"failed: {why}") for seed, why in self._failures[name].items()}
        return {seed: ran[seed] for seed in self._plan.seeds if seed in ran}

    def _write(self, study: Study, drawn: Mapping[str, bytes]) -> None:
        from deep5.core.files import write_atomically

        try:
            for name, content in drawn.items():
                write_atomically(self._folder / name, content)
            write_atomically(self._folder / STUDY, _text(study))
        except OSError as error:
            raise OutputError(
                f"cannot write into {self._folder}: {error.strerror or error}; {_remedy(self._folder, error)}"
            ) from error


def _remedy(folder: Path, error: OSError) -> str:
    """What remains after an operating-system error, and the remedy."""
    first = "free some space" if error.errno in NO_SPACE else "fix this"
    return f"what it left is in {folder}; remedy: {first}, then the same command with --resume {folder}"


def _text(study: Study) -> str:
    return json.dumps(study.document(), indent=2, allow_nan=False) + "\n"
