"""The command `deep5 export`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from deep5.core.errors import Errors, MissingDependency, OutputError, UsageError
from deep5.core.files import is_folder
from deep5.core.progress import tracked
from deep5.core.terminal import plain
from deep5.results.kind import kind_of
from deep5.results.ranks_file import sample_files
from deep5.results.samples_file import SAMPLES

if TYPE_CHECKING:
    from deep5.results.export.source import Source

__all__ = ["Exported", "export", "export_command"]

_ENDINGS = {"mllog": ".mllog", "pytest-benchmark": ".json", "parquet": ".parquet", "csv": ".csv"}
# Size of the samples in one file, about a million: it is built in memory, where a sample takes far more space.
_SAMPLES_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export.

    Attributes:
        paths: The files, all complete.
        left_out: Results and parts of results that no file contains, with the reasons, one sentence each.
    """

    paths: list[Path]
    left_out: list[str]


class _Part(NamedTuple):
    """One result's part of an export: a name for a separate file, and its content in the format's own form."""

    name: str
    content: Any


_Make = Callable[["Source"], Iterator[_Part]]
_Join = Callable[[Sequence[Any]], bytes]


def export(folders: Sequence[str | Path], form: str, out: str | Path) -> Exported:
    """Export results that fit a format of another program; returns the reasons for those that do not.

    Args:
        folders: Folders of results, of studies, or of several of either.
        form: "mllog", "pytest-benchmark", "parquet" or "csv".
        out: A file, if it ends in .mllog, .log, .json, .parquet or .csv; otherwise a folder, with one file per result.

    Raises:
        UsageError: No such format, no result with suitable content, or an output path that cannot be written.
        MissingDependency: A package that writes the format is not installed.
    """
    from deep5.results.export.missing import missing_of
    from deep5.results.export.source import sources

    if form not in _ENDINGS:
        raise UsageError(f"format {form!r:.40}; allowed: {', '.join(_ENDINGS)}")
    if not folders:
        raise UsageError("no folder to export; allowed: result folders, or folders of them")
    out = Path(out)
    single = not is_folder(out) and out.suffix in (_ENDINGS[form], ".log")
    if not single and out.suffix in (*_ENDINGS.values(), ".log") and not is_folder(out):
        raise UsageError(f"{out} does not have the ending of {form}; allowed: a name in {_ENDINGS[form]}, or a folder")
    found, left_out = sources(folders)
    if kind_of((out.parent if single else out).resolve()) is not None:
        raise UsageError(f"{out} lies in a result folder, which holds what its run wrote; allowed: another place")
    make, join = _format(form)
    # The log format itself records failed processes of a comparison.
    missing = None if form == "mllog" else lambda source: missing_of(source, tables=form != "pytest-benchmark")
    parts = _parts(found, make, left_out, missing)
    if single and (size := sum(map(_samples_bytes, found))) > _SAMPLES_BYTES:
        raise UsageError(
            f"{size} bytes of samples do not fit into {out}; allowed: {_SAMPLES_BYTES}; remedy: -o DIR, for one "
            "file per result"
        )
    paths = _one_file(parts, join, out) if single else _a_file_each(parts, join, out, _ENDINGS[form])
    if not paths:
        raise UsageError(f"nothing to export: {'; '.join(left_out) or 'these studies hold no runs'}")
    return Exported(paths=paths, left_out=left_out)


def _format(form: str) -> tuple[_Make, _Join]:
    """The function that makes the parts of a result, and the one that joins parts to a file."""
    if form == "mllog":
        from deep5.results.export.mllog import mllogs

        return lambda source: (_Part(*own) for own in mllogs(source)), _one_log
    if form == "pytest-benchmark":
        from deep5.results.export.pytest_benchmark import benchmarks_file, benchmarks_of

        return _whole(benchmarks_of), benchmarks_file
    from deep5.results.export.tables import csv_file, csv_rows, parquet_file, parquet_table

    return (_whole(csv_rows), csv_file) if form == "csv" else (_whole(parquet_table), parquet_file)


def _whole(make: Callable[[Source], Any]) -> _Make:
    return lambda source: iter([_Part(source.folder.name, make(source))])


def _one_log(parts: Sequence[str]) -> bytes:
    if len(parts) != 1:
        raise UsageError(
            f"{len(parts)} logs do not fit into one file; allowed: one; remedy: -o DIR, for one file per run"
        )
    return parts[0].encode()


def _samples_bytes(source: Source) -> int:
    try:
        return sum(os.lstat(path).st_size for _, path in sample_files(source.folder, source.about.ranks or 1))
    except OSError:  # there are none, or reading them reports the error
        return 0


def _parts(
    found: Sequence[Source], make: _Make, left_out: list[str], missing: Callable[[Source], list[str]] | None
) -> Iterator[_Part]:
    """The parts of all results; unsuitable results are noted and left out, and missing parts of a result are noted."""
    for source in tracked(found, "exporting results", len(found)):
        if (size := _samples_bytes(source)) > _SAMPLES_BYTES:
            left_out.append(
                f"{source.folder} has {size} bytes of samples; allowed: {_SAMPLES_BYTES}; read its {SAMPLES}"
            )
            continue
        try:
            own = list(make(source))
            gone = [] if missing is None else missing(source)
        except MissingDependency:
            raise
        except UsageError as error:
            left_out.append(str(error))
        else:
            left_out += gone
            yield from own


def _one_file(parts: Iterator[_Part], join: _Join, out: Path) -> list[Path]:
    content = [part.content for part in parts]
    if content:
        _written(out, join(content))
    return [out] if content else []


def _a_file_each(parts: Iterator[_Part], join: _Join, out: Path, ending: str) -> list[Path]:
    """One result at a time, so that only one is in memory."""
    paths: list[Path] = []
    taken: set[str] = set()
    for part in parts:
        name, number = part.name, 2
        # A number distinguishes folders of the same name in different places.
        while name in taken:
            name, number = f"{part.name}-{number}", number + 1
        taken.add(name)
        paths.append(out / f"{name}{ending}")
        _written(paths[-1], join([part.content]))
    return paths


def _written(path: Path, content: bytes) -> None:
    from deep5.core.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; allowed: a writable path; remedy: another -o"
        ) from error


def export_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("export")
    @click.argument("folders", metavar="FOLDER…", nargs=-1, required=True)
    @click.option("--format", "form", type=click.Choice(list(_ENDINGS)), required=True, help="Output format.")
    @click.option(
        "-o",
        "--out",
        metavar="FILE|DIR",
        required=True,
        help="A file if it has the ending of the format, else a folder.",
    )
    @click.option("--quiet", is_flag=True, help="Print only errors.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(folders: tuple[str, ...], form: str, out: str, quiet: bool, debug: bool) -> None:
        """Write the results in FOLDER… in the format of another program.

        mllog: the events of training, for MLPerf's tools. pytest-benchmark: times of operators, of code and of
        comparisons, for pytest-benchmark compare. parquet and csv: every raw sample with its origin. Results that do
        not fit the format, or failed before their first sample, are left out and reported; the exit status is then 1.
        """
        with errors(debug, False) as show:
            done = export(folders, form, out)
            if not quiet:
                show("\n".join(map(plain, done.paths)))
        for reported in done.left_out:
            click.echo(f"deep5: not exported: {plain(reported)}", err=True)
        raise SystemExit(int(bool(done.left_out)))

    return command
