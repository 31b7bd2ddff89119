"""The note that a chart shows outside its page: unfinished, small size, open division, other load on the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from deep5.results.comparison import ComparisonResult
from deep5.results.markup import clean
from deep5.results.result import Result

__all__ = ["standing"]

_SIZE = 30
# The beginning of a study's note on other programs' use of its processors.
_BESIDE = "other programs took up to"


def standing(results: Iterable[ComparisonResult | Result], *, finished: bool = True, notes: Sequence[str] = ()) -> str:
    """Why results are not finished, full-size and of the closed division; empty if they are.

    Args:
        results: The results drawn in a chart.
        finished: Whether the study of these results is finished.
        notes: Notes of that study; the one on other programs' use of the processors is repeated.
    """
    counts: Counter[str] = Counter()
    documents = [result.document for result in results]
    for document in documents:
        recipe = document["recipe"]
        if document["status"] != "success":
            counts[str(document["status"])] += 1
        if recipe.get("size") not in ("full", None):
            counts[f"size {clean(str(recipe['size']))[:_SIZE]}"] += 1
        if recipe.get("division") == "open":
            counts["open division"] += 1
    every = len(documents)
    said = [what if count == every else f"{what}: {count} of {every} runs" for what, count in counts.items()]
    load = [clean(note).partition(";")[0] for note in notes if note.startswith(_BESIDE)]
    return "; ".join([*([] if finished else ["the study is not finished"]), *said, *load])
