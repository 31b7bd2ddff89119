"""The pages of the reference that are made of the code, besides those of the API."""

from __future__ import annotations

from pathlib import Path

import column_page
import command_page
import entry_point_page
import environment_page
import recipe_key_page
import schema_page

__all__ = ["pages"]


def pages(root: Path) -> dict[str, str]:
    """Path and Markdown of each page; `root` is the repository.

    Raises:
        PluginError: A key, command, component, variable, column or field has no meaning; the message names it.
    """
    return {
        **recipe_key_page.pages(),
        **command_page.pages(),
        **entry_point_page.pages(root),
        **environment_page.pages(),
        **column_page.pages(),
        **schema_page.pages(root),
    }
