"""Formulas as MathML: browsers draw it without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def with_mathml(page: str) -> str:
    """Replaces the formulas that pymdownx.arithmatex marks in a page's HTML.

    >>> with_mathml('<span class="arithmatex">\\\\(x^2\\\\)</span>').startswith("<math")
    True
    """

    def set_formula(found: re.Match[str]) -> str:
        display = "block" if found.group(2) == "[" else "inline"
        return convert(html.unescape(found.group(3)), display=display)

    return FORMULA.sub(set_formula, page)
