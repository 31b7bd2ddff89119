"""What a result that is exported has no samples of, so that nobody takes what is there for the whole."""

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
# Behind the reason: what would have been right, and what to do.
_ADVICE = re.compile(r"; (?:allowed|remedy): |; what it left is in ")


def missing_of(source: Source, *, tables: bool) -> list[str]:
    """A sentence for a run without samples, and for each candidate of a comparison that failed and is not there.

    So is a sentence for ranks of a run whose samples are not there, beside others that are exported.

    Args:
        source: A result that was exported.
        tables: Whether all samples are in the file, those that do not count among them; else its results alone.

    Raises:
        UsageError: Samples that are not as deep5 writes them.
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
    """A sentence where samples of some ranks are there, which were exported, and of others not."""
    ranks = source.about.ranks or 1
    there = {rank for rank, _ in sample_files(source.folder, ranks)}
    missing = ranks - len(there)
    if not missing:
        return []
    # A result may say that it had any number of ranks.
    own = list(islice((rank for rank in range(ranks) if rank not in there), _MOST_RANKS))
    named = ", ".join(map(str, own)) + (f" and {missing - len(own)} more" if missing > len(own) else "")
    what = f"rank{'s' * (missing > 1)} {named} of {source.folder}, of which there are no samples"
    kept = f"rank {min(there)} is" if len(there) == 1 else f"the other {len(there)} ranks are"
    return [f"{what}; {kept} exported"]


def _brief(reason: object) -> str:
    """What went wrong, without what to do about it.

    >>> _brief("size 3; allowed: 1, 2; remedy: --size 2")
    'size 3'
    """
    return printable(_ADVICE.split(str(reason), maxsplit=1)[0])
