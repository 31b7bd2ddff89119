"""origin.json: where a run's recipe and own files were, authenticated for the user who ran it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from deep5.core.canonical import canonical_hash
from deep5.core.errors import Deep5Error, UsageError
from deep5.core.owner_secret import owner_secret, secret_path
from deep5.results.reading import NotThere, read_object, shown_path
from deep5.results.validation import check_document

__all__ = ["ORIGIN", "SOURCES", "Origin", "origin_schema", "origin_text", "read_origin", "source_name"]

ORIGIN = "origin.json"
"""The file in a result folder."""

SOURCES = ("recipe.py", "model.py", "model.onnx")
"""The names that a result folder has for what ran: a recipe's file, or that of a model in its place."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a run's recipe and own files were, as its folder states it.

    Attributes:
        registered: Whether the recipe is a registered one.
        file: The file of the recipe, or of the model in its place; None without one, or if the folder states none.
        model: The model that was given in place of a recipe, `FILE.py:NAME` or an ONNX file; None: a recipe.
        working_directory: The working directory of the run, or None.
        settings: The values that were set from outside, by key.
        own: The SHA-256 of the other own files, by path.
        modules: The dotted names of those that are modules, by path.
        own_run: Whether this user's deep5 wrote the statement, and the recipe's settings are as it wrote them.
    """

    registered: bool = False
    file: Path | None = None
    model: str | None = None
    working_directory: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    own_run: bool = False


def source_name(model: str | None) -> str:
    """The name of the file in a result folder that stores what ran.

    Args:
        model: The model that is given in place of a recipe, or None.

    >>> source_name(None), source_name("mine.py:Net"), source_name("net.onnx")
    ('recipe.py', 'model.py', 'model.onnx')
    """
    return SOURCES[0 if model is None else 2 if model.lower().endswith(".onnx") else 1]


@cache
def origin_schema() -> dict[str, Any]:
    """The JSON Schema of origin.json; a shared object that must not be modified."""
    found: dict[str, Any] = json.loads(files("deep5.results").joinpath("origin_schema.json").read_text("utf-8"))
    return found


def origin_text(origin: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """The content of origin.json.

    Args:
        origin: As returned by `deep5.recipe.origin.origin_of`.
        document: The run's document; its recipe and settings are authenticated with the origin.
    """
    try:
        seal = _seal(owner_secret(), origin, document)
    except Deep5Error:
        seal = None  # the run can be repeated with --trust
    return json.dumps({**origin, "seal": seal}, indent=2, allow_nan=False) + "\n"


def read_origin(folder: Path, document: Mapping[str, Any]) -> Origin:
    """The origin of a run; one without any statement for a result of a deep5 that did not write one.

    Args:
        folder: The result folder.
        document: Its result.json.

    Raises:
        UsageError: The file is not in deep5's format.
    """
    try:
        found = read_object(folder / ORIGIN)
    except NotThere:
        return Origin()
    try:
        check_document(found, origin_schema())
    except UsageError as error:
        raise UsageError(f"{shown_path(folder / ORIGIN)}: {error}; remedy: restore it from a copy") from error
    seal = found.pop("seal")
    return Origin(
        registered=found["registered"],
        file=_path(found["file"]),
        model=found.get("model"),
        working_directory=_path(found["working_directory"]),
        settings=found["settings"],
        own=found["own"],
        modules=found["modules"],
        own_run=seal is not None and _is_own(seal, found, document),
    )


def _is_own(seal: str, origin: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    try:
        # A user without a secret has sealed nothing; reading must not draw one.
        return secret_path().is_file() and hmac.compare_digest(seal, _seal(owner_secret(), origin, document))
    except (Deep5Error, OSError):
        return False


def _seal(secret: bytes, origin: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    recipe = document["recipe"]
    run = [recipe["name"], recipe["size"], recipe["mutable"], document["provenance"]["recipe_source"]]
    message = f"deep5 origin {canonical_hash([origin, run])}"
    return hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
