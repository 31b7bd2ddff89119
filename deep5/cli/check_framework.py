"""The command `deep5 check framework`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import click

from deep5.cli.recipe_options import debug_option, whole_number
from deep5.core.errors import Errors

__all__ = ["framework_command"]


def framework_command(errors: Errors) -> click.Command:
    """Create the command, to be added to `deep5 check`."""

    @click.command("framework")
    @click.argument("framework", metavar="NAME|FILE:CLASS")
    @click.option("--seed", type=whole_number(0), metavar="N", default=0, help="Seed of the values and sizes.")
    @click.option(
        "--time-limit", "time_limit_s", type=float, metavar="S", default=300.0, help="Time limit of a group in seconds."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
    @click.option("--quiet", is_flag=True, help="Print only failed checks.")
    @debug_option
    def command(framework: str, as_json: bool, quiet: bool, debug: bool, **chosen: Any) -> NoReturn:
        """Check a back-end: its results against the reference, gradients, training, resume, errors, threads.

        FILE:CLASS is a Python file and a class of d5.Framework in it, such as one of d5.ONNXEngine; NAME is a
        registered one, and may have a mode. The checks run in another process.
        """
        with errors(debug, as_json) as show:
            from deep5.core.terminal import printed
            from deep5.run.check_framework import check_framework

            report = check_framework(framework, **chosen)
            if as_json:
                show(json.dumps(report.document(), indent=2, allow_nan=False))
            elif not quiet:
                show(printed(report.print))
            elif report.failures:
                show(report.story())
        raise SystemExit(0 if report else 1)

    return command
