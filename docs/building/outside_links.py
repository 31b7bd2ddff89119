"""Links from a page to files of the repository outside `docs/`: the site has a copy of each such file."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError

LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "index.md",
}
"""Pages at the top of the repository, and their places on the site."""
FILES = {
    "LICENSE": "project/LICENSE.txt",
    "CITATION.cff": "project/CITATION.cff",
    "deep5/results/schema.json": "reference/schemas/result.json",
    "deep5/results/comparison_schema.json": "reference/schemas/comparison.json",
    "deep5/results/origin_schema.json": "reference/schemas/origin.json",
    "deep5/results/pack_schema.json": "reference/schemas/pack.json",
}
"""Files that readers download."""
PLACES = {**PAGES, **FILES}


def pages(root: Path) -> dict[str, str]:
    """Path on the site and content of each copied page and file; `root` is the repository."""
    copied = {place: (root / path).read_text(encoding="utf-8") for path, place in FILES.items()}
    for path, place in PAGES.items():
        if place != "index.md":
            copied[place] = _moved((root / path).read_text(encoding="utf-8"), place)
    return copied


def _moved(markdown: str, place: str) -> str:
    """A page of the repository's top with its links as from `place`."""

    def lead(found: re.Match[str]) -> str:
        target, anchor = found.group(1), found.group(2) or ""
        if ":" in target:
            return found.group()
        inside = target.removeprefix("docs/") if target.startswith("docs/") else _place(target, place)
        return posixpath.relpath(inside, posixpath.dirname(place)) + anchor

    return LINK.sub(lead, markdown)


def redirected(markdown: str, page: str) -> str:
    """A page of `docs/` with its links to files outside as links to their copies.

    Args:
        markdown: The page.
        page: Its path below `docs/`.

    Raises:
        PluginError: The site has no copy of a file.
    """

    def lead(found: re.Match[str]) -> str:
        target, anchor = found.group(1), found.group(2) or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if ":" in target or path.startswith("docs/"):
            return found.group()
        return posixpath.relpath(_place(path, page), posixpath.dirname(page) or ".") + anchor

    return LINK.sub(lead, markdown)


def _place(path: str, page: str) -> str:
    """The place of the copy of a file, from its path in the repository."""
    if path not in PLACES:
        raise PluginError(
            f"{page} links to {path}, of which the site has no copy; allowed: {', '.join(PLACES)}; "
            "remedy: name the file as `code` instead of linking to it, or list it in docs/building/outside_links.py"
        )
    return PLACES[path]
