"""The text that `print` shows for a value of deep5: as much as fits a screen, and how to see all."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from deep5.core.notebook import load_renderers

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["on_a_screen", "write"]

_COLUMNS, _LINES = 80, 24
# Lines of the end that stay: of a result, the verdict and its folder.
_LAST = 5


@singledispatch
def write(value: object, console: Console) -> None:
    """Write a value to a console; `write.register` decorates the writer of another type."""
    raise TypeError(
        f"a {type(value).__name__} has no form for a screen; remedy: register a function with write.register"
    )


def on_a_screen(value: object, remedy: str) -> str:
    """A value as text of at most 80 columns and 23 lines, which leaves one for the prompt.

    Args:
        value: A value whose type has a writer.
        remedy: How to see all, for a value of which lines are left out.
    """
    from rich.console import Console

    load_renderers()
    console = Console(width=_COLUMNS, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as text:
        write(value, console)
    lines = [line.rstrip() for line in text.get().strip("\n").split("\n")]
    if len(lines) < _LINES:
        return "\n".join(lines)
    first = lines[: _LINES - 2 - _LAST]
    return "\n".join([*first, f"… {len(lines) - len(first) - _LAST} lines; {remedy}", *lines[-_LAST:]])
