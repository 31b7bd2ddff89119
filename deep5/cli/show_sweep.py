"""The command `deep5 show sweep`."""

from __future__ import annotations

import json
from functools import partial

import click

from deep5.core.errors import Errors, UsageError

__all__ = ["sweep_command"]


def sweep_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("sweep")
    @click.argument("folders", metavar="FOLDER…", nargs=-1, required=True)
    @click.option("--all", "everything", is_flag=True, help="Show every trial, in the order of the proposals.")
    @click.option(
        "--pareto",
        is_flag=True,
        help="Show the trials that no other one beats in value, parameters and multiply-adds at the same time.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON, with every trial.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def sweep(folders: tuple[str, ...], everything: bool, pareto: bool, as_json: bool, debug: bool) -> None:
        """Show the best trials of a sweep and its budget, also while it is under way.

        FOLDER is what 'deep5 sweep' wrote. Several folders: whether their samplers found better settings than random
        search, over the seeds of the sweeps.
        """
        with errors(debug, as_json) as show:
            from deep5.core.terminal import printed
            from deep5.results.sweep.record import load_sweep
            from deep5.results.validation import encode

            if len(folders) > 1 and (pareto or everything):
                raise UsageError("--pareto or --all and several sweeps; allowed: one sweep")
            if len(folders) > 1:
                from deep5.results.sweep.versus import print_versus, versus

                sweeps = [load_sweep(folder) for folder in folders]
                verdicts = versus(sweeps)
                if as_json:
                    show(json.dumps([own.document() for own in verdicts], indent=2, allow_nan=False))
                else:
                    show(printed(partial(print_versus, sweeps, verdicts)))
                return
            found = load_sweep(folders[0])
            if pareto:
                from deep5.results.sweep.pareto import pareto_front, print_front

                front = pareto_front(found)
                if as_json:
                    rows = [own.document() for own in front]
                    show(json.dumps(encode(rows), indent=2, allow_nan=False))
                else:
                    show(printed(partial(print_front, found, front)))
                return
            if as_json:
                document = {**found.full_document(), "trials": [trial.document() for trial in found.trials]}
                show(json.dumps(encode(document), indent=2, allow_nan=False))
            else:
                show(printed(partial(found.print, everything=everything)))

    return sweep
