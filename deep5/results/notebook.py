"""The HTML that a notebook shows for a result, comparison or study: each renderer registers itself.

Values do not depend on the report, which is rendered from them. Modules that render are registered by entry points of
the group `deep5.notebooks`, including deep5's own report.
"""

from __future__ import annotations

from functools import cache, singledispatch

from deep5.core.plugins import registered

__all__ = ["html_of", "render"]


@singledispatch
def html_of(value: object) -> str:
    """A value as HTML, without script, style or charts; `html_of.register` decorates a renderer of another type."""
    raise TypeError(
        f"a notebook cannot show a {type(value).__name__}; remedy: register a function with html_of.register"
    )


def render(value: object) -> str:
    """A value as HTML, by the renderer registered for its type.

    Raises:
        TypeError: No renderer is registered for it.
    """
    _load_registered()
    return html_of(value)


@cache
def _load_registered() -> None:
    # Modules that call `html_of.register` on import.
    for point in registered("notebooks").values():
        point.load()
