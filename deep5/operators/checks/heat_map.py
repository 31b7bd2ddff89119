"""A picture of where two arrays differ."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path

import numpy as np

from deep5.core.charts import altair, converter
from deep5.core.errors import OutputError
from deep5.core.files import write_atomically

__all__ = ["heat_map", "picture_folder"]

# A longer side is drawn in blocks, each colored by its largest difference.
_CELLS = 64


def heat_map(differences: np.ndarray, title: str, shows: str, folder: Path) -> Path:
    """Draw |difference| as a PNG: the last axis to the right, all others downwards.

    Args:
        differences: Nonnegative, of any shape; infinity marks a lost value.
        title: The compared quantity; also names the file.
        shows: Description of the numbers, for the line below the title.
        folder: Folder of the picture; created if missing.

    Returns:
        Path of the picture.

    Raises:
        MissingDependency: Altair or vl-convert is not installed.
        OutputError: The picture cannot be written.
    """
    alt, convert = altair(), converter()
    blocks, rows, columns = _blocks(differences)
    finite = blocks[np.isfinite(blocks)]
    # A lost value is drawn as the largest difference.
    shown = np.where(np.isfinite(blocks), blocks, finite.max() if finite.size and finite.max() > 0 else 1.0)
    values = [
        {"row": int(row * rows), "column": int(column * columns), "difference": float(shown[row, column])}
        for row in range(shown.shape[0])
        for column in range(shown.shape[1])
    ]
    reported = [shows, f"shape {list(differences.shape)}"]
    if rows > 1 or columns > 1:
        reported[-1] += f", a cell the largest of {rows} x {columns} elements"
    chart = (
        alt.Chart({"values": values}, title=alt.Title(title, subtitle=reported))
        .mark_rect()
        .encode(
            x=alt.X("column:O", title="last axis", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("row:O", title="other axes", axis=alt.Axis(labelOverlap=True)),
            # The scale starts at 0, since these are magnitudes: differences that are equal up to rounding get one
            # color.
            color=alt.Color(
                "difference:Q",
                title="",
                scale=alt.Scale(scheme="viridis", domain=[0.0, float(shown.max()) or 1.0]),
                legend=alt.Legend(format=".3~g"),
            ),
        )
        .properties(width=400, height=max(40, min(400, 400 * shown.shape[0] // max(1, shown.shape[1]))))
    )
    name = re.sub(r"[^a-zA-Z0-9]+", "_", title).strip("_").lower()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = next(
            path
            for number in range(1, 10000)
            if not (path := folder / f"{name}{'' if number == 1 else f'_{number}'}.png").exists()
        )
        write_atomically(path, convert.vegalite_to_png(chart.to_dict()))
    except OSError as error:
        raise OutputError(
            f"the folder {folder} cannot be written ({error.strerror or error}); allowed: a folder that you may "
            "write to; remedy: another one by --out, or out="
        ) from error
    return path


@functools.cache
def picture_folder() -> Path:
    """The default folder for pictures of this process; readable only by its user."""
    return Path(tempfile.mkdtemp(prefix="deep5-check-"))


def _blocks(differences: np.ndarray) -> tuple[np.ndarray, int, int]:
    """A 2-D array with at most `_CELLS` cells per side, and the numbers of rows and columns per cell."""
    flat = np.atleast_1d(differences)
    flat = flat.reshape(-1, flat.shape[-1]) if flat.size else np.zeros((1, 1))
    rows, columns = (-(-extent // _CELLS) for extent in flat.shape)
    padded = np.zeros((-(-flat.shape[0] // rows) * rows, -(-flat.shape[1] // columns) * columns))
    padded[: flat.shape[0], : flat.shape[1]] = flat
    shape = (padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    return padded.reshape(shape).max(axis=(1, 3)), rows, columns
