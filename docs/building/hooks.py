"""The events of MkDocs that build deep5's site; each calls the module that makes the pages."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import api_pages
import chart_style
import gallery
import mathematics
import notebooks
import outside_links
import pictures
import reference_pages
import stored_results
import table_figures
import workload_table

ROOT = Path(__file__).parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links the package in the layout of its imports, where mkdocstrings reads its docstrings."""
    # Pictures are imported while pages are built, and MkDocs has this folder on the path only while it loads this file.
    sys.path.append(str(Path(__file__).parent))
    runpy.run_path(str(ROOT / "setup.py"))["stage"](ROOT)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and files that are made of the code, of results and of notebooks."""
    made = {
        **api_pages.pages(),
        **gallery.pages(),
        **notebooks.pages(),
        **outside_links.pages(ROOT),
        **reference_pages.pages(ROOT),
        "site_files/figures.css": chart_style.rules(),
    }
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Draws pictures, shows figures, and leads links to files of the repository to their copies on the site."""
    place = page.file.src_uri
    for shown in (
        pictures.with_pictures,
        stored_results.with_figures,
        table_figures.with_charts,
        workload_table.with_workloads,
    ):
        markdown = shown(markdown, place)
    return outside_links.redirected(markdown, place)


def on_page_content(html: str, **_: Any) -> str:
    """Sets formulas as MathML, which browsers draw without a script."""
    return mathematics.with_mathml(html)
