"""WebDataset tar files: samples are the entries that share the name before the first dot."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.content_hashes import files_hash
from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.progress import tracked
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Splits
from deep5.training.datasets.class_names import class_numbers, mapping_sentence
from deep5.training.datasets.decoded import DecodedDataset, SampleSource, decoding_threads
from deep5.training.datasets.decoders import PILLOW, check_decoder
from deep5.training.datasets.entry_values import IMAGES, check_kind, value_of
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.listed_files import files_in_brief, listed_files
from deep5.training.datasets.splitting import selected
from deep5.training.datasets.tar_files import Entry, entries, read_entry

__all__ = ["webdataset"]

_PARTS = {"input": ";".join((*IMAGES, "npy")), "label": "cls"}
_HASHED = "names and bytes of the tar files; and what becomes of them"


@dataclass(frozen=True, slots=True)
class _Sample:
    """The entries of a sample by the ending of their names."""

    path: Path
    key: str
    entries: dict[str, Entry]


def webdataset(
    train: str | Sequence[str],
    *,
    parts: Mapping[str, str] = _PARTS,
    test: str | Sequence[str] | None = None,
    size: int = 64,
    channels: int = 3,
    fit: str = "stretch",
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    decoder: str = "pillow",
    workers: int | None = None,
) -> Splits:
    """WebDataset tar files, read by position without unpacking: samples by index, decoded on access.

    The entries of a sample follow each other and share the path up to the first dot of their names: `a/01.jpg` and
    `a/01.cls`. Each tar file's headers are read once; samplers then shuffle all samples.

    Args:
        train: An uncompressed tar file, a pattern such as `train-*.tar` or `train-{000..099}.tar`, or a list of files.
        parts: For each part of a sample the ending of its entry, or several separated by semicolons, of which the first
            that exists is read; `json:FIELD` is a field of a JSON object. Values: `cls` (an integer), `txt` (the name
            of a class, for `label`), `json` (a number, or a list), `npy` (without objects) and images.
        test: The same as `train` for the test samples; None: a seeded fraction of the samples, stratified by class.
        size: Height and width of images.
        channels: 3 for RGB, 1 for grayscale.
        fit: "stretch" to the size, or scale the shorter side and "crop" the center.
        test_share: Fraction of the samples in the test set, if there are no test files.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep; None: all.
        test_limit: The same for the test samples.
        decoder: "pillow", "turbojpeg" or "opencv": the library that decodes images. Colors and scaling are Pillow's
            with each. "turbojpeg" decodes only JPEG, "opencv" also PNG; both refuse incomplete files.
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples with the given parts: images float32 (channels, size, size) in [0, 1]; a label of integers or names as a
        class, int64 (), and of other numbers float32 (1,).

    Raises:
        UsageError: A file is missing, truncated or compressed, has links or paths that leave it, an entry is missing or
            does not decode (the message names file and entry), or an argument is out of its range.
        MissingDependency: Pillow or the decoder's library is not installed, and there are images.

    References:
        Aizman, Maltby and Breuel, High performance I/O for large scale deep learning, IEEE Big Data, 2019.

    >>> import tarfile, tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/train.tar", "w") as file:
    ...         for number in range(4):
    ...             for name, content in ((f"{number}.json", "[1.5, 2.5]"), (f"{number}.cls", f"{number % 2}")):
    ...                 _ = Path(folder, name).write_text(content)
    ...                 file.add(f"{folder}/{name}", arcname=name)
    ...     parts = {"input": "json", "label": "cls"}
    ...     data = d5.datasets.webdataset(f"{folder}/train.tar", parts=parts, test_share=0.5)
    ...     print(len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()})
    2 2 {'input': 'float32[2]', 'label': 'int64[]'}
    """
    what = "webdataset"
    stated = _stated(what, parts)
    groups = [listed_files(what, "train", train, "tar files")]
    if test is not None:
        groups.append(listed_files(what, "test", test, "tar files"))
    images = any(kind.rpartition(".")[2] in IMAGES for kinds in stated.values() for kind, _ in kinds)
    samples: list[list[_Sample]] = [[] for _ in groups]
    listed = [(place, path) for place, paths in enumerate(groups) for path in paths]
    for place, path in tracked(listed, f"{what}: indexing tar files", len(listed)):
        samples[place] += _samples(what, path)
    counts = [len(group) for group in samples]
    together = [sample for group in samples for sample in group]
    for paths, group in zip(groups, samples, strict=True):
        if not group:
            raise UsageError(f"{what}: {paths[0]} has no samples; allowed: at least one")
    used = {kind for sample in together[:1] for kind in sample.entries}
    pictures = None
    if decoder != PILLOW:
        check_decoder(decoder)
    if images and any(kind.rpartition(".")[2] in IMAGES for kind in used):
        pictures = Decoder(size=size, channels=channels, fit=fit, name=decoder)
    chosen_entries = {name: [_chosen(sample, name, kinds) for sample in together] for name, kinds in stated.items()}
    labels, classes, decisions = _labels(what, together, chosen_entries.get("label"))
    specs = _specs(what, together[0], chosen_entries, pictures, classed=labels is not None)
    source = _source(together, chosen_entries, specs, labels, pictures, [path for paths in groups for path in paths])
    chosen = selected(
        what,
        counts[0],
        None if labels is None else labels[: counts[0]],
        test_length=counts[1] if len(counts) > 1 else None,
        test_labels=None if labels is None or len(counts) < 2 else labels[counts[0] :],
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    threads = decoding_threads(what, workers)
    made = [
        DecodedDataset(source, ids, labels=None if labels is None else labels[ids], workers=threads)
        for ids in (chosen.train, chosen.test + (counts[0] if len(counts) > 1 else 0))
    ]
    return Splits(
        train=made[0],
        test=made[1],
        split_hash=chosen.hash,
        description={
            "source": files_in_brief(groups, "tar file"),
            "samples": {"train": len(made[0]), "test": len(made[1])},
            **({"classes": classes} if classes else {}),
            "parts": dict(parts),
            "split": chosen.text,
            "preparation": f"{pictures.describe()}, divided by 255" if pictures else "unchanged",
            **({"decoder": pictures.library} if pictures else {}),
            "decisions": decisions,
            "hash": _HASHED,
        },
    )


def _stated(what: str, parts: Any) -> dict[str, list[tuple[str, str]]]:
    """The endings of each part, each with the field of its JSON."""
    if not isinstance(parts, Mapping) or not parts:
        raise UsageError(f"{what}: got parts={brief(parts)}; allowed: a dict of parts and endings")
    found = {}
    for name, endings in parts.items():
        kinds = [one.strip().lstrip(".") for one in endings.split(";")] if isinstance(endings, str) else [""]
        if not isinstance(name, str) or not all(kinds):
            raise UsageError(f"{what}: got parts={brief(parts)}; allowed: endings such as 'jpg;png' or 'json:label'")
        pairs = [(kind.partition(":")[0].lower(), kind.partition(":")[2]) for kind in kinds]
        for kind, field in pairs:
            check_kind(what, kind)
            if field and kind.rpartition(".")[2] != "json":
                raise UsageError(f"{what}: a field of .{kind} for {name!r}; allowed: fields of .json")
        found[name] = pairs
    return found


def _samples(what: str, path: Path) -> list[_Sample]:
    """The samples of a tar file, in order."""
    found: list[_Sample] = []
    keys: set[str] = set()
    for entry in entries(path):
        folder, slash, name = entry.name.rpartition("/")
        stem, dot, kind = name.partition(".")
        if not stem or not dot:
            continue  # hidden files, and those without an ending, are no parts of samples
        key = f"{folder}{slash}{stem}"
        if not found or found[-1].key != key:
            if key in keys:
                raise UsageError(
                    f"{what}: {path}: the entries of the sample {key!r:.80} do not follow each other; allowed: entries "
                    "in order of their samples; remedy: tar --sort=name"
                )
            keys.add(key)
            found.append(_Sample(path, key, {}))
        if kind.lower() in found[-1].entries:
            raise UsageError(f"{what}: {path} has the entry {entry.name!r:.80} twice; allowed: each name once")
        found[-1].entries[kind.lower()] = entry
    return found


def _chosen(sample: _Sample, part: str, kinds: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The ending that a sample has of a part, with the field."""
    for kind, field in kinds:
        if kind in sample.entries:
            return kind, field
    names = ", ".join(f".{kind}" for kind in sample.entries)
    wanted = ", ".join(f".{kind}" for kind, _ in kinds)
    more = "" if len(kinds) > 1 else suggestion(kinds[0][0], sample.entries)
    raise UsageError(
        f"{sample.path}: the sample {sample.key!r:.80} has no entry for {part!r} ({wanted}"
        f"); allowed: one of them; it has {names[:200]}{more}; remedy: parts= with the endings, which begin at the "
        "first dot of a name, or the sample left out of the tar file"
    )


def _value(sample: _Sample, kind: str, field: str, decoder: Decoder | None) -> Any:
    entry = sample.entries[kind]
    return value_of(
        read_entry(sample.path, entry), kind, field, decoder, f"{sample.path}: the entry {entry.name!r:.80}"
    )


def _labels(
    what: str, samples: Sequence[_Sample], kinds: Sequence[tuple[str, str]] | None
) -> tuple[np.ndarray | None, list[str], list[str]]:
    """The class of each sample, the classes, and statements; no classes if labels are arrays or other numbers."""
    if kinds is None or kinds[0][0].rpartition(".")[2] in (*IMAGES, "npy"):
        return None, [], []
    first = _value(samples[0], *kinds[0], None)
    if not isinstance(first, (int, str)):
        return None, [], []
    values = [first]
    for sample, (kind, field) in zip(samples[1:], kinds[1:], strict=True):
        value = _value(sample, kind, field, None)
        if type(value) is not type(first):
            raise UsageError(
                f"{sample.path}: the label of the sample {sample.key!r:.80} is {brief(value)}, and that of the first "
                f"is {brief(first)}; allowed: labels of one type"
            )
        values.append(value)
    labels, classes = class_numbers(values, f"{what}: the labels")
    sentence = mapping_sentence(classes)
    return labels, classes, [sentence] if sentence else []


def _specs(
    what: str,
    sample: _Sample,
    chosen: Mapping[str, Sequence[tuple[str, str]]],
    decoder: Decoder | None,
    *,
    classed: bool,
) -> dict[str, TensorSpec]:
    """The specs of the first sample."""
    specs = {}
    for name, kinds in chosen.items():
        if name == "label" and classed:
            specs[name] = TensorSpec(shape=(), dtype="int64")
            continue
        value = _value(sample, *kinds[0], decoder)
        if isinstance(value, str):
            raise UsageError(
                f"{what}: the part {name!r} is the string {brief(value)}; allowed: strings only as label; remedy: "
                "numbers as .npy or .json"
            )
        array = _labelled(name, np.asarray(value))
        specs[name] = TensorSpec(shape=array.shape, dtype=str(array.dtype))
    return specs


def _labelled(name: str, array: np.ndarray) -> np.ndarray:
    """A scalar label that is no class as float32 (1,), as losses of regressions take it."""
    return array.reshape(1) if name == "label" and array.ndim == 0 and array.dtype.kind == "f" else array


def _source(
    samples: Sequence[_Sample],
    chosen: Mapping[str, Sequence[tuple[str, str]]],
    specs: Mapping[str, TensorSpec],
    labels: np.ndarray | None,
    decoder: Decoder | None,
    paths: Sequence[Path],
) -> SampleSource:
    def read(index: int) -> dict[str, np.ndarray]:
        found = {}
        for name, kinds in chosen.items():
            if name == "label" and labels is not None:
                found[name] = labels[index]
            else:
                found[name] = _labelled(name, np.asarray(_value(samples[index], *kinds[index], decoder)))
        return found

    content: Callable[[], str] = functools.cache(lambda: _content(paths, chosen, decoder))
    return SampleSource(
        length=len(samples),
        specs=specs,
        read=read,
        name=lambda index: f"{samples[index].path}: the sample {samples[index].key!r:.80}",
        content=content,
    )


def _content(paths: Sequence[Path], chosen: Mapping[str, Sequence[tuple[str, str]]], decoder: Decoder | None) -> str:
    try:
        files = files_hash([str(path) for path in paths])
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read ({error.strerror or error})") from error
    text = f"{files} {dict(chosen)} {decoder.describe() if decoder else ''}"
    return hashlib.sha256(text.encode()).hexdigest()
