"""The command `deep5 show dataset`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deep5.cli.recipe_options import whole_number
from deep5.cli.show_parts import called, check_folder, nested, pairs, printed
from deep5.core.errors import Errors, MissingDependency, UsageError
from deep5.core.files import exists
from deep5.core.terminal import plain

if TYPE_CHECKING:
    from deep5.results.dataset_record import DatasetRecord

__all__ = ["dataset_command"]

_DOCUMENT = "samples.json"


def dataset_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("dataset")
    @click.argument("dataset", metavar="NAME|FILE.py:NAME")
    @click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="An argument of the data set; repeatable."
    )
    @click.option(
        "--samples", type=whole_number(1), default="8", show_default=True, metavar="N", help="Training samples to show."
    )
    @click.option("--download", is_flag=True, help="Download the data set if it is not on this machine.")
    @click.option("-o", "--out", metavar="DIR", help=f"Write {_DOCUMENT} and pictures of samples and classes there.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def dataset_(
        dataset: str,
        settings: tuple[str, ...],
        samples: int,
        download: bool,
        out: str | None,
        as_json: bool,
        debug: bool,
    ) -> None:
        """Show a data set: arguments, sizes, classes, decisions and the first training samples.

        NAME is a registered data set ('deep5 list datasets') or FILE.py:NAME, as in a recipe. Without its required
        arguments, only the arguments are shown. --out also draws samples (images, waveforms, histograms of columns,
        tokens) and the numbers of samples of each class.
        """
        with errors(debug, as_json) as report:
            if out is not None:
                check_folder(out)
            record = _record(dataset, nested(pairs("--set", settings)), samples, download)
            missing = [] if out is None or record.splits is None else _write(record, Path(out))
            if as_json:
                report(json.dumps(record.document(), indent=2, allow_nan=False))
                for reason in missing:
                    click.echo(f"deep5: {plain(reason)}", err=True)
            else:
                report(printed(record))
                if out is not None and record.splits is not None:
                    report(plain("\n".join([out, *missing])))

    return dataset_


def _record(text: str, arguments: Mapping[str, Any], samples: int, download: bool) -> DatasetRecord:
    from deep5.core.plugins import load, registered
    from deep5.recipe.file import named_in_file
    from deep5.results.dataset_record import DatasetRecord, arguments_of, record_of
    from deep5.training.dataset import Splits
    from deep5.training.downloads import DataMissing, nothing_fetched

    known = text in registered("datasets")  # a folder of that name does not hide it
    if ".py:" not in text and not known and (os.sep in text or text.endswith(".py") or exists(text)):
        raise UsageError(
            f"got {text} as the data set; allowed: a registered name or FILE.py:NAME; remedy: "
            + (f"{text}:NAME" if text.endswith(".py") else "the data set that reads it, such as 'table --set path=…'")
            + "; 'deep5 list datasets' shows them"
        )
    made = named_in_file(text) if ".py:" in text else load("datasets", text)
    accepted = []
    if callable(made):
        accepted = arguments_of(made)
        if any(one.required and one.name not in arguments for one in accepted) and not arguments:
            return DatasetRecord(source=text, accepted=accepted)
        try:
            with nullcontext() if download else nothing_fetched():
                made = called(text, made, arguments)
        except DataMissing as error:
            fetched = "; remedy: --download" if str(error).endswith("a run fetches it") else ""
            raise UsageError(f"{error}{fetched}") from error
    elif arguments:
        raise UsageError(f"{text} is an object already; allowed: no --set")
    if not isinstance(made, Splits):
        raise UsageError(f"{text} gives a {type(made).__name__}; allowed: d5.Splits")
    return record_of(text, accepted, arguments, made, samples)


def _write(record: DatasetRecord, out: Path) -> list[str]:
    """Write the files; returns what could not be drawn, with reasons."""
    from deep5.core.files import write_folder

    content: dict[str, bytes | str] = {_DOCUMENT: json.dumps(record.document(), indent=2, allow_nan=False) + "\n"}
    missing = []
    try:
        from deep5.core.charts import files
        from deep5.results.charts.dataset import dataset_charts

        for name, chart in dataset_charts(record).items():
            content |= files(name, chart)
    except MissingDependency as error:
        missing.append(f"nothing was drawn: {error}")
    write_folder(out, content)
    return missing
