"""Text on its way to a terminal, which obeys what steers it."""

from __future__ import annotations

__all__ = ["counted", "plain"]


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
