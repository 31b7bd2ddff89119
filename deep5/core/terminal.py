"""Text on its way to a terminal, which obeys what steers it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["counted", "plain", "styled_where_fit"]

# What a launcher tells a process that is one of several ranks.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID")


def counted(count: int, what: str) -> str:
    """A number of things in words.

    >>> counted(1, "run"), counted(0, "run")
    ('1 run', '0 runs')
    """
    return f"{count} {what}{'s' * (count != 1)}"


def plain(text: object) -> str:
    r"""A text whose signs that steer a terminal, or turn the direction of writing, are written out; line breaks stay.

    >>> plain("a\x1b[31mb\u202e")
    'a\\x1b[31mb\\u202e'
    """
    told = str(text)
    if told.isprintable():
        return told
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in told)


def styled_where_fit(console: Console) -> Console:
    """The console, or one of the same file and width without colour and weight, where the codes for these may show.

    They may where `NO_COLOR` is set, and in a rank that another launcher started: that gives its ranks a terminal of
    its own making, whatever becomes of what they print.

    Args:
        console: Where something is to be printed.
    """
    foreign = "DEEP5_LAUNCH" not in os.environ and any(name in os.environ for name in _RANKS)
    if not os.environ.get("NO_COLOR") and not foreign:
        return console
    from rich.console import Console

    return Console(file=console.file, width=console.width, color_system=None)
