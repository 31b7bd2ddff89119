"""The command `deep5 report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deep5.core.errors import Errors, OutputError, UsageError
from deep5.core.progress import Ongoing
from deep5.core.terminal import plain

__all__ = ["report_command"]

_PAGES = (".html", ".htm")
_PAGE, _FIGURES, _TABLES = "report.html", "figures", "tex"


def report_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("report")
    @click.argument("folders", nargs=-1, metavar="FOLDER…")
    @click.option(
        "-o",
        "--out",
        metavar="PATH",
        help=f"The page (default: {_PAGE}), or the folder of figures and tables (default: {_FIGURES}).",
    )
    @click.option(
        "--format",
        "kind",
        metavar="NAME",
        default="html",
        help="html (default), figures as svg, pdf or png, or LaTeX tables as tex.",
    )
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(folders: tuple[str, ...], out: str | None, kind: str, debug: bool) -> None:
        """Show the comparisons, runs and studies in FOLDER… on one page, which works offline; or draw their figures, or
        write their numbers as LaTeX tables, for \\input and the package booktabs.

        A folder that holds such folders stands for all of them. A folder that cannot be read is reported on stderr and
        on the page, and the exit status is 1.
        """
        with errors(debug, False) as show:
            status = _report(folders, out, kind, show)
        raise SystemExit(status)

    return command


def _report(folders: tuple[str, ...], out: str | None, kind: str, show: Any) -> int:
    from deep5.results.report.collect import collect
    from deep5.results.report.drawing import FORMATS

    if kind not in (allowed := ("html", *FORMATS, _TABLES)):
        raise UsageError(f"--format {kind!r}; allowed: {', '.join(allowed)}; remedy: one of these")
    if not folders:
        raise UsageError("no folder given; allowed: folders that deep5 wrote; remedy: deep5 report results")
    path = Path(out or (_PAGE if kind == "html" else _FIGURES))
    if kind == "html" and path.suffix.lower() not in _PAGES:
        raise UsageError(f"--out {str(path)!r}; allowed: a file that ends in {' or '.join(_PAGES)}; remedy: -o {_PAGE}")
    with Ongoing("reading the results"):
        found = collect(folders)
    lost = [f"{row.path}: {row.reason}" for row in found.unreadable]
    if not len(found):
        raise UsageError(f"nothing to report on: {'; '.join(lost)}; allowed: folders that deep5 wrote")
    if kind == "html":
        from deep5.results.report.page import report_page

        with Ongoing("drawing the report"):
            page = report_page(found).encode()
        _write(path.parent, {path.name: page})
        show(plain(path))
    else:
        if kind == _TABLES:
            from deep5.results.report.paper_tables import report_tables

            files, undrawn = report_tables(found)
        else:
            from deep5.results.report.figures import report_figures

            with Ongoing("drawing the figures"):
                files, undrawn = report_figures(found, kind)
        lost += [f"{row.path}: {row.reason}" for row in undrawn]
        _write(path, files)
        for name in files:
            show(plain(path / name))
    for reported in lost:
        click.echo(f"deep5: not in the report: {plain(reported)}", err=True)
    return int(bool(lost))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    from deep5.core.files import write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror or error}; allowed: a writable folder; remedy: --out"
        ) from error
