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
    """Image files named in a text or CSV list of `path label` lines, decoded when they are asked for.

    Args:
        train: The list: a line an image, its path and its label behind a space or, in a file that ends in .csv, a
            comma. Labels are whole numbers from 0, or names, which are numbered in their order.
        test: The list of test images; None: a seeded split of the first list, drawn by class.
        root: What the paths are relative to; None: the folder of their list.
        size: Height and width of the samples.
        channels: 3 for RGB, 1 for grey.
        fit: "stretch" to the size, or "crop" the middle after the shorter side has been scaled.
        pixels: "unit" for values in [0, 1], or "uint8"; "normalised" where `mean` and `std` are given.
        mean: A channel, of values in [0, 1].
        std: Likewise.
        classes: How many classes there are; a label that is not below is an error. None: as many as the lists name.
        test_share: Share of each class that goes to the test set, where there is no list of test images.
        split_seed: Of that draw.
        limit: Keep only this many training samples, classes in equal measure; None: all.
        test_limit: Likewise of the test samples.
        workers: Threads that decode; None: one a processor, up to eight.

    Returns:
        Samples `input` float32 or uint8 (channels, size, size) and `label` int64 ().

    Raises:
        UsageError: A list or an image is missing, a line is wrong, or an argument is out of its range.
        MissingDependency: Pillow is not installed.
    """
    what = "file_list"
    decoder = Decoder(size=size, channels=channels, fit=fit)
    scaling = given_scaling(what, pixels, mean, std, channels)
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 1):
        raise UsageError(f"{what} of {classes!r:.60} classes; allowed: None or a whole number of at least 1")
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
        # Absolute paths stay what they are; all others are found from one folder.
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
    """The lines of a list: number of the line, path and label.

    Empty lines, lines that begin with `#` and, in a CSV file, a head of `path,label` are passed over.

    Raises:
        UsageError: The list cannot be read, has no line, or a line has no path or no label.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".csv":
                rows = [(number, row) for number, row in enumerate(csv.reader(file, strict=True), start=1) if row]
                if rows and [cell.strip().lower() for cell in rows[0][1]] in (["path", "label"], ["file", "label"]):
                    del rows[0]
            else:
                lines = ((number, line.strip()) for number, line in enumerate(file, start=1))
                # A path may hold spaces, a label may not: the last one divides them.
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
        raise UsageError(f"the list {path} names no file; allowed: a line of a path and a label for each image")
    return entries


def _numbers(labels: Sequence[str]) -> Mapping[str, int]:
    """The number of each label: itself, where all are whole numbers, else its place in their order."""
    distinct = sorted(set(labels))
    if all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in distinct):
        return {label: int(label) for label in distinct}
    return {label: number for number, label in enumerate(distinct)}


def _check(path: Path, entries: Sequence[tuple[int, str, str]], labels: np.ndarray, classes: int | None) -> None:
    wrong = (labels < 0) | (labels >= classes if classes is not None else False)
    if wrong.any():
        first = int(wrong.argmax())
        allowed = f"0 to {classes - 1}" if classes is not None else "whole numbers from 0, or names"
        raise UsageError(f"{path}, line {entries[first][0]}: got the label {entries[first][2]}; allowed: {allowed}")
