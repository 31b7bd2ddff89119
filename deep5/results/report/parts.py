"""Pieces that several parts of the page are made of: notes, lists of facts, what was run, what cannot be shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deep5.core.errors import MissingDependency
from deep5.results.markup import Markup, element, named

__all__ = ["facts", "folded", "guarded", "note", "what_ran"]

_LONGEST, _MOST, _FEW = 20_000, 400, 6


def note(texts: Sequence[object], heading: str, mark: str = "warn") -> Markup | None:
    """Sentences in a box of their own; None where there are none.

    Args:
        texts: The sentences; of very many the first are shown.
        heading: What they are.
        mark: The colour: "", "warn" or "bad".
    """
    if not texts:
        return None
    shown = [element("li", named(text, 2_000)) for text in texts[:_MOST]]
    if len(texts) > _MOST:
        shown.append(element("li", f"and {len(texts) - _MOST} more"))
    return element("div", element("p", element("strong", heading)), element("ul", shown), class_=f"note {mark}".strip())


def folded(heading: str, texts: Sequence[object]) -> Markup | None:
    """Sentences of which a few are in sight, and many are folded; None where there are none.

    Args:
        heading: What they are.
        texts: The sentences.
    """
    if len(texts) <= _FEW:
        return note(texts, heading, "")
    return element("details", element("summary", f"{heading}: {len(texts)}"), note(texts, heading, ""))


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Names and what they stand for."""
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
    """A part of the page; what cannot be shown, since deep5 never wrote such numbers, says so and stops nothing.

    Args:
        what: The part, as a reader would call it.
        make: Makes it.

    Raises:
        MissingDependency: A package is missing.
    """
    try:
        return make()
    except MissingDependency:
        raise
    except Exception as error:  # a result may hold anything: one part of it may not take the page with it
        failure = f"{type(error).__name__}: {error}"[:400]
        return note([failure], f"{what} cannot be shown", "bad")
