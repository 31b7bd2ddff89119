"""Pictures that are drawn while the site is built, so that they show what the code does today.

A line `<!-- picture: messages AllReduce -->` of a page becomes the SVG that the module `messages` draws of `AllReduce`.
"""

from __future__ import annotations

import importlib
import re

from mkdocs.exceptions import PluginError

PLACE = re.compile(r"^<!-- picture: (\w+) ?(.*?) -->$", re.MULTILINE)
MODULES: dict[str, str] = {
    "gradients": "gradient_pictures",
    "imports": "import_graph",
    "messages": "message_diagrams",
    "overhead": "overhead_chart",
    "rule": "rule_pictures",
    "statistics": "statistics_pictures",
}
"""Kind of picture, and the module of this folder whose function `draw` returns its SVG."""


def with_pictures(markdown: str, page: str) -> str:
    """Draws the pictures that a page names.

    Raises:
        PluginError: A page names a kind of picture that does not exist.
    """

    def draw(found: re.Match[str]) -> str:
        kind, subject = found.groups()
        if kind not in MODULES:
            raise PluginError(
                f"{page} has a picture of kind {kind!r}; allowed: {', '.join(MODULES)}; remedy: one of these"
            )
        svg = importlib.import_module(MODULES[kind]).draw(subject)
        # A blank line would end the block of HTML.
        dense = re.sub(r"\n\s*\n", "\n", svg)
        return f'<div class="picture">{dense}</div>'

    return PLACE.sub(draw, markdown)
