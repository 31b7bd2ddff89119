"""Files that an argument of a data set names: one, several, or a pattern."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.core.files import absence, is_file
from deep5.training.downloads import given_path

__all__ = ["files_in_brief", "listed_files"]


_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_FILES = 1_000_000


def files_in_brief(groups: Sequence[Sequence[Path]], what: str, note: str = "") -> str:
    """The numbers of files of each part, and the first file.

    Args:
        groups: The files of each part, at least one.
        what: What a file is, in the singular.
        note: What follows the noun.

    >>> files_in_brief([[Path("in/a.tar")]], "tar file")
    '1 tar file, a.tar'
    >>> files_in_brief([[Path("a")], [Path("b")]], "TFRecord file", " (GZIP)")
    '1 + 1 TFRecord files (GZIP), a …'
    """
    several = sum(map(len, groups)) > 1
    counts = " + ".join(str(len(paths)) for paths in groups)
    return f"{counts} {what}{'s' * several}{note}, {groups[0][0].name}{' …' * several}"


def listed_files(what: str, name: str, given: Any, kind: str) -> list[Path]:
    """The files of an argument that is a file, a pattern or a list.

    Args:
        what: The data set, for messages.
        name: The argument.
        given: Its value.
        kind: What the files are, for messages.

    Returns:
        At least one file, in the order of the list or of the numbers, or sorted by name.

    Raises:
        UsageError: A file is missing or empty, or no file matches the pattern.
    """
    if isinstance(given, (list, tuple)):
        paths = [given_path(what, one, name) for one in given]
    else:
        given_path(what, given, name)
        text = str(given)
        paths = [Path(text)] if is_file(text) else _matches(text)
        if not paths:
            remote = "; remedy: download it first" if "://" in text or text.startswith("pipe:") else ""
            raise UsageError(
                f"{what}: no file {text}; allowed: a file, a pattern such as 'train-*', or a list of files{remote}"
            )
    if not paths:
        raise UsageError(f"{what}: got {name}={brief(given)}; allowed: at least one file")
    for path in paths:
        if not is_file(path):
            raise UsageError(f"{what}: the file {path} {absence(path)}; allowed: {kind}")
        if path.stat().st_size == 0:
            raise UsageError(f"{what}: the file {path} is empty; allowed: {kind} with content; remedy: leave it out")
    return paths


def _matches(text: str) -> list[Path]:
    """The paths of a pattern: of a range of numbers, `train-{000..003}.tar`, all, else those that exist."""
    found = _NUMBERS.search(text)
    if found is None:
        return [Path(one) for one in sorted(glob.glob(text))]  # noqa: PTH207
    first, last = int(found[1]), int(found[2])
    if last - first >= _MOST_FILES:
        raise UsageError(f"the pattern {text!r:.80} names {last - first + 1} files; allowed: at most {_MOST_FILES}")
    names = (
        f"{text[: found.start()]}{number:0{len(found[1])}}{text[found.end() :]}" for number in range(first, last + 1)
    )
    return [path for name in names for path in _matches(name) or [Path(name)]]
