"""Windows of tokens with the tokens that follow: the samples of language models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Dataset, Splits, fitted, sample_ids
from deep5.training.datasets.splitting import check_limit, split_hash
from deep5.training.datasets.text_files import UNKNOWN, Vocabulary

__all__ = ["WindowDataset", "check_length", "unknown_tokens", "window_splits"]

_BLOCK = 1 << 22


class WindowDataset(Dataset):
    """Consecutive windows of tokens, each with the tokens that follow as its label.

    Sample i has the tokens i * length to (i + 1) * length - 1 as `input`, and those one position later as `label`.

    Args:
        tokens: Token ids, shape (tokens,); may be memory-mapped.
        length: Tokens of a window.
        samples: The number of windows.
        token_bytes: See the attribute.
        vocabulary_hash: SHA-256 of what the ids stand for, if the content hash has to cover it.
        vocabulary: See the attribute.

    Attributes:
        token_bytes: UTF-8 bytes of the token of each id, int64, shape (vocabulary,), -1 for unknown tokens, as the
            metric `bits_per_byte` needs them; None: the tokens do not cover all bytes of the content.
        vocabulary: What the ids stand for, for a `VocabularyTokenizer`; None: unknown.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        length: int,
        samples: int,
        *,
        token_bytes: np.ndarray | None = None,
        vocabulary_hash: str = "",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._tokens, self._width, self._samples = tokens, length, samples
        self.token_bytes, self._vocabulary_hash, self.vocabulary = token_bytes, vocabulary_hash, vocabulary
        spec = TensorSpec(shape=(length,), dtype="int64")
        self.specs = {"input": spec, "label": spec}

    def __len__(self) -> int:
        """Number of windows."""
        return self._samples

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The windows with these indices; see `Dataset.batch`."""
        begins = sample_ids(ids, len(self)) * self._width
        windows = np.asarray(self._tokens[begins[:, None] + np.arange(self._width + 1)], dtype=np.int64)
        return {"input": windows[:, :-1].copy(), "label": windows[:, 1:].copy()}

    def labels(self, name: str = "label") -> np.ndarray | None:
        """The label's tokens, shape (windows, length), or None for those of a mapped file; see `Dataset.labels`."""
        if name != "label" or isinstance(self._tokens, np.memmap):
            return None
        return self._tokens[1 : self._samples * self._width + 1].reshape(self._samples, self._width)

    def content_hash(self) -> str:
        """SHA-256 of the tokens, their number and the length, and of a learned vocabulary."""
        digest = hashlib.sha256(f"{self._tokens.dtype} {len(self._tokens)} {self._width} {self._samples}\n".encode())
        digest.update(self._vocabulary_hash.encode())
        for begin in range(0, len(self._tokens), _BLOCK):
            digest.update(np.ascontiguousarray(self._tokens[begin : begin + _BLOCK]).data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> WindowDataset:
        """This data set: token ids are not converted."""
        fitted(self.specs, specs)
        return self


def window_splits(
    what: str,
    streams: Sequence[np.ndarray],
    vocabulary: Vocabulary,
    *,
    length: int,
    limits: Sequence[int | None],
    split_key: str = "",
    **description: Any,
) -> Splits:
    """The two parts of a data set as windows.

    Args:
        what: The data set, for messages.
        streams: The token ids of the training part and of the test part.
        vocabulary: What they stand for.
        length: Tokens of a window; a remainder at the end of a part is left out.
        limits: The number of windows of each part to keep, from the first; None: all.
        split_key: What the hash of the split covers besides the sizes of the parts.
        **description: The keys `source` and `split`, and further ones, of the description.

    Raises:
        UsageError: A part is shorter than a window, or a limit is out of its range.
    """
    tokens, parts = vocabulary.tokens, []
    unit = tokens.replace("_", " ")
    token_bytes = vocabulary.token_bytes
    for name, option, stream, most in zip(("training", "test"), ("limit", "test_limit"), streams, limits, strict=True):
        count = (len(stream) - 1) // length
        if count < 1:
            raise UsageError(
                f"{what}: the {name} part has {len(stream)} {unit}; allowed: at least {length + 1}, one more than "
                "length; remedy: a smaller length, or more text"
            )
        kept = check_limit(what, option, most, count) or count
        parts.append(
            WindowDataset(
                stream,
                length,
                kept,
                token_bytes=token_bytes,
                vocabulary_hash=vocabulary.learned_hash,
                vocabulary=vocabulary,
            )
        )
    sizes = split_hash(*(np.array([len(stream), len(part)]) for stream, part in zip(streams, parts, strict=True)))
    learned = {"vocabulary_hash": vocabulary.learned_hash} if vocabulary.learned_hash else {}
    covered = "all tokens and the length of the windows" + (", and the vocabulary with its merges" if learned else "")
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=hashlib.sha256(f"{split_key} {sizes}".encode()).hexdigest() if split_key else sizes,
        description={
            "source": description.pop("source"),
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "tokens": tokens,
            "token_counts": {"train": len(streams[0]), "test": len(streams[1])},
            "vocabulary_size": len(vocabulary.words),
            "vocabulary": list(vocabulary.words),
            **learned,
            **description,
            "preparation": f"windows of {length} {unit} without overlap; labels are those one position later",
            "decisions": unknown_tokens(vocabulary, streams),
            "hash": covered,
        },
    )


def check_length(what: str, length: Any) -> None:
    """Reject a number of tokens per sample that is none.

    Raises:
        UsageError: It is not an integer of at least 1.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise UsageError(f"{what} with length {brief(length)}; allowed: an integer of at least 1")


def unknown_tokens(vocabulary: Vocabulary, streams: Sequence[np.ndarray]) -> list[str]:
    """The number of tokens that are not in the vocabulary, as a sentence for a description; none: no sentence.

    Args:
        vocabulary: The vocabulary.
        streams: The token ids of the training part and of the test part.
    """
    if vocabulary.unknown is None:
        return []
    counts = [int((stream == vocabulary.unknown).sum()) for stream in streams]
    found = " and ".join(f"{count} {part}" for count, part in zip(counts, ("training", "test"), strict=True) if count)
    verb = "token is" if sum(counts) == 1 else "tokens are"
    return [f"{found} {verb} not in the vocabulary: {UNKNOWN}"] if found else []
