"""Files in folders, one folder per class, with the split that the folders have or one that is drawn."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.files import absence, is_folder
from deep5.core.progress import tracked
from deep5.core.terminal import counted
from deep5.training.datasets.splitting import selected

__all__ = ["ClassSplit", "class_split", "class_tree"]

_TEST_NAMES = ("test", "val", "validation")


@dataclass(frozen=True, kw_only=True)
class ClassSplit:
    """Files of both parts.

    Attributes:
        train: Names relative to the folder, and their labels, int64.
        test: The same for the test part.
        classes: The names of the classes.
        text: How the split is made.
        split_hash: SHA-256 of the assignment.
        decisions: Which files are left out, as sentences.
    """

    train: tuple[list[str], np.ndarray]
    test: tuple[list[str], np.ndarray]
    classes: list[str]
    text: str
    split_hash: str
    decisions: list[str]


def class_split(
    what: str,
    root: Path,
    kind: str,
    suffixes: Set[str],
    *,
    test_share: float,
    split_seed: int,
    limit: int | None,
    test_limit: int | None,
) -> ClassSplit:
    """The files of a folder with a folder for each class, or with `train` and `test`, `val` or `validation`.

    Args:
        what: The data set, for messages.
        root: The folder.
        kind: What a file holds, for messages, such as "image".
        suffixes: The endings of the names, in lower case.
        test_share: Fraction of each class in the test part, if the folder has no split.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, balanced by class; None: all.
        test_limit: The same for the test samples.

    Raises:
        UsageError: A folder is missing or empty, or an argument is out of its range.
    """
    if not is_folder(root):
        raise UsageError(f"{what}: the folder {root} {absence(root)}; allowed: one that holds a folder for each class")
    others: Counter[str] = Counter()
    own = next((name for name in _TEST_NAMES if is_folder(root / name)), None) if is_folder(root / "train") else None
    if own is not None:
        names, labels, classes = class_tree(root / "train", kind, suffixes, prefix="train/", others=others)
        test_names, test_labels, _ = class_tree(
            root / own, kind, suffixes, prefix=f"{own}/", classes=classes, others=others
        )
    else:
        _check_no_part(what, root, kind, suffixes)
        names, labels, classes = class_tree(root, kind, suffixes, others=others)
        test_names, test_labels = names, labels
    chosen = selected(
        what,
        len(names),
        labels,
        test_length=None if own is None else len(test_names),
        test_labels=test_labels,
        classes=classes,
        given=f"the folders train and {own}",
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    return ClassSplit(
        train=([names[index] for index in chosen.train], labels[chosen.train]),
        test=([test_names[index] for index in chosen.test], test_labels[chosen.test]),
        classes=classes,
        text=chosen.text,
        split_hash=chosen.hash,
        decisions=_left_out(others),
    )


def _left_out(others: Counter[str]) -> list[str]:
    """A sentence about files with other endings, by ending."""
    if not others:
        return []
    endings = ", ".join(f"{ending or 'none'} ({count})" for ending, count in others.most_common(5))
    more = ", …" if len(others) > 5 else ""
    return [f"{counted(others.total(), 'file')} in the class folders left out because of the ending: {endings}{more}"]


def _check_no_part(what: str, root: Path, kind: str, suffixes: Set[str]) -> None:
    """Reject a training folder without a test folder: it would become a class named train.

    Raises:
        UsageError: `train` holds folders of such files.
    """
    place = root / "train"
    if is_folder(place) and any("/" in name for name in _files(place, suffixes)):
        raise UsageError(
            f"{what}: {place} holds folders of {kind}s, and {root} has no folder of test {kind}s beside it; "
            f"allowed: {', '.join(_TEST_NAMES)}; remedy: folder={str(place)!r}, of which a split is drawn; or name the "
            f"folder of test {kind}s so"
        )


def class_tree(
    root: Path,
    kind: str,
    suffixes: Set[str],
    *,
    prefix: str = "",
    classes: Sequence[str] | None = None,
    others: Counter[str] | None = None,
) -> tuple[list[str], np.ndarray, list[str]]:
    """The files under a folder of classes.

    Args:
        root: Holds one folder per class; files may be in subfolders. Names that begin with a dot are ignored.
        kind: What a file holds, for messages, such as "image".
        suffixes: The endings of the names, in lower case, with the dot.
        prefix: Prepended to each name.
        classes: The allowed classes, in order; None: the existing folders, sorted by name.
        others: Counts the files with other endings, by ending in lower case.

    Returns:
        File names relative to `root` with the prefix, sorted by class and name; their labels, int64; the classes.

    Raises:
        UsageError: There are no classes, a class has no files, or it is not among `classes`.
    """
    try:
        with os.scandir(root) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"the folder {root} cannot be read ({error.strerror or error})") from error
    if not folders:
        raise UsageError(f"the folder {root} holds no folder; allowed: one for each class, with its {kind}s")
    known = list(classes) if classes is not None else folders
    if unknown := sorted(set(folders) - set(known)):
        raise UsageError(
            f"the folder {root} holds the class {unknown[0]!r}, which the training folder has not; allowed: "
            f"{', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
        )
    names, labels = [], []
    for name in tracked(folders, f"listing the class folders of {root}", len(folders)):
        found = _files(root / name, suffixes, others)
        if not found:
            raise UsageError(
                f"the class folder {root / name} holds no {kind}; allowed: files that end in "
                f"{', '.join(sorted(suffixes))}"
            )
        names += [f"{prefix}{name}/{file}" for file in found]
        labels += [known.index(name)] * len(found)
    return names, np.array(labels, dtype=np.int64), known


def _files(folder: Path, suffixes: Set[str], others: Counter[str] | None = None) -> list[str]:
    found = []
    for parent, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        place = Path(parent).relative_to(folder).as_posix()
        for file in files:
            if file.startswith("."):
                continue
            ending = os.path.splitext(file)[1].lower()  # noqa: PTH122 - a million times
            if ending in suffixes:
                found.append(file if place == "." else f"{place}/{file}")
            elif others is not None:
                others[ending] += 1
    return sorted(found)
