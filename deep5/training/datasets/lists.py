"""Image files named in a list, with their labels."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError
from deep5.training.dataset import Splits
from deep5.training.datasets.folders import HASHED, given_scaling
from deep5.training.datasets.images import Decoder, image_files
from deep5.training.datasets.splitting import check_limit, check_share, evenly, split_hash, stratified
from deep5.training.downloads import given_path

__all__ = ["file_list", "read_list"]


def file_list(
    train: str,
    *,
    test: str | None = None,
    root: str | None = None,
    size: int = 64,
    channels: int = 3,
    fit: str = "stretch",
    pixels: str = "unit",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: int | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    workers: int | None = None,
) -> Splits:
    r"""Image files listed in a plain-text or CSV file of `path label` lines, decoded on access.

    Args:
        train: The list: one line per image, with its path and label separated by a space or, in a .csv file, a comma.
            Labels are integers from 0, or names, which are numbered in sorted order.
        test: The list of test images; None: a seeded, stratified split of the first list.
        root: The folder that the paths are relative to; None: that of their list.
        size: Height and width of the samples.
        channels: 3 for RGB, 1 for grayscale.
        fit: "stretch" to the size, or scale the shorter side and "crop" the center.
        pixels: "unit" for values in [0, 1], or "uint8"; "normalised" if `mean` and `std` are given.
        mean: Per channel, for values in [0, 1].
        std: The same.
        classes: The number of classes; a label that is not smaller is an error. None: as many as the lists name.
        test_share: Fraction of each class in the test set, if there is no list of test images.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, balanced by class; None: all.
        test_limit: The same for the test samples.
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples `input` float32 or uint8 (channels, size, size) and `label` int64 ().

    Raises:
        UsageError: A list or an image is missing, a line is wrong, or an argument is out of its range.
        MissingDependency: Pillow is not installed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(4):
    ...         Image.new("RGB", (40, 30)).save(Path(folder, f"{number}.png"))
    ...     listed = Path(folder, "train.txt")
    ...     _ = listed.write_text("0.png cat\n1.png dog\n2.png cat\n3.png dog\n")
    ...     data = d5.datasets.file_list(str(listed), size=32, test_share=0.5)
    ...     print(len(data.train), len(data.test), str(data.train.specs["input"]), data.description["classes"])
    2 2 float32[3, 32, 32] {'cat': 0, 'dog': 1}
    """
    what = "file_list"
    decoder = Decoder(size=size, channels=channels, fit=fit)
    scaling = given_scaling(what, pixels, mean, std, channels)
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 1):
        raise UsageError(f"{what} of {classes!r:.60} classes; allowed: None or an integer of at least 1")
    lists = [given_path(what, train, "train")]
    if test is not None:
        lists.append(given_path(what, test, "test"))
    read = [read_list(path) for path in lists]
    numbers = _numbers([label for entries in read for _, _, label in entries])
    places = [(given_path(what, root, "root") if root is not None else path.parent).resolve() for path in lists]
    named, labelled = [], []
    for path, entries, place in zip(lists, read, places, strict=True):
        labels = np.array([numbers[label] for _, _, label in entries], dtype=np.int64)
        _check(path, entries, labels, classes)
        # Absolute paths stay unchanged; all others are relative to one folder.
        named.append([str(place / name) if len(set(places)) > 1 else name for _, name, _ in entries])
        labelled.append(labels)
    chosen = tuple(np.arange(len(labels)) for labels in labelled)
    if test is None:
        chosen = stratified(labelled[0], check_share(what, test_share), split_seed)
        named, labelled = (
            [[named[0][index] for index in part] for part in chosen],
            [labelled[0][part] for part in chosen],
        )
        split = f"stratified by class, {test_share:g} of each to the test set, seed {split_seed}"
    else:
        split = "the two lists"
    limits = (("limit", limit), ("test_limit", test_limit))
    kept = [
        evenly(labels, check_limit(what, name, most, len(labels)))
        for labels, (name, most) in zip(labelled, limits, strict=True)
    ]
    parts = [
        image_files(
            places[0], [names[index] for index in ids], labels[ids], decoder=decoder, scaling=scaling, workers=workers
        )
        for names, labels, ids in zip(named, labelled, kept, strict=True)
    ]
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=split_hash(*(part[ids] for part, ids in zip(chosen, kept, strict=True))),
        description={
            "source": f"image files of the list {lists[0].name}" + ("" if test is None else f" and {lists[1].name}"),
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "classes": {label: number for label, number in numbers.items() if label != str(number)},
            "split": split,
            "preparation": f"{decoder.describe()}; {scaling.describe() if scaling else 'bytes'}",
            "decoder": decoder.library,
            "hash": HASHED,
        },
    )


def read_list(path: Path) -> list[tuple[int, str, str]]:
    """The lines of a list: line number, path and label.

    Empty lines, lines that begin with `#` and, in a CSV file, a header `path,label` are skipped.

    Raises:
        UsageError: The list cannot be read or has no lines, or a line has no path or no label.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".csv":
                rows = [(number, row) for number, row in enumerate(csv.reader(file, strict=True), start=1) if row]
                if rows and [cell.strip().lower() for cell in rows[0][1]] in (["path", "label"], ["file", "label"]):
                    del rows[0]
            else:
                lines = ((number, line.strip()) for number, line in enumerate(file, start=1))
                # A path may contain spaces, a label may not: the last space separates them.
                rows = [(number, line.rsplit(maxsplit=1)) for number, line in lines if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the list {path} cannot be read ({error}); allowed: lines of a path and a label") from error
    entries = []
    for number, row in rows:
        if row[0].startswith("#"):
            continue
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not all(cells) or "\0" in cells[0]:
            raise UsageError(f"{path}, line {number}: got {row!r:.80}; allowed: a path and a label")
        entries.append((number, cells[0], cells[1]))
    if not entries:
        raise UsageError(f"the list {path} lists no file; allowed: a line of a path and a label for each image")
    return entries


def _numbers(labels: Sequence[str]) -> Mapping[str, int]:
    """The number of each label: its value if all are integers, else its index in sorted order."""
    distinct = sorted(set(labels))
    if all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in distinct):
        return {label: int(label) for label in distinct}
    return {label: number for number, label in enumerate(distinct)}


def _check(path: Path, entries: Sequence[tuple[int, str, str]], labels: np.ndarray, classes: int | None) -> None:
    wrong = (labels < 0) | (labels >= classes if classes is not None else False)
    if wrong.any():
        first = int(wrong.argmax())
        allowed = f"0 to {classes - 1}" if classes is not None else "integers from 0, or names"
        raise UsageError(f"{path}, line {entries[first][0]}: got the label {entries[first][2]}; allowed: {allowed}")
