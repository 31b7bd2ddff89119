"""The command `deep5 study`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from deep5.cli.attach import attach_option, declared
from deep5.cli.recipe_options import run_by_run_options, shared_settings_option
from deep5.core.errors import Errors, RunFailed, UsageError
from deep5.core.progress import Reporter
from deep5.recipe.recipe import FULL

__all__ = ["study_command", "varied"]


def varied(texts: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """All combinations of the variations, named as in `deep5 compare`; None without variations.

    Args:
        texts: Of the form KEY=VALUE,VALUE,…

    Raises:
        UsageError: A string that cannot be read, a repeated key, or a key that is already set for every candidate.

    >>> varied(["framework=pytorch,jax"])
    {'pytorch': {'framework': 'pytorch'}, 'jax': {'framework': 'jax'}}
    """
    from deep5.compare.options import parse_variation
    from deep5.compare.plan import candidates_of

    if not texts:
        return None
    variations: dict[str, list[Any]] = {}
    for text in texts:
        key, values = parse_variation(text)
        if key in variations:
            raise UsageError(f"--vary {key} is given twice; allowed: once")
        if key == "seed":
            raise UsageError(f"--vary {text}; allowed: --seeds N, which every candidate has")
        variations[key] = values
    frameworks = variations.pop("framework", [""])
    if not all(isinstance(name, str) for name in frameworks):
        raise UsageError(f"--vary framework={frameworks}; allowed: names, such as framework=pytorch,jax")
    made = candidates_of(frameworks, variations, {})
    return {
        candidate.label: {**({"framework": candidate.framework} if candidate.framework else {}), **candidate.settings}
        for candidate in made
    }


def study_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("study")
    @click.argument("recipe", required=False)
    @click.option("--vary", metavar="KEY=V,V", multiple=True, help="A mutable part and its values; repeatable.")
    @shared_settings_option
    @click.option(
        "--target", metavar="M=X", help="accuracy=97 or loss=0.3; default: the target in the recipe's metrics."
    )
    @click.option("--size", metavar="NAME", default=FULL, help="A size of the recipe, such as smoke.")
    @click.option(
        "--seeds", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="Seeds 0 to N-1."
    )
    @click.option("--only", metavar="NAMES", help="Only these candidates, comma-separated.")
    @click.option("--framework", metavar="NAME", help="Run on this framework.")
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator.")
    @click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Run every candidate with N ranks.")
    @click.option(
        "--launcher",
        type=click.Choice(["mpiexec", "torchrun", "threads"]),
        help="What starts ranks; default: the recipe's launcher, or mpiexec.",
    )
    @run_by_run_options("study", "Runs at the same time; with more than one, no times are stated.")
    @attach_option("study")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--quiet", is_flag=True, help="Print only errors.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def study(
        recipe: str | None,
        vary: tuple[str, ...],
        settings: tuple[str, ...],
        target: str | None,
        size: str,
        seeds: int,
        only: str | None,
        engine: str,
        workers: int,
        time_limit: float,
        memory_limit: str | None,
        out: str,
        resume: str | None,
        attach: str | None,
        as_json: bool,
        quiet: bool,
        debug: bool,
        **common: Any,
    ) -> None:
        """Run RECIPE with each of the settings in its STUDY and several seeds, and draw them side by side.

        Without a STUDY in the file, --vary says what to compare: optimizers, frameworks, or both. Each run has a fresh
        process, or one per rank. The pictures show accuracy against epoch and loss against time, with a band over the
        seeds around each mean, and speed-up and efficiency where candidates differ in their number of ranks. A run that
        fails, crashes, diverges or exceeds a limit never reaches the target, and the others continue: the exit status
        is 3 only if no run finished. 'deep5 profile' compares candidates over several studies. The same command with
        --resume resumes an interrupted study, and so does --attach FOLDER without the rest of the command.
        """
        with errors(debug, as_json) as show:
            from deep5.cli.compare import once, parse_bytes
            from deep5.recipe.settings import parse_setting
            from deep5.results.time_to_target import parse_target
            from deep5.study.attach import attached
            from deep5.study.study import run_study

            given = declared(attached, {"attach": attach, "recipe": recipe}, ("recipe",))
            if given is None:
                shared = once("--set", [parse_setting(text) for text in settings])
                options = {name: value for name, value in common.items() if value is not None}
                if both := sorted({*options, "seed"} & {*shared}):
                    option = f"--{both[0]}" if both[0] in options else "--seeds N"
                    raise UsageError(f"--set {both[0]}; allowed: {option}, which sets it for every candidate")
                given = {
                    "recipe": recipe,
                    "varied": varied(vary),
                    "size": size,
                    "only": only,
                    "seeds": range(seeds),
                    "common": {**shared, **options},
                    "target": None if target is None else parse_target(target),
                    "engine": engine,
                    "workers": workers,
                    "time_limit_s": time_limit,
                    "memory_limit_bytes": None if memory_limit is None else parse_bytes(memory_limit),
                    "out": out,
                    "resume": resume,
                }
            with Reporter(quiet=quiet) as tell:
                done = run_study(**given, tell=tell)
            none = not any(done.runs.values())
            if as_json and not none:  # otherwise the error is the only document
                show(json.dumps({**done.document(), "folder": str(done.folder)}, indent=2, allow_nan=False))
            elif not quiet and not as_json:
                from deep5.core.terminal import printed

                show(printed(done.print))
            if none:
                first = next(reason for failed in done.failures.values() for reason in failed)
                raise RunFailed(f"no run of {done.folder} finished; the first failure: {first}")

    return study
