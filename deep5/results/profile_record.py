"""Performance profiles over several studies, of the candidates that all of them have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.core.quantities import percent
from deep5.measuring.profiles import LIMIT, Profile, performance_profiles
from deep5.results.study.folder import StudyFolder
from deep5.results.time_to_target import MEASURES, median_to_target

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ProfileRecord", "profile_studies"]

_FULL = "full"
# Maximum characters of a reason: those of failed runs contain file names.
_LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class ProfileRecord:
    """Candidates over several studies.

    Attributes:
        by: The measure: seconds, epochs or steps.
        limit: Upper limit of the score's integral.
        studies: Each study is a workload, named by its recipe.
        times: Median over the seeds, by workload and candidate.
        profiles: By candidate, the best first.
        left_out: Candidates missing in a study, with the reason.
        open: Why this is not a comparison of the closed division, one sentence each; empty if it is one.
        notes: Further notes.
    """

    by: str
    limit: float
    studies: Sequence[StudyFolder]
    times: Mapping[str, Mapping[str, float]]
    profiles: Mapping[str, Profile]
    left_out: Mapping[str, str]
    open: Sequence[str]
    notes: Sequence[str]

    def document(self) -> dict[str, Any]:
        """The profiles in JSON types; infinite values are strings."""
        return {
            "by": self.by,
            "limit": self.limit,
            "statistic": "median over the seeds; a run that failed, diverged or missed the target is infinite",
            "division": "open" if self.open else "closed",
            "open": list(self.open),
            "workloads": {
                study.recipe: {
                    "folder": study.folder.name,
                    "hash": study.hash,
                    "size": study.size,
                    "division": study.division,
                    "environments": list(study.environments),
                    "target": study.target.document(),
                    "seeds": list(next(iter(study.reached.values()))),
                }
                for study in self.studies
            },
            "submissions": {
                name: {
                    "score": profile.score,
                    "solved": profile.solved,
                    "times": {workload: _plain(own[name]) for workload, own in self.times.items()},
                    "ratios": {workload: _plain(ratio) for workload, ratio in profile.ratios.items()},
                }
                for name, profile in self.profiles.items()
            },
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
        }

    def print(self, console: Console) -> None:
        """Print a row per candidate: score, share of workloads solved, and ratio to the best on each.

        Args:
            console: The console to print on.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE, pad_edge=False)
        for column in ("candidate", "score", "solved", *self.times):
            table.add_column(Text(column), overflow="fold")
        for name, profile in self.profiles.items():
            cells = [_cell(ratio, self.times[workload][name], self.by) for workload, ratio in profile.ratios.items()]
            table.add_row(*map(Text, (name, f"{profile.score:.3f}", percent(profile.solved), *cells)))
        console.print(table)
        lines = [
            f"Of each workload: times the best candidate's {self.by} to target, and the median over the seeds.",
            f"Score: mean share of workloads within tau times the best, over tau from 1 to {self.limit:g}.",
        ]
        for study in self.studies:
            seeds = len(next(iter(study.reached.values())))
            lines.append(f"{study.recipe}: {study.target}; {seeds} seed{'s' * (seeds != 1)}")
        lines += [f"{name} is not compared: {reason}" for name, reason in self.left_out.items()]
        lines += [f"open: {reason}" for reason in self.open]
        lines += [f"note: {note}" for note in self.notes]
        for line in lines:
            console.print(Text(line), overflow="fold")


def profile_studies(studies: Sequence[StudyFolder], by: str = "seconds", limit: float = LIMIT) -> ProfileRecord:
    """Compare the candidates that all studies have.

    Args:
        studies: Each of a different recipe.
        by: One of `MEASURES`.
        limit: Upper limit of the score's integral.

    Raises:
        UsageError: There is no study, two studies have the same recipe, fewer than two candidates are in all studies,
            or seconds within a study are from several machines.
    """
    if by not in MEASURES:
        raise UsageError(f"got by={by!r}; allowed: {', '.join(MEASURES)}")
    if not studies:
        raise UsageError("no study; allowed: at least one folder of 'deep5 study'")
    for place, study in enumerate(studies):
        for other in studies[:place]:
            if study.recipe == other.recipe or (study.hash and study.hash == other.hash):
                raise UsageError(
                    f"{other.folder} and {study.folder} are of one recipe ({other.recipe}, {study.recipe}), which "
                    "would count twice; allowed: each recipe once; remedy: name one of them"
                )
        if by == "seconds" and not study.timed:
            raise UsageError(
                f"the runs of {study.folder} were under way at the same time, so that their seconds do not compare; "
                "allowed: a study with --workers 1; remedy: --by epochs or --by steps"
            )
        if by == "seconds" and len(study.environments) > 1:
            raise UsageError(
                f"the runs of {study.folder} are of {len(study.environments)} environments (machine and software), "
                "whose seconds do not compare; allowed: one; remedy: --by epochs or --by steps"
            )
    names = list(dict.fromkeys(name for study in studies for name in study.reached))
    left_out = {}
    for name in names:
        absent = [study.recipe for study in studies if name not in study.reached]
        if absent:
            left_out[name] = f"no candidate of {', '.join(absent)}"
    shared = [name for name in names if name not in left_out]
    if len(shared) < 2:
        each = "; ".join(f"{study.recipe}: {', '.join(study.reached)}" for study in studies)
        raise UsageError(
            f"{len(shared)} candidates are in all studies ({each}); allowed: at least two of the same name; remedy: "
            "run the studies with the same candidates"
        )
    times = {
        study.recipe: {
            name: median_to_target([getattr(own, by) for own in study.reached[name].values()]) for name in shared
        }
        for study in studies
    }
    found = performance_profiles(times, limit)
    return ProfileRecord(
        by=by,
        limit=limit,
        studies=studies,
        times=times,
        profiles={name: found[name] for name in sorted(shared, key=lambda name: -found[name].score)},
        left_out=left_out,
        open=_open(studies, shared, by),
        notes=[*_infinite(studies, shared), *_notes(studies, times, by)],
    )


def _open(studies: Sequence[StudyFolder], shared: Sequence[str], by: str) -> list[str]:
    """Reasons why these results may not be compared with closed results of others."""
    found = []
    for study in studies:
        if study.size != _FULL:
            found.append(f"{study.recipe} ran at size {study.size!r}, not full")
        elif study.division != "closed":
            changed = "has runs that changed the recipe's fixed part" if study.runs else "has no finished run"
            found.append(f"{study.recipe} {changed}")
        if study.target.origin != "recipe":
            found.append(f"the target of {study.recipe}, a {study.target}, is not the recipe's own")
    for name in shared:
        if any(study.settings[name] != studies[0].settings[name] for study in studies):
            tuned = any(math.isfinite(own.steps) for study in studies for own in study.reached[name].values())
            so = ", so it was tuned by workload" if tuned else ""
            found.append(f"{name} has other settings in one study than in another{so}")
    places = {place for study in studies for place in study.environments}
    if by == "seconds" and len(places) > 1:
        found.append(
            f"the seconds are of {len(places)} environments (machine and software), each workload's of one: another "
            "machine for all may give another order; remedy: --by epochs or --by steps"
        )
    return found


def _infinite(studies: Sequence[StudyFolder], shared: Sequence[str]) -> list[str]:
    """Which runs count as infinite, and the reason of the first one."""
    found = []
    for study in studies:
        for name in shared:
            reasons = [str(own.reason) for own in study.reached[name].values() if own.reason is not None]
            if reasons:
                # A reason may be any error message: on one line, without terminal control characters.
                first = "".join(letter if letter.isprintable() else " " for letter in reasons[0])
                first = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
                found.append(f"{study.recipe}, {name}: {len(reasons)} of {len(study.reached[name])} infinite: {first}")
    return found


def _notes(studies: Sequence[StudyFolder], times: Mapping[str, Mapping[str, float]], by: str) -> list[str]:
    notes = []
    for study in studies:
        if not any(map(math.isfinite, times[study.recipe].values())):
            notes.append(f"no candidate reached the target of {study.recipe}: it lowers the score of every candidate")
        seeds = len(next(iter(study.reached.values())))
        if seeds < 5:
            notes.append(f"{study.recipe} has {seeds} seed{'s' * (seeds != 1)}: another seed may change the order")
    if len(studies) == 1:
        notes.append("one workload says little about others: a profile needs several")
    if by == "seconds":
        notes.append("seconds depend on the machine and the frameworks; epochs and steps do not")
        shared = [study.recipe for study in studies if not study.process_per_run]
        if shared:
            notes.append(
                f"the runs of {', '.join(shared)} shared one process, as in an older deep5: what is loaded or "
                "compiled once counts for the first run; remedy: run the study again"
            )
    return notes


def _cell(ratio: float, time: float, by: str) -> str:
    if not math.isfinite(time):
        return "not reached"
    return f"{ratio:.2f} ({time:.4g}{' s' if by == 'seconds' else ''})"


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
