"""What a notebook shows of a result, a comparison or a study: the package that draws one registers how.

Values know nothing of the report, which is drawn from them. Modules that draw are registered by entry points of the
group `deep5.notebooks`, deep5's own report included.
"""

from __future__ import annotations

from functools import cache, singledispatch

from deep5.core.plugins import registered

__all__ = ["html_of", "render"]


@singledispatch
def html_of(value: object) -> str:
    """A value as HTML, without script, style or pictures; `html_of.register` decorates what draws another kind."""
    raise TypeError(f"a notebook shows no {type(value).__name__}; remedy: register what draws it with html_of.register")


def render(value: object) -> str:
    """A value as HTML, by what is registered for its kind.

    Raises:
        TypeError: Nothing is registered for it.
    """
    _load_registered()
    return html_of(value)


@cache
def _load_registered() -> None:
    # Modules that call `html_of.register` when they are imported.
    for point in registered("notebooks").values():
        point.load()
