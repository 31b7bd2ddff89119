"""Tokenizers: from strings to token ids and back, also token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deep5.core.errors import UsageError, brief

if TYPE_CHECKING:
    from deep5.training.datasets.text_files import Vocabulary

__all__ = ["TextStream", "Tokenizer", "VocabularyTokenizer"]

# What decoders show for bytes that are no character yet.
_INCOMPLETE = "\ufffd"


class Tokenizer(Protocol):
    """What a generator needs of a tokenizer; those of `transformers` fit as they are."""

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of a string.

        Raises:
            Deep5Error: The string has a part that is no token.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The string of token ids."""
        ...


class VocabularyTokenizer:
    """The tokens of deep5's text data sets: characters, words, bytes or byte pairs.

    Args:
        vocabulary: A vocabulary, as `deep5.training.datasets.text_files.vocabulary_of` gives it.

    Raises:
        UsageError: It is none.

    >>> from deep5.training.datasets.text_files import vocabulary_of
    >>> tokenizer = VocabularyTokenizer(vocabulary_of("letters", ["hello"], "characters", None))
    >>> tokenizer.encode("hole"), tokenizer.decode([1, 3, 2, 0])
    ([1, 3, 2, 0], 'hole')
    >>> tokenizer.encode("help")
    Traceback (most recent call last):
        ...
    deep5.core.errors.UsageError: the token 'p' at position 3 is not in the vocabulary of 4 characters; allowed: its \
tokens, such as 'e', 'h', 'l', 'o'; remedy: leave it out
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not all(hasattr(vocabulary, part) for part in ("tokens", "words", "numbers")):
            raise UsageError(
                f"vocabulary: got {brief(vocabulary)}; allowed: that of a data set of text, such as "
                "d5.datasets.docstrings().train.vocabulary"
            )
        self._vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        """The token ids of a string.

        Raises:
            UsageError: A token is not in the vocabulary; the message has its position among the tokens.
        """
        vocabulary = self._vocabulary
        if vocabulary.tokens in ("bytes", "byte_pairs"):
            # A string may hold halves of a pair, which no bytes stand for.
            try:
                content = text.encode()
            except UnicodeEncodeError as error:
                raise UsageError(
                    f"the prompt has no UTF-8 bytes at position {error.start}: {brief(text[error.start])}; allowed: "
                    "Unicode characters"
                ) from error
            given: Any = content if vocabulary.tokens == "bytes" else text
            return [int(each) for each in vocabulary.ids(given)]
        known = vocabulary.numbers
        tokens = list(text) if vocabulary.tokens == "characters" else text.split()
        for position, token in enumerate(tokens):
            if token not in known:
                some = ", ".join(repr(each) for each in vocabulary.words[:4])
                raise UsageError(
                    f"the token {brief(token)} at position {position} is not in the vocabulary of {len(known)} "
                    f"{vocabulary.tokens}; allowed: its tokens, such as {some}; remedy: leave it out"
                )
        return [known[token] for token in tokens]

    def decode(self, ids: Sequence[int]) -> str:
        """The string of token ids; bytes that are no UTF-8 become U+FFFD.

        Ids beyond the vocabulary, for which a network may have room, stand for nothing.
        """
        vocabulary = self._vocabulary
        ids = [token for token in ids if token < len(vocabulary.words)]
        if vocabulary.pairs is not None:
            return b"".join(vocabulary.pairs.tokens[token] for token in ids).decode(errors="replace")
        if vocabulary.tokens == "bytes":
            content = np.array(ids, np.int64) - vocabulary.skipped
            return content[content >= 0].astype(np.uint8).tobytes().decode(errors="replace")
        return ("" if vocabulary.tokens == "characters" else " ").join(vocabulary.words[token] for token in ids)


class TextStream:
    """The text of a growing list of tokens, in pieces that never change: whole characters, and no begin of a stop.

    Args:
        tokenizer: Decodes tokens. Only the last ones are decoded again when one is added.
        prompt: The tokens before the first one; the last of them may change how the first one is shown.
        stops: Strings that end the text.

    Attributes:
        text: The pieces so far, joined.
        stopped: Whether a stop was found.

    >>> class Letters:
    ...     def encode(self, text): return [ord(letter) for letter in text]
    ...     def decode(self, ids): return "".join(map(chr, ids))
    >>> stream = TextStream(Letters(), [], ["END"])
    >>> [stream.add(ord(letter)) for letter in "to EN ENDS"], stream.stopped
    (['t', 'o', ' ', '', '', 'EN ', '', '', '', ''], True)
    >>> stream.text
    'to EN '
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Iterable[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        # Tokens that are decoded again, and how many of them are shown already.
        self._recent, self._shown = list(prompt[-1:]), len(prompt[-1:])
        self._before = tokenizer.decode(self._recent) if self._recent else ""
        self._waiting = ""
        self.text, self.stopped = "", False

    def add(self, token: int) -> str:
        """Add a token; returns the new piece, possibly empty."""
        if self.stopped:
            return ""
        self._recent.append(token)
        whole = self._tokenizer.decode(self._recent)
        if whole.endswith(_INCOMPLETE):
            return ""
        fresh = whole[len(self._before) :]
        self._recent = self._recent[self._shown :]
        self._shown, self._before = len(self._recent), self._tokenizer.decode(self._recent)
        return self._checked(self._waiting + fresh)

    def end(self) -> str:
        """The rest of the text after the last token: incomplete characters, and what might have become a stop."""
        if self.stopped:
            return ""
        whole = self._tokenizer.decode(self._recent) if self._recent else ""
        rest = self._waiting + whole[len(self._before) :]
        self.text, self._waiting = self.text + rest, ""
        return rest

    def _checked(self, waiting: str) -> str:
        """The part of the waiting text that cannot belong to a stop."""
        found = [place for stop in self._stops if (place := waiting.find(stop)) >= 0]
        self.stopped = bool(found)
        size = min(found) if found else len(waiting) - max((_overlap(waiting, stop) for stop in self._stops), default=0)
        piece, self._waiting = waiting[:size], waiting[size:]
        self.text += piece
        return piece


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that is a begin of the stop, and not the whole stop."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
