"""What a notebook shows of a result, a comparison or a study: the package that draws one registers how.

Values know nothing of the report, which is drawn from them. `render` loads the report when a notebook first shows one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

__all__ = ["html_of", "load_renderers_by", "render"]

_loaders: list[Callable[[], None]] = []


@singledispatch
def html_of(value: object) -> str:
    """A value as HTML, without script, style or pictures; `html_of.register(KIND)` registers how a kind is drawn."""
    raise TypeError(f"a notebook shows no {type(value).__name__}; remedy: register how with html_of.register")


def load_renderers_by(load: Callable[[], None]) -> None:
    """Register what imports the modules that draw; `render` calls it once."""
    _loaders.append(load)


def render(value: object) -> str:
    """A value as HTML, by what is registered for its kind.

    Raises:
        TypeError: Nothing is registered for it.
    """
    while _loaders:
        _loaders[-1]()
        _loaders.pop()
    return html_of(value)
