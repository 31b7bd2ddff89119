"""Lists of names in a column of a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from deep5.core.terminal import plain

__all__ = ["name_lines"]


def name_lines(names: Iterable[str], width: int) -> list[str]:
    """Comma-separated names in lines of at most this width, broken between names; a longer name is divided.

    >>> name_lines(["conv.weight", "conv.bias", "fc"], 14)
    ['conv.weight,', 'conv.bias, fc']
    """
    lines = [""]
    shown = [plain(name).replace("\n", "\\n") for name in names]
    for place, name in enumerate(shown):
        text = name + "," * (place < len(shown) - 1)
        if lines[-1] and len(lines[-1]) + 1 + len(text) <= width:
            lines[-1] += f" {text}"
            continue
        pieces = [text[start : start + width] for start in range(0, len(text), width)]
        lines = [*lines, *pieces] if lines[-1] else [*lines[:-1], *pieces]
    return lines
