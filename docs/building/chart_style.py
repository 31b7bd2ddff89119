"""The colors of deep5's charts on a dark page: the rules of `deep5 report`, for the site's own switch."""

from __future__ import annotations

import re

from deep5.results.report.theme import dark_rules


def rules() -> str:
    """The style sheet.

    >>> '[data-md-color-scheme="slate"] .picture svg [fill="#0072b2" i]{fill:#5ab4f0}' in rules()
    True
    """
    found = re.findall(r"^figure (svg .*)$", dark_rules(), re.MULTILINE)
    return "\n".join(f'[data-md-color-scheme="slate"] .picture {rule}' for rule in found) + "\n"
