"""`carry_out`: the function that an engine calls for a run without anything around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deep5.engines.attempt import attempt
from deep5.engines.call import packed, place_for, unpack
from deep5.engines.request import Outcome, RunRequest

__all__ = ["Arrived", "arrived", "carry_out"]


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A run that an engine carried out.

    Attributes:
        outcome: How it ended.
        run: Its result folder, on this machine; None: there is none.
        attempt: Number of the attempt that counts.
    """

    outcome: Outcome
    run: Path | None
    attempt: int


def carry_out(request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a run.

    Args:
        request: `run`, a `RunRequest` in JSON types.

    Returns:
        `outcome`, an `Outcome` in JSON types; and `archive`, its files if its folder is not shared.

    Raises:
        Interrupted: It was interrupted, and can resume.
        OutputError: A disk is full.
    """
    with place_for(RunRequest(**request["run"])) as run:
        return {"outcome": asdict(attempt(run)), "archive": packed(run)}


def arrived(answer: Mapping[str, Any], runs: Path, key: str) -> Arrived:
    """The run in an answer, with its files in the folder of the runs.

    Args:
        answer: What `carry_out` returned.
        runs: The folder with a folder per run.
        key: The run.

    Raises:
        UsageError: An archive is damaged.
        OSError: An archive cannot be written.
    """
    outcome = Outcome(**answer["outcome"])
    if answer["archive"] is None:
        run = None if outcome.run is None else Path(outcome.run)
        return Arrived(outcome=outcome, run=run, attempt=int(Path(outcome.attempt).name))
    number = unpack(answer["archive"], runs, key)
    run = None if outcome.run is None else runs / key / str(number) / Path(outcome.run).name
    return Arrived(outcome=outcome, run=run, attempt=number)
