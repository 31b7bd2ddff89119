"""Prepares docstrings for the parser of Google's style: examples as a section, references as prose.

deep5's docstrings end with their doctest, without a heading. The parser knows examples by a heading, and has no
section of references.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

REFERENCES = re.compile(r"^References:\n((?: {4}.*\n?|\n(?= {4}))+)", re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n).*)*(?:\n\n>>> .*(?:\n(?!\n).*)*)*", re.MULTILINE)


def with_sections(docstring: str) -> str:
    """Puts each doctest that begins at the margin under the heading `Examples:`, and ends the section of references.

    >>> with_sections("Add.\\n\\n>>> 1 + 1\\n2")
    'Add.\\n\\nExamples:\\n    >>> 1 + 1\\n    2'
    """
    docstring = REFERENCES.sub(lambda found: "**References**\n\n" + re.sub(r"(?m)^ {4}", "", found.group(1)), docstring)
    return DOCTEST.sub(lambda found: "Examples:\n" + re.sub(r"(?m)^(?=.)", "    ", found.group()), docstring)


class DoctestSections(Extension):
    """Rewrites every docstring that griffe collects."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for each object that it collects."""
        if obj.docstring is not None:
            obj.docstring.value = with_sections(obj.docstring.value)
