"""`deep5 run --like FOLDER` and `deep5 run FILE.zip`: repeat a stored run, and compare it with the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from deep5.core.terminal import printed

if TYPE_CHECKING:
    from deep5.results.rerun import Rerun
    from deep5.results.result import Result

__all__ = ["run_again"]


def run_again(
    source: str,
    *,
    out: str,
    quiet: bool,
    trust: bool,
    every: str | None,
    resume: str | None,
    as_json: bool,
    show: Callable[[str], None],
    stdout: TextIO,
    alone: Callable[..., Result],
    **how: Any,
) -> int:
    """Repeat a stored run and print both the result and the comparison.

    Args:
        source: The result folder or archive.
        out: Parent of the result folder.
        quiet: Print neither progress nor tables.
        trust: Execute code that comes with the result.
        every: The option --checkpoint-every, for the processes of ranks.
        resume: The folder of an interrupted repetition to resume in.
        as_json: Print one JSON object: `result` and `rerun`.
        show: Prints to standard output.
        stdout: Receives the output of the first rank.
        alone: Runs a recipe in this process: recipe, folder to resume in, and options.
        how: Further options of the run.

    Returns:
        The exit status: 0 if the run is accepted and repeats bit by bit, else 1.
    """
    from deep5.distributed.launch.launcher import launched
    from deep5.results.rerun import compare_runs
    from deep5.run.again import again

    # Relative to this process: the run has its own working directory.
    place, begun = str(Path(out).absolute()), str(Path(source).absolute())
    resume = None if resume is None else str(Path(resume).absolute())
    with again(source, place, trust=trust, show=_note) as found:
        recipe, options = found.recipe, {"out": place, "quiet": quiet, **how}
        if any(given is not None for given in (found.ranks, recipe.ranks, launched())):
            from deep5.run.ranks import run_with_ranks

            arguments = ["run", *((begun,) if begun.endswith(".zip") else ("--like", begun)), "--out", place]
            arguments += ["--trust"] * trust + ["--json"] * as_json + ["--quiet"] * quiet
            arguments += [] if every is None else ["--checkpoint-every", every]
            arguments += [] if resume is None else ["--resume", resume]
            by = cast("Any", found.launcher)
            result, status = run_with_ranks(recipe, found.ranks, by, arguments, stdout=stdout, resume=resume, **options)
            if result is None:
                return status
        else:
            result = alone(recipe, resume, **options)
    rerun = compare_runs(found.first, result)
    if as_json:
        from deep5.results.table import to_json

        show(json.dumps({"result": json.loads(to_json(result)), "rerun": rerun.document()}, indent=2))
    elif not quiet:
        show(printed(partial(_tables, result, rerun)))
    elif not (result and rerun):
        _say(_failure(result, rerun))
    return 0 if result and rerun else 1


def _failure(result: Result, rerun: Rerun) -> str:
    """Why the exit status is 1, in one line."""
    odd = [f"{row.what} ({row.since})" for row in rerun.rows if not row.same]
    reasons = [f"{rerun.second} does not repeat {rerun.first} bit by bit: {'; '.join(odd[:3])}"] if odd else []
    if not result:
        reasons.append(f"{rerun.second} is not accepted: {'; '.join(result.reasons) or 'its goals are not met'}")
    return "; ".join(reasons)


def _tables(result: Result, rerun: Rerun, console: Any) -> None:
    from deep5.results.rerun import rerun_table
    from deep5.results.table import verdict_table

    verdict_table(result, console)
    console.print()
    rerun_table(rerun, console)


def _note(text: str) -> None:
    _say(f"note: {text}")


def _say(text: str) -> None:
    click.echo(f"deep5: {text}", err=True)
