"""The option --engine of commands that measure: the whole command is carried out by an engine, on one machine."""

from __future__ import annotations

import functools
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from deep5.core.errors import Deep5Error, Errors, RunFailed
from deep5.core.progress import Reporter, Tell

__all__ = ["engine_option"]

_LOCAL = "local"
_KEY = "command"
# A comparison has time limits for its processes; this one is for what never ends.
_LIMIT_S = 7.0 * 24 * 3600


def engine_option(errors: Errors, *words: str, ranks: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --engine: candidates are timed one after another, so that all of them run on one machine, by one command.

    Args:
        errors: Error handling of the command line.
        words: The command.
        ranks: Number of processes at the same time, if the command has no `--ranks`, or it is not given.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--engine",
            metavar="NAME",
            default=_LOCAL,
            show_default=True,
            help="Where this command is carried out: local, dask:ADDRESS, slurm, or slurm:partition=NAME,….",
        )
        @functools.wraps(command)
        def carried_out(*, engine: str, **given: Any) -> Any:
            if engine == _LOCAL:
                return command(**given)
            with errors(given["debug"], given["as_json"]) as show:
                threads, processes = int(given.get("threads") or 1), int(given.get("ranks") or ranks)
                with Reporter(quiet=given["as_json"] or given.get("quiet", False)) as tell:
                    status, said = _by_engine(engine, words, Path(given["out"]), threads, threads * processes, tell)
                if said:
                    show(said)
            if status:
                raise SystemExit(status)
            return None

        return carried_out

    return add


def _by_engine(
    engine: str, words: Sequence[str], out: Path, threads: int, processors: int, tell: Tell
) -> tuple[int, str]:
    """Carry out the command line of this process; its exit status, and what it printed."""
    from deep5.engines.attempt import OUTPUT
    from deep5.engines.carry_out import arrived, carry_out
    from deep5.engines.in_flight import InFlight
    from deep5.engines.make import make_engine
    from deep5.engines.request import Refused, RunRequest

    folder = out.absolute() / f".{'-'.join(words)}-{secrets.token_hex(4)}"
    made = make_engine(engine, workers=1, processors_each=processors)
    try:
        running = InFlight[str](made, carry_out, _LIMIT_S, f"what it left is in {folder}", tell)
        run = RunRequest(
            key=_KEY,
            arguments=_without(sys.argv[1 + len(words) :], ("--engine", "--out")),
            folder=str(folder / "runs"),
            threads=threads,
            processors=processors,
            time_limit_s=_LIMIT_S,
            timed=True,
            command=words,
            shared=running.shared,
        )
        (folder / "runs").mkdir(parents=True)
        running.start(_KEY, {"run": asdict(run)})
        while not (ended := running.ended()):
            pass
    except BaseException as error:
        made.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, Refused):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    made.shutdown()
    ran = arrived(ended[0][1], folder / "runs", _KEY)
    place = folder / "runs" / _KEY / str(ran.attempt)
    said = (place / OUTPUT).read_text(errors="replace").rstrip("\n") if (place / OUTPUT).exists() else ""
    if ran.outcome.reason is not None:
        failed, status = ran.outcome.reason, ran.outcome.status
        if ran.run is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            failed += f"; what it left is in {ran.run}"
        raise _Failed(failed, status) if status > 0 else RunFailed(failed)
    if ran.run is not None:
        kept = out.absolute() / ran.run.name
        ran.run.rename(kept)
        said = said.replace(str(ran.run), str(kept))
    shutil.rmtree(folder, ignore_errors=True)
    return ran.outcome.status, said


class _Failed(Deep5Error):
    """What the command said, with its exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_status = status


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Words of a command line without these options and their values."""
    left: list[str] = []
    value = False
    for word in words:
        if value:
            value = False
        elif word in options:
            value = True
        elif word.partition("=")[0] not in options:
            left.append(word)
    return left
