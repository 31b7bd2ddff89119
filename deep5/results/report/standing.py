"""What must stand on a picture that leaves its page: that its results came to no end, are of a small size, or open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from deep5.results.comparison import ComparisonResult
from deep5.results.report.markup import clean
from deep5.results.result import Result

__all__ = ["standing"]

_SIZE = 30


def standing(results: Iterable[ComparisonResult | Result], *, finished: bool = True) -> str:
    """What keeps results from being finished, of full size and of the closed division; empty where nothing does.

    Args:
        results: What a picture is drawn of.
        finished: Whether the study that they are of is.
    """
    told: Counter[str] = Counter()
    documents = [result.document for result in results]
    for document in documents:
        recipe = document["recipe"]
        if document["status"] != "success":
            told[str(document["status"])] += 1
        if recipe.get("size") not in ("full", None):
            told[f"size {clean(str(recipe['size']))[:_SIZE]}"] += 1
        if recipe.get("division") == "open":
            told["open division"] += 1
    every = len(documents)
    said = [what if count == every else f"{what}: {count} of {every} runs" for what, count in told.items()]
    return "; ".join([*([] if finished else ["the study is not finished"]), *said])
