"""The output of `deep5 show dataset`: arguments, sizes, classes, decisions and a few samples, also as a document."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.terminal import counted, plain
from deep5.training.dataset import Dataset, Splits
from deep5.training.datasets.text_files import PADDING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Argument", "DatasetRecord", "arguments_of", "record_of", "tokens_text"]

# Samples that histograms read, elements of a sample that are shown one by one, columns of a table of samples, and
# classes and entries of a description that are listed.
_MOST_READ, _MOST_ELEMENTS, _MOST_COLUMNS, _MOST_CLASSES = 2000, 8, 7, 20
_LONGEST = 60
# Tokens that are no printable characters, as characters and as bytes.
_SHOWN = {"\n": "⏎", "\t": "→", "\\x0a": "⏎", "\\x09": "→"}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument of a data set's function.

    Attributes:
        name: Its name.
        required: Whether it has no default.
        default: The default as Python source; empty if it is required.
        about: The first sentence of its documentation.
    """

    name: str
    required: bool
    default: str
    about: str


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """What a data set holds.

    Attributes:
        source: The registered name or `FILE.py:NAME`, as requested.
        given: The arguments that created it.
        accepted: The arguments that its function takes.
        splits: The data set; None if required arguments are missing.
        samples: The first training samples, an array of each part.
        values: More values of one-dimensional inputs, shape (samples, inputs), for histograms; None for other inputs.
    """

    source: str
    accepted: Sequence[Argument]
    given: Mapping[str, Any] = field(default_factory=dict)
    splits: Splits | None = None
    samples: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: np.ndarray | None = None

    @property
    def description(self) -> Mapping[str, Any]:
        """The data set's own description; empty if it was not created."""
        return {} if self.splits is None else self.splits.description

    def class_name(self, label: int) -> str:
        """The name of a class, or its number."""
        classes = self.description.get("classes")
        if isinstance(classes, Mapping):
            return next((str(name) for name, number in classes.items() if number == label), str(label))
        if isinstance(classes, Sequence) and not isinstance(classes, str) and 0 <= label < len(classes):
            return str(classes[label])
        return str(label)

    def class_counts(self, part: str) -> dict[str, int] | None:
        """Samples of each class, of "train" or "test"; None if the labels are not known without reading."""
        labels = _labels(self.splits, part)
        if labels is None or labels.dtype.kind not in "iu":
            return None
        numbers, counts = np.unique(labels, return_counts=True)
        return {self.class_name(int(number)): int(count) for number, count in zip(numbers, counts, strict=True)}

    def document(self) -> dict[str, Any]:
        """The record in JSON types."""
        found: dict[str, Any] = {
            "dataset": self.source,
            "given": {name: _plain(value) for name, value in self.given.items()},
            "arguments": [
                {"name": one.name, "required": one.required, "default": one.default or None, "about": one.about}
                for one in self.accepted
            ],
        }
        if self.splits is None:
            return found
        parts = {}
        for name in ("train", "test"):
            own = getattr(self.splits, name)
            parts[name] = {
                "samples": len(own) if isinstance(own, Dataset) else None,
                "classes": self.class_counts(name),
                "specs": {part: {"shape": list(spec.shape), "dtype": spec.dtype} for part, spec in own.specs.items()},
            }
        return found | {
            "parts": parts,
            "split_hash": self.splits.split_hash or None,
            "description": _plain(self.description),
            "samples": {name: [_element(value) for value in values] for name, values in self.samples.items()},
        }

    def print(self, console: Console) -> None:
        """Print arguments, parts, classes, decisions and samples.

        Args:
            console: The console to print on.
        """
        from rich.text import Text

        console.print(Text(plain(f"{self.source}: {self.description.get('source', 'arguments')}")))
        if self.splits is None:
            _print_arguments(self.accepted, console)
            needed = [one.name for one in self.accepted if one.required]
            options = " ".join(f"--set {name}=…" for name in needed)
            console.print(Text(plain(f"Set what is required: deep5 show dataset {self.source} {options}")))
            return
        # The samples come last and stay on the screen.
        _print_arguments(self.accepted, console, self.given)
        rows = []
        for name in ("train", "test"):
            own = getattr(self.splits, name)
            size = f"{len(own):,}" if isinstance(own, Dataset) else "unknown until the stream ends"
            rows.append((name, size, ", ".join(f"{part} {spec}" for part, spec in own.specs.items())))
        _print_rows(("part", "samples", "of a sample"), rows, console)
        _print_classes(self, console)
        _print_description(self.description, console)
        console.print()
        _print_samples(self, console)


def arguments_of(make: Callable[..., Any]) -> list[Argument]:
    """The arguments of a data set's function, with what its docstring says of each."""
    about = dict(re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", _section(make), re.MULTILINE | re.DOTALL))
    found = []
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        sentence = " ".join(about.get(name, "").split())
        found.append(
            Argument(name=name, required=required, default="" if required else repr(parameter.default), about=sentence)
        )
    return found


def _section(make: Callable[..., Any]) -> str:
    """The section `Args` of a docstring, of Google's style."""
    found = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", inspect.getdoc(make) or "", re.MULTILINE)
    return found[1] if found else ""


def record_of(
    source: str, accepted: Sequence[Argument], given: Mapping[str, Any], splits: Splits, count: int
) -> DatasetRecord:
    """Read a few samples of a data set.

    Args:
        source: Its name.
        accepted: The arguments that its function takes.
        given: The arguments that created it.
        splits: The data set.
        count: The number of samples to show, at least 1.

    Raises:
        UsageError: A sample cannot be read, or the data set has none.
    """
    train = splits.train
    fixed = all(isinstance(extent, int) for spec in train.specs.values() for extent in spec.shape)
    if isinstance(train, Dataset) and fixed:
        samples = train.batch(np.arange(min(count, len(train))))
    else:
        read: list[Mapping[str, Any]]
        if isinstance(train, Dataset):
            # A batch pads its samples.
            batches = (train.batch(np.array([place])) for place in range(min(count, len(train))))
            read = [{name: values[0] for name, values in batch.items()} for batch in batches]
        else:
            read = list(islice(train.samples(0), count))
        if not read:
            raise UsageError(f"the stream of {source} has no sample; allowed: at least one")
        # A variable dimension differs between samples: each is a separate object then.
        samples = {name: _together([np.asarray(sample[name]) for sample in read]) for name in read[0]}
    values = None
    one = train.specs.get("input")
    if one is not None and isinstance(train, Dataset) and len(one.shape) == 1 and isinstance(one.shape[0], int):
        ids = np.unique(np.linspace(0, len(train) - 1, min(len(train), _MOST_READ)).astype(np.int64))
        values = np.asarray(train.batch(ids)["input"])
    return DatasetRecord(source=source, accepted=accepted, given=given, splits=splits, samples=samples, values=values)


def _together(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    found = np.empty(len(arrays), object)
    found[:] = arrays
    return found


def _labels(splits: Splits | None, part: str) -> np.ndarray | None:
    own = None if splits is None else getattr(splits, part)
    labels = own.labels() if isinstance(own, Dataset) else None
    return labels if labels is not None and labels.ndim == 1 else None


def _print_rows(titles: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(Text(plain(title)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console.print(table)


def _print_arguments(accepted: Sequence[Argument], console: Console, given: Mapping[str, Any] | None = None) -> None:
    rows = [
        (one.name, brief(given[one.name]) if given and one.name in given else one.default or "required", one.about)
        for one in accepted
    ]
    if rows:
        _print_rows(("argument", "value" if given is not None else "default", "meaning"), rows, console)


def _print_classes(record: DatasetRecord, console: Console) -> None:
    from rich.text import Text

    train, test = (record.class_counts(part) for part in ("train", "test"))
    if train is not None:
        names = list(dict.fromkeys([*train, *(test or {})]))
        rows = [
            (name, f"{train.get(name, 0):,}", "unknown" if test is None else f"{test.get(name, 0):,}")
            for name in names[:_MOST_CLASSES]
        ]
        _print_rows(("class", "train", "test"), rows, console)
        if len(names) > _MOST_CLASSES:
            console.print(
                Text(f"and {counted(len(names) - _MOST_CLASSES, 'other class')}".replace("classs", "classes"))
            )


def _print_description(description: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in description.items():
        if name in ("source", "samples", "classes", "vocabulary", "inputs"):
            continue
        lines = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            lines = [f"{inner}: {content}" for inner, content in value.items()]
        more = len(lines) - _MOST_CLASSES
        shown = [*map(str, lines[:_MOST_CLASSES]), *([f"and {more} more"] if more > 0 else [])]
        if shown:
            table.add_row(Text(plain(name)), Text(plain("\n".join(shown))))
    console.print(table)


def _print_samples(record: DatasetRecord, console: Console) -> None:
    samples = record.samples
    inputs = record.description.get("inputs")
    titles: list[str] = []
    columns: list[list[str]] = []
    for name, values in samples.items():
        if name == "input" and values.ndim == 2 and isinstance(inputs, list) and len(inputs) == values.shape[1]:
            titles += inputs[:_MOST_COLUMNS]
            columns += [[_number(value) for value in column] for column in values.T[:_MOST_COLUMNS]]
            if len(inputs) > _MOST_COLUMNS:
                titles.append(f"and {len(inputs) - _MOST_COLUMNS} more")
                columns.append(["…"] * len(values))
            continue
        titles.append(name)
        columns.append([_cell(record, name, value) for value in values])
    _print_rows(titles, list(zip(*columns, strict=True)), console)


def _cell(record: DatasetRecord, name: str, value: Any) -> str:
    value = np.asarray(value)
    vocabulary = record.description.get("vocabulary")
    if value.ndim == 0:
        own = record.class_name(int(value)) if name == "label" and value.dtype.kind in "iu" else ""
        return f"{_number(value)} ({own})" if own and own != str(value) else _number(value)
    if isinstance(vocabulary, list) and value.dtype.kind in "iu" and value.ndim == 1:
        words = tokens_text(value, vocabulary, str(record.description.get("tokens")))
        return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"
    if value.size <= _MOST_ELEMENTS:
        return " ".join(map(_number, value.reshape(-1)))
    shape = f"{value.dtype}{list(value.shape)}"
    if value.dtype.kind not in "biuf":
        return shape
    wide = value.astype(np.float64)
    return f"{shape}: {_number(wide.min())} … {_number(wide.max())}, mean {_number(wide.mean())}"


def tokens_text(ids: np.ndarray, vocabulary: Sequence[str], tokens: str) -> str:
    """The characters, words or bytes of token ids, on one line; a padding at their end is counted.

    Args:
        ids: Token ids, shape (length,).
        vocabulary: The token of each id.
        tokens: "characters", "words" or "bytes".
    """
    words = [str(vocabulary[number]) if 0 <= number < len(vocabulary) else "?" for number in ids.tolist()]
    length = len(words)
    while length > 1 and words[length - 1] == words[length - 2] == PADDING:
        length -= 1
    padded = len(words) - length
    words = [*words[: length - 1], f"{PADDING}×{padded + 1}"] if padded else words
    return (" " if tokens == "words" else "").join(_SHOWN.get(word, word) for word in words)


def _number(value: Any) -> str:
    value = np.asarray(value)
    return f"{float(value):.4g}" if value.dtype.kind not in "biu" else str(value)


def _element(value: Any) -> Any:
    array = np.asarray(value)
    if array.size <= 64 and array.dtype.kind in "biuf":
        return array.tolist()
    found: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype.kind in "biuf":
        wide = array.astype(np.float64)
        found |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return found


def _plain(value: Any) -> Any:
    """A value in JSON types; others as a brief representation."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return brief(value)
