"""Markdown of generated tables and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mkdocs.exceptions import PluginError

# What is code within a sentence: Python values, names of Python and of the environment, keys with an underscore.
CODE = re.compile(
    r"(?<![\w`./-])(?:"
    r"\{'[^}]*\}|\(\(?\d[\d., ()]*\)|\(\(?'[^)]*\)|'[^' ]+'(?!\w)"  # Python values
    r"|d5(?:\.\w+)+(?:\([^)]*\))?|FILE\.py:NAME|DOMAIN\.NAME|NAME\.[a-z]+|None|True|False|cuda:N|--[a-z-]+"
    r"|_?[A-Z0-9]{2,}(?:_[A-Z0-9]+)+[_*]*|_?[a-z0-9]+(?:_[a-z0-9]+)+(?:\.[a-z_]+)*"  # names with an underscore
    r")"
)


def code(content: object) -> str:
    """Code within a sentence or a cell.

    >>> code("a|b"), code("a`b")
    ('`a|b`', '`` a`b ``')
    """
    shown = str(content)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def with_code(sentence: str) -> str:
    """A sentence with its values and names set as code; what is code already stays.

    >>> with_code("Limit of d5.Adam, such as 'lr' or {'lr': 1}; None: OMP_NUM_THREADS of the user's")
    "Limit of `d5.Adam`, such as `'lr'` or `{'lr': 1}`; `None`: `OMP_NUM_THREADS` of the user's"
    """
    parts = re.split(r"(`+[^`]+`+)", re.sub(r"'(deep5 [^']+)'", r"`\1`", sentence))
    return "".join(part if part.startswith("`") else CODE.sub(lambda found: f"`{found[0]}`", part) for part in parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column without any content is left out, and a vertical bar outside of code is escaped.

    >>> print(table(("name", "unit", "meaning"), [("`a`", "", "one"), ("`b`", "", "two | `c|d`")]))
    | name | meaning |
    |---|---|
    | `a` | one |
    | `b` | two \\| `c|d` |
    """
    cells = [[_escaped(" ".join(cell.split())) for cell in row] for row in rows]
    kept = [index for index in range(len(heads)) if any(row[index] for row in cells)]
    # Beside several columns, sentences would be set in narrow ones on a telephone.
    wide = " { .meaning }" if len(kept) > 2 else ""
    lines = [
        [heads[index] + wide * (heads[index] == "meaning") for index in kept],
        *([row[index] for index in kept] for row in cells),
    ]
    first, *rest = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([first, "|" + "---|" * len(kept), *rest])


def _escaped(cell: str) -> str:
    parts = re.split(r"(`+[^`]+`+)", cell)
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)


def require(what: str, meanings: Iterable[tuple[str, str | None]], remedy: str) -> None:
    """Refuse what has no meaning, by name.

    Args:
        what: What the names are.
        meanings: Names and meanings.
        remedy: Where a meaning is written.

    Raises:
        PluginError: A name without a meaning.
    """
    missing = [name for name, meaning in meanings if not (meaning or "").strip()]
    if missing:
        raise PluginError(f"{what} without a meaning: {', '.join(missing)}; allowed: a sentence; remedy: {remedy}")
