"""Shared parts of commands on recipes: the options that name and change a recipe, and the printing of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from deep5.core.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe

__all__ = ["configured", "debug_option", "recipe_options", "shared_settings_option", "whole_number"]


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
