"""The HTML that a notebook shows for a value of deep5: each renderer registers itself.

Values do not depend on what renders them. Modules that render are registered by entry points of the group
`deep5.notebooks`, including deep5's own.
"""

from __future__ import annotations

from functools import cache, singledispatch
from importlib.resources import files

from deep5.core.plugins import registered

__all__ = ["html_of", "load_renderers", "render", "style"]


@singledispatch
def html_of(value: object) -> str:
    """A value as HTML, without script, style or charts; `html_of.register` decorates a renderer of another type."""
    raise TypeError(
        f"a notebook cannot show a {type(value).__name__}; remedy: register a function with html_of.register"
    )


def render(value: object) -> str:
    """A value as HTML by the renderer registered for its type, with a style that applies only to it.

    Raises:
        TypeError: No renderer is registered for it.
    """
    load_renderers()
    return f'{style()}<div class="deep5-shown">{html_of(value)}</div>'


@cache
def style() -> str:
    """The style element of what `render` returns: its rules apply within the class `deep5-shown`.

    Colors are translucent and the page's own, so that they are readable on a light and on a dark page.
    """
    return f"<style>\n{files('deep5.core').joinpath('notebook.css').read_text('utf-8')}</style>"


@cache
def load_renderers() -> None:
    """Load the modules that register how values are shown."""
    for point in registered("notebooks").values():
        point.load()
