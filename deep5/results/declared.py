"""What a study or a sweep declares, compared with what its folder and its runs state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error, UsageError, brief
from deep5.results.kind import RESULT
from deep5.results.reading import read_object

__all__ = ["declared_value", "other_source", "source_of"]


def declared_value(document: Mapping[str, Any], key: str, kind: type | tuple[type, ...], file: Path) -> Any:
    """A value of a document.

    Args:
        document: The document.
        key: Its name.
        kind: Types that it may have.
        file: The file of the document.

    Raises:
        UsageError: It is missing, or has another type.
    """
    value = document.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(
            f"{file}: {key} is {brief(value)}; allowed: what deep5 writes there; remedy: the whole command, with "
            "--resume in place of --attach"
        )
    return value


def other_source(run: Path | None, source_hash: str | None) -> bool:
    """Whether a run had another recipe file than declared, such as one that was changed before a worker read it.

    Args:
        run: Its result folder; None: it left none.
        source_hash: SHA-256 of the declared recipe file; None: the recipe has no file.
    """
    if run is None:
        return False
    try:
        provenance = read_object(run / RESULT).get("provenance")
    except Deep5Error:  # whoever reads the result reports that
        return False
    return isinstance(provenance, dict) and provenance.get("recipe_source") != source_hash


def source_of(document: Mapping[str, Any], key: str, folder: Path) -> str:
    """The name or path of the recipe, whose file is executed.

    Args:
        document: The document.
        key: Its name there.
        folder: The folder of the document: a recipe that came with it is not executed.

    Raises:
        UsageError: It is missing, or the path is within the folder.
    """
    source = str(declared_value(document, key, str, folder))
    path = Path(source)
    if path.is_absolute() and path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"the recipe of {folder} is {source!r}, a file within it; allowed: a recipe that did not come with a "
            "result; remedy: read it, then the whole command, with --resume in place of --attach"
        )
    return source
