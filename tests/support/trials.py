"""Drawn trials: a command is killed, stopped, or runs out of disk, and resumes; nothing may be lost.

`python tests/support/trials.py FIRST LAST` makes the trials with these numbers, and prints a line for each and the
total. A trial is a function of its number, except for times. Runs, runs of two ranks, studies and comparisons are hit
by SIGKILL, by SIGSTOP, or by a full file system. After each fault the folder must be readable, and an audit finds
nothing; in the end the result must be that of an uninterrupted twin, bit by bit, and no process and no temporary file
may be left. The folder of a trial that loses something stays.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import forked
import twins
from deep5.measuring.pinning import environment
from trial_faults import (
    CHILD,
    COMMAND,
    GROUP,
    KILL,
    LINE,
    POINT,
    STOP,
    STOP_AND_KILL,
    TIME,
    Fault,
    SmallDisk,
    counted,
    small_disk,
)
from trial_making import Lost, Making, Trial, Twin, content
from trial_setups import COMPARISON, RANKS, RUN, SETUPS, STUDY, Setup

__all__ = ["TRIALS", "Trials", "drawn"]

TRIALS = 500
# Set-ups of forty trials in a row: 62.5 % runs, 25 % ranks, 10 % studies, 2.5 % comparisons, which take longest.
_NAMES = (
    "reference", "threads", "adam", "study", "accumulating", "mpiexec", "reference", "pytorch", "threads", "rarely",
    "threads with compression", "reference", "adam", "study of two seeds", "accumulating", "reference", "threads",
    "pytorch", "adam", "reference", "reference", "threads", "adam", "study", "accumulating", "torchrun", "reference",
    "pytorch", "threads", "rarely", "threads with compression", "reference", "adam", "study", "accumulating",
    "comparison", "threads", "pytorch", "adam", "reference",
)  # fmt: skip
_MOUNTED = "TRIALS_IN_NAMESPACE"


# Drawing --------------------------------------------------------------------------------------------------------------


def drawn(number: int) -> Trial:
    """The trial with this number, from 0."""
    draw = random.Random(f"trial {number}")  # noqa: S311 - drawn trials
    name = _NAMES[number % len(_NAMES)]
    (setup,) = (each for each in SETUPS if each.name == name)
    disk = None
    if draw.random() < 0.2:
        # As shares of what the twin takes: KiB and files are drawn when it is known.
        disk = SmallDisk(kib=draw.randrange(1, 100), scratch=draw.random() < 0.3 and setup.processes)
        if draw.random() < 0.2:
            disk = SmallDisk(kib=100, files=draw.randrange(1, 16), scratch=disk.scratch)
    count = draw.choice((0, 0, 1)) if disk else draw.choice((1, 1, 2, 3))
    return Trial(number=number, setup=setup, shares=tuple(_fault(draw, setup) for _ in range(count)), disk=disk)


def _fault(draw: random.Random, setup: Setup) -> Fault:
    whom = draw.choice((COMMAND, COMMAND, GROUP))
    if setup.processes and draw.random() < 0.4:
        whom = f"rank {draw.randrange(2)}" if setup.kind == RANKS else CHILD
    how = draw.choice((KILL, KILL, KILL, STOP, STOP_AND_KILL))
    when = draw.choice((POINT, POINT, TIME))
    if setup.kind in (STUDY, COMPARISON) and draw.random() < 0.25:
        when = LINE
    # Shorter than the limits of all waits, so that the result must not change.
    return Fault(when=when, at=draw.random(), whom=whom, how=how, pause_s=draw.choice((0.05, 0.3, 1.0)))


# Making ---------------------------------------------------------------------------------------------------------------


class Trials:
    """Makes trials below a folder; trials of one set-up share their twin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._twins: dict[str, Twin] = {}

    def make(self, trial: Trial) -> str:
        """Make a trial and remove its folder; returns how it went.

        Raises:
            Lost: Something was lost; the folder stays.
        """
        twin = self._twin(trial.setup)
        place = self.folder / f"trial-{trial.number}"
        making = Making(trial, twin, place)
        with ExitStack() as stack:
            live = making.begin()
            stack.enter_context(small_disk(making.disk, live))
            making.scratch()
            said = making.run()
        shutil.rmtree(place)
        return said

    def _twin(self, setup: Setup) -> Twin:
        if setup.name not in self._twins:
            trial = Trial(number=-1, setup=setup, shares=())
            place = self.folder / f"twin-{setup.name.replace(' ', '-')}"
            shutil.rmtree(place, ignore_errors=True)
            making = Making(trial, None, place)
            live = making.begin()
            making.scratch()
            done = making.once(None)
            if done.status:
                raise Lost(f"the twin of {setup.name} ended with {done.status}: {done.error}")
            folder = making.result()
            assert folder is not None
            size = sum(-(-path.stat().st_size // 4096) * 4 for path in live.rglob("*") if path.is_file())
            self._twins[setup.name] = Twin(
                content=content(setup, folder),
                events=twins.events(folder) if setup.kind in (RUN, RANKS) else None,
                seconds=done.seconds,
                changes=counted(place),
                lines=max(1, done.error.count("\n")),
                kib=size,
            )
        return self._twins[setup.name]


# The command ----------------------------------------------------------------------------------------------------------


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _in_namespace() -> None:
    """Start again in a new mount namespace, where this process may mount small disks that end with it."""
    if os.environ.get(_MOUNTED):
        return
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    allowed = (
        shutil.which("unshare") and not subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode
    )
    os.environ[_MOUNTED] = "1" if allowed else "no"
    if allowed:
        os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])  # noqa: S606 - no shell is needed


def prepare() -> None:
    """Set the environment of all processes of the trials, before the first one starts."""
    site = str(Path(__file__).with_name("trial_site"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
    os.environ.update(environment(1))  # that of every timed process: those can be forked too
    os.environ.pop("TRIAL_POINT", None)
    forked.ALSO[:] = ["altair"]  # the pictures of studies
    forked.server()  # its start counts towards no twin's time


def _numbers(text: str) -> set[int]:
    return set(map(int, text.split(",")))


def main() -> int:
    """Make a range of trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--step", type=int, default=1, help="from one number to the next: several commands share them")
    parser.add_argument("--out", type=Path, help="where the folders of lost trials stay; default: a new folder")
    parser.add_argument("--numbers", type=_numbers, help="of these, only the given ones, separated by commas")
    parser.add_argument("--setup", help="only trials of this set-up")
    parser.add_argument("--disks", action="store_true", help="only trials with a full disk")
    asked = parser.parse_args()
    _in_namespace()
    prepare()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="trials-"))
    trials = Trials(folder.resolve())
    lost: list[int] = []
    made: Counter[tuple[str, str]] = Counter()
    skipped = 0
    for trial in map(drawn, range(asked.first, asked.last + 1, asked.step)):
        if asked.numbers is not None and trial.number not in asked.numbers:
            continue
        if asked.setup not in (None, trial.setup.name) or (asked.disks and not trial.disk):
            continue
        if trial.disk and os.environ[_MOUNTED] == "no":
            skipped += 1
            _say(f"{trial}: skipped: neither root nor a user namespace may mount a small disk")
            continue
        begin = time.monotonic()
        try:
            said = trials.make(trial)
        except (Lost, TimeoutError, OSError) as error:
            lost.append(trial.number)
            said = f"LOST: {error}"
        made[trial.setup.kind, trial.family] += 1
        _say(f"{trial.number}: {trial.setup.name}: {said} ({time.monotonic() - begin:.0f} s)")
    for (kind, family), count in sorted(made.items()):
        _say(f"{kind}, {family}: {count}")
    if skipped:
        _say(f"{skipped} skipped")
    _say(f"{len(lost)} of {made.total()} lost{f': {lost}; folders in {folder}' if lost else ''}")
    if not lost and asked.out is None:
        shutil.rmtree(folder)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
