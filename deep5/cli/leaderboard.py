"""The command `deep5 leaderboard`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from deep5.core.errors import Errors, OutputError, UsageError
from deep5.core.progress import Reporter

__all__ = ["leaderboard_command"]


def leaderboard_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("leaderboard")
    @click.argument("folders", nargs=-1, required=True, metavar="FOLDER…")
    @click.option("--recipe", metavar="NAME", help="Only runs of this recipe.")
    @click.option("--size", metavar="NAME", help="Only runs of this size.")
    @click.option("--by", metavar="METRIC", help="Rank by this metric; default: the first one with a goal.")
    @click.option("-o", "--out", metavar="PAGE", help="Also write a page, such as leaderboard.html.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def leaderboard(
        folders: tuple[str, ...],
        recipe: str | None,
        size: str | None,
        by: str | None,
        out: str | None,
        as_json: bool,
        debug: bool,
    ) -> None:
        """Rank the runs in FOLDER… of one recipe, those of studies too, by settings and over their seeds.

        Each run is audited first, and one with findings does not count. The closed and the open division are ranked
        apart. Entries share a rank where no difference is shown. The trials of sweeps do not count: they are chosen.
        """
        with errors(debug, as_json) as show:
            from deep5.audit.admitted import admitted
            from deep5.core.files import write_atomically
            from deep5.core.terminal import printed
            from deep5.results.leaderboard import leaderboard as ranked
            from deep5.results.report.leaderboard_page import leaderboard_page

            if out is not None and not out.endswith((".html", ".htm")):
                raise UsageError(f"-o {out!r:.80}; allowed: a page, whose name ends in .html")
            with Reporter(quiet=as_json) as tell:
                runs, left_out = admitted(folders, tell=tell)
            board = ranked(runs, left_out, recipe=recipe, size=size, by=by)
            if out is not None:
                try:
                    write_atomically(Path(out), leaderboard_page(board))
                except OSError as error:
                    raise OutputError(f"cannot write {out}: {error.strerror}; allowed: a writable folder") from error
            show(json.dumps(board.document(), indent=2, allow_nan=False) if as_json else printed(partial(board.print)))

    return leaderboard
