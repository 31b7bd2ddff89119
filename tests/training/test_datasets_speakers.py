"""Sequences of speakers: which utterances they have, where the files are found, and the synthetic rule."""

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
from deep5.training.datasets import speakers
from deep5.training.datasets.speakers import speaker_sequences, synthetic_speaker_sequences
from deep5.training.datasets.ts_format import parse_ts
from deep5.training.downloads import DataMissing, data_folders

HEADER = "@problemName Some\n@dimensions 2\n@classLabel true Ann Bob Eve\n@data\n"
MEMBER = "aeon/datasets/data/JapaneseVowels/JapaneseVowels_{}.ts"
SMALL: dict[str, Any] = {"train": 20, "test": 10, "most": 3}


def lines(part: str) -> str:
    """Utterances of 1 to 4 frames; each value names part, speaker and utterance."""
    base = {"TRAIN": 0, "TEST": 1000}[part]
    rows = [
        f"{','.join([str(base + 10 * speaker + number)] * (number + 1))}:{','.join(map(str, range(number + 1)))}:{name}"
        for speaker, name in enumerate(("Ann", "Bob", "Eve"))
        for number in range(4)
    ]
    return HEADER + "\n".join(rows) + "\n"


def written(folder: Path, **changed: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("TRAIN", "TEST"):
        (folder / f"JapaneseVowels_{part}.ts").write_text(changed.get(part, lines(part)))
    return str(folder)


def wheel(path: Path, parts: tuple[str, ...] = ("TRAIN", "TEST")) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # Importing the package would fail: only its data is read.
        archive.writestr("aeon/__init__.py", "raise RuntimeError('imported')\n")
        for part in parts:
            archive.writestr(MEMBER.format(part), lines(part))
    return str(path)


@pytest.fixture
def own_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of these tests as if aeon had them."""
    found = tuple(hashlib.sha256(lines(part).encode()).hexdigest() for part in ("TRAIN", "TEST"))
    monkeypatch.setattr(speakers, "_SHA256", found)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data" / "aeon"


def samples(part: Any) -> list[tuple[np.ndarray, list[int]]]:
    """Features and labels of each sequence, without padding."""
    found = []
    for number in range(len(part)):
        batch = part.batch(np.array([number]))
        labels = batch["labels"][0]
        count = int(batch["label_length"][0])
        assert not labels[count:].any()
        found.append((batch["input"][0, : int(batch["input_length"][0])], labels[:count].tolist()))
    return found


def test_a_sequence_has_the_utterances_of_its_labels(tmp_path: Path) -> None:
    splits = speaker_sequences(written(tmp_path), train=300, test=200, fewest=2, most=4, multiple=8)
    every = [
        (value, frame)
        for speaker in range(3)
        for number in range(4)
        for value, frame in [(10.0 * speaker + number, float(frame)) for frame in range(number + 1)]
    ]
    mean, deviation = np.mean(every, axis=0), np.std(every, axis=0)
    seen: dict[str, set[float]] = {}
    for part, own in (("train", splits.train), ("test", splits.test)):
        for features, labels in samples(own):
            assert 2 <= len(labels) <= 4
            # The second feature counts the frames of an utterance, so it shows where each begins.
            values = features * deviation + mean
            begins = np.flatnonzero(np.abs(values[:, 1]) < 0.5)
            assert len(begins) == len(labels)
            named = values[begins, 0].round()
            assert [int(value) % 1000 // 10 + 1 for value in named] == labels
            for begin, end, value in zip(begins, [*begins[1:], len(values)], named, strict=True):
                assert end - begin == value % 10 + 1
            seen.setdefault(part, set()).update(named.tolist())
    # All utterances of the own part, and none of the other.
    assert seen["train"] == {10.0 * speaker + number for speaker in range(3) for number in range(4)}
    assert seen["test"] == {1000 + value for value in seen["train"]}
    batch = splits.train.batch(np.arange(5))
    assert batch["input"].dtype == np.float32
    assert batch["input"].shape[1] % 8 == 0
    said = splits.description
    assert said["classes"] == ["<blank>", "Ann", "Bob", "Eve"]
    assert said["license"] == "CC BY 4.0"
    assert said["file_sha256"] == [hashlib.sha256(lines(part).encode()).hexdigest() for part in ("TRAIN", "TEST")]
    assert "the 12 utterances of the training file, test sequences the 12 of the test file" in said["split"]


def test_a_batch_is_what_the_network_takes() -> None:
    batch = synthetic_speaker_sequences(train=8, test=4).train.batch(np.arange(8))
    network = d5.networks.deep_speech(features=12, classes=10, most=5)
    assert batch.keys() == network.inputs.keys()
    for name, array in batch.items():
        assert array.dtype == network.inputs[name].dtype
        assert len(array.shape) == len(network.inputs[name].shape)


def test_each_sequence_is_a_function_of_seed_part_and_number(tmp_path: Path) -> None:
    path = written(tmp_path)
    data, again = (speaker_sequences(path, **SMALL) for _ in range(2))
    assert again.train.content_hash() == data.train.content_hash()
    assert again.split_hash == data.split_hash
    more = speaker_sequences(path, **{**SMALL, "train": 21})
    for (own, labels), (other, others) in zip(samples(data.train), samples(more.train), strict=False):
        np.testing.assert_array_equal(own, other)
        assert labels == others
    assert more.split_hash != data.split_hash
    assert speaker_sequences(path, data_seed=1, **SMALL).train.content_hash() != data.train.content_hash()


@pytest.mark.usefixtures("own_hashes")
def test_the_files_in_a_wheel_and_in_folders(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataMissing,
        match=r"no installed distribution aeon.*pip download --no-deps --dest \S*aeon aeon==1.6.0, or path=",
    ):
        speaker_sequences()
    given = speaker_sequences(wheel(tmp_path / "aeon-1.6.0-py3-none-any.whl"), **SMALL)
    for folder in (tmp_path / "cache" / "data" / "aeon", folders):
        wheel(folder / "aeon-1.6.0-py3-none-any.whl")
        found = speaker_sequences(**SMALL)
        assert "aeon-1.6.0-py3-none-any.whl/aeon/datasets" in found.description["source"]
        assert found.train.content_hash() == given.train.content_hash()
    wheel(folders / "aeon-2.0-py3-none-any.whl")
    with pytest.raises(UsageError, match=r"has 2 wheels; allowed: one; remedy: path="):
        speaker_sequences(**SMALL)
    written(folders)
    found = speaker_sequences(**SMALL)
    assert found.description["source"].endswith(" JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts")
    assert found.split_hash == given.split_hash
    assert "aeon" not in sys.modules


@pytest.mark.usefixtures("own_hashes")
def test_the_files_of_an_installed_distribution(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel(tmp_path / "w.whl")) as archive:
        archive.extractall(site)
    about = site / "aeon-1.6.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: aeon\nVersion: 1.6.0\n")
    (about / "RECORD").write_text(f"aeon/__init__.py,,\n{MEMBER.format('TRAIN')},,\n")
    monkeypatch.syspath_prepend(site)
    with pytest.raises(DataMissing):  # it lists only one of them
        speaker_sequences()
    (about / "RECORD").write_text("".join(f"{MEMBER.format(part)},,\n" for part in ("TRAIN", "TEST")))
    assert len(speaker_sequences(**SMALL).train) == 20
    assert not folders.exists()
    assert "aeon" not in sys.modules


def test_other_files_than_those_of_the_version_are_refused_unless_given(folders: Path) -> None:
    path = wheel(folders / "aeon-1.6.0-py3-none-any.whl")
    with pytest.raises(
        UsageError, match=r"_TRAIN.ts has the SHA-256 \w{64}; allowed: 68a430ea\w+, of aeon 1.6.0; remedy"
    ):
        speaker_sequences(**SMALL)
    assert len(speaker_sequences(path, **SMALL).train) == 20


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    allowed = "allowed: JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts, or a wheel of aeon"
    with pytest.raises(UsageError, match=rf"the file \S+none is not there; {allowed}"):
        speaker_sequences(str(tmp_path / "none"))
    with pytest.raises(UsageError, match=rf"has no JapaneseVowels_TRAIN.ts and no JapaneseVowels_TEST.ts; {allowed}"):
        speaker_sequences(str(tmp_path))
    written(tmp_path / "files")
    with pytest.raises(
        UsageError, match=r"got the file .*TRAIN.ts; allowed: a folder with JapaneseVowels_TRAIN.ts and"
    ):
        speaker_sequences(str(tmp_path / "files" / "JapaneseVowels_TRAIN.ts"))
    with pytest.raises(UsageError, match=r"got path=3; allowed: a path as a string"):
        speaker_sequences(3)  # type: ignore[arg-type]
    broken = tmp_path / "aeon-1.whl"
    broken.write_bytes(b"PK no archive")
    with pytest.raises(UsageError, match=r"is not a wheel .*; remedy: download it again"):
        speaker_sequences(str(broken))
    with pytest.raises(UsageError, match=r"has no \S+_TEST.ts; allowed: a wheel of aeon"):
        speaker_sequences(wheel(tmp_path / "aeon-2.whl", ("TRAIN",)))


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("@data\n1:2\n", r"JapaneseVowels_TEST.ts has no classes; allowed: @classLabel true and the speakers"),
        (HEADER.replace("Eve", "Joe") + "1:2:Joe\n", "has the speakers .*'Eve'.* and .*'Joe'.*; allowed: the same"),
        ("@classLabel true Ann Bob Eve\n@data\n1:Ann\n", "has the features 2 and .*TEST.ts 1; allowed: the same"),
        (
            HEADER + "1:2:Ann\n3:4:Bob\n",
            "JapaneseVowels_TEST.ts: the speaker 'Eve' has no utterance; allowed: at least one",
        ),
        (
            HEADER + "1:2:Ann\n?:4:Bob\n1:1:Eve\n",
            "JapaneseVowels_TEST.ts: utterance 2 has missing values; allowed: none",
        ),
        (HEADER + "1:2:Ann\n3:x:Bob\n", "JapaneseVowels_TEST.ts, line 6: got the value 'x'"),
    ],
)
def test_files_that_are_refused(test: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        speaker_sequences(written(tmp_path, TEST=test), **SMALL)


def test_a_feature_that_does_not_vary_is_zero(tmp_path: Path) -> None:
    constant = HEADER + "1,2:5,5:Ann\n3:5:Bob\n4:5:Eve\n"
    splits = speaker_sequences(written(tmp_path, TRAIN=constant, TEST=constant), **SMALL)
    assert all(not features[:, 1].any() for features, _ in samples(splits.train))


@pytest.mark.parametrize("made", [speaker_sequences, synthetic_speaker_sequences])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 0}, r"speaker_sequences with train=0; allowed: an integer of at least 1"),
        ({"test": 1.5}, r"test=1.5; allowed"),
        ({"multiple": True}, r"multiple=True; allowed"),
        ({"fewest": 4, "most": 3}, r"fewest=4 and most=3; allowed: fewest <= most"),
        ({"data_seed": "x"}, r"data_seed='x'; allowed: an integer"),
    ],
)
def test_bad_arguments(made: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(**options)


def test_synthetic_utterances_follow_the_rule() -> None:
    splits = synthetic_speaker_sequences(train=400, test=100, fewest=1, most=1, data_seed=3)
    ends: dict[int, list[np.ndarray]] = {}
    for features, (label,) in samples(splits.train):
        assert 7 <= len(features) <= 29
        ends.setdefault(label, []).append(features[0])
    assert set(ends) == set(range(1, 10))
    # The first frames of a speaker differ by the noise, those of two speakers by more.
    within = np.mean([np.std(values, axis=0).mean() for values in ends.values()])
    between = np.std([np.mean(values, axis=0) for values in ends.values()], axis=0).mean()
    assert within < 0.75 * between
    again = synthetic_speaker_sequences(train=400, test=100, fewest=1, most=1, data_seed=3)
    assert again.train.content_hash() == splits.train.content_hash()
    assert again.split_hash == splits.split_hash
    assert synthetic_speaker_sequences(train=400, test=100, most=2).split_hash != splits.split_hash
    assert "7 to 29" in splits.description["rule"]


@pytest.fixture
def japanese_vowels() -> list[Any]:
    """The training part and the test part, where a wheel of aeon 1.6.0 is on this machine."""
    if not any((folder / "aeon").is_dir() for folder in data_folders()):
        pytest.skip("JapaneseVowels is not on this machine: no folder aeon in $DEEP5_DATA or in the download folder")
    return [parse_ts(name, content) for name, content in speakers._FILES.read(None).items()]


def test_the_files_of_aeon(japanese_vowels: list[Any]) -> None:
    """The sizes that the UCI repository states."""
    for part, counts in zip(japanese_vowels, ([30] * 9, [31, 35, 88, 44, 29, 24, 40, 50, 29]), strict=True):
        assert np.bincount(part.labels).tolist() == counts
        assert {len(utterance) for utterance in part.series} <= set(range(7, 30))
        assert {utterance.shape[1] for utterance in part.series} == {12}
    splits = speaker_sequences(train=20, test=300)
    assert splits.description["classes"] == ["<blank>", *"123456789"]
    for features, labels in samples(splits.test):
        assert 7 * len(labels) <= len(features) <= 29 * len(labels)


def test_the_nearest_mean_is_above_the_goal(japanese_vowels: list[Any]) -> None:
    """A baseline in the docstring of `speech_speakers`: the speaker of the nearest mean frame, boundaries given."""
    training, testing = japanese_vowels
    frames = np.concatenate(training.series)
    means = [
        np.array([(each.mean(axis=0) - frames.mean(axis=0)) / frames.std(axis=0) for each in part.series])
        for part in japanese_vowels
    ]
    centers = np.array([means[0][training.labels == speaker].mean(axis=0) for speaker in range(9)])
    nearest = ((means[1][:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    assert round(100 * np.mean(nearest != testing.labels), 1) == 7.6


def test_random_speakers_are_far_from_the_goal_of_the_recipe() -> None:
    """A baseline in the docstring of `speech_speakers`: speakers of the right number, drawn at random."""
    from deep5.metrics.error_rate import count_errors

    batch = synthetic_speaker_sequences(train=1, test=300).test.batch(np.arange(300))
    rng = np.random.default_rng(0)
    true = [row[:length].tolist() for row, length in zip(batch["labels"], batch["label_length"], strict=True)]
    rate = count_errors(true, [rng.integers(1, 10, len(row)).tolist() for row in true]).error_rate
    assert rate is not None
    assert 80 < rate < 93  # a binomial share of some 1000 labels varies by 1 %


def test_the_names_are_registered() -> None:
    assert d5.datasets.speaker_sequences is speaker_sequences
    assert d5.datasets.synthetic_speaker_sequences is synthetic_speaker_sequences
