"""The commands `deep5 results list`, `sign`, `verify`, `pack` and `unpack`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from deep5.cli.group import DefaultGroup
from deep5.core.errors import Errors, UsageError, suggestion

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["results_command"]

_LAST = 50


def results_command(errors: Errors) -> click.Command:
    """Create the commands.

    Args:
        errors: Error handling of the command line.
    """

    @click.group("results", cls=DefaultGroup, default="list", subcommand_metavar="[ROOT] | COMMAND …")
    def results() -> None:
        """List runs, comparisons and studies under ROOT (results); sign and verify them, pack and unpack runs.

        `deep5 results [ROOT]` is short for `deep5 results list [ROOT]`.
        """

    @results.command("list")
    @click.argument("root", default="results")
    @click.option(
        "--where",
        metavar="KEY=VALUE",
        multiple=True,
        help="Only rows with this value in a column; * matches any characters; repeatable.",
    )
    @click.option("--recipe", metavar="NAME", help="Short for --where recipe=NAME.")
    @click.option("--framework", metavar="NAME", help="Short for --where framework=NAME.")
    @click.option("--status", metavar="S", help="Short for --where status=S.")
    @click.option("--sort", metavar="KEY", help="Sort by this column, the largest last.  [default: started]")
    @click.option(
        "--last",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Only the last N; 0: all.  [default: {_LAST}; with --json or --csv: all]",
    )
    @click.option(
        "--columns", metavar="A,B", help="Columns to print, such as run_id,metric.test_accuracy,set.batch_size."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--csv", "as_csv", is_flag=True, help="Print as CSV.")
    @click.option("--rebuild", is_flag=True, help="Ignore the cached index and read every folder again.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(
        root: str,
        where: tuple[str, ...],
        sort: str | None,
        last: int | None,
        columns: str | None,
        as_json: bool,
        as_csv: bool,
        rebuild: bool,
        debug: bool,
        **named: str | None,
    ) -> None:
        """List runs, comparisons and studies under ROOT (results), up to eight folders deep, the newest last.

        An index of the results is kept in deep5's cache, which 'deep5 clean' empties; nothing is written to ROOT. The
        columns are those of d5.results.load(ROOT), which returns the same table as a pandas DataFrame; metrics have
        their unit in the header. In CSV, an apostrophe precedes strings that a spreadsheet would evaluate. Folders that
        are left out are reported on stderr. The exit status is 0, even if runs failed.
        """
        with errors(debug, as_json) as show:
            from deep5.results.choosing import check_column, chosen, columns_of, ordered, rows_with_units, unmatched
            from deep5.results.index import list_results
            from deep5.results.store_table import SHOWN

            if as_json and as_csv:
                raise UsageError("--json and --csv are both given; allowed: one of them")
            if not Path(root).exists() and (tail := suggestion(root, results.commands)):
                raise UsageError(f"there is no folder {root!r}; allowed: a folder of results, or a command{tail}")
            listing = list_results(root, rebuild=rebuild)
            for note in listing.notes:
                click.echo(f"deep5: note: {note}", err=True)
            rows, units = rows_with_units(listing.results)
            # Without results, columns of metrics and settings are unknown. Sort before filtering: the columns of all
            # results are valid, not only those of the requested ones.
            known = (*columns_of(rows), *SHOWN)
            requested = _requested(where, named, known)
            found = chosen(ordered(rows, sort), requested) if rows else []
            for reported in unmatched(rows, requested):
                click.echo(f"deep5: note: {reported}", err=True)
            names = _columns(columns, known)
            for name in names if rows else ():
                check_column(name, known)
            most = last if last is not None else 0 if as_json or as_csv else _LAST
            shown = found[-most:] if most else found
            if as_json:
                pick = names or columns_of(shown)
                show(json.dumps([_document(row, pick, units) for row in shown], indent=2))
            elif as_csv:
                show(_csv(shown, names or columns_of(shown), units))
            else:
                show(_text(root, shown, len(found), len(rows), names, units))

    @results.command("sign")
    @click.argument("folder", metavar="FOLDER")
    @click.option("--key", metavar="FILE", required=True, help="Your SSH private key, or the public one of an agent's.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def sign_command(folder: str, key: str, debug: bool) -> None:
        """Sign FOLDER, a result folder or a folder of them, with an SSH key, so that later changes are visible.

        Writes SHA256SUMS, the hash of every file, and SHA256SUMS.sig, its signature by ssh-keygen.
        """
        with errors(debug, False) as show:
            from deep5.results.signature import SIGNATURE, sign

            count = sign(folder, key)
            show(
                f"{folder}: {count} files are signed in {SIGNATURE}; deep5 results verify {folder} --signer {_pub(key)}"
            )

    @results.command("verify")
    @click.argument("folder", metavar="FOLDER")
    @click.option("--signer", metavar="FILE", help="The signer's public key, or ssh-keygen's file of allowed signers.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def verify_command(folder: str, signer: str | None, as_json: bool, debug: bool) -> NoReturn:
        """Compare FOLDER with its signature: files changed, missing or added since, and the signer.

        The exit status is 0 only if nothing changed and the signature is by a key of --signer.
        """
        with errors(debug, as_json) as show:
            from deep5.results.signature import verify

            found = verify(folder, signer)
            if as_json:
                show(json.dumps({"verified": bool(found), **asdict(found)}, indent=2))
            else:
                by = f" by {found.signer}" if found.signer else ""
                made = f"signed{by} with the key {found.key}" if found.key else "no valid signature"
                state = "as signed" if found else "NOT as signed"
                if found.only_unproved:
                    state = "as signed by that key; whose it is, is NOT PROVED"
                show("\n".join((*found.faults, f"{folder}: {found.files} files, {made}: {state}")))
        raise SystemExit(0 if found else 1)

    @results.command("pack")
    @click.argument("folder", metavar="FOLDER")
    @click.option("-o", "out", metavar="FILE.zip", help="The archive.  [default: the run's name with .zip]")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def pack_command(folder: str, out: str | None, debug: bool) -> None:
        """Write one archive with everything that `deep5 run FILE.zip` needs to repeat the run in FOLDER.

        Files of more than 64 MiB are left out, and named with hash and origin in the archive's pack.json.
        """
        with errors(debug, False) as show:
            from deep5.results.pack import pack
            from deep5.results.reading import shown_path

            path, left_out = pack(folder, out)
            for left in left_out:
                sha = f", SHA-256 {left['sha256']}" if left["sha256"] else ""
                click.echo(f"deep5: note: left out: {shown_path(left['origin'])} ({left['why']}{sha})", err=True)
            show(f"{shown_path(path)}: {path.stat().st_size} bytes; deep5 run {shown_path(path)} repeats the run")

    @results.command("unpack")
    @click.argument("archive", metavar="FILE.zip")
    @click.option("-o", "out", metavar="FOLDER", help="The new folder.  [default: the archive's name without .zip]")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def unpack_command(archive: str, out: str | None, debug: bool) -> None:
        """Unpack FILE.zip, an archive by `deep5 results pack`, and verify every hash; nothing in it is executed."""
        with errors(debug, False) as show:
            from deep5.results.pack import unpack
            from deep5.results.reading import shown_path

            folder, manifest = unpack(archive, out)
            for left in manifest["left_out"]:
                place = "" if left["file"] is None else f"; it belongs at {shown_path(folder / left['file'])}"
                click.echo(f"deep5: note: not in the archive: {shown_path(left['origin'])}{place}", err=True)
            files, run = len(manifest["files"]), shown_path(folder / manifest["run_id"])
            show(f"{run}: {files} files are as packed; deep5 run --like {shown_path(folder)} repeats the run")

    return results


def _pub(key: str) -> str:
    return f"{key.removesuffix('.pub')}.pub"


def _requested(where: Sequence[str], named: Mapping[str, str | None], known: Sequence[str]) -> dict[str, str]:
    requested = {key: value for key, value in named.items() if value is not None}
    for text in where:
        key, sign, value = text.partition("=")
        # A candidate's name may contain the sign: use the longest key that is a column.
        parts = text.split("=")
        for count in range(len(parts) - 1, 1, -1):
            if (longer := "=".join(parts[:count])).strip() in known:
                key, value = longer, "=".join(parts[count:])
                break
        if not sign or not key.strip():
            raise UsageError(f"--where {text!r:.80}; allowed: KEY=VALUE, such as recipe=digits_lenet or set.seed=0")
        if key.strip() in requested:
            raise UsageError(f"{key.strip()!r:.80} is given twice; allowed: once")
        requested[key.strip()] = value.strip()
    return requested


def _columns(text: str | None, known: Sequence[str]) -> list[str]:
    names: list[str] = []
    parts = (text or "").split(",")
    while parts:
        # A name, such as a candidate's, may contain commas: use the longest one that is a column.
        counts = range(len(parts), 1, -1)
        count = next((count for count in counts if ",".join(parts[:count]).strip() in known), 1)
        names.append(",".join(parts[:count]).strip())
        del parts[:count]
    return [name for name in names if name]


def _plain(value: Any) -> Any:
    # JSON has no infinities.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _value(row: Mapping[str, Any], name: str, units: Mapping[str, str]) -> Any:
    """The value of a column; a string for one that only the table makes of several fields."""
    from deep5.results.store_table import SHOWN, cell

    return cell(row, name, units) if name in SHOWN else row.get(name)


def _document(row: Mapping[str, Any], names: Sequence[str], units: Mapping[str, str]) -> dict[str, Any]:
    from deep5.results.store_table import SHOWN

    shown = {name: _plain(_value(row, name, units)) for name in names if name in (*row, *SHOWN)}
    own = {name: units[name] for name in shown if name in units}
    return {**shown, "units": own} if own else shown


def _csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str], units: Mapping[str, str]) -> str:
    from deep5.results.choosing import heading
    from deep5.results.csv_cells import csv_lines
    from deep5.results.reading import shown_path

    values = ([_value(row, name, units) for name in names] for row in rows)
    # A folder's name may contain control characters and invalid characters.
    shown = ([shown_path(value) if isinstance(value, str) else value for value in row] for row in values)
    return csv_lines(([heading(name, units) for name in names], *shown)).rstrip("\n")


def _text(
    root: str,
    rows: Sequence[Mapping[str, Any]],
    found: int,
    all_of_them: int,
    names: Sequence[str],
    units: Mapping[str, str],
) -> str:
    from rich.text import Text

    from deep5.core.terminal import counted, printed
    from deep5.results.store_table import store_table

    def write(console: Console) -> None:
        if rows:
            store_table(rows, names, units, console)
        if len(rows) < found:
            console.print(Text(f"the last {len(rows)}; {found - len(rows)} more before them: --last 0 shows all"))
        elif found < all_of_them:
            console.print(Text(f"{found} of {counted(all_of_them, 'result')}"))
        elif not all_of_them:
            console.print(Text(f"no results in {root}; 'deep5 run RECIPE' makes one"))

    return printed(write).strip("\n")
