"""Reject the phrases of `english_phrases.py` in the prose of this repository.

`python tests/support/plain_english.py [PATH ...]` reads Markdown, and the docstrings, comments and strings of Python
files (of the tests docstrings and comments only), and prints `file:line: 'phrase' -> write ...`. Code is not prose:
identifiers, inline code, doctests, shown output, strings of a single word.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import token
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from english_phrases import PHRASES

ROOT = Path(__file__).parents[2]
QUOTING = ("tests/support/english_phrases.py", "tests/support/plain_english.py", "tests/project/test_plain_english.py")
"""These files quote the phrases."""

# Replaces text that is not prose, so that no phrase is found across it.
HIDDEN = "\0"
FENCE = re.compile(r"^( *)(```|~~~)(\w*)\n(.*?)^\1\2", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->|\]\([^)\s]*\)|https?://\S+", re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)+")
DOCTEST = re.compile(r"^[ \t]*>>> .*\n(?:[ \t]*\S.*\n?)*", re.MULTILINE)
ARGUMENT = re.compile(r"^[ \t]*\*{0,2}\w+(?:, \*{0,2}\w+)*:(?=\s)", re.MULTILINE)
SHELL_CODE = re.compile(r"^[^#\n]+|^#!.*", re.MULTILINE)
FIELD = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
BETWEEN = {token.NL, token.NEWLINE, token.INDENT, token.DEDENT, token.ENCODING}
F_START, F_MIDDLE, F_END = (getattr(token, f"FSTRING_{part}", -1) for part in ("START", "MIDDLE", "END"))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A phrase in a file, with the line on which it begins."""

    path: str
    line: int
    phrase: str
    write: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: '{self.phrase}' -> write {self.write}"


def _hide(text: str) -> str:
    """The same lines without their characters."""
    return re.sub(r"[^\n]", HIDDEN, text)


def _hide_code(text: str) -> str:
    """Prose without its inline code and addresses."""
    for pattern in (COMMENT, INLINE):
        text = pattern.sub(lambda found: _hide(found.group()), text)
    return text


def markdown_prose(text: str) -> str:
    """A page with everything hidden but its prose; of blocks of code the comments stay, and the docstrings."""

    def block(found: re.Match[str]) -> str:
        kind, body = found.group(3), found.group(4)
        if kind == "python":
            shown = python_prose(body)
        elif kind in {"sh", "toml"}:
            shown = SHELL_CODE.sub(lambda code: _hide(code.group()), body)
        else:
            shown = _hide(body)
        opening, closing = (f"{found.group(1)}{found.group(2)}{kind}\n", f"{found.group(1)}{found.group(2)}")
        return _hide(opening) + _hide_code(shown) + _hide(closing)

    parts, end = [], 0
    for found in FENCE.finditer(text):
        parts += [_hide_code(INDENTED.sub(lambda code: _hide(code.group()), text[end : found.start()])), block(found)]
        end = found.end()
    return "".join([*parts, _hide_code(INDENTED.sub(lambda code: _hide(code.group()), text[end:]))])


def python_prose(source: str, *, strings: bool = True) -> str:
    """A Python file with everything hidden but docstrings and comments and, with `strings`, strings of several words.

    Strings and comments that follow each other without code between them are read as one.
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    shown = list(_hide(source))
    previous_end, statement_begins = 0, True
    open_brackets = 0
    for each in tokenize.generate_tokens(io.StringIO(source).readline):
        begin, end = starts[each.start[0] - 1] + each.start[1], starts[each.end[0] - 1] + each.end[1]
        if each.type == token.ENDMARKER:
            break
        if each.type == token.OP:
            open_brackets += (each.string in "([{") - (each.string in ")]}")
        prose = ""
        if each.type == token.COMMENT:
            prose = " " + each.string[1:]
        elif each.type == token.STRING and (strings or (statement_begins and not open_brackets)):
            prose = _string_prose(each.string)
        elif each.type == F_MIDDLE and strings and " " in each.string.strip():
            prose, end = each.string, begin + len(each.string)
        if prose:
            shown[begin:end] = prose
            if not source[previous_end:begin].strip():
                shown[previous_end:begin] = re.sub(r"[^\n]", " ", source[previous_end:begin])
        if prose or each.type in BETWEEN:
            previous_end = end if prose else previous_end
        elif each.type not in {F_START, F_END}:
            previous_end = len(source)
        statement_begins = each.type in BETWEEN or (each.type == token.COMMENT and statement_begins)
    return "".join(shown)


def _string_prose(literal: str) -> str:
    """The prose of a literal, as long as the literal; nothing where it is bytes or has no two words."""
    found = re.match(r"(?i)([rbuf]*)('''|\"\"\"|'|\")", literal)
    if found is None or "b" in found.group(1).lower() or " " not in literal.strip("'\" "):
        return ""
    opening, quote = len(found.group()), len(found.group(2))
    body = literal[opening : len(literal) - quote]
    if "f" in found.group(1).lower():
        body = FIELD.sub(lambda field: _hide(field.group()), body)
    if quote == 3:
        for pattern in (DOCTEST, ARGUMENT):
            body = pattern.sub(lambda code: _hide(code.group()), body)
    return " " * opening + _hide_code(body) + " " * quote


def _is_name(text: str, begin: int, end: int) -> bool:
    """Whether the span is a part of an identifier, an option or a path, or a quoted word."""
    before, after = text[begin - 1 : begin], text[end : end + 2]
    quoted = before in {"'", '"', "“"} and after[:1] in {"'", '"', "”"}
    return quoted or before in set("_./=@$-") or bool(re.match(r"[_=(\[/]|\.\w|-\w|'?\]", after)) or before == HIDDEN


def find(path: str, text: str) -> Iterator[Finding]:
    """The phrases in a file, in their order."""
    prose = markdown_prose(text) if path.endswith(".md") else python_prose(text, strings=not path.startswith("tests/"))
    # Most of a file is hidden: one character replaces it, and `kept` has the start of the text after it.
    parts = [(each.start(), each.group()) for each in re.finditer(r"[^\0]+", prose) if not each.group().isspace()]
    dense = "\n" + HIDDEN.join(part for _, part in parts)
    kept = list(accumulate((len(part) + 1 for _, part in parts), initial=1))
    found = []
    for phrase in PHRASES:
        allowed = [each.span() for each in phrase.allowed.finditer(dense)] if phrase.allowed else []
        for each in phrase.pattern.finditer(dense):
            begin, end = each.span()
            if not any(first <= begin and end <= last for first, last in allowed) and not _is_name(dense, begin, end):
                words = " ".join(each.group().split())
                found.append((begin, words, phrase.replacement(words)))
    for begin, words, write in sorted(found):
        part = bisect_right(kept, begin) - 1
        line = prose.count("\n", 0, parts[part][0] + begin - kept[part]) + 1
        yield Finding(path=path, line=line, phrase=words, write=write)


def files(root: Path) -> list[str]:
    """Pages and Python files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md", "*.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sorted(name for name in set(done.stdout.split("\n")) if name not in QUOTING and (root / name).is_file())


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print the findings in these folders and files, or in all; returns 1 if there are any."""
    chosen = tuple(each.rstrip("/") for each in arguments)
    names = [
        name
        for name in files(root)
        if not chosen or any(name == each or name.startswith(f"{each}/") for each in chosen)
    ]
    wrong = [each for name in names for each in find(name, (root / name).read_text())]
    sys.stdout.writelines(f"{each}\n" for each in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
