"""The command `deep5 predict`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from deep5.core.errors import Errors, OutputError, UsageError
from deep5.trained.predict import Prediction, predict_files

__all__ = ["predict_command"]


def predict_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("predict")
    @click.argument("result", metavar="RESULT")
    @click.argument("files", metavar="FILE…", nargs=-1, required=True)
    @click.option(
        "--top", type=click.IntRange(min=1), default=1, show_default=True, metavar="K", help="Classes per sample."
    )
    @click.option("--out", metavar="FILE", help="Write a .csv or .json instead of printing.")
    @click.option("--size", type=click.IntRange(min=1), metavar="N", help="Resize images to N x N pixels.")
    @click.option("--mean", metavar="M,…", help="Subtracted from pixels in [0, 1]; one number per channel.")
    @click.option("--std", metavar="D,…", help="Divides pixels minus the mean; one number per channel.")
    @click.option("--fit", type=click.Choice(["crop", "stretch"]), help="How to make an image square.")
    @click.option("--invert", is_flag=True, help="Invert images, if they are dark on bright and the data is not.")
    @click.option("--framework", metavar="NAME", help="Run on this framework instead of the run's.")
    @click.option("--device", metavar="D", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
    @click.option("--recipe", metavar="RECIPE", help="The run's recipe or FILE.py:NAME, if its code is needed.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def predict(
        result: str,
        files: tuple[str, ...],
        out: str | None,
        mean: str | None,
        std: str | None,
        as_json: bool,
        debug: bool,
        **chosen: Any,
    ) -> None:
        """Classify each FILE with the trained network of RESULT, a result folder.

        A FILE is an image, prepared as the samples of the run were, or an array (.npy, .npz) as the network takes it:
        one sample, or several with their axis first. Nothing in RESULT is executed.
        """
        with errors(debug, as_json) as show:
            if out is not None and Path(out).suffix not in (".csv", ".json"):
                raise UsageError(f"--out {out}; allowed: a file that ends in .csv or .json")
            chosen |= {"mean": _numbers(mean, "--mean"), "std": _numbers(std, "--std")}
            found, notes = predict_files(result, files, **chosen)
            if out is not None:
                _written(Path(out), found)
            if as_json:
                document = {"predictions": [one.document() for one in found], "notes": list(notes)}
                show(json.dumps(document, indent=2, allow_nan=False))
                return
            lines = [f"{len(found)} predictions in {out}"] if out is not None else [one.line() for one in found]
            show("\n".join([*lines, *(f"note: {note}" for note in notes)]))

    return predict


def _written(path: Path, predictions: Sequence[Prediction]) -> None:
    from deep5.core.files import write_atomically

    if path.suffix == ".json":
        text = json.dumps([prediction.document() for prediction in predictions], indent=2) + "\n"
    elif path.suffix == ".csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("file", "index", "rank", "class", "name", "probability"))
        for prediction in predictions:
            index = "" if prediction.index is None else prediction.index
            for rank, (number, probability) in enumerate(prediction.ranked or ((None, math.nan),), start=1):
                name = "" if number is None else prediction.names.get(number, "")
                writer.writerow(
                    (prediction.file, index, rank, "" if number is None else number, name, repr(probability))
                )
        text = out.getvalue()
    else:
        raise UsageError(f"--out {path}; allowed: a file that ends in .csv or .json")
    try:
        write_atomically(path, text)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; allowed: a writable file") from error


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise UsageError(f"{option} {text!r}; allowed: one number per channel, comma-separated, such as 0.5,0.5,0.5")
    return found
