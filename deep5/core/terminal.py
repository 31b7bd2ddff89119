"""Text for a terminal, with control characters escaped."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["UNWRAPPED", "console_of", "counted", "plain", "printed", "styled_where_fit"]

UNWRAPPED = 100_000
"""Columns of standard output that is no terminal: a row of a table is one line there, whatever its length."""

# Environment variables that launchers set for each of several ranks.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID")


def console_of(file: IO[str] | None = None) -> Console:
    """A console that writes to a file; unstyled in a notebook, where rich would show HTML in colors for white pages.

    On standard output that is no terminal, such as a pipe or a file, lines have any length unless `COLUMNS` is set.

    Args:
        file: The file; None: standard output, also for standard error in a notebook, which would show an error.
    """
    from rich.console import Console

    console = Console(file=file)
    if not console.is_jupyter:
        unwrapped = file is None and not console.is_terminal and "COLUMNS" not in os.environ
        return Console(width=UNWRAPPED) if unwrapped else console
    # A kernel's standard output claims to be a terminal.
    file = None if file is sys.stderr else file
    return Console(file=file, color_system=None, force_terminal=False, force_jupyter=False)


def printed(write: Callable[[Console], object]) -> str:
    """What is written to the console of standard output, as a string whose lines do not end in blanks.

    Args:
        write: Writes to the console that it is given.
    """
    console = styled_where_fit(console_of())
    with console.capture() as text:
        write(console)
    return "\n".join(line.rstrip() for line in text.get().rstrip("\n").splitlines())


def counted(count: int, what: str) -> str:
    """A count with its noun.

    >>> counted(1, "run"), counted(0, "run")
    ('1 run', '0 runs')
    """
    return f"{count} {what}{'s' * (count != 1)}"


def plain(text: object) -> str:
    r"""The text with terminal control characters and bidirectional marks escaped; line breaks stay.

    >>> plain("a\x1b[31mb\u202e")
    'a\\x1b[31mb\\u202e'
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in shown)


def styled_where_fit(console: Console) -> Console:
    """The console, or an unstyled one of the same file and width if escape codes could become visible.

    The unstyled one is used if `NO_COLOR` is set, and in a rank that another launcher started: launchers give ranks a
    pseudo-terminal, whatever the actual destination of the output is.

    Args:
        console: The console to print to.
    """
    foreign = "DEEP5_LAUNCH" not in os.environ and any(name in os.environ for name in _RANKS)
    if not os.environ.get("NO_COLOR") and not foreign:
        return console
    from rich.console import Console

    return Console(file=console.file, width=console.width, color_system=None, force_jupyter=False)
