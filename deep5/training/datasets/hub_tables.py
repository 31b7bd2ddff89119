"""Hugging Face data sets: an object of the library `datasets`, or a folder that it saved; nothing is downloaded."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.files import is_folder
from deep5.core.plugins import missing_dependency
from deep5.core.progress import tracked
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Splits
from deep5.training.datasets.class_names import class_numbers, mapping_sentence
from deep5.training.datasets.decoded import DecodedDataset, SampleSource
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.pixels import Scaling
from deep5.training.datasets.splitting import selected

__all__ = ["hugging_face"]

_TEST_NAMES = ("test", "validation", "val")
_UNIT = Scaling(mean=(0.0,), std=(1.0,))
_ROWS = 1024


def hugging_face(
    data: Any,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    label: str = "label",
    size: int = 64,
    channels: int = 3,
    fit: str = "stretch",
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    workers: int | None = None,
) -> Splits:
    """A data set of the library `datasets`: an object, or a folder that `save_to_disk` wrote. Nothing is downloaded.

    Rows stay in the library's memory-mapped files and are decoded on access.

    Args:
        data: A `Dataset`, a `DatasetDict` with `train` and, if it has a test part, `test`, `validation` or `val`; or a
            folder with either.
        columns: For each part of a sample the column, or several columns of numbers, which are joined. None: `input`
            from all columns except the label.
        label: The column of the part `label`; ignored if `columns` is given.
        size: Height and width of images.
        channels: 3 for RGB, 1 for grayscale.
        fit: "stretch" to the size, or scale the shorter side and "crop" the center.
        test_share: Fraction of the rows in the test set, stratified by class, if there is no test part.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep; None: all.
        test_limit: The same for the test samples.
        workers: Decoding threads; None: one.

    Returns:
        Samples with the parts of `columns`: numbers as float32 or int64, one column of them as `input` (1,), images
        float32 (channels, size, size) in [0, 1]; a label of integers, booleans or strings as a class, int64 (), and of
        other numbers float32 (1,).

    Raises:
        UsageError: A column is missing, has missing values, strings or rows of different lengths (the message names row
            and column), or an argument is out of its range.
        MissingDependency: `datasets` is not installed, or Pillow if there are images.

    >>> import datasets
    >>> import deep5 as d5
    >>> rows = datasets.Dataset.from_dict({"width": [1.0, 2.0, 3.0, 4.0], "height": [4, 3, 2, 1], "kind": list("abab")})
    >>> data = d5.datasets.hugging_face(rows, label="kind", test_share=0.5)
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (2, 2, {'input': 'float32[2]', 'label': 'int64[]'})
    """
    what = "hugging_face"
    parts = _parts(what, data)
    first = parts[0]
    chosen_columns = _columns(what, columns, label, first.column_names)
    used = [column for group in chosen_columns.values() for column in group]
    for part in parts:
        for column in used:
            if column not in part.column_names:
                raise UsageError(
                    f"{what}: no column {column!r:.60}; allowed: {', '.join(part.column_names)}"
                    f"{suggestion(column, part.column_names)}"
                )
        if not len(part):
            raise UsageError(f"{what}: a part has no rows; allowed: at least one")
    images = {column for column in used if type(first.features[column]).__name__ == "Image"}
    for column in used:
        if (kind := type(first.features[column]).__name__) in ("Audio", "Video"):
            raise UsageError(
                f"{what}: the column {column!r} holds {kind.lower()}; allowed: numbers, lists of numbers of one "
                "length, or images; remedy: the data set audio_folder with WAV files, or arrays of one length by "
                "data.map(…)"
            )
    decoder = Decoder(size=size, channels=channels, fit=fit) if images else None
    from datasets import Image, concatenate_datasets

    rows = concatenate_datasets(parts).select_columns(used) if len(parts) > 1 else first.select_columns(used)
    for column in images:
        rows = rows.cast_column(column, Image(decode=False))
    rows = rows.with_format(None)
    target = chosen_columns.get("label", [""])
    labels: np.ndarray | None = None
    classes: list[str] = []
    decisions: list[str] = []
    if len(target) == 1 and target[0] and target[0] not in images:
        labels, classes, decisions = _labels(what, rows, target[0])
    source = _source(what, rows, chosen_columns, labels, decoder)
    count = len(first)
    chosen = selected(
        what,
        count,
        None if labels is None else labels[:count],
        test_length=len(parts[1]) if len(parts) > 1 else None,
        test_labels=None if labels is None else labels[count:],
        given="the parts given",
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    made = [
        DecodedDataset(source, ids, labels=None if labels is None else labels[ids], workers=workers or 1)
        for ids in (chosen.train, chosen.test + (count if len(parts) > 1 else 0))
    ]
    return Splits(
        train=made[0],
        test=made[1],
        split_hash=chosen.hash,
        description={
            "source": f"Hugging Face data set {first.info.dataset_name or ''}".strip(),
            "samples": {"train": len(made[0]), "test": len(made[1])},
            **({"classes": classes} if classes else {}),
            "columns": {part: ", ".join(group) for part, group in chosen_columns.items()},
            "split": chosen.text,
            "preparation": f"{decoder.describe()}, divided by 255" if decoder else "unchanged",
            **({"decoder": decoder.library} if decoder else {}),
            "decisions": decisions,
            "hash": "the values of all rows of these columns; and what becomes of them",
        },
    )


def _parts(what: str, data: Any) -> list[Any]:
    """The training rows and, if there are any, the test rows."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise missing_dependency(f"the data set {what}", error) from error
    if isinstance(data, (str, os.PathLike)):
        if not is_folder(str(data)):
            raise UsageError(
                f"{what}: the folder {data} is not there; allowed: a folder that save_to_disk wrote; remedy: "
                "datasets.load_dataset(NAME).save_to_disk(FOLDER), since deep5 downloads nothing here"
            )
        try:
            data = datasets.load_from_disk(str(data))
        except Exception as error:
            raise UsageError(
                f"{what}: {data} cannot be read ({' '.join(str(error).split())[:150]}); allowed: a folder that "
                "save_to_disk wrote"
            ) from error
    if isinstance(data, datasets.DatasetDict):
        if "train" not in data:
            raise UsageError(f"{what}: the parts are {', '.join(data)}; allowed: train, and test or validation")
        test = next((data[name] for name in _TEST_NAMES if name in data), None)
        return [data["train"]] if test is None else [data["train"], test]
    if isinstance(data, datasets.Dataset):
        return [data]
    remedy = "; remedy: load it without streaming=True" if "Iterable" in type(data).__name__ else ""
    raise UsageError(
        f"{what}: got data={brief(type(data).__name__)}; allowed: a datasets.Dataset, a DatasetDict, a folder{remedy}"
    )


def _columns(
    what: str, given: Mapping[str, str | Sequence[str]] | None, label: str, names: Sequence[str]
) -> dict[str, list[str]]:
    if given is None:
        if label not in names:
            raise UsageError(
                f"{what}: no column {label!r:.60} (label); allowed: {', '.join(names)}{suggestion(str(label), names)}"
            )
        given = {"input": [name for name in names if name != label], "label": label}
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"{what}: got columns={brief(given)}; allowed: a dict of parts and columns")
    found = {}
    for part, columns in given.items():
        group = [columns] if isinstance(columns, str) else columns
        if not isinstance(group, (list, tuple)) or not group or not all(isinstance(one, str) for one in group):
            raise UsageError(f"{what}: got the columns {brief(columns)} for {part!r}; allowed: names of columns")
        found[part] = list(group)
    return found


def _labels(what: str, rows: Any, column: str) -> tuple[np.ndarray | None, list[str], list[str]]:
    """The class of each row, the classes and statements; no classes if the labels are other numbers or lists."""
    feature = rows.features[column]
    values = list(rows[column])
    for row, value in enumerate(values):
        if value is None:
            raise _missing(what, row, column)
    names = getattr(feature, "names", None)
    if names is not None:
        wrong = [row for row, value in enumerate(values) if not 0 <= value < len(names)]
        if wrong:
            raise UsageError(
                f"{what}: row {wrong[0]}, column {column!r}: the label {values[wrong[0]]} is none of the {len(names)} "
                "classes; remedy: filter these rows, since test parts on the hub may have no labels"
            )
        return np.array(values, dtype=np.int64), list(names), []
    if all(isinstance(value, bool) for value in values):
        values = [int(value) for value in values]
    if not all(isinstance(value, (int, str)) and not isinstance(value, bool) for value in values):
        return None, [], []
    labels, classes = class_numbers(values, f"{what}: the labels")
    sentence = mapping_sentence(classes)
    return labels, classes, [sentence] if sentence else []


def _missing(what: str, row: int, column: str) -> UsageError:
    return UsageError(
        f"{what}: row {row}, column {column!r}: the value is missing; allowed: a value in every row; remedy: "
        f"data.filter(lambda row: row[{column!r}] is not None)"
    )


def _source(
    what: str,
    rows: Any,
    columns: Mapping[str, Sequence[str]],
    labels: np.ndarray | None,
    decoder: Decoder | None,
) -> SampleSource:
    def read(index: int) -> dict[str, np.ndarray]:
        row = rows[index]
        sample = {}
        for part, group in columns.items():
            if part == "label" and labels is not None:
                sample[part] = labels[index]
                continue
            arrays = [_value(what, index, column, row[column], decoder) for column in group]
            array = arrays[0] if len(arrays) == 1 else _joined(what, index, group, arrays)
            # A label that is no class has the shape that losses of regressions take, and one column that of several.
            sample[part] = array.reshape(1) if part in ("input", "label") and array.ndim == 0 else array
        return sample

    first = read(0)
    specs = {part: TensorSpec(shape=array.shape, dtype=str(array.dtype)) for part, array in first.items()}

    @functools.cache
    def content() -> str:
        digest = hashlib.sha256(f"{dict(columns)} {decoder.describe() if decoder else ''}\n".encode())
        for batch in tracked(rows.iter(batch_size=_ROWS), f"{what}: hashing rows", -(-len(rows) // _ROWS)):
            for column in sorted(batch):
                for value in batch[column]:
                    raw = value.get("bytes") or b"" if isinstance(value, dict) else repr(value).encode()
                    digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    return SampleSource(
        length=len(rows), specs=specs, read=read, name=lambda index: f"{what}: row {index}", content=content
    )


def _value(what: str, row: int, column: str, value: Any, decoder: Decoder | None) -> np.ndarray:
    """A cell as an array: integers int64, other numbers float32."""
    if value is None:
        raise _missing(what, row, column)
    name = f"{what}: row {row}, column {column!r}"
    if isinstance(value, dict) and decoder is not None:
        content = value.get("bytes")
        if content is None:
            try:
                with open(str(value.get("path")), "rb") as file:  # noqa: PTH123 - the library's own string
                    content = file.read()
            except OSError as error:
                raise UsageError(f"{name}: the image cannot be read ({error.strerror or error})") from error
        return np.asarray(_UNIT.apply(decoder.decode(content, name)[None])[0])
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        strings = isinstance(value, str)
        remedy = "tokens by data.map(…), of one length" if strings else "numbers by data.map(…), of one length"
        raise UsageError(
            f"{name}: got {brief(value)}; allowed: numbers, lists of numbers of one length, or images; remedy: "
            f"{remedy}, or columns= without it"
        )
    kind = np.int64 if array.dtype.kind in "iu" else np.float32
    with np.errstate(over="ignore"):
        fitting: Any = array.astype(kind)
    lost = (fitting < 0) & (array > 0) if kind is np.int64 else np.isinf(fitting) & np.isfinite(array)
    if lost.any():
        raise UsageError(f"{name}: got {array[lost][0]}; allowed: values that {np.dtype(kind)} holds")
    return np.asarray(fitting)


def _joined(what: str, row: int, group: Sequence[str], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Several columns of numbers as one vector, float32."""
    if any(array.ndim > 1 for array in arrays):
        raise UsageError(
            f"{what}: row {row}: the columns {', '.join(group)} are not all numbers; allowed: numbers or lists of "
            "them; remedy: columns={'input': …} with one column"
        )
    return np.concatenate([array.reshape(-1).astype(np.float32) for array in arrays])
