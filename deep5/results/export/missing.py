"""Lists the samples that an exported result lacks, so that the export is not taken as complete."""

from __future__ import annotations

import re
from itertools import islice

from deep5.results.export.source import Source
from deep5.results.kind import COMPARISON_KIND
from deep5.results.long_form import sample_records
from deep5.results.ranks_file import sample_files
from deep5.results.stored import printable

__all__ = ["missing_of"]

_MOST, _MOST_RANKS = 50, 5
# The part after the reason: what is allowed, and the remedy.
_ADVICE = re.compile(r"; (?:allowed|remedy): |; what it left is in ")


def missing_of(source: Source, *, tables: bool) -> list[str]:
    """A sentence for a run without samples, for each failed candidate of a comparison, and for missing ranks.

    A missing rank is one whose samples are absent while those of other ranks of the run are exported.

    Args:
        source: A result that was exported.
        tables: Whether the file contains all samples, including those that do not count; otherwise only the results.

    Raises:
        UsageError: Samples are not in deep5's format.
    """
    about = source.about
    if next(sample_records(source.folder, about.kind, ranks=about.ranks or 1), None) is None:
        why = "" if about.status == "success" else f" ({about.status}: {_brief(about.reason)})"
        return [f"{source.folder} has no samples{why}"]
    if about.kind != COMPARISON_KIND:
        return _missing_ranks(source)
    ended = [row for row in source.document["candidates"] if row["status"] in ("failed", "different")]
    if not ended:
        return []
    if tables:
        what, seen = "samples", {record["candidate"] for record in sample_records(source.folder, about.kind)}
    else:
        different = {row["label"] for row in ended if row["status"] == "different"}
        what, seen = "times that count", {row["candidate"] for row in source.document["results"]} - different
    said = [
        f"{source.folder}: {printable(row['label'])} has no {what} ({row['status']}: {_brief(row['reason'])})"
        for row in ended
        if row["label"] not in seen
    ]
    return said if len(said) <= _MOST else [*said[:_MOST], f"{source.folder}: {len(said) - _MOST} more candidates"]


def _missing_ranks(source: Source) -> list[str]:
    """A sentence if samples of some ranks were exported and those of other ranks are missing."""
    ranks = source.about.ranks or 1
    there = {rank for rank, _ in sample_files(source.folder, ranks)}
    missing = ranks - len(there)
    if not missing:
        return []
    # A result may declare any number of ranks.
    own = list(islice((rank for rank in range(ranks) if rank not in there), _MOST_RANKS))
    named = ", ".join(map(str, own)) + (f" and {missing - len(own)} more" if missing > len(own) else "")
    what = f"rank{'s' * (missing > 1)} {named} of {source.folder} without samples"
    kept = f"rank {min(there)} is" if len(there) == 1 else f"the other {len(there)} ranks are"
    return [f"{what}; {kept} exported"]


def _brief(reason: object) -> str:
    """The failure without its remedy.

    >>> _brief("size 3; allowed: 1, 2; remedy: --size 2")
    'size 3'
    """
    return printable(_ADVICE.split(str(reason), maxsplit=1)[0])
