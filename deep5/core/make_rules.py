"""The dependency rules that compilers write for make, `TARGET: FILE FILE …`, decoded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deep5.core.files import is_file

__all__ = ["included_files", "prerequisites"]

# A backslash escapes a space, `#` and the end of a line; `$` is doubled. Nothing else is escaped, backslashes neither,
# except those before a space, which are doubled.
_CONTINUED = re.compile(rb"(?<=[ \t:])\\\n")
_TARGET_END = re.compile(rb":(?=[ \t\n])")
_NAME = re.compile(rb"(?:(?<!\\)(?:\\\\)*\\[ \t]|[^ \t\n])+")
_ESCAPED = re.compile(rb"(\\*)\\([ \t])|\\(#)|\$(\$)")


def prerequisites(rules: bytes) -> list[str] | None:
    r"""The files on which the first target depends, as gcc and clang escape their names.

    Of some names, no reader can find the original: compilers do not escape a line feed, and clang no tab, so that the
    parts of the name are returned; and clang writes `/` for a backslash.

    Args:
        rules: The content of the file that `-MF` names.

    Returns:
        The names, decoded as by `os.fsdecode`; None if there is no rule.

    References:
        `munge` in GCC's libcpp/mkdeps.cc; `PrintFilename` in Clang's lib/Frontend/DependencyFile.cpp.

    >>> prerequisites(b"kernel.so: a\\ b/\\#1.h \\\n c$$d.h\n")
    ['a b/#1.h', 'c$d.h']
    """
    parts = _TARGET_END.split(_CONTINUED.sub(b" ", rules), maxsplit=1)
    if len(parts) == 1:
        return None
    return [os.fsdecode(_ESCAPED.sub(_unescaped, name)) for name in _NAME.findall(parts[1])]


def _unescaped(found: re.Match[bytes]) -> bytes:
    slashes, space, number_sign, dollar = found.groups(default=b"")
    return slashes[: len(slashes) // 2] + space + number_sign + dollar


def included_files(rules: bytes, code: Path) -> list[str] | None:
    """The files that a source includes, without those in its own folder, which exist only during compilation.

    Args:
        rules: As for `prerequisites`.
        code: The source.

    Returns:
        Their paths, sorted; None if the rules do not name all: they lack the source, or name a missing file.
    """
    code = code.resolve()
    names = prerequisites(rules) or []
    if any("\0" in name for name in names):
        return None
    listed = {Path(os.path.realpath(name)) for name in names}
    included = [path for path in listed if code.parent not in path.parents]
    return sorted(map(str, included)) if code in listed and all(map(is_file, included)) else None
