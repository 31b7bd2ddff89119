"""Builds HTML without string concatenation: every string passes through `escape`, the only way into a page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["Markup", "clean", "element", "escape", "named"]

_VOID = frozenset({"br", "link", "meta"})
# Control characters that HTML or XML forbids, lone surrogates, and characters that change the text direction.
_BAD = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LONGEST, _TITLE = 20_000, 1_000


class Markup(str):
    """A string that is already HTML; only this module creates it.

    Joined with a plain string it becomes a plain string, which is escaped again: a mistake shows characters, and runs
    nothing.
    """

    __slots__ = ()


def clean(text: str) -> str:
    """Replace each character that a page or a chart must not contain; at most 20 000 characters.

    >>> clean("a\\x00b")
    'a\ufffdb'
    """
    return _BAD.sub("\ufffd", text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def escape(value: object) -> Markup:
    """A value as text of a page or an attribute; Markup is unchanged.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return value if isinstance(value, Markup) else Markup(html.escape(clean(str(value)), quote=True))


def element(name: str, /, *children: Any, **attributes: object) -> Markup:
    """One element.

    Args:
        name: Element name: a constant in the code, never read from a result.
        children: Markup, strings (escaped), None (nothing), or iterables of these.
        attributes: Values are escaped; True is an attribute without a value, None and False omit it. A trailing
            underscore is dropped and others become hyphens: `class_`, `aria_label`.

    >>> element("p", "a < b", class_="note", hidden=None)
    '<p class="note">a &lt; b</p>'
    """
    written_attributes = []
    for key, value in attributes.items():
        if value is not None and value is not False:
            written = key.rstrip("_").replace("_", "-")
            written_attributes.append(f" {written}" if value is True else f' {written}="{escape(str(value))}"')
    opening = f"<{name}{''.join(written_attributes)}>"
    return Markup(opening) if name in _VOID else Markup(f"{opening}{''.join(_flat(children))}</{name}>")


def _flat(children: Iterable[Any]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, (str, int, float)):
            yield escape(child)
        else:
            yield from _flat(child)


def named(text: object, limit: int = 48) -> Markup:
    """A name, truncated if it is long; the title contains the whole name.

    >>> named("abcdefgh", 4)
    '<span title="abcdefgh">abc…</span>'
    """
    whole = clean(str(text))
    if len(whole) <= limit:
        return escape(whole)
    return element("span", whole[: limit - 1] + "…", title=whole[:_TITLE])
