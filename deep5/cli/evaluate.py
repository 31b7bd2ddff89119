"""The command `deep5 evaluate`."""

from __future__ import annotations

import json
from typing import Any

import click

from deep5.core.errors import Errors
from deep5.trained.evaluate import evaluate_result

__all__ = ["evaluate_command"]


def evaluate_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("evaluate")
    @click.argument("result", metavar="RESULT")
    @click.option(
        "--split", type=click.Choice(["test", "train"]), default="test", show_default=True, help="Part of the data set."
    )
    @click.option("--data", metavar="NAME", help="Another data set: a registered name, or FILE.py:NAME.")
    @click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="An argument of that data set; repeatable."
    )
    @click.option("--framework", metavar="NAME", help="Run on this framework instead of the run's.")
    @click.option("--device", metavar="D", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
    @click.option("--recipe", metavar="RECIPE", help="The run's recipe or FILE.py:NAME, if its code is needed.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def evaluate(result: str, settings: tuple[str, ...], as_json: bool, debug: bool, **chosen: Any) -> None:
        """Evaluate the trained network of RESULT, a result folder, on its test set.

        The output also shows the values that the run recorded. Nothing in the folder is executed: the data set is made
        again from its registered name.
        """
        with errors(debug, as_json) as show:
            from deep5.recipe.settings import parse_setting

            found = evaluate_result(result, arguments=dict(parse_setting(text) for text in settings), **chosen)
            if as_json:
                show(json.dumps(found.document(), indent=2, allow_nan=False))
                return
            from deep5.core.terminal import printed

            show(printed(found.print))

    return evaluate
