"""Building blocks of several sections: notes, lists of facts, the recipe, parts that cannot be shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deep5.core.errors import MissingDependency
from deep5.results.markup import Markup, element, named

__all__ = ["facts", "folded", "guarded", "note", "what_ran"]

_LONGEST, _MOST, _FEW = 20_000, 400, 6


def note(texts: Sequence[object], heading: str, mark: str = "warn") -> Markup | None:
    """Sentences in a box; None without sentences.

    Args:
        texts: The sentences; if there are very many, only the first are shown.
        heading: Heading of the box.
        mark: The color: "", "warn" or "bad".
    """
    if not texts:
        return None
    shown = [element("li", named(text, 2_000)) for text in texts[:_MOST]]
    if len(texts) > _MOST:
        shown.append(element("li", f"and {len(texts) - _MOST} more"))
    return element("div", element("p", element("strong", heading)), element("ul", shown), class_=f"note {mark}".strip())


def folded(heading: str, texts: Sequence[object]) -> Markup | None:
    """Sentences, visible if few and folded if many; None without sentences.

    Args:
        heading: Their heading.
        texts: The sentences.
    """
    if len(texts) <= _FEW:
        return note(texts, heading, "")
    return element("details", element("summary", f"{heading}: {len(texts)}"), note(texts, heading, ""))


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Names and their values."""
    rows = [
        (element("dt", name), element("dd", value if isinstance(value, Markup) else named(value, 400)))
        for name, value in pairs
    ]
    return element("dl", rows)


def what_ran(recipe: Mapping[str, Any]) -> Markup:
    """The fixed and the mutable part of a recipe, folded."""
    parts = {key: recipe.get(key) for key in ("fixed", "mutable", "metrics")}
    text = json.dumps(parts, indent=2, ensure_ascii=False, default=str)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
    return element("details", element("summary", "The recipe as it ran"), element("pre", text))


def guarded(what: str, make: Callable[[], Markup | None]) -> Markup | None:
    """A section of the page; if it cannot be shown, because of invalid data, a note replaces it.

    Args:
        what: Name of the section for the reader.
        make: Creates it.

    Raises:
        MissingDependency: A package is missing.
    """
    try:
        return make()
    except MissingDependency:
        raise
    except Exception as error:  # a result may contain anything: one part must not break the page
        failure = f"{type(error).__name__}: {error}"[:400]
        return note([failure], f"{what} cannot be shown", "bad")
