"""The option --attach: a command whose declaration comes from the folder of what was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from deep5.core.errors import UsageError

__all__ = ["attach_option", "declared"]

# What may be given with --attach.
_BESIDE = ("attach", "as_json", "quiet", "debug")


def attach_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --attach.

    Args:
        what: What it resumes.
    """
    about = f"Resume an interrupted {what} as its folder declares it, without RECIPE and other options."
    return click.option("--attach", metavar="FOLDER", help=about)


def declared(
    read: Callable[[str], Mapping[str, Any]], given: Mapping[str, Any], required: tuple[str, ...]
) -> Mapping[str, Any] | None:
    """The arguments that a folder declares; None without --attach.

    Args:
        read: Reads them.
        given: The parameters of the command.
        required: Those that a command without --attach needs.

    Raises:
        UsageError: Another option is given with --attach, or a required one is missing.
    """
    context = click.get_current_context()
    if given["attach"] is None:
        for name in required:
            if given[name] is None:
                parameter = next(own for own in context.command.params if own.name == name)
                shown = parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.human_readable_name)
                raise UsageError(f"no {shown} is given; allowed: {context.command_path} RECIPE …, or --attach FOLDER")
        return None
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in _BESIDE and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.human_readable_name)
            raise UsageError(
                f"--attach and {shown} are both given; allowed: what the folder declares; remedy: the whole command, "
                "with --resume in place of --attach"
            )
    return read(given["attach"])
