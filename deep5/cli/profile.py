"""The command `deep5 profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deep5.core.errors import Errors, MissingDependency, UsageError
from deep5.core.progress import tracked
from deep5.core.terminal import plain

if TYPE_CHECKING:
    from deep5.results.profile_record import ProfileRecord

__all__ = ["profile_command"]

_NAME = "profile"


def profile_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("profile")
    @click.argument("folders", metavar="STUDY_FOLDER…", nargs=-1, required=True)
    @click.option("-o", "--out", metavar="DIR", help="Write profile.json, profile.svg and profile.png there.")
    @click.option(
        "--by",
        type=click.Choice(["seconds", "epochs", "steps"]),
        default="seconds",
        show_default=True,
        help="What a candidate needs to reach the target.",
    )
    @click.option(
        "--limit", type=float, default=4.0, show_default=True, metavar="R", help="Largest ratio of the profile."
    )
    @click.option("--log", is_flag=True, help="A logarithmic axis; the score is the area on the linear one.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def profile(
        folders: tuple[str, ...], out: str | None, by: str, limit: float, log: bool, as_json: bool, debug: bool
    ) -> None:
        """Compare candidates over several studies: who reaches the target how soon, on how many of them.

        Each STUDY_FOLDER, of another recipe, is a workload. Candidates are those that all studies have by the same
        name. A time is the median over the seeds, infinite where a run failed, diverged or did not reach the target;
        the score is AlgoPerf's.
        """
        with errors(debug, as_json) as show:
            from deep5.results.kind import PROFILE_KIND, kind_of
            from deep5.results.profile_record import profile_studies
            from deep5.results.study.folder import load_study_folder

            if out is not None and kind_of(out) not in (None, PROFILE_KIND):
                raise UsageError(f"{out} holds a {kind_of(out)}; allowed: a folder without other results")
            record = profile_studies(
                list(map(load_study_folder, tracked(folders, "reading studies", len(folders)))), by, limit
            )
            missing = None if out is None else _write(record, Path(out), log=log)
            if as_json:
                show(json.dumps(record.document(), indent=2, allow_nan=False))
            else:
                from deep5.core.terminal import printed

                show(printed(record.print))
                if out is not None:
                    show(plain(out if missing is None else f"{out}: {missing}"))

    return profile


def _write(record: ProfileRecord, out: Path, *, log: bool) -> str | None:
    """Write the files; without the drawing packages, only the document, and return the reason."""
    from deep5.core.files import write_folder

    content: dict[str, bytes | str] = {f"{_NAME}.json": json.dumps(record.document(), indent=2, allow_nan=False) + "\n"}
    missing = None
    try:
        from deep5.core.charts import files
        from deep5.results.charts.profile import profile_chart

        count = len(record.studies)
        title = f"{count} workload{'s' * (count != 1)}{', open division' if record.open else ''}"
        chart = profile_chart(record.profiles, title, by=record.by, limit=record.limit, log=log)
        content |= files(_NAME, chart)
    except MissingDependency as error:
        missing = f"no {_NAME}.svg was drawn: {error}"
    write_folder(out, content)
    return missing
