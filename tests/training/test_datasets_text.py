"""Text files: windows of tokens and labels per folder; files that are not UTF-8."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep5.core.errors import MissingDependency, UsageError
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.training.dataset import check_labels
from deep5.training.datasets.byte_pairs import learned_byte_pairs
from deep5.training.datasets.texts import text, text_folder
from deep5.training.datasets.windows import WindowDataset
from deep5.training.sampler import ShuffleSampler

RHYME = "the cat sat on the mat.\nthe dög sat on the log.\n" * 20


@pytest.fixture
def rhyme(tmp_path: Path) -> Path:
    path = tmp_path / "rhyme.txt"
    path.write_text(RHYME, encoding="utf-8")
    return path


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def spelled(splits: Any, ids: np.ndarray, join: str = "") -> str:
    return join.join(splits.description["vocabulary"][number] for number in ids)


def test_windows_of_characters(rhyme: Path) -> None:
    splits = text(str(rhyme), length=16)
    assert splits.description["vocabulary"] == sorted(set(RHYME))
    train, test = everything(splits.train), everything(splits.test)
    cut = len(RHYME) - round(0.1 * len(RHYME))
    joined = spelled(splits, train["input"].reshape(-1))
    assert RHYME[:cut].startswith(joined)
    assert cut - len(joined) <= 16
    assert spelled(splits, train["label"].reshape(-1)) == RHYME[1 : len(joined) + 1]
    assert RHYME[cut:].startswith(spelled(splits, test["input"].reshape(-1)))
    assert str(splits.train.specs["label"]) == "int64[16]"
    known = splits.train.labels()
    assert known is not None
    np.testing.assert_array_equal(known, train["label"])
    # So that a network of too few classes is refused before it trains.
    with pytest.raises(UsageError, match=r"the network has 3 outputs, .*remedy: a network of "):
        check_labels(splits.train, 3)
    assert text(str(rhyme), length=16, tokens="bytes").train.labels() is None
    order = [ids.tolist() for ids, _ in ShuffleSampler(splits.train, 7, seed=1).batches(0, start=2)]
    assert order == [ids.tolist() for ids, _ in ShuffleSampler(splits.train, 7, seed=1).batches(0)][2:]


def test_windows_of_bytes_are_mapped(rhyme: Path) -> None:
    splits = text(str(rhyme), tokens="bytes", length=10, test_share=0.5)
    raw = RHYME.encode()
    assert bytes(everything(splits.train)["input"].reshape(-1).astype(np.uint8)) == raw[: len(splits.train) * 10]
    assert isinstance(splits.train._tokens, np.memmap)
    assert splits.description["vocabulary_size"] == 256
    assert splits.description["vocabulary"][ord("a")] == "a"
    two = text([str(rhyme), str(rhyme)], tokens="bytes", length=10)
    assert two.description["token_counts"] == {
        "train": len(raw) * 2 - round(len(raw) * 0.2),
        "test": round(len(raw) * 0.2),
    }


def test_windows_of_words(rhyme: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("the cat sat on the zebra and the mat. " * 3)
    splits = text(str(rhyme), tokens="words", length=4, vocabulary_size=6, test_path=str(tmp_path / "test.txt"))
    assert splits.description["vocabulary"] == ["<unk>", "the", "on", "sat", "cat", "dög"]
    assert spelled(splits, everything(splits.test)["input"][1], " ") == "the <unk> <unk> the"
    assert splits.description["decisions"] == ["40 training and 9 test tokens are not in the vocabulary: <unk>"]
    everywhere = text(str(rhyme), tokens="words", length=4, test_path=str(tmp_path / "test.txt"))
    assert "zebra" in everywhere.description["vocabulary"]
    drawn = text(str(rhyme), tokens="words", length=4)
    words = [spelled(drawn, part["input"].reshape(-1), " ") for part in map(everything, (drawn.train, drawn.test))]
    assert RHYME.replace("\n", " ").startswith(words[0])
    assert words[1] in RHYME.replace("\n", " ")


def test_windows_of_byte_pairs(rhyme: Path) -> None:
    splits = text(str(rhyme), tokens="byte_pairs", vocabulary_size=270, length=4, test_share=0.25)
    assert splits.description["decisions"] == []
    cut = len(RHYME) - round(0.25 * len(RHYME))
    pairs = learned_byte_pairs([RHYME[:cut]], 270)
    assert splits.description["vocabulary_size"] == len(pairs.tokens) == 270
    for part, content in ((splits.train, RHYME[:cut]), (splits.test, RHYME[cut:])):
        ids = pairs.ids(content)
        assert b"".join(pairs.tokens[number] for number in ids) == content.encode()
        assert len(ids) < 0.7 * len(content)
        np.testing.assert_array_equal(everything(part)["input"].reshape(-1), ids[: len(part) * 4])
        np.testing.assert_array_equal(part.token_bytes[ids].sum(), len(content.encode()))
    assert (splits.train.token_bytes[:256] == 1).all()
    # " the" repeats more often than other words; tokens are bytes, of which a character may have several.
    assert {" the", "d\\xc3"} <= set(splits.description["vocabulary"])


def test_byte_pairs_have_no_unknown_tokens() -> None:
    pairs = learned_byte_pairs(["only ASCII here\n"] * 3, 300)
    assert set(pairs.tokens[:256]) == {bytes([byte]) for byte in range(256)}
    foreign = "ein Wörterbuch, 辞書, \x00\x7f\u2028 🐍\r\n"
    assert b"".join(pairs.tokens[number] for number in pairs.ids(foreign)) == foreign.encode()
    assert pairs.ids("").tolist() == []
    assert pairs.ids("").dtype == np.int64
    # No pair occurs twice.
    assert len(learned_byte_pairs(["abcdefg"], 1000).tokens) == 256


def test_first_merges_are_the_papers() -> None:
    """Sennrich et al., section 3.2: of low, lowest, newer and wider, by their frequencies, the ends "er" merge."""
    words = "low " * 5 + "lowest " * 2 + "newer " * 6 + "wider " * 3
    pairs = learned_byte_pairs(["\n".join(words.split())], 258)
    counts = {pair: sum(word.count(pair) for word in words.split()) for pair in ("er", "lo", "ow", "we", "ne", "wi")}
    first = max(counts, key=counts.__getitem__)
    assert (first, counts[first]) == ("er", 9)
    assert pairs.tokens[256] == b"er"


def test_the_content_hash_covers_the_merges(rhyme: Path) -> None:
    settings = {"tokens": "byte_pairs", "length": 4}
    one, other = (text(str(rhyme), vocabulary_size=size, **settings) for size in (256, 257))
    again = text(str(rhyme), vocabulary_size=257, **settings)
    assert other.train.content_hash() == again.train.content_hash()
    assert one.train.content_hash() != other.train.content_hash()
    assert one.description["vocabulary_hash"] != other.description["vocabulary_hash"]
    stream = np.arange(9)
    hashes = {WindowDataset(stream, 4, 2, vocabulary_hash=each).content_hash() for each in ("", "a", "b")}
    assert len(hashes) == 3


def test_numbers_of_bytes_of_tokens(rhyme: Path) -> None:
    characters = text(str(rhyme), length=16)
    vocabulary = characters.description["vocabulary"]
    assert characters.train.token_bytes.tolist() == [len(one.encode()) for one in vocabulary]
    assert characters.train.token_bytes[vocabulary.index("ö")] == 2
    rare = text(str(rhyme), length=16, vocabulary_size=5)
    assert rare.train.token_bytes.tolist() == [-1, 1, 1, 1, 1]
    assert text(str(rhyme), length=16, tokens="bytes").test.token_bytes.tolist() == [1] * 256
    assert text(str(rhyme), length=4, tokens="words").test.token_bytes is None


def test_byte_pairs_without_the_library(rhyme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependency, match=r"need tokenizers; remedy: pip install 'deep5\[text\]'"):
        text(str(rhyme), tokens="byte_pairs", vocabulary_size=300)


@pytest.mark.parametrize(
    ("train", "test", "decisions"),
    [
        ("", "", []),
        ("", "zebra", ["1 test token is not in the vocabulary: <unk>"]),
        ("yak yak", "", ["2 training tokens are not in the vocabulary: <unk>"]),
        ("yak", "zebra", ["1 training and 1 test tokens are not in the vocabulary: <unk>"]),
    ],
)
def test_unknown_tokens_are_counted_where_there_are_any(
    train: str, test: str, decisions: list[str], tmp_path: Path
) -> None:
    for name, rare in (("train", train), ("test", test)):
        (tmp_path / f"{name}.txt").write_text(f"a b c d a b c d {rare} a b c d")
    settings = {"tokens": "words", "length": 4, "vocabulary_size": 5, "test_path": str(tmp_path / "test.txt")}
    assert text(str(tmp_path / "train.txt"), **settings).description["decisions"] == decisions


def test_labels_of_folders(tmp_path: Path) -> None:
    for name, line in (("cats", "meow purr"), ("dogs", "woof growl howl")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "pets" / name / f"{number}.txt").write_text(f"{line} " * (number + 1))
    splits = text_folder(str(tmp_path / "pets"), length=6)
    assert splits.description["classes"] == ["cats", "dogs"]
    assert splits.description["vocabulary"][:2] == ["<pad>", "<unk>"]
    train = everything(splits.train)
    for ids, label in zip(train["input"], train["label"], strict=True):
        words = spelled(splits, ids[ids > 0], " ").split()
        assert set(words) <= ({"meow", "purr"} if label == 0 else {"woof", "growl", "howl"})
    assert {sentence.split(" are ")[1] for sentence in splits.description["decisions"]} >= {
        "cut at their end",
        "padded with the id 0",
    }
    as_bytes = text_folder(str(tmp_path / "pets"), tokens="bytes", length=4)
    assert spelled(as_bytes, everything(as_bytes.train)["input"][0]) in ("meow", "woof")
    assert as_bytes.description["vocabulary_size"] == 257
    before = splits.train.content_hash()
    (tmp_path / "pets" / "cats" / "0.txt").write_text("hiss")
    (tmp_path / "pets" / "cats" / "1.txt").write_text("hiss")
    assert text_folder(str(tmp_path / "pets"), length=6).train.content_hash() != before


def test_what_is_no_text(tmp_path: Path, rhyme: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"first\nsecond \xff line\n")
    with pytest.raises(UsageError, match=r"bad\.txt, line 2: the byte 0xff at position 8 is not UTF-8; .*iconv"):
        text(str(path))
    for content, name, command in (
        ("text".encode("utf-16"), "UTF-16", "iconv -f UTF-16 -t UTF-8"),
        ("text".encode("utf-32"), "UTF-32", "iconv -f UTF-32 -t UTF-8"),
        (gzip.compress(b"text"), "a gzip file", "gunzip it"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=rf"bad\.txt is {name}; .*remedy: {command}"):
            text(str(path))
    with pytest.raises(UsageError, match=r"is a folder; .*remedy: the data set text_folder"):
        text(str(tmp_path))
    path.write_bytes(b"")
    for tokens in ("characters", "bytes"):
        with pytest.raises(UsageError, match=r"bad\.txt is empty"):
            text(str(path), tokens=tokens)
    path.write_text("short")
    with pytest.raises(UsageError, match=r"the training part has 4 characters; allowed: at least 129"):
        text(str(path))
    (tmp_path / "notes" / "a").mkdir(parents=True)
    (tmp_path / "notes" / "b").mkdir()
    for name in ("a/1.txt", "a/2.txt", "b/1.txt", "b/2.txt"):
        (tmp_path / "notes" / name).write_text("word")
    (tmp_path / "notes" / "b" / "2.txt").write_text(" \n")
    with pytest.raises(UsageError, match=r"b/2\.txt has no words"):
        text_folder(str(tmp_path / "notes"))
    with pytest.raises(UsageError, match=r"tokens 'byte_pairs'; allowed: 'characters', 'words', 'bytes'$"):
        text_folder(str(tmp_path / "notes"), tokens="byte_pairs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "absent.txt"}, r"absent\.txt is not there"),
        ({"path": []}, r"got path=\[\]"),
        ({"path": 3}, r"got path=3; allowed: a path"),
        ({"tokens": "letters"}, r"tokens 'letters'; allowed: 'characters', 'words', 'bytes'"),
        ({"length": 0}, r"length 0; allowed"),
        ({"vocabulary_size": 0}, r"vocabulary_size 0; allowed"),
        (
            {"tokens": "byte_pairs"},
            r"vocabulary_size None and tokens 'byte_pairs'; allowed: an integer of at least 256",
        ),
        ({"vocabulary_size": 255, "tokens": "byte_pairs"}, r"vocabulary_size 255 and tokens 'byte_pairs'"),
        ({"vocabulary_size": 9, "tokens": "bytes"}, r"vocabulary_size 9 and tokens 'bytes'"),
        ({"test_share": 1.0}, r"test_share 1\.0; allowed"),
        ({"limit": 10**9}, r"limit 1000000000; allowed"),
    ],
)
def test_bad_arguments(rhyme: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        text(**{"path": str(rhyme), **arguments})


def test_a_language_model_trains_on_a_text(rhyme: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "rhyme.py"
    recipe.write_text(
        'FIXED = {"model": "gpt", "model_kwargs": {"vocabulary": 16, "length": 16, "width": 16,\n'
        '         "heads": 2, "layers": 1},\n'
        f'         "dataset": "text", "dataset_kwargs": {{"path": {str(rhyme)!r}, "length": 16}}, "epochs": 1}}\n'
        'MUTABLE = {"batch_size": 8, "framework": "reference", "optimizer": "adam"}\n'
        'METRICS = [("training_loss", None)]\n'
    )
    assert execute(load_recipe(str(recipe)), out=tmp_path / "out").folder.is_dir()
