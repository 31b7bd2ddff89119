"""Text files as samples: windows of tokens with those that follow, or one label per folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.files import absence, is_file, is_folder
from deep5.core.progress import tracked
from deep5.training.dataset import ArrayDataset, Splits
from deep5.training.datasets.class_folders import class_split
from deep5.training.datasets.splitting import check_share
from deep5.training.datasets.text_files import PADDING, TOKENS, UNKNOWN, read_bytes, read_text, vocabulary_of
from deep5.training.datasets.windows import check_length, unknown_tokens, window_splits
from deep5.training.downloads import given_path

__all__ = ["text", "text_folder"]

_SUFFIXES = frozenset((".txt", ".text", ".md"))
# A classifier's tokens: byte pairs serve a model of the text.
_CUT = tuple(name for name in TOKENS if name != "byte_pairs")


def text(
    path: str | Sequence[str],
    *,
    tokens: str = "characters",
    length: int = 128,
    vocabulary_size: int | None = None,
    test_path: str | Sequence[str] | None = None,
    test_share: float = 0.1,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    """Text files for a language model: windows of tokens, and as labels the tokens that follow.

    Args:
        path: A file in UTF-8, or a list of files, which are joined.
        tokens: "characters", "words" (between white space), "bytes", or "byte_pairs": byte-level BPE, learned from the
            training part, which has no unknown tokens. Files of bytes are mapped, not read.
        length: Tokens of a sample; a remainder at the end of a part is left out.
        vocabulary_size: The number of different tokens: of words or characters, the most frequent of the training part
            are kept, and all others are <unk>; None: all of both parts. Byte pairs need a number, from 256.
        test_path: The test files; None: the end of the text.
        test_share: Fraction in that end: of the bytes for "bytes", else of the characters.
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.

    Returns:
        Samples `input` and `label` int64 (length,), as `gpt` takes them.

    Raises:
        UsageError: A file is missing, empty, not UTF-8 (the message names line and byte) or too short, or an argument
            is out of its range.
        MissingDependency: "byte_pairs" without the library `tokenizers`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "text.txt")
    ...     _ = path.write_text("abcd" * 20)
    ...     data = d5.datasets.text(str(path), length=6)
    >>> batch = data.train.batch(np.array([0]))
    >>> batch["input"], batch["label"]  # each label is the next character
    (array([[0, 1, 2, 3, 0, 1]]), array([[1, 2, 3, 0, 1, 2]]))
    """
    what = "text"
    check_length(what, length)
    groups = [_paths(what, "path", path)]
    if test_path is not None:
        groups.append(_paths(what, "test_path", test_path))
    if tokens == "bytes":
        vocabulary = vocabulary_of(what, (), tokens, vocabulary_size)
        streams = [_mapped(what, paths) for paths in groups]
        if test_path is None:
            streams = _cut(what, streams[0], test_share)
    else:
        read = ["".join(read_text(what, one) for one in paths) for paths in groups]
        if test_path is None:
            read = _divided(what, read[0], tokens, test_share)
        # Byte pairs are learned from the training part, whatever their number.
        seen = read if vocabulary_size is None and tokens != "byte_pairs" else read[:1]
        vocabulary = vocabulary_of(what, seen, tokens, vocabulary_size, () if vocabulary_size is None else (UNKNOWN,))
        streams = [vocabulary.ids(one) for one in read]
    return window_splits(
        what,
        streams,
        vocabulary,
        length=length,
        limits=(limit, test_limit),
        source="text of " + " and ".join(", ".join(one.name for one in paths) for paths in groups),
        split=f"the last {test_share:g} of the text is the test" if test_path is None else "the files given",
    )


def text_folder(
    folder: str,
    *,
    tokens: str = "words",
    length: int = 256,
    vocabulary_size: int | None = 10_000,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    """Text files in folders, one folder per class: token ids of one length, and the class as label.

    Folders, classes and the split are as for `image_folder`; files end in .txt, .text or .md.

    Args:
        folder: The parent of the class folders.
        tokens: "words" (between white space), "characters" or "bytes".
        length: Tokens of a sample: longer files are cut at their end, shorter ones padded with the id 0.
        vocabulary_size: The number of different token ids: the padding, <unk>, and the most frequent words or
            characters of the training part; None: all of them. Bytes have 257 ids.
        test_share: Fraction of each class in the test set, if the folder has no split.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, balanced by class; None: all.
        test_limit: The same for the test samples.

    Returns:
        Samples `input` int64 (length,) and `label` int64 ().

    Raises:
        UsageError: A folder or file is missing, empty or not UTF-8 (the message names line and byte), or an argument is
            out of its range.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("bad/1.txt", "bad/2.txt", "good/1.txt", "good/2.txt"):
    ...         Path(folder, name).parent.mkdir(exist_ok=True)
    ...         _ = Path(folder, name).write_text(f"a {name[:-6]} film")
    ...     data = d5.datasets.text_folder(folder, length=5, test_share=0.5)
    ...     print(data.train.batch(np.arange(2)))
    {'input': array([[2, 4, 3, 0, 0],
           [2, 5, 3, 0, 0]]), 'label': array([0, 1])}
    """
    what, root = "text_folder", given_path("text_folder", folder)
    check_length(what, length)
    if tokens not in _CUT:
        raise UsageError(f"{what} with tokens {brief(tokens)}; allowed: {', '.join(map(repr, _CUT))}")
    found = class_split(
        what,
        root,
        "text file",
        _SUFFIXES,
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    read: Any = read_bytes if tokens == "bytes" else read_text
    names = () if tokens == "bytes" else found.train[0]
    contents = (read(what, root / name) for name in names)
    vocabulary = vocabulary_of(
        what,
        tracked(contents, f"{what}: building the vocabulary", len(names)),
        tokens,
        None if tokens == "bytes" else vocabulary_size,
        (PADDING, UNKNOWN),
    )
    parts, streams = [], []
    cut = padded = 0
    for names, labels in (found.train, found.test):
        rows = np.zeros((len(names), length), np.int64)
        for row, name in tracked(zip(rows, names, strict=True), f"{what}: reading files", len(names)):
            ids = vocabulary.ids(read(what, root / name))
            if not len(ids):
                raise UsageError(f"{what}: {root / name} has no {tokens}; allowed: at least one; remedy: delete it")
            cut, padded = cut + (len(ids) > length), padded + (len(ids) < length)
            row[: len(ids)] = ids[:length]
        streams.append(rows)
        parts.append(ArrayDataset({"input": rows, "label": labels}))
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=found.split_hash,
        description={
            "source": f"text files of {root.resolve().name}",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "classes": found.classes,
            "tokens": tokens,
            "vocabulary_size": len(vocabulary.words),
            "vocabulary": list(vocabulary.words),
            "split": found.text,
            "preparation": f"the first {length} {tokens} of each file",
            "decisions": [
                f"{number} of {len(parts[0]) + len(parts[1])} files are {verb}"
                for number, verb in ((cut, "cut at their end"), (padded, "padded with the id 0"))
                if number
            ]
            + unknown_tokens(vocabulary, streams)
            + found.decisions,
            "hash": "all token ids and labels",
        },
    )


def _paths(what: str, name: str, given: Any) -> list[Path]:
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    paths = [given_path(what, one, name) for one in listed]
    if not paths:
        raise UsageError(f"{what}: got {name}={brief(given)}; allowed: a file, or a list of at least one")
    for one in paths:
        if not is_file(one):
            folder = "; remedy: the data set text_folder, or a list of files" if is_folder(one) else ""
            raise UsageError(f"{what}: the file {one} {absence(one)}; allowed: a text file in UTF-8{folder}")
    return paths


def _mapped(what: str, paths: Sequence[Path]) -> np.ndarray:
    """The bytes of one file, memory-mapped, or of several, joined."""
    for one in paths:
        if one.stat().st_size == 0:
            raise UsageError(f"{what}: the file {one} is empty; allowed: at least one token")
    try:
        if len(paths) == 1:
            return np.memmap(paths[0], np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise UsageError(f"{what}: {paths[0]} cannot be read ({error})") from error
    return np.concatenate([np.frombuffer(read_bytes(what, one), np.uint8) for one in paths])


def _cut(what: str, stream: np.ndarray, share: float) -> list[np.ndarray]:
    cut = len(stream) - max(1, round(check_share(what, share) * len(stream)))
    return [stream[:cut], stream[cut:]]


def _divided(what: str, content: str, tokens: str, share: float) -> list[str]:
    """The text in two; words stay whole."""
    cut = len(content) - max(1, round(check_share(what, share) * len(content)))
    while tokens == "words" and cut > 0 and not content[cut - 1].isspace():
        cut -= 1
    return [content[:cut], content[cut:]]
