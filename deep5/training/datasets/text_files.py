"""Text files in UTF-8, and their tokens: characters, words, bytes or byte pairs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from deep5.core.errors import UsageError, brief
from deep5.core.files import absence, is_file
from deep5.training.datasets.byte_pairs import BytePairs, learned_byte_pairs

__all__ = [
    "PADDING",
    "TOKENS",
    "UNKNOWN",
    "Vocabulary",
    "check_encoding",
    "not_utf8",
    "read_bytes",
    "read_text",
    "vocabulary_of",
]

TOKENS = ("characters", "words", "bytes", "byte_pairs")
"""How content is cut: Unicode characters, strings between white space, the bytes of UTF-8, or frequent sequences of
them (`deep5.training.datasets.byte_pairs`)."""

PADDING = "<pad>"
"""The token at the end of samples that are shorter than others."""

UNKNOWN = "<unk>"
"""The token that replaces those outside the vocabulary."""

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Bytes of memory for a byte of a file: its characters as Python's, and token ids as int64.
_GROWTH = 12


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens and their ids.

    Attributes:
        tokens: One of `TOKENS`.
        words: The token of each id.
        unknown: The id of tokens that are in no other place; None: there are none.
        skipped: Ids before the first token, for padding.
        pairs: The tokenizer of byte pairs; None: other tokens.
    """

    tokens: str
    words: tuple[str, ...]
    unknown: int | None
    skipped: int = 0
    pairs: BytePairs | None = None

    @property
    def learned_hash(self) -> str:
        """SHA-256 of a learned vocabulary and its merges; empty: the vocabulary follows from the tokens."""
        return self.pairs.hash if self.pairs is not None else ""

    @functools.cached_property
    def token_bytes(self) -> np.ndarray | None:
        """UTF-8 bytes of the token of each id, int64, -1 for unknown tokens.

        None for words: the white space between them is in no token.
        """
        if self.tokens == "words":
            return None
        if self.pairs is not None:
            return np.array([len(token) for token in self.pairs.tokens], np.int64)
        if self.tokens == "bytes":
            return np.array([0] * self.skipped + [1] * 256, np.int64)
        sizes = {UNKNOWN: -1, PADDING: 0}
        return np.array([sizes.get(word, len(word.encode())) for word in self.words], np.int64)

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The id of each token."""
        return {word: number for number, word in enumerate(self.words)}

    def ids(self, content: bytes | str) -> np.ndarray:
        """The token ids of the content of a file, int64.

        Args:
            content: Bytes for the tokens "bytes", else a string.
        """
        if isinstance(content, bytes):
            return np.frombuffer(content, np.uint8).astype(np.int64) + self.skipped
        if self.pairs is not None:
            return self.pairs.ids(content)
        known = self.numbers
        if self.tokens == "characters":
            # Each different character is looked up once.
            codes, places = np.unique(np.frombuffer(content.encode("utf-32-le"), "<u4"), return_inverse=True)
            table = np.array([known.get(chr(code), self.unknown) for code in codes.tolist()], dtype=np.int64)
            return table[places.reshape(-1)] if len(table) else np.zeros(0, np.int64)
        return np.array([known.get(word, self.unknown) for word in content.split()], dtype=np.int64)


def vocabulary_of(
    what: str, contents: Iterable[bytes | str], tokens: str, size: int | None, special: Sequence[str] = ()
) -> Vocabulary:
    """The vocabulary of files.

    Args:
        what: The data set, for messages.
        contents: Bytes for the tokens "bytes", else strings.
        tokens: One of `TOKENS`.
        size: The largest number of entries, of which the most frequent tokens are kept; None: all.
        special: Entries before all others, such as a padding.

    Raises:
        UsageError: An argument is out of its range.
        MissingDependency: Byte pairs without the library `tokenizers`.
    """
    if tokens not in TOKENS:
        raise UsageError(f"{what} with tokens {brief(tokens)}; allowed: {', '.join(map(repr, TOKENS))}")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size <= len(special)):
        raise UsageError(f"{what} with vocabulary_size {brief(size)}; allowed: None or an integer above {len(special)}")
    if tokens == "byte_pairs":
        return _byte_pairs(what, contents, size)
    if tokens == "bytes":
        if size is not None:
            raise UsageError(
                f"{what} with vocabulary_size {size} and tokens 'bytes'; allowed: None, which gives all 256"
            )
        shown = [_shown(bytes([byte])) for byte in range(256)]
        own = [name for name in special if name != UNKNOWN]
        return Vocabulary(tokens=tokens, words=(*own, *shown), unknown=None, skipped=len(own))
    counts: Counter[str] = Counter()
    for content in contents:
        counts.update(str(content) if tokens == "characters" else str(content).split())
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if size is not None:
        words = words[: size - len(special)]
    if tokens == "characters":
        words = sorted(words)
    everything = (*special, *words)
    return Vocabulary(
        tokens=tokens, words=everything, unknown=everything.index(UNKNOWN) if UNKNOWN in special else None
    )


def _byte_pairs(what: str, contents: Iterable[bytes | str], size: int | None) -> Vocabulary:
    if size is None or size < 256:
        raise UsageError(
            f"{what} with vocabulary_size {size} and tokens 'byte_pairs'; allowed: an integer of at least 256, the "
            "number of bytes; remedy: vocabulary_size=1024"
        )
    pairs = learned_byte_pairs((str(content) for content in contents), size)
    return Vocabulary(
        tokens="byte_pairs", words=tuple(_shown(token) for token in pairs.tokens), unknown=None, pairs=pairs
    )


def _shown(token: bytes) -> str:
    """Bytes as a string: printable ASCII as it is, others as in Python."""
    return "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in token)


def read_bytes(what: str, path: Path) -> bytes:
    """The content of a file.

    Raises:
        UsageError: It is missing, empty, or too large for the memory.
    """
    if not is_file(path):
        raise UsageError(f"{what}: the file {path} {absence(path)}; allowed: a text file in UTF-8")
    size, room = path.stat().st_size, psutil.virtual_memory().available
    if size == 0:
        raise UsageError(f"{what}: the file {path} is empty; allowed: at least one token")
    if size * _GROWTH > room:
        raise UsageError(
            f"{what}: {path} needs about {size * _GROWTH} bytes of memory, and {room} are free; remedy: "
            "tokens='bytes', which maps the file, or several files"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{what}: {path} cannot be read ({error.strerror or error})") from error


def read_text(what: str, path: Path) -> str:
    """The content of a file in UTF-8, without a byte order mark.

    Raises:
        UsageError: It is missing, empty, too large for the memory, or not UTF-8; the message names line and byte.
    """
    content = read_bytes(what, path)
    check_encoding(what, path, content[:4])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise not_utf8(what, path, line, column, content[error.start]) from error


def check_encoding(what: str, path: Path, begin: bytes) -> None:
    """Reject a file that begins like UTF-16, UTF-32 or gzip.

    Args:
        what: The data set.
        path: The file.
        begin: Its first bytes, at least four if it has as many.

    Raises:
        UsageError: It does.
    """
    # UTF-32 begins like UTF-16.
    for mark, name in ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), *((m, "UTF-16") for m in _UTF_16)):
        if begin.startswith(mark):
            raise UsageError(f"{what}: {path} is {name}; allowed: UTF-8; remedy: iconv -f {name} -t UTF-8")
    if begin.startswith(b"\x1f\x8b"):
        raise UsageError(f"{what}: {path} is a gzip file; allowed: a text file in UTF-8; remedy: gunzip it")


def not_utf8(what: str, path: Path, line: int, column: int, byte: int) -> UsageError:
    """The error for a file that is not UTF-8.

    Args:
        what: The data set.
        path: The file.
        line: The line of the first byte that does not decode, from 1.
        column: The byte's position in its line, from 1.
        byte: Its value.
    """
    return UsageError(
        f"{what}: {path}, line {line}: the byte 0x{byte:02x} at position {column} is not UTF-8; allowed: UTF-8; "
        "remedy: iconv -f ISO-8859-1 -t UTF-8, if that is the file's encoding"
    )
