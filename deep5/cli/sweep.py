"""The command `deep5 sweep`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from deep5.cli.attach import attach_option, declared
from deep5.cli.recipe_options import run_by_run_options, shared_settings_option
from deep5.core.errors import Errors, RunFailed, UsageError
from deep5.core.progress import Reporter
from deep5.recipe.recipe import FULL

__all__ = ["sweep_command"]


def _texts(file: str | None, parameters: Sequence[str]) -> dict[str, str]:
    """The space, by parameter, from a file and from options."""
    from deep5.search.space import read_space

    texts = {} if file is None else read_space(file)
    for text in parameters:
        key, equals, written = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--param {text!r:.80}; allowed: KEY=RANGE, such as batch_size=choice(32, 64)")
        if key.strip() in texts:
            raise UsageError(f"the parameter {key.strip()!r} is given twice; allowed: once")
        texts[key.strip()] = written
    return texts


def _beside(given: Mapping[str, Any], other: str | None, repeat: int, *, quiet: bool, as_json: bool) -> str:
    """Sweep by two samplers in turn, for several seeds; what to show."""
    from deep5.core.terminal import printed
    from deep5.results.sweep.versus import print_versus
    from deep5.results.sweep.versus import versus as verdicts_of
    from deep5.search.sweep import run_sweep

    if other is None:
        raise UsageError(
            "--repeat without --versus; allowed: with --versus random; remedy: --seed N for one more sweep"
        )
    if given["sampler"] in (other, "grid") or given["resume"] is not None:
        raise UsageError(
            f"--versus {other} with --sampler {given['sampler']}{' and --resume' if given['resume'] else ''}; allowed: "
            "another sampler that is no grid, in new folders"
        )
    sweeps = []
    with Reporter(quiet=quiet) as tell:
        for place in range(repeat):
            for sampler in (given["sampler"], other):
                sweeps.append(run_sweep(**{**given, "sampler": sampler, "seed": given["seed"] + place}, tell=tell))
    found = verdicts_of(sweeps)
    if as_json:
        folders = [str(own.folder) for own in sweeps]
        return json.dumps(
            {"verdicts": [own.document() for own in found], "folders": folders}, indent=2, allow_nan=False
        )
    if quiet:
        return ""
    shown = printed(lambda console: print_versus(sweeps, found, console))
    return shown + "\n".join(["", *(str(own.folder) for own in sweeps)])


def sweep_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("sweep")
    @click.argument("recipe", required=False)
    @click.option("--goal", metavar="METRIC", help="The recipe's metric to search by.")
    @click.option(
        "--param",
        "parameters",
        metavar="KEY=RANGE",
        multiple=True,
        help="A mutable part and its range, such as 'optimizer_kwargs.lr=log(1e-4, 1e-1)'; repeatable.",
    )
    @click.option("--space", metavar="FILE", help="A TOML file with a table [parameters] of them.")
    @click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials; grid: all by default.")
    @click.option(
        "--sampler",
        type=click.Choice(["random", "tpe", "cmaes", "evolution", "swarm", "grid", "qmc"]),
        default="tpe",
        show_default=True,
        help="What proposes settings.",
    )
    @click.option(
        "--pruner",
        type=click.Choice(["none", "median", "hyperband", "asha"]),
        default="none",
        show_default=True,
        help="What ends poor trials early.",
    )
    @shared_settings_option
    @click.option("--size", metavar="NAME", default=FULL, help="A size of the recipe, such as smoke.")
    @click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of the search."
    )
    @click.option("--framework", metavar="NAME", help="Run on this framework.")
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator; default: 1.")
    @click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Run every trial with N ranks.")
    @click.option(
        "--validation",
        type=float,
        metavar="SHARE",
        help="Share of the training samples to hold out and to choose by; default: the recipe's, or 0.1. 0: test "
        "samples choose, and the result says so.",
    )
    @run_by_run_options("sweep", "Trials at the same time, on disjoint processors.")
    @click.option(
        "--parallel",
        type=click.IntRange(min=1),
        metavar="N",
        help="Trials that the sampler lets run at the same time; with the same number, any number of workers gives the "
        "same trials. Default: the workers.",
    )
    @click.option(
        "--versus",
        type=click.Choice(["random"]),
        help="Also search at random with the same budget, and say which found better settings.",
    )
    @click.option(
        "--repeat",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="With --versus: N searches of both, with the seeds from --seed on.",
    )
    @attach_option("sweep")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--quiet", is_flag=True, help="Print only errors.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def sweep(
        recipe: str | None,
        goal: str | None,
        versus: str | None,
        repeat: int,
        attach: str | None,
        parameters: tuple[str, ...],
        space: str | None,
        settings: tuple[str, ...],
        memory_limit: str | None,
        time_limit: float,
        as_json: bool,
        quiet: bool,
        debug: bool,
        framework: str | None,
        threads: int | None,
        ranks: int | None,
        **chosen: Any,
    ) -> None:
        """Search for the settings of RECIPE that are best by a metric.

        A range is uniform(0, 0.5), log(1e-4, 1e-1), int(1, 8), logint(16, 1024) or choice(adam, momentum); a third
        number in the first four is the number of values. ` if KEY=VALUE` or ` if KEY in (VALUE, VALUE)` after it states
        when a parameter applies.

        Each trial is a run in a fresh process. A tenth of the training samples is held out to choose by, so that the
        test samples remain unseen. The folder holds every trial; the same command with --resume FOLDER continues a
        sweep that was killed, and so does --attach FOLDER by itself; it proposes what it would have proposed. The exit
        status is 3 if no trial finished.
        """
        with errors(debug, as_json) as show:
            from deep5.cli.compare import once, parse_bytes
            from deep5.recipe.settings import parse_setting
            from deep5.search.attach import attached
            from deep5.search.sweep import run_sweep

            given = declared(attached, {"attach": attach, "recipe": recipe, "goal": goal}, ("recipe", "goal"))
            if given is None:
                common = once("--set", [parse_setting(text) for text in settings])
                for name, value in (("framework", framework), ("threads", threads), ("ranks", ranks)):
                    if value is not None and name in common:
                        raise UsageError(f"--set {name}; allowed: --{name}, which sets it for every trial")
                    common |= {} if value is None else {name: value}
                given = {
                    "recipe": recipe,
                    "space": _texts(space, parameters),
                    "goal": goal,
                    "common": common,
                    "time_limit_s": time_limit,
                    "memory_limit_bytes": None if memory_limit is None else parse_bytes(memory_limit),
                    **chosen,
                }
            if versus is not None or repeat > 1:
                if said := _beside(given, versus, repeat, quiet=quiet, as_json=as_json):
                    show(said)
                return
            with Reporter(quiet=quiet) as tell:
                done = run_sweep(**given, tell=tell)
            best = done.best
            if as_json and best is not None:  # otherwise the error is the only document
                show(
                    json.dumps(
                        {**done.full_document(), "command": done.command, "folder": str(done.folder)},
                        indent=2,
                        allow_nan=False,
                    )
                )
            elif not quiet and not as_json:
                from deep5.core.terminal import printed

                show(printed(done.print))
            if best is None:
                reason = next((trial.reason for trial in done.ended if trial.reason), "no value is finite")
                raise RunFailed(f"no trial of {done.folder} finished with a value; the first failure: {reason}")

    return sweep
