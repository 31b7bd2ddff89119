"""Sequences of utterances by different speakers, with the speakers in order as labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.training.dataset import Splits
from deep5.training.datasets.packaged_files import PackagedFiles
from deep5.training.datasets.ts_format import TimeSeries, parse_ts
from deep5.training.sequences import SequenceDataset

__all__ = ["speaker_sequences", "synthetic_speaker_sequences"]

_FILES = PackagedFiles(
    what="speaker_sequences",
    title="JapaneseVowels",
    distribution="aeon",
    members=tuple(f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts" for part in ("TRAIN", "TEST")),
    requirement="aeon==1.6.0",
)
# Of the two files in aeon 1.6.0.
_SHA256 = (
    "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
    "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
)
_BLANK = "<blank>"
_SPEAKERS, _FEATURES, _SHORTEST, _LONGEST = 9, 12, 7, 29
_NOISE = 0.3
_RULE = (
    "a sequence has uniformly many utterances from fewest to most; for each of them a speaker is drawn uniformly, then "
    "one of his utterances in this part; they follow each other without a gap"
)
_SYNTHETIC = (
    "a speaker has two vectors of 12 standard normal numbers; an utterance has uniformly many frames from 7 to 29, "
    "which lead linearly from the first to the second, each with normal noise of standard deviation 0.3"
)
Parts = Mapping[str, list[list[np.ndarray]]]


def speaker_sequences(
    path: str | None = None,
    *,
    train: int = 2000,
    test: int = 300,
    fewest: int = 2,
    most: int = 5,
    multiple: int = 32,
    data_seed: int = 0,
) -> Splits:
    """Sequences of utterances by nine speakers, concatenated, and the speakers in order as labels.

    Each utterance is the Japanese vowels /ae/ by one of nine men: 7 to 29 frames of 12 LPC cepstrum coefficients, one
    frame each 6.4 ms (the data set JapaneseVowels). The labels of a sequence say who speaks, one label for each
    utterance, and not what is said, which is always the same. Two utterances in succession may have the same speaker,
    and then count as two labels.

    The rule: a sequence has uniformly many utterances from `fewest` to `most`; for each of them a speaker is drawn
    uniformly, then one of his utterances; they follow each other without a gap. Training sequences have the 270
    utterances of the data set's training part only, test sequences the 370 of its test part only, which were recorded
    at other times. The features are standardized with the mean and the standard deviation of the training part.

    The utterances are not in deep5: `pip download --no-deps --dest $DEEP5_DATA/aeon aeon==1.6.0` gets a wheel with them
    (6.1 MiB, BSD license). deep5 reads its two `.ts` files and never imports aeon, and the wheel need not be installed.
    The license of the data is CC BY 4.0.

    Args:
        path: A wheel of aeon, or a folder with `JapaneseVowels_TRAIN.ts` and `JapaneseVowels_TEST.ts`; other files of
            this format are allowed here. None: the files of the installed distribution, else those in the folder `aeon`
            of `$DEEP5_DATA` or of `data` in deep5's cache, which must have the SHA-256 of the files in aeon 1.6.0.
        train: Number of training sequences.
        test: Number of test sequences.
        fewest: The smallest number of utterances of a sequence.
        most: The largest.
        multiple: A batch has a multiple of so many frames: fewer shapes to compile for.
        data_seed: The seed of the sequences; each is a function of it, its part and its number.

    Returns:
        Samples `input` float32 (frames, 12), padded by zeros to the longest of a batch, `input_length` int64 (), its
        frames, `labels` int64 (most,), speakers 1 to 9, then padding 0, and `label_length` int64 (), its utterances; as
        `deep_speech` takes them. The speakers' names are in the description.

    Raises:
        UsageError: The files are missing (`DataMissing`) or cannot be read, one is not of the format (the message names
            file and line), both parts do not have the same speakers and features, or an argument is out of its range.

    References:
        Kudo, Toyama and Shimbo, Multidimensional curve classification using passing-through regions, Pattern
        Recognition Letters 20(11-13), 1999; Kudo, Toyama and Shimbo, Japanese Vowels, UCI Machine Learning Repository,
        doi:10.24432/C5NS47.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import deep5 as d5
    >>> lines = "@dimensions 2\\n@classLabel true Ann Bob\\n@data\\n1,2,3:4,5,6:Ann\\n9,8:7,6:Bob\\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("TRAIN", "TEST"):
    ...         _ = Path(folder, f"JapaneseVowels_{part}.ts").write_text(lines)
    ...     data = d5.datasets.speaker_sequences(folder, train=4, test=2, most=3)
    >>> {name: str(spec) for name, spec in data.train.specs.items()}
    {'input': 'float32[length, 2]', 'labels': 'int64[3]', 'label_length': 'int64[]', 'input_length': 'int64[]'}
    >>> sample = data.train.batch(np.array([0]))
    >>> sample["labels"].tolist(), sample["label_length"].tolist(), sample["input_length"].tolist()
    ([[2, 2, 1]], [3], [7])
    """
    what = "speaker_sequences"
    _check(what, train, test, fewest, most, multiple, data_seed)
    files = _FILES.read(path)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if path is None:
        for (name, found), expected in zip(hashes.items(), _SHA256, strict=True):
            if found != expected:
                raise UsageError(
                    f"{what}: the file {name} has the SHA-256 {found}; allowed: {expected}, of aeon 1.6.0; remedy: "
                    "that version, or path= for other files"
                )
    parsed = {name: parse_ts(f"{what}: {name}", content) for name, content in files.items()}
    (first, training), (second, testing) = parsed.items()
    _check_parts(what, (first, training), (second, testing))
    parts = {"train": _by_speaker(what, first, training), "test": _by_speaker(what, second, testing)}
    counts = [sum(map(len, speakers)) for speakers in parts.values()]
    return _splits(
        parts,
        {"train": train, "test": test},
        (fewest, most, multiple, data_seed),
        {
            "source": "JapaneseVowels of the UCI Machine Learning Repository (Kudo, Toyama and Shimbo 1999), "
            + " and ".join(files),
            "license": "CC BY 4.0",
            "file_sha256": list(hashes.values()),
            "rule": f"{fewest} to {most} utterances; {_RULE}; {train} + {test} sequences, seed {data_seed}",
            "classes": [_BLANK, *training.classes],
            "split": f"training sequences have the {counts[0]} utterances of the training file, test sequences the "
            f"{counts[1]} of the test file",
        },
    )


def synthetic_speaker_sequences(
    *,
    train: int = 2000,
    test: int = 300,
    fewest: int = 2,
    most: int = 5,
    multiple: int = 32,
    data_seed: int = 0,
) -> Splits:
    """Sequences of utterances by nine speakers that follow a rule: for trials and smoke tests, never for results.

    A speaker has two vectors of 12 standard normal numbers. An utterance has uniformly many frames from 7 to 29, which
    lead linearly from the first vector to the second, each with normal noise of standard deviation 0.3. There are 30
    utterances of each speaker in either part. Sequences are drawn as in `speaker_sequences`.

    Args:
        train: As for `speaker_sequences`, as all others.
        test: Number of test sequences.
        fewest: The smallest number of utterances.
        most: The largest.
        multiple: A batch has a multiple of so many frames.
        data_seed: The seed of speakers, utterances and sequences.

    Returns:
        Samples as those of `speaker_sequences`.

    Raises:
        UsageError: An argument is out of its range.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic_speaker_sequences(train=8, test=4)
    >>> len(data.train), len(data.test), str(data.train.specs["input"])
    (8, 4, 'float32[length, 12]')
    """
    _check("synthetic_speaker_sequences", train, test, fewest, most, multiple, data_seed)
    drawing = f"{fewest} to {most} utterances; {_RULE}; {train} + {test} sequences, seed {data_seed}"
    ends = generator(data_seed, "speakers").standard_normal((_SPEAKERS, 2, 1, _FEATURES))
    parts: dict[str, list[list[np.ndarray]]] = {}
    for part in ("train", "test"):
        rng = generator(data_seed, "utterances", part)
        parts[part] = [[_utterance(rng, first, last) for _ in range(30)] for first, last in ends]
    return _splits(
        parts,
        {"train": train, "test": test},
        (fewest, most, multiple, data_seed),
        {
            "source": "synthetic utterances",
            "rule": f"{_SYNTHETIC}; {drawing}",
            "classes": [_BLANK, *(str(number) for number in range(1, _SPEAKERS + 1))],
            "split": "by part: training and test utterances are drawn from different streams",
        },
    )


def _utterance(rng: np.random.Generator, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    count = int(rng.integers(_SHORTEST, _LONGEST + 1))
    share = np.linspace(0, 1, count)[:, None]
    frames: np.ndarray = (1 - share) * first + share * last + _NOISE * rng.standard_normal((count, _FEATURES))
    return frames


def _check(what: str, train: int, test: int, fewest: int, most: int, multiple: int, data_seed: int) -> None:
    counts = {"train": train, "test": test, "fewest": fewest, "most": most, "multiple": multiple}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{what} with {name}={brief(value)}; allowed: an integer of at least 1")
    if fewest > most:
        raise UsageError(f"{what} with fewest={fewest} and most={most}; allowed: fewest <= most")
    if isinstance(data_seed, bool) or not isinstance(data_seed, int):
        raise UsageError(f"{what} with data_seed={brief(data_seed)}; allowed: an integer")


def _check_parts(what: str, *parts: tuple[str, TimeSeries]) -> None:
    """Check that both files have classes and features, and the same."""
    (first, training), (second, testing) = parts
    for name, part in parts:
        if not part.classes:
            raise UsageError(f"{what}: {name} has no classes; allowed: @classLabel true and the speakers")
    for attribute, own, other in (
        ("speakers", training.classes, testing.classes),
        ("features", training.series[0].shape[1], testing.series[0].shape[1]),
    ):
        if own != other:
            raise UsageError(
                f"{what}: {first} has the {attribute} {brief(own)} and {second} {brief(other)}; allowed: the same"
            )


def _by_speaker(what: str, name: str, part: TimeSeries) -> list[list[np.ndarray]]:
    """The utterances of each speaker."""
    found: list[list[np.ndarray]] = [[] for _ in part.classes]
    labels = [] if part.labels is None else part.labels.tolist()
    for number, (utterance, speaker) in enumerate(zip(part.series, labels, strict=True), start=1):
        if np.isnan(utterance).any():
            raise UsageError(f"{what}: {name}: utterance {number} has missing values; allowed: none")
        found[speaker].append(utterance)
    for speaker, utterances in zip(part.classes, found, strict=True):
        if not utterances:
            raise UsageError(f"{what}: {name}: the speaker {brief(speaker)} has no utterance; allowed: at least one")
    return found


def _splits(
    parts: Parts, counts: Mapping[str, int], drawing: tuple[int, int, int, int], description: dict[str, Any]
) -> Splits:
    """The sequences of both parts."""
    fewest, most, multiple, data_seed = drawing
    every = np.concatenate([utterance for speaker in parts["train"] for utterance in speaker])
    mean, deviation = every.mean(axis=0), every.std(axis=0)
    # A feature that does not vary stays zero.
    deviation[deviation == 0] = 1.0
    made, digest = {}, hashlib.sha256()
    for part, speakers in parts.items():
        count = counts[part]
        features, labels, lengths = [], np.zeros((count, most), np.int64), np.zeros(count, np.int64)
        for number in range(count):
            rng = generator(data_seed, "sequence", part, number)
            drawn = rng.integers(len(speakers), size=int(rng.integers(fewest, most + 1)))
            own = [speakers[speaker][int(rng.integers(len(speakers[speaker])))] for speaker in drawn]
            labels[number, : len(drawn)], lengths[number] = drawn + 1, len(drawn)
            features.append(((np.concatenate(own) - mean) / deviation).astype(np.float32))
        made[part] = SequenceDataset(
            {"input": features},
            {"labels": labels, "label_length": lengths},
            multiple=multiple,
            length="input_length",
        )
        digest.update(made[part].content_hash().encode())
    return Splits(
        train=made["train"],
        test=made["test"],
        split_hash=digest.hexdigest(),
        description={
            **description,
            "samples": dict(counts),
            "preparation": "utterances concatenated, each feature standardized by the training part",
            "hash": "all sequences and labels",
        },
    )
