"""Formulas as MathML: browsers draw it without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def with_mathml(page: str) -> str:
    """Replaces the formulas that pymdownx.arithmatex marks in a page's HTML.

    Raises:
        PluginError: The converter does not know a part of a formula.

    >>> with_mathml('<span class="arithmatex">\\\\(x^2\\\\)</span>').startswith("<math")
    True
    """

    def set_formula(found: re.Match[str]) -> str:
        formula = html.unescape(found.group(3))
        # The converter knows LaTeX's environment for aligned lines by another name.
        known = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", formula)
        math = convert(known, display="block" if found.group(2) == "[" else "inline")
        if left := re.search(r"<mi>(&|\\\w*)</mi>", math):
            raise PluginError(
                f"{left.group(1)!r} is not set in the formula {formula.strip()!r}; remedy: write it otherwise"
            )
        return math

    return FORMULA.sub(set_formula, page)
