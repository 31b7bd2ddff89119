"""The docstrings of Python's standard library: two megabytes of English for language models, without a download."""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deep5.core.errors import UsageError
from deep5.core.python_source import parse
from deep5.training.dataset import Splits
from deep5.training.datasets.splitting import check_share
from deep5.training.datasets.text_files import vocabulary_of
from deep5.training.datasets.windows import check_length, window_splits

__all__ = ["docstrings", "documents", "held_out", "without_repetitions"]

# Folders that are no part of every installation, or belong to a program.
_SKIPPED = frozenset(("test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages"))
# Files that describe one build of Python.
_OF_A_BUILD = ("config-", "_sysconfigdata", "sitecustomize", "usercustomize")
_TOPICS = "pydoc_data/topics.py"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Shorter paragraphs, such as "Example:", may occur again.
_LONG_PARAGRAPH = 64


def docstrings(
    *,
    tokens: str = "characters",
    length: int = 128,
    vocabulary_size: int | None = None,
    test_share: float = 0.1,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    """The docstrings of Python's standard library for a language model: windows of tokens and those that follow.

    Documents are the docstrings of one module, as `ast` reads them from its source, and the topics of Python's help
    (`pydoc_data.topics`); no module is imported or executed. Documents follow in the order of the SHA-256 of their
    names; those whose hash, as a fraction of the largest one, is below `test_share` are the test part as a whole. A
    paragraph of at least 64 characters occurs once: repetitions are left out, so that no test paragraph is a training
    paragraph.

    Each version of Python has its own docstrings, which makes another data set: the description and the hash of the
    split cover the version and the SHA-256 of all documents. License: PSF License Agreement, version 2, as Python
    itself.

    Args:
        tokens: "characters", "words", "bytes" or "byte_pairs", as for `text`.
        length: Tokens of a sample; a remainder at the end of a part is left out.
        vocabulary_size: As for `text`; None: all characters (111 to 118 in Python 3.10 to 3.13) or words.
        test_share: The fraction of the documents, on average, in the test part.
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.

    Returns:
        Samples `input` and `label` int64 (length,), as `gpt` and `lstm_language_model` take them.

    Raises:
        UsageError: This Python has no source files of the standard library, or an argument is out of its range.
        MissingDependency: "byte_pairs" without the library `tokenizers`.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.docstrings(length=32, limit=1000, test_limit=100)
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (1000, 100, {'input': 'int64[32]', 'label': 'int64[32]'})
    >>> batch = data.train.batch(np.array([0]))
    >>> np.array_equal(batch["input"][0, 1:], batch["label"][0, :-1])  # each label is the next character
    True
    """
    what = "docstrings"
    check_length(what, length)
    check_share(what, test_share)
    found = documents()
    names = sorted(found, key=_digest)
    chosen = [[name for name in names if held_out(name, test_share) is test] for test in (False, True)]
    parts = without_repetitions([[found[name] for name in part] for part in chosen])
    content = _hash_of(found)
    version = platform.python_version()
    contents = [part.encode() if tokens == "bytes" else part for part in parts]
    seen = contents if vocabulary_size is None and tokens != "byte_pairs" else contents[:1]
    vocabulary = vocabulary_of(what, seen, tokens, vocabulary_size, () if vocabulary_size is None else ("<unk>",))
    return window_splits(
        what,
        [vocabulary.ids(part) for part in contents],
        vocabulary,
        length=length,
        limits=(limit, test_limit),
        split_key=f"{content} {test_share:g}",
        source=f"docstrings and help topics of the standard library of Python {version}",
        content_sha256=content,
        license="PSF License Agreement, version 2",
        documents={"train": len(chosen[0]), "test": len(chosen[1])},
        split=f"modules and topics as a whole: those whose SHA-256 of the name is below {test_share:g} of the largest",
    )


@functools.cache
def documents() -> Mapping[str, str]:
    """The docstrings of each module of the standard library in the order of its source, and the topics of its help.

    Returns:
        Documents by the module's name, or `topic NAME`.

    Raises:
        UsageError: This Python has no source files of the standard library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, str] = {}
    with _without_collections():
        for path in sorted(root.rglob("*.py")):
            place = path.relative_to(root)
            if _SKIPPED.intersection(place.parts[:-1]) or place.parts[0].startswith(_OF_A_BUILD):
                continue
            tree = _parsed(path)
            if place.as_posix() == _TOPICS:
                found |= {f"topic {name}": content for name, content in _topics(tree)}
            elif content := "\n\n".join(_docstrings_of(tree)):
                found[".".join(place.with_suffix("").parts)] = content
    if not any(name.startswith("topic ") for name in found) or "argparse" not in found:
        raise UsageError(
            f"docstrings: {root} does not hold the source files of Python's standard library; allowed: an installation "
            "with its .py files; remedy: a Python of python.org, conda or pyenv, or the data set 'text'"
        )
    # Source files may hold characters that UTF-8 has not: halves of a pair.
    return {name: content.encode("utf-8", "replace").decode() for name, content in found.items()}


def held_out(name: str, share: float) -> bool:
    """Whether a document is in the test part.

    Args:
        name: The document's name.
        share: The fraction of the documents in that part.
    """
    return int.from_bytes(_digest(name)) < share * (1 << 256)


def without_repetitions(parts: Iterable[Iterable[str]]) -> list[str]:
    """The documents of each part, joined, with each long paragraph at its first occurrence only.

    Args:
        parts: The documents, by part.

    >>> long = "This paragraph is long enough to be recognized where it occurs again."
    >>> train, test = without_repetitions([[long], [f"Note:\\n\\n{long}", "The end."]])
    >>> test
    'Note:\\n\\nThe end.\\n\\n'
    """
    seen: set[str] = set()
    joined = []
    for part in parts:
        kept = []
        for paragraph in (piece for document in part for piece in re.split(r"\n\s*\n", document)):
            bare = " ".join(paragraph.split())
            if bare and bare not in seen:
                kept.append(paragraph.rstrip() + "\n\n")
                if len(bare) >= _LONG_PARAGRAPH:
                    seen.add(bare)
        joined.append("".join(kept))
    return joined


def _docstrings_of(tree: ast.Module) -> Iterator[str]:
    """The docstrings of a module in the order of its source."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, _DOCUMENTED) and (found := ast.get_docstring(node)):
            yield found
        # Only statements: no expression holds a definition with a docstring.
        inner = [child for field in ("body", "handlers", "orelse", "finalbody") for child in _listed(node, field)]
        nodes += reversed(inner)


def _listed(node: ast.AST, field: str) -> list[ast.AST]:
    found = getattr(node, field, ())
    return [child for child in found if hasattr(child, "body")] if isinstance(found, list) else []


def _topics(tree: ast.Module) -> list[tuple[str, str]]:
    """The topics of Python's help: the literal that its module assigns."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "topics":
            try:
                return sorted(ast.literal_eval(node.value).items())
            except (ValueError, AttributeError):
                break
    return []


def _parsed(path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library's own strings
            return parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(
            f"docstrings: {path} cannot be read ({error}); allowed: the source files of Python's standard library; "
            "remedy: a complete installation of Python"
        ) from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without garbage collection, which would visit the nodes of each tree many times: a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _hash_of(found: Mapping[str, str]) -> str:
    """SHA-256 of the names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(found):
        content = found[name].encode()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
