"""A comparison read from its folder: values only; nothing in it is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.notebook import render
from deep5.core.screen import on_a_screen
from deep5.results.kind import COMPARISON
from deep5.results.reading import NotThere, read_json
from deep5.results.round_samples import RoundSample, read_round_samples
from deep5.results.validation import check_document

__all__ = ["COMPARISON_VERSION", "ComparisonResult", "comparison_schema", "load_comparison"]

COMPARISON_VERSION = "1"
_SAMPLES = "samples.csv"


@cache
def comparison_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of comparison.json; a shared object that must not be modified."""
    text = files("deep5.results").joinpath("comparison_schema.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """One comparison as its folder states it; true if it finished.

    Attributes:
        folder: The comparison's folder.
        document: comparison.json, in JSON types.
    """

    folder: Path
    document: dict[str, Any]

    def __bool__(self) -> bool:
        return bool(self.document["status"] == "success")

    def __repr__(self) -> str:
        return f"<ComparisonResult of {self.document['recipe']['name']!r}: {self.document['status']}; {self.folder}>"

    def __str__(self) -> str:
        return on_a_screen(self, f"deep5 report {self.folder} shows all")

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """The verdict of each candidate against the baseline, by workload."""
        found: list[dict[str, Any]] = self.document["verdicts"]
        return found

    @property
    def results(self) -> list[dict[str, Any]]:
        """Medians, intervals and first calls, by workload."""
        found: list[dict[str, Any]] = self.document["results"]
        return found

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The compared candidates and their status."""
        found: list[dict[str, Any]] = self.document["candidates"]
        return found

    def samples(self) -> list[RoundSample]:
        """All raw times; empty if the comparison ended before there were any.

        Raises:
            UsageError: A file is not in deep5's format.
        """
        try:
            found = read_round_samples(self.folder / _SAMPLES)
        except NotThere:
            return []
        # Samples are written first: a kill in between leaves those of an unlisted process, which runs again.
        return [sample for sample in found if sample.process < len(self.document["processes"])]


def load_comparison(path: str | Path) -> ComparisonResult:
    """Read a comparison's folder.

    Args:
        path: The folder, or the comparison.json in it.

    Raises:
        UsageError: There is no comparison.json, or it is damaged, of another version, or not valid.
    """
    path = Path(path)
    file = path if path.name == COMPARISON else path / COMPARISON
    try:
        document = read_json(file)
    except NotThere as error:
        raise UsageError(f"{path} holds no {COMPARISON}; allowed: a folder that 'deep5 compare' wrote") from error
    if isinstance(document, Mapping) and document.get("schema_version") != COMPARISON_VERSION:
        raise UsageError(
            f"{file} is of schema version {document.get('schema_version')!r:.40}; allowed: {COMPARISON_VERSION!r}; "
            "remedy: the deep5 that wrote it"
        )
    check_document(document, comparison_schema())
    return ComparisonResult(folder=file.parent, document=document)
