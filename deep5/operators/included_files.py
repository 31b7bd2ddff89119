"""The files that a C++ source includes, without a compiler: a recipe has one hash on every machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from deep5.operators.plan import INCLUDE

__all__ = ["included_files"]

_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*"
    r'(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>|(?P<macro>\w+))',
    re.MULTILINE,
)
_MACRO = re.compile(r'^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+(?:"([^"\n]+)"|<([^>\n]+)>)[ \t]*$', re.MULTILINE)
_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")


def included_files(text: str, path: Path | None) -> set[Path]:
    """The files that a source of an operator includes, and that these include, in any of their conditional parts.

    Files in the compiler's own folders, and deep5's, are left out.

    Args:
        text: The source.
        path: Its file; None if it has none.
    """
    named = (folder for name in _VARIABLES for folder in os.environ.get(name, "").split(os.pathsep) if folder)
    folders = [INCLUDE, *([path.parent] if path is not None else []), *map(Path, named)]
    found: set[Path] = set()
    left = [(text, path.parent if path is not None else None)]
    while left:
        content, beside = left.pop()
        for name, quoted in _named(content):
            places = [beside, *folders] if quoted and beside is not None else folders
            file = next((file for place in places if (file := place / name).is_file()), None)
            if file is None or (file := file.resolve()) in found or file.is_relative_to(INCLUDE.resolve()):
                continue
            found.add(file)
            try:
                left.append((file.read_text(encoding="utf-8", errors="replace"), file.parent))
            except OSError:
                continue  # reported by the compiler
    return found


def _named(text: str) -> Iterator[tuple[str, bool]]:
    """The names in the directives of a source, and whether each is in quotes."""
    joined = re.sub(r"\\\r?\n", "", text)
    macros: Iterable[tuple[str, str]] = _MACRO.findall(joined)
    for match in _DIRECTIVE.finditer(joined):
        if match["macro"]:
            yield from ((quoted or angled, bool(quoted)) for quoted, angled in macros)
        else:
            yield match["quoted"] or match["angled"], match["quoted"] is not None
