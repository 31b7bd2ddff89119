"""What a result that is exported has no samples of, so that nobody takes what is there for the whole."""

from __future__ import annotations

from deep5.results.export.source import Source
from deep5.results.kind import COMPARISON_KIND
from deep5.results.long_form import sample_records
from deep5.results.ranks_file import sample_files
from deep5.results.stored import printable

__all__ = ["missing_of"]

_MOST = 50


def missing_of(source: Source, *, tables: bool) -> list[str]:
    """A sentence for a run without samples, and for each candidate of a comparison that failed and is not there.

    So are ranks of a run whose samples are not there.

    Args:
        source: A result that was exported.
        tables: Whether all samples are in the file, those that do not count among them; else its results alone.

    Raises:
        UsageError: Samples that are not as deep5 writes them.
    """
    about = source.about
    if next(sample_records(source.folder, about.kind, ranks=about.ranks or 1), None) is None:
        why = "" if about.status == "success" else f" ({about.status}: {about.reason})"
        return [f"{source.folder} has no samples{why}"]
    if about.kind != COMPARISON_KIND:
        there, ranks = len(sample_files(source.folder, about.ranks or 1)), about.ranks or 1
        return [] if there == ranks else [f"{source.folder} has the samples of {there} of its {ranks} ranks"]
    ended = [row for row in source.document["candidates"] if row["status"] in ("failed", "different")]
    if not ended:
        return []
    if tables:
        what, seen = "samples", {record["candidate"] for record in sample_records(source.folder, about.kind)}
    else:
        different = {row["label"] for row in ended if row["status"] == "different"}
        what, seen = "times that count", {row["candidate"] for row in source.document["results"]} - different
    said = [
        f"{source.folder}: {printable(row['label'])} has no {what} ({row['status']}: {printable(row['reason'])})"
        for row in ended
        if row["label"] not in seen
    ]
    return said if len(said) <= _MOST else [*said[:_MOST], f"{source.folder}: {len(said) - _MOST} more candidates"]
