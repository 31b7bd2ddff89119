"""The trials of a sweep on disk: one line when a trial is proposed, and one when it has ended."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deep5.core.errors import OutputError, UsageError, brief
from deep5.results.folder import drop_torn_line, opened_plain
from deep5.results.reading import TABLE_BYTES, NotThere, opened, parsed
from deep5.results.sweep.trial import FAILED, FINISHED, PRUNED, Trial
from deep5.results.validation import encode

__all__ = ["TRIALS", "TrialLog", "read_trials"]

TRIALS = "trials.jsonl"
"""The file with the trials in a sweep's folder."""

_ENDED: Mapping[str, Any] = {
    "state": str, "value": (int, float, str, type(None)), "curve": list, "rungs": list, "run": (str, type(None)),
    "reason": (str, type(None)), "epochs": int, "steps": int, "wall_s": (int, float), "host": str, "attempts": int,
}  # fmt: skip


class TrialLog:
    """Appends to the trials of a sweep; each line is written at once, so that a kill leaves whole lines.

    Args:
        folder: The sweep's folder, locked by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TRIALS
        try:
            drop_torn_line(self._path)
        except OSError as error:
            raise self._fault(error) from error

    def propose(self, trial: Trial) -> None:
        """Append a proposed trial.

        Raises:
            OutputError: The file cannot be written.
        """
        self._append({"number": trial.number, "settings": dict(trial.settings)})

    def end(self, trial: Trial) -> None:
        """Append how a proposed trial ended.

        Raises:
            OutputError: The file cannot be written.
        """
        about = asdict(trial)
        self._append({"number": trial.number, "ended": {name: about[name] for name in _ENDED}})

    def _append(self, line: Mapping[str, Any]) -> None:
        data = (json.dumps(encode(line), allow_nan=False) + "\n").encode()
        try:
            with opened_plain(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab") as file:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write {self._path}: {error.strerror or error}; allowed: a writable file; remedy: free some space"
        )


def read_trials(folder: Path) -> list[Trial]:
    """All proposed trials in order, those that have not ended with the state None; a torn last line is left out.

    Raises:
        UsageError: A line is damaged, or contradicts another.
    """
    path = folder / TRIALS
    try:
        with opened(path, most_bytes=TABLE_BYTES) as file:
            data = file.read()
    except NotThere:
        return []
    trials: list[Trial] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            _take(parsed(line), trials)
        except (UsageError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path}, line {number} is damaged: {error}; allowed: what 'deep5 sweep' wrote") from error
    return trials


def _take(line: Any, trials: list[Trial]) -> None:
    number = line.get("number") if isinstance(line, dict) else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= len(trials):
        raise ValueError(f"it is of the trial {brief(number)} after {len(trials)} trials")
    if number == len(trials):
        if not isinstance(line.get("settings"), dict):
            raise ValueError(f"its settings are {brief(line.get('settings'))}")
        trials.append(Trial(number=number, settings=line["settings"]))
        return
    ended = line.get("ended")
    if not isinstance(ended, dict) or trials[number].state is not None:
        raise ValueError(f"the trial {number} is proposed or has ended already")
    for name, kinds in _ENDED.items():
        if not isinstance(ended.get(name), kinds) or isinstance(ended[name], bool):
            raise ValueError(f"{name} is {brief(ended.get(name))}")
    if ended["state"] not in (FINISHED, PRUNED, FAILED):
        raise ValueError(f"its state is {brief(ended['state'])}")
    known = {name: ended[name] for name in _ENDED}
    known["value"] = None if ended["value"] is None else float(ended["value"])
    trials[number] = Trial.of({**trials[number].document(), **known})
