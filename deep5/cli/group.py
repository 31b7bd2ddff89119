"""A group of commands that imports them on use and reports an unknown one with the allowed names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from deep5.cli.errors import errors
from deep5.core.errors import UnknownName, suggestion

__all__ = ["CommandGroup", "DefaultGroup"]


class CommandGroup(click.Group):
    """A group that imports some of its commands on use.

    Args:
        late: By a command's name, the module and the name of the command in it, or of the function that creates it.
    """

    def __init__(self, *args: Any, late: Mapping[str, tuple[str, str]] | None = None, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.late = late or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self.late})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported if needed; None for an unknown name."""
        if cmd_name in self.late and cmd_name not in self.commands:
            module, function = self.late[cmd_name]
            made = getattr(import_module(module), function)
            self.add_command(made if isinstance(made, click.Command) else made(errors))
        found = super().get_command(ctx, cmd_name)
        if found is not None and ctx.resilient_parsing:  # a shell completes
            from deep5.cli.completion import attach

            return attach(found)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument; click's own message for an unknown one names no allowed command."""
        names = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(str(UnknownName("command", args[0], names)))
        return super().resolve_command(ctx, args)


class DefaultGroup(CommandGroup):
    """A group that takes what is not the name of a command as the arguments of one: `deep5 check RECIPE`.

    Args:
        default: The name of that command.
    """

    def __init__(self, *args: Any, default: str, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._default = default

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the named command, or of the default one."""
        if not args or args[0] not in (*self.commands, *self.late, "-h", "--help"):
            given = list(args)  # click empties the list
            try:
                return self.commands[self._default].make_context(info_name, args, parent, **extra)
            except click.UsageError as error:
                if tail := _command_tail(given, [*self.commands, *self.late]):
                    raise click.UsageError(error.format_message() + tail, error.ctx) from error
                raise
        return super().make_context(info_name, args, parent, **extra)


def _command_tail(given: Sequence[str], commands: Sequence[str]) -> str:
    """For an argument too many, the command that the first one probably names: `check optimiser rules.py:Own`."""
    if len(given) < 2 or given[1].startswith("-"):
        return ""
    return suggestion(given[0], commands) or f"; allowed: one argument, or those of {' or '.join(commands)}"
