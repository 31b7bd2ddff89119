"""Tokenizers, and text that grows token by token: whole characters only, never a begin of a stop."""

from __future__ import annotations

import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.generation.tokenizer import TextStream, VocabularyTokenizer
from deep5.training.datasets.text_files import UNKNOWN, vocabulary_of

TEXT = "Größe: 3 µm, naïve — ✓ 𝄞!"


def tokenizer_of(tokens: str, content: str | bytes, size: int | None = None) -> VocabularyTokenizer:
    return d5.VocabularyTokenizer(vocabulary_of("test", [content], tokens, size))


@pytest.mark.parametrize(
    ("tokens", "size", "wanted"),
    [("characters", None, TEXT), ("bytes", None, TEXT), ("byte_pairs", 260, TEXT), ("words", None, " " + TEXT)],
)
def test_streamed_text_is_the_whole_text(tokens: str, size: int | None, wanted: str) -> None:
    """Pieces joined are the text; a character of several bytes comes with its last one."""
    if tokens == "byte_pairs":
        pytest.importorskip("tokenizers")
    tokenizer = tokenizer_of(tokens, TEXT.encode() if tokens == "bytes" else TEXT * 3, size)
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    stream = TextStream(tokenizer, ids[:1] if tokens != "words" else ids[-1:])
    pieces = [stream.add(token) for token in ids]
    assert "�" not in "".join(pieces)
    assert "".join(pieces) + stream.end() == stream.text == wanted


def test_bytes_that_never_become_a_character_come_at_the_end() -> None:
    tokenizer = tokenizer_of("bytes", b"x")
    stream = TextStream(tokenizer, [65])
    assert [stream.add(byte) for byte in (66, 0xE2, 0x9C)] == ["B", "", ""]
    assert stream.end() == "�"
    assert stream.text == "B�"


@pytest.mark.parametrize(
    ("text", "stops", "wanted", "stopped"),
    [
        ("one END two", ["END"], "one ", True),
        ("ababac", ["abac"], "ab", True),
        ("aaab", ["aab"], "a", True),
        ("one EN", ["END"], "one EN", False),
        ("x--y", ["--", "y"], "x", True),
        ("abc", ["abc"], "", True),
    ],
)
def test_stops_end_the_text(text: str, stops: list[str], wanted: str, stopped: bool) -> None:
    tokenizer = tokenizer_of("characters", text)
    stream, ids = TextStream(tokenizer, [], stops), tokenizer.encode(text)
    pieces = []
    for token in ids:
        pieces.append(stream.add(token))
        assert not any(stop in "".join(pieces) for stop in stops)
    pieces.append(stream.end())
    assert "".join(pieces) == stream.text == wanted
    assert stream.stopped is stopped
    assert stream.add(ids[0]) == "" or not stopped


def test_unknown_tokens_are_named() -> None:
    for special in ((), (UNKNOWN,)):
        words = VocabularyTokenizer(vocabulary_of("test", ["the cat sat"], "words", None, special))
        assert words.decode(words.encode("cat the")) == "cat the"
        with pytest.raises(UsageError, match=r"the token 'dog' at position 1 is not in the vocabulary of [34] words"):
            words.encode("the dog sat")
    with pytest.raises(UsageError, match=r"the prompt has no UTF-8 bytes at position 1: '\\ud800'"):
        tokenizer_of("bytes", b"x").encode("a\ud800")


def test_ids_beyond_the_vocabulary_stand_for_nothing() -> None:
    for tokens in ("characters", "words"):
        tokenizer = tokenizer_of(tokens, "a b")
        assert tokenizer.decode([*tokenizer.encode("a b"), 50]) == "a b"
