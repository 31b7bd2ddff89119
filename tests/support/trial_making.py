"""One trial: a command is interrupted, resumed, and compared with its uninterrupted twin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import twins
from deep5.audit import audit
from deep5.core.errors import Deep5Error
from deep5.results.comparison import load_comparison
from deep5.results.result import load
from deep5.results.store import survey
from deep5.results.study.folder import left_of
from trial_faults import CHILD, COMMAND, GROUP, LINE, POINT, STOP, TIME, Attempt, Fault, SmallDisk, attempt
from trial_setups import COMPARISON, STUDY, Setup

__all__ = ["Lost", "Making", "Trial", "Twin", "content"]


class Lost(Exception):
    """Something was lost: the message says what."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial.

    Attributes:
        number: Its number, which determines all others.
        setup: The command.
        shares: Of each interrupted attempt, the fault; its moment is a share of the twin's changes, seconds or lines.
        disk: The file system; None: a large one.
    """

    number: int
    setup: Setup
    shares: tuple[Fault, ...]
    disk: SmallDisk | None = None

    def __str__(self) -> str:
        faults = [str(self.disk)] if self.disk else []
        return f"{self.number}: {self.setup.name}: {', '.join([*faults, *map(str, self.shares)])}"

    @property
    def family(self) -> str:
        """What the trial counts as."""
        return "full disk" if self.disk else self.shares[0].how


@dataclass(frozen=True, kw_only=True)
class Twin:
    """The uninterrupted result: what it holds, and what measures the moments of faults."""

    content: Any
    events: Any
    seconds: float
    changes: dict[str, int]
    lines: int
    kib: int


def _moment(fault: Fault, twin: Twin) -> Fault:
    """The fault of a share, for a twin."""
    who = COMMAND if fault.whom == GROUP else fault.whom
    most = {POINT: twin.changes.get(who, 1), TIME: twin.seconds, LINE: twin.lines}[fault.when]
    at = fault.at * most if fault.when == TIME else 1 + int(fault.at * most)
    return Fault(when=fault.when, at=at, whom=fault.whom, how=fault.how, pause_s=fault.pause_s)


def content(setup: Setup, folder: Path) -> Any:
    """What the result must have in common with its twin."""
    if setup.kind == STUDY:
        return twins.of_study(folder)
    return twins.of_comparison(folder) if setup.kind == COMPARISON else twins.of_run(folder)


class Making:
    """One trial that is being made, in its folder."""

    def __init__(self, trial: Trial, twin: Twin | None, place: Path) -> None:
        self.trial, self.setup, self.twin, self.place = trial, trial.setup, twin, place
        self.disk = trial.disk
        if trial.disk and twin:
            kib = max(4, trial.disk.kib * twin.kib // 100 // 4 * 4)
            self.disk = SmallDisk(kib=kib, files=trial.disk.files, scratch=trial.disk.scratch)
        self.live = place / "live"
        self.out = self.live / "out"
        self.temporary = self.live / "tmp" if self.disk is None or self.disk.scratch else place / "tmp"
        self.failed: dict[tuple[str, int], str] = {}

    def begin(self) -> Path:
        """Make the folders; returns the one to mount the disk on."""
        self.live.mkdir(parents=True)
        (self.place / "drawn.py").write_text(self.setup.recipe)
        return self.live

    def scratch(self) -> None:
        """Make the folder of temporary files."""
        self.temporary.mkdir()

    def once(self, fault: Fault | None) -> Attempt:
        """Start or resume the command, with a fault."""
        words = [self.setup.command, str(self.place / "drawn.py"), "--out", str(self.out), *self.setup.words]
        if (folder := self.result()) is not None:
            words += ["--resume", str(folder)]
        variables = {**self.setup.environment, "TMPDIR": str(self.temporary)}
        done = attempt(words, self.place, self.live, variables, fault, forks=self.setup.kind in (STUDY, COMPARISON))
        if "Traceback" in done.error:
            raise Lost(f"a traceback: {done.error[-2000:]}")
        if done.left:
            raise Lost(f"processes are left: {'; '.join(done.left)}")
        return done

    def result(self) -> Path | None:
        """The result folder; None before there is one."""
        found = [path for path in self.out.iterdir() if path.name[0] != "."] if self.out.is_dir() else []
        if len(found) > 1:
            raise Lost(f"several folders: {[path.name for path in found]}")
        return found[0] if found else None

    def run(self) -> str:
        """All attempts and checks; returns how they went."""
        went = []
        assert self.twin is not None
        if self.disk is not None:
            done = self.once(None)
            went.append(f"{self.disk}: status {done.status}")
            if done.status not in (0, 2, 3) or (done.status and "deep5: " not in done.error):
                raise Lost(f"{went[-1]}, said: {done.error[-800:]}")
            if done.status and not re.search("disk is full|No space left|free some space", done.error):
                raise Lost(f"the message does not name the full disk: {done.error[-800:]}")
            self._readable()
            self.disk.grow(self.live)
            if done.status == 0:
                return self._finished(went)
        for share in self.trial.shares:
            fault = _moment(share, self.twin)
            done = self.once(fault)
            went.append(f"{fault}{'' if done.happened else ' (too late)'}: status {done.status}")
            self._readable()
            if done.happened and self._is_final(fault, done):
                return self._cut_short(went, done)
            if done.status == 0:
                return self._finished(went)
            self._expect(fault, done)
            if self._is_complete():
                return self._finished(went)
        done = self.once(None)
        if done.status:
            raise Lost(f"{went}: the last attempt ended with {done.status}: {done.error[-800:]}")
        return self._finished(went)

    def _is_final(self, fault: Fault, done: Attempt) -> bool:
        """Whether the result keeps the fault: a study and a comparison report a process that was killed."""
        return fault.whom == CHILD and fault.how != STOP and done.status in (0, 3)

    def _expect(self, fault: Fault, done: Attempt) -> None:
        """Check how an interrupted command ended."""
        if not done.happened or fault.how == STOP:
            raise Lost(f"{fault}: ended with {done.status} although nothing ended it: {done.error[-800:]}")
        if fault.whom.startswith("rank"):
            if done.status != 3 or f"{fault.whom} of 2" not in done.error:
                raise Lost(f"{fault}: status {done.status}, said: {done.error[-800:]}")
        elif done.status != -9:
            raise Lost(f"{fault}: status {done.status}, said: {done.error[-800:]}")

    def _is_complete(self) -> bool:
        """Whether the fault came after the last file: a study and a comparison are not resumed then."""
        folder = self.result()
        if folder is None or self.setup.kind not in (STUDY, COMPARISON):
            return False
        if self.setup.kind == STUDY:
            return bool(json.loads((folder / "study.json").read_text())["finished"])
        return load_comparison(folder).document["status"] == "success"

    def _readable(self) -> None:
        """Check that everything in the folder of results can be read, and is honest."""
        folder = self.result()
        if folder is None:
            return
        try:
            found = survey(self.out)
            if [own.folder for own in found.found if "/" not in own.folder] != [folder.name] or found.notes:
                raise Lost(f"'deep5 results' does not show {folder.name}: {found}")
            if self.setup.kind == COMPARISON:
                load_comparison(folder).samples()
            for own in found.found:
                if (path := self.out / own.folder / "result.json").exists():
                    result = load(path.parent)
                    result.samples()
                    if result.status == "success" and not (path.parent / "weights.safetensors").exists():
                        raise Lost(f"{path.parent} is a success without weights")
            if self.setup.kind == STUDY and not json.loads((folder / "study.json").read_text())["finished"]:
                left_of(folder)
            self._audited(folder)
        except (Deep5Error, OSError, ValueError) as error:
            raise Lost(f"not readable: {type(error).__name__}: {error}") from error

    def _audited(self, folder: Path) -> None:
        if findings := audit([folder]).findings:
            raise Lost(f"the audit accuses: {'; '.join(map(str, findings))}")

    def _cut_short(self, went: list[str], done: Attempt) -> str:
        """Check a study or a comparison of which one process was killed: it is named, and the others are right.

        A process that had answered, and was about to end, is not missed: then the whole result is right.
        """
        folder = self.result()
        assert folder is not None
        assert self.twin is not None
        text = (folder / ("study.json" if self.setup.kind == STUDY else "comparison.json")).read_text()
        if "killed by SIGKILL" not in text:
            if done.status:
                raise Lost(f"{went}: the killed process is not named: {done.error[-800:]}")
            return f"{self._finished(went)} (after its answer)"
        if self.setup.kind == STUDY:
            own, other = content(self.setup, folder), self.twin.content
            failures = [failure for each in own["candidates"].values() for failure in each["failures"]]
            if len(failures) != 1:
                raise Lost(f"{went}: failures: {failures}")
            for name, each in own["candidates"].items():
                right = dict(zip(other["candidates"][name]["seeds"], other["candidates"][name]["runs"], strict=True))
                if [right[seed] for seed in each["seeds"]] != each["runs"]:
                    raise Lost(f"{went}: a run of {name} differs from its twin")
        self._nothing_left(went)
        return "; ".join(went)

    def _finished(self, went: list[str]) -> str:
        """Check a finished result."""
        folder = self.result()
        assert folder is not None
        assert self.twin is not None
        self._readable()
        if (own := content(self.setup, folder)) != self.twin.content:
            raise Lost(f"{went}: differs from its twin in {_difference(own, self.twin.content)}")
        if self.twin.events is not None and twins.events(folder) != self.twin.events:
            raise Lost(f"{went}: the log differs from that of its twin")
        self._nothing_left(went)
        return "; ".join(went)

    def _nothing_left(self, went: list[str]) -> None:
        left = [path for path in self.live.rglob("*") if path.name[0] == "." or path.name.endswith(".tmp")]
        # PyTorch makes the folder of its compiler's cache, and keeps it.
        left += (path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_"))
        if left:
            raise Lost(
                f"{went}: temporary files are left: {', '.join(str(path.relative_to(self.place)) for path in left)}"
            )


def _difference(one: Any, other: Any, where: str = "") -> str:
    """The first place where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys: Iterable[Any] = [*one, *(key for key in other if key not in one)]
        pairs = [(key, one.get(key), other.get(key)) for key in keys]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = list(zip(range(len(one)), one, other, strict=True))
    else:
        return f"{where}: {one!r:.200} for {other!r:.200}"
    return next((_difference(a, b, f"{where}/{key}") for key, a, b in pairs if a != b), where)
