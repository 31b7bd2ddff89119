"""The command `deep5 check optimizer`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import click

from deep5.core.errors import Errors

__all__ = ["optimizer_command"]


def optimizer_command(errors: Errors) -> click.Command:
    """Create the command, to be added to `deep5 check`."""

    @click.command("optimizer")
    @click.argument("optimizer", metavar="NAME|FILE:CLASS")
    @click.option(
        "--set", "settings", metavar="NAME=VALUE", multiple=True, help="An argument of the class; repeat for more."
    )
    @click.option("--framework", "framework_name", metavar="NAME", help="Train on this framework.  [default: all]")
    @click.option("--seed", type=click.IntRange(min=0), metavar="N", default=0, help="Seed of the problems.")
    @click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
    @click.option("--quiet", is_flag=True, help="Print only failed checks.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(optimizer: str, as_json: bool, quiet: bool, debug: bool, **chosen: Any) -> NoReturn:
        """Check an optimizer: its contract, every framework, exact resume, groups, a convex problem.

        FILE:CLASS is a Python file and a class in it: an update rule, or a class with bind, step, state_dict and
        load_state_dict. NAME is a registered one, or native:NAME with --framework.
        """
        with errors(debug, as_json) as show:
            from deep5.core.terminal import printed
            from deep5.run.check_optimizer import check_optimizer

            report = check_optimizer(optimizer, **chosen)
            if as_json:
                show(json.dumps(report.document(), indent=2, allow_nan=False))
            elif not quiet:
                show(printed(report.print))
            elif report.failures:
                show(report.story())
        raise SystemExit(0 if report else 1)

    return command
