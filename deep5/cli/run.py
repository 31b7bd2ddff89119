"""The command `deep5 run`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from deep5.cli.errors import errors
from deep5.cli.recipe_options import configured, debug_option, recipe_options, whole_number
from deep5.core.errors import UsageError

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe
    from deep5.results.result import Result
    from deep5.training.checkpointer import Checkpointer

__all__ = ["run_command"]


@click.command("run")
@partial(recipe_options, required=False)
@click.option("--out", metavar="DIR", default="results", show_default=True, help="Parent of the result folder.")
@click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON, to stdout.")
@click.option("--quiet", is_flag=True, help="No progress bar, no warnings and no table.")
@click.option("--resume", metavar="FOLDER", help="Resume in the result folder of an interrupted run.")
@click.option(
    "--checkpoint-every",
    "every",
    metavar="N|Ts|never",
    help="Checkpoint after every N steps or T seconds (500, 60s). Default: 30s; deleted when the run is done.",
)
@click.option(
    "--ranks",
    type=whole_number(1),
    metavar="N",
    help="Train with N processes that share every batch, instead of the recipe's number.",
)
@click.option(
    "--launcher",
    type=click.Choice(["mpiexec", "torchrun", "threads"]),
    help="What starts them: mpiexec (the default where the recipe names none) for MPI, torchrun for PyTorch's "
    "process groups with gloo or NCCL, or threads of this process.",
)
@click.option("--candidate", metavar="NAME", help="With the settings of this candidate of the recipe's STUDY.")
@click.option(
    "--follow",
    metavar="METRIC",
    help="Append a metric's value to curve.jsonl in the result folder after each epoch, while the run is under way.",
)
@click.option("--like", metavar="FOLDER", help="Repeat the run of this result folder, and compare bit by bit.")
@click.option(
    "--trust",
    is_flag=True,
    help="With --like or FILE.zip: execute the code that comes with the result, which you read.",
)
@debug_option
def run_command(
    out: str,
    as_json: bool,
    quiet: bool,
    resume: str | None,
    every: str | None,
    ranks: int | None,
    launcher: Any,
    candidate: str | None,
    follow: str | None,
    like: str | None,
    trust: bool,
    debug: bool,
    **chosen: Any,
) -> NoReturn:
    """Run RECIPE, a name or a file, and check it against its goals.

    With --like FOLDER, or an archive FILE.zip by `deep5 results pack` as RECIPE, repeat a stored run: same recipe,
    size, settings, seed and ranks. The exit status is then 1 also if what must repeat bit by bit does not.

    An interrupted run resumes by the same command and --resume FOLDER, bit-identically.

    With --ranks, or under mpiexec, torchrun or srun, several processes train together, by the recipe's scheme;
    if the recipe itself sets a number of ranks, deep5 starts them without this option.
    """
    out_stream = sys.stdout  # with --json, the recipe's own output is redirected
    with errors(debug, as_json) as show:
        for key, given in (("ranks", ranks), ("launcher", launcher)):
            if given is not None and any(text.partition("=")[0].strip() == key for text in chosen["settings"]):
                raise UsageError(f"--{key} and --set {key} are both given; allowed: one of them")
        how: dict[str, Any] = {"out": out, "quiet": quiet}
        if every is not None:
            how["checkpointer"] = _checkpointer(every)
        if follow is not None:
            how["follow"] = follow
        source = _repeated(like, ranks, launcher, follow, candidate, **chosen)
        if source is not None:
            from deep5.cli.run_again import run_again

            status = run_again(
                source,
                trust=trust,
                every=every,
                resume=resume,
                as_json=as_json,
                show=show,
                stdout=out_stream,
                alone=_alone,
                **how,
            )
        elif trust:
            raise UsageError("--trust without --like FOLDER or FILE.zip; allowed: to repeat a stored run")
        else:
            made = configured(**chosen, candidate=candidate)
            result, status = _run(made, ranks, launcher, resume, stdout=out_stream, **how)
            if result is not None and (as_json or not quiet):
                show(_shown(result, as_json))
    raise SystemExit(status)


def _run(
    recipe: Recipe, ranks: int | None, launcher: Any, resume: str | None, *, stdout: TextIO, **how: Any
) -> tuple[Result | None, int]:
    """The result, None if another process has it, and the exit status."""
    from deep5.distributed.launch.launcher import launched

    if any(requested is not None for requested in (ranks, launcher, recipe.ranks, launched())):
        from deep5.run.ranks import run_with_ranks

        return run_with_ranks(recipe, ranks, launcher, sys.argv[1:], stdout=stdout, resume=resume, **how)
    result = _alone(recipe, resume, **how)
    return result, 0 if result else 1


def _repeated(
    like: str | None,
    ranks: int | None,
    launcher: str | None,
    follow: str | None,
    candidate: str | None,
    **chosen: Any,
) -> str | None:
    """The stored run to repeat, a folder or an archive; None: a recipe runs.

    Raises:
        UsageError: Neither a recipe nor a stored run is given, or an option that would change the stored run.
    """
    recipe = chosen["recipe"]
    if like is None and recipe is None:
        raise UsageError("no RECIPE is given; allowed: a name or a file, an archive FILE.zip, or --like FOLDER")
    source = like if like is not None else recipe if str(recipe).endswith(".zip") else None
    if source is None:
        return None
    if like is not None and recipe is not None:
        raise UsageError(f"RECIPE {recipe!r:.80} and --like are both given; allowed: one of them")
    more = {"ranks": ranks, "launcher": launcher, "follow": follow, "candidate": candidate}
    given = {**chosen, "set": chosen["settings"], **more}
    for name in ("framework", "set", "seed", "device", "threads", "init", *more):
        if given[name] not in (None, ()):
            raise UsageError(
                f"--{name} and a stored run are both given; allowed: a run repeated as it was; remedy: RECIPE"
            )
    if chosen["size"] != "full":
        raise UsageError("--size and a stored run are both given; allowed: the size of that run; remedy: RECIPE")
    return str(source)


def _alone(recipe: Recipe, resume: str | None, *, quiet: bool, **how: Any) -> Result:
    """Run in this process, with a progress bar unless quiet."""
    from deep5.recipe.experiment import Experiment
    from deep5.run.choice import workload_of
    from deep5.run.execute import run_alone
    from deep5.run.workload import Options

    workload = workload_of(Experiment.of(recipe))
    events = () if quiet else workload.progress()
    return run_alone(workload, Options(events=events, quiet=quiet, **how), resume)


def _checkpointer(every: str) -> Checkpointer | None:
    """The checkpointer requested by `--checkpoint-every`: a number of steps, of seconds with the suffix s, or never."""
    from deep5.training.checkpointer import Checkpointer

    if every == "never":
        return None
    try:
        if every.endswith("s"):
            return Checkpointer(every_s=float(every[:-1]))
        return Checkpointer(every_steps=int(every))
    except (ValueError, UsageError):
        raise UsageError(
            f"--checkpoint-every {every!r}; allowed: an integer number of steps such as 500, seconds such as 60s, or "
            "never"
        ) from None


def _shown(result: Any, as_json: bool) -> str:
    """The result as JSON, or as a table, with colors if the output is a terminal."""
    from deep5.core.terminal import printed
    from deep5.results.table import to_json, verdict_table

    if as_json:
        return to_json(result)
    return printed(partial(verdict_table, result))
