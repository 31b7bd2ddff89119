"""The command `deep5 audit`."""

from __future__ import annotations

import json
from typing import Any

import click

from deep5.audit.finding import RULES
from deep5.core.errors import Errors
from deep5.core.progress import Reporter
from deep5.core.terminal import counted

__all__ = ["audit_command"]


def audit_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    rules = "\n".join(f"  {number:>2}  {title}" for number, title in RULES.items())

    @click.command("audit", epilog=f"\b\nRules:\n{rules}")
    @click.argument("folders", metavar="FOLDER…", nargs=-1, required=True)
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--quiet", is_flag=True, help="Print only findings.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(folders: tuple[str, ...], as_json: bool, quiet: bool, debug: bool) -> Any:
        """Check results of runs, comparisons and studies against the rules of measurement, offline.

        Each finding is a line with the rule's number. Nothing in a folder is executed, and nothing outside it is read.
        The exit status is 1 where there is a finding.
        """
        with errors(debug, as_json) as show:
            from deep5.audit.folders import audit

            with Reporter(quiet=quiet) as tell:
                report = audit(folders, tell=tell)
            if as_json:
                show(json.dumps(report.document(), indent=2, allow_nan=False))
            else:
                for finding in report.findings:
                    show(str(finding))
                if not quiet:
                    for what, times in report.skipped.items():
                        show(f"not re-checked, {counted(times, 'time')}: {what}")
                    show(
                        f"{counted(report.folders, 'folder')}, {counted(report.checks, 'check')}, "
                        f"{counted(len(report.findings), 'finding')}, "
                        f"{sum(report.skipped.values())} not re-checked"
                    )
            status = 0 if report else 1
        raise SystemExit(status)

    return command
