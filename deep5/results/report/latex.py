"""Tables for a paper, in LaTeX: every string passes through `escape`, the only way into a table.

The output is ASCII and needs only the package booktabs, whatever the engine and the encoding of fonts.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

from deep5.core.terminal import plain
from deep5.core.version import __version__
from deep5.results.markup import clean

__all__ = ["Column", "TeX", "escape", "joined", "number", "tabular"]

Column = tuple[str, str]
"""The alignment of a column, "l" or "r", and its head."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: rf"$\{name}$" for character, name in {"×": "times", "±": "pm", "≤": "leq", "≥": "geq"}.items()},
    # Other characters in the fonts of LaTeX's first encoding.
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "{''}",
    # After the end of a row, these begin an option.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    # Parts of ligatures.
    **{character: f"{{{character}}}" for character in "`',"},
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    "γ": r"$\gamma$",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
}
_MARKS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
_ACCENTS = dict(zip(_MARKS, "`'^~=u.\"rHvc", strict=True))
# Characters of a line under a table.
_WIDTH = 80
_NUMBER = re.compile(r"(-?)([\d.,]+)(?:e([+-]?)0*(\d+))?")


class TeX(str):
    """A string that is already LaTeX; only this module creates it. Joined with a string it becomes a plain one."""

    __slots__ = ()


def escape(value: object) -> TeX:
    """A value as text of a table; TeX is unchanged. Characters that not every font has become their code points.

    >>> escape("a_b & 50 %")
    'a\\\\_b \\\\& 50 \\\\%'
    >>> escape("Müller 中")
    'M\\\\"{u}ller U+4E2D'
    """
    if isinstance(value, TeX):
        return value
    words = re.sub("-(?=-)", "-\0", plain(clean(re.sub(r"\s+", " ", str(value)))))
    return TeX("".join(map(_character, words)))


def _character(character: str) -> str:
    if character == "\0":
        return "{}"
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii():
        return character
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS:
        return rf"\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"U+{ord(character):04X}"


def number(shown: str) -> TeX:
    """A number as it is printed, with its sign and exponent as mathematics; other strings are escaped.

    >>> number("0.123"), number("-3"), number("1.5e-07"), number("not a number")
    ('0.123', '$-3$', '$1.5 \\\\times 10^{-7}$', 'not a number')
    """
    found = _NUMBER.fullmatch(shown)
    if found is None:
        return escape(shown)
    sign, mantissa, minus, exponent = found.groups()
    if not sign and exponent is None:
        return TeX(mantissa)
    times = "" if exponent is None else rf" \times 10^{{{minus.strip('+')}{exponent}}}"
    return TeX(f"${sign}{mantissa.replace(',', '{,}')}{times}$")


def joined(*parts: object) -> TeX:
    """Parts in a row, each escaped.

    >>> joined(number("-3"), " %")
    '$-3$ \\\\%'
    """
    return TeX("".join(map(escape, parts)))


def tabular(about: Sequence[str], columns: Sequence[Column], rows: Iterable[Sequence[object]], below: str = "") -> str:
    r"""A complete `tabular`, which `\input` reads.

    Args:
        about: What it shows and where from, as comments.
        columns: Alignment and head of each column.
        rows: As many cells each; what is not `TeX` is escaped.
        below: A note under the table.

    >>> print(tabular(["times"], [("l", "name"), ("r", "ms")], [["a_b", 2]]).partition("booktabs}\n")[2], end="")
    \begin{tabular}{lr}
      \toprule
      name & ms \\
      \midrule
      a\_b & 2 \\
      \bottomrule
    \end{tabular}
    """
    said = [f"deep5 {__version__}: {about[0]}", *about[1:], r"needs \usepackage{booktabs}"]
    lines = [f"% {plain(' '.join(line.split())).encode('ascii', 'backslashreplace').decode()}" for line in said]
    lines += [rf"\begin{{tabular}}{{{''.join(align for align, _ in columns)}}}", r"  \toprule"]
    lines += [_row([head for _, head in columns]), r"  \midrule", *map(_row, rows), r"  \bottomrule"]
    for line in textwrap.wrap(below, _WIDTH):
        lines.append(rf"  \multicolumn{{{len(columns)}}}{{l}}{{\footnotesize {escape(line)}}} \\")
    lines.append(r"\end{tabular}")
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[object]) -> str:
    return rf"  {' & '.join(map(escape, cells))} \\"
