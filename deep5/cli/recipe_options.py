"""Shared parts of commands on recipes: the options that name and change a recipe, and the printing of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from deep5.core.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe

__all__ = [
    "configured",
    "debug_option",
    "recipe_options",
    "run_by_run_options",
    "shared_settings_option",
    "whole_number",
]


def whole_number(least: int) -> Callable[[str], int]:
    """A parser for an option's integer of at least `least`."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise click.BadParameter(f"{value!r}; allowed: an integer of at least {least}")
        return number

    return read


def recipe_options(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """Add RECIPE and the options that change it.

    Args:
        command: The command.
        required: Whether RECIPE must be given.
    """
    options = [
        click.argument("recipe", required=required),
        click.option("--framework", metavar="NAME", help="Run on this framework."),
        click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a mutable part; repeatable."),
        click.option("--seed", type=whole_number(0), metavar="N", help="Seed of weights, order and noise."),
        click.option("--device", metavar="D", help="cpu, cuda or cuda:N."),
        click.option("--threads", type=whole_number(1), metavar="N", help="Threads within an operator."),
        click.option("--init", metavar="FILE", help="Start from these weights: a .safetensors or .onnx file."),
        click.option("--size", metavar="NAME", default="full", help="A size of the recipe, such as smoke."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def shared_settings_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --set of commands on several candidates."""
    about = "Set a mutable part of all candidates; repeatable."
    return click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help=about)(command)


def run_by_run_options(what: str, workers: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a command that carries out many runs of a recipe: where, how many at once, limits, and its
    folder.

    Args:
        what: What the command makes.
        workers: Help of --workers.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        engines = (
            "Where runs are carried out: local, dask, dask:ADDRESS of a scheduler, slurm, or slurm:partition=NAME,…."
        )
        memory = "Memory limit of one run, such as 4GiB; default: 90 % of free memory."
        count = click.IntRange(min=1)
        options = [
            click.option("--engine", metavar="NAME", default="local", show_default=True, help=engines),
            click.option("--workers", type=count, default=1, show_default=True, metavar="N", help=workers),
            click.option(
                "--time-limit",
                type=float,
                default=3600.0,
                show_default=True,
                metavar="S",
                help="Time limit of one run in seconds.",
            ),
            click.option("--memory-limit", metavar="SIZE", help=memory),
            click.option(
                "--out", metavar="DIR", default="results", show_default=True, help=f"Parent of the {what}'s folder."
            ),
            click.option("--resume", metavar="FOLDER", help=f"Resume in the folder of an interrupted {what}."),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return add


def debug_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --debug."""
    return click.option("--debug", is_flag=True, help="On an error, show the traceback.")(command)


def configured(
    recipe: str,
    framework: str | None,
    settings: tuple[str, ...],
    seed: int | None,
    device: str | None,
    threads: int | None,
    init: str | None,
    size: str,
    candidate: str | None = None,
) -> Recipe:
    """The recipe named by `recipe_options`, at its size and with its settings, also those of a candidate of its STUDY.

    Raises:
        UsageError: Two options set the same value, or there is no such recipe, size, key, or candidate.
    """
    from deep5.recipe.recipe import load_recipe
    from deep5.recipe.settings import parse_setting

    changes: dict[str, Any] = {}
    for text in settings:
        key, value = parse_setting(text)
        if key in changes:
            raise UsageError(f"--set {key} is given twice; allowed: once")
        changes[key] = value
    options = {"framework": framework, "seed": seed, "device": device, "threads": threads, "init": init}
    for key, given in options.items():
        if given is not None:
            if key in changes:
                raise UsageError(f"--{key} and --set {key} are both given; allowed: one of them")
            changes[key] = given
    if candidate is None:
        return load_recipe(recipe).at_size(size).with_settings(changes)
    from deep5.compare.studied import load_study

    made, candidates = load_study(recipe, size)
    if candidate not in candidates:
        raise UnknownName("candidate", candidate, candidates)
    own = candidates[candidate]
    if both := sorted(set(own) & set(changes)):
        raise UsageError(f"{both[0]!r} is set, and is of the candidate {candidate!r}; allowed: one of them")
    return made.with_settings({**changes, **own})
