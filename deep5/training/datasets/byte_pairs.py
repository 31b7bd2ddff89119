"""Byte-pair tokens: frequent sequences of bytes, learned from a training part by the library `tokenizers`."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from deep5.core.errors import MissingDependency

__all__ = ["BytePairs", "learned_byte_pairs"]

# Lines that are tokenized at a time: the library keeps much more than ids for each token.
_LINES = 4096
# A merge that occurs once would only store the text.
_LEAST_COUNT = 2


class BytePairs:
    """A byte-level tokenizer: the 256 bytes, and merges of two tokens. There are no unknown tokens.

    Merges cross neither lines nor the words, numbers and punctuation that GPT-2's expression separates.

    Args:
        tokenizer: A `tokenizers.Tokenizer` with a byte-level BPE model.

    Attributes:
        tokens: The bytes of the token of each id.
        hash: SHA-256 of the vocabulary and the merges.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.to_str())["model"]
        values = _byte_values()
        by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
        self.tokens = tuple(bytes(values[character] for character in token) for token in by_id)
        content = json.dumps([by_id, model["merges"]]).encode()
        self.hash = hashlib.sha256(content).hexdigest()

    def ids(self, content: str) -> np.ndarray:
        """The token ids of a string, int64.

        Args:
            content: The string.
        """
        lines = content.splitlines(keepends=True)
        parts = [np.zeros(0, np.int64)]
        for begin in range(0, len(lines), _LINES):
            found = self._tokenizer.encode_batch_fast(lines[begin : begin + _LINES], add_special_tokens=False)
            parts += [np.array(line.ids, np.int64) for line in found]
        return np.concatenate(parts)


def learned_byte_pairs(contents: Iterable[str], size: int) -> BytePairs:
    """Byte-pair tokens of strings: the pair of neighbors that occurs most often becomes a token, again and again.

    The same strings give the same tokens.

    Args:
        contents: The strings.
        size: The largest number of tokens, at least 256: merges end earlier if no pair occurs twice.

    Raises:
        MissingDependency: `tokenizers` is not installed.

    References:
        Sennrich, Haddow and Birch, Neural machine translation of rare words with subword units, ACL 2016, algorithm 1;
        over bytes as by Radford et al., Language models are unsupervised multitask learners, 2019, section 2.2.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ModuleNotFoundError as error:
        raise MissingDependency("byte-pair tokens need tokenizers; remedy: pip install 'deep5[text]'") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_LEAST_COUNT,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_lines(contents), trainer)
    return BytePairs(tokenizer)


def _lines(contents: Iterable[str]) -> Iterator[str]:
    for content in contents:
        yield from content.splitlines(keepends=True)


@functools.cache
def _byte_values() -> dict[str, int]:
    """The byte of each character of the library's alphabet.

    As in GPT-2: bytes that print in Latin-1 are that character, the others follow from 256 on.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}
