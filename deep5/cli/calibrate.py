"""The command `deep5 calibrate`."""

from __future__ import annotations

import json

import click

from deep5.core.errors import Errors, UsageError
from deep5.core.progress import Reporter
from deep5.core.quantities import percent
from deep5.measuring import calibration
from deep5.measuring.pinning import processors
from deep5.measuring.scheme import CURRENT

__all__ = ["calibrate_command"]


def calibrate_command(errors: Errors) -> click.Command:
    """Create the command, with the error handling of the command line."""

    @click.command("calibrate")
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option(
        "--clear",
        is_flag=True,
        help="Delete the calibration of this machine (only that with N threads, if given) and measure nothing.",
    )
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(threads: int | None, as_json: bool, clear: bool, debug: bool) -> None:
        """Measure this machine's noise floor: how far apart identical code is in 32 fresh processes. Under a minute.

        A difference that 'deep5 compare' finds counts only where it is larger.
        """
        with errors(debug, as_json) as show:
            from deep5.measuring.environment import default_threads

            if clear:
                calibration.clear_calibrations(threads)
                return
            count = threads or default_threads("") or 1
            here = len(processors(count))
            if count > here:
                raise UsageError(f"{count} threads; allowed: at most {here}, the processors of this process")
            before = calibration.kept_calibration(count)
            with Reporter() as tell:
                made = calibration.calibrate(count, tell=tell)
            if as_json:
                for line in calibration.said_of(made, before):
                    click.echo(line, err=True)
                floors = {rounds: made.floor(rounds) for rounds in (CURRENT.quick_rounds, *CURRENT.looks)}
                show(json.dumps({**made.document(), "floors": floors}, indent=2))
                return
            for rounds in (CURRENT.quick_rounds, CURRENT.looks[0], CURRENT.looks[-1]):
                what = f"{rounds} processes each{' (--quick)' if rounds == CURRENT.quick_rounds else ''}"
                show(f"{what}: differences up to {percent(made.floor(rounds) - 1, 1)} are noise")
            for line in calibration.said_of(made, before):
                show(line)

    return command
