"""Evaluation of a result's trained network on its samples, compared with the values that the run recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.core.progress import Ongoing, tracked

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from deep5.results.result import Result

__all__ = ["Evaluation", "evaluate_result"]

_TOP = 5
# More classes do not fit a terminal: the worst confusions are listed instead.
_WIDEST, _LISTED = 20, 10
_LOGITS, _LOSS, _LABEL = "logits", "loss", "label"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation of a trained network on samples.

    Attributes:
        folder: The result folder.
        framework: The framework, with its version.
        split: `"test"` or `"train"`, of `data`.
        data: Source of the samples.
        same_data: Whether the data are bit-identical to the run's; None if unknown.
        samples: Number of samples.
        accuracy: Percent.
        loss: Mean over the samples.
        top_5: Percent; None with five classes or fewer.
        matrix: The confusion matrix, as returned by `deep5.training.scores.confusion`.
        names: Names of the classes, if the data set has them.
        recorded: Values that the run recorded on the same samples, by `accuracy`, `loss`, `top_5`.
        notes: Notes, one sentence each.
    """

    folder: Path
    framework: str
    split: str
    data: str
    same_data: bool | None
    samples: int
    accuracy: float
    loss: float
    top_5: float | None
    matrix: np.ndarray
    names: Mapping[int, str]
    recorded: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool | None:
        """Whether the accuracy equals the recorded one; None if the run recorded none for these samples."""
        return None if "accuracy" not in self.recorded else self.recorded["accuracy"] == self.accuracy

    def document(self) -> dict[str, Any]:
        """All of it in JSON types; a loss that is not finite is one of the strings inf, -inf, nan."""
        classes = len(self.matrix)
        return {
            "folder": str(self.folder),
            "framework": self.framework,
            "split": self.split,
            "data": self.data,
            "same_data": self.same_data,
            "samples": self.samples,
            "accuracy": self.accuracy,
            "loss": _number(self.loss),
            "top_5": self.top_5,
            "classes": [self.names.get(number) for number in range(classes)],
            "recalls": [None if math.isnan(recall) else recall for recall in self._recalls()],
            "confusion": self.matrix[:, :classes].tolist(),
            "without_prediction": self.matrix[:, classes].tolist(),
            "recorded": {name: _number(value) for name, value in self.recorded.items()},
            "same": self.same,
            "notes": list(self.notes),
        }

    def _recalls(self) -> list[float]:
        from deep5.training.scores import recalls

        found: list[float] = recalls(self.matrix).tolist()
        return found

    def print(self, console: Console) -> None:
        """Print a few lines, and the confusion matrix.

        Args:
            console: The console to print to.
        """
        from rich.text import Text

        def line(text: str, style: str = "") -> None:
            console.print(Text(text, style=style), soft_wrap=True)

        line(f"{self.folder}")
        line(
            f"{self.samples} {'test' if self.split == 'test' else 'training'} samples of {self.data}, {self.framework}"
        )
        values = {"accuracy": (self.accuracy, "%"), "top_5": (self.top_5, "%"), "loss": (self.loss, "nat")}
        for name, (value, unit) in values.items():
            if value is None:
                continue
            recorded = self.recorded.get(name)
            reported = ""
            if recorded is not None:
                reported = "  as the run recorded" if recorded == value else f"  the run recorded {recorded:.6g} {unit}"
            line(f"  {name:<9} {value:10.6g} {unit}{reported}")
        if self.same_data is False:
            line("  the data are not those of the run: nothing is compared", "yellow")
        for note in self.notes:
            line(f"  note: {note}", "yellow")
        _print_matrix(self.matrix, self._recalls(), self.names, line)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _print_matrix(
    matrix: np.ndarray, recalls: list[float], known: Mapping[int, str], line: Callable[[str], None]
) -> None:
    classes = len(matrix)
    if classes > _WIDEST:
        wrong = [
            (count, true, guess)
            for true, row in enumerate(matrix[:, :classes].tolist())
            for guess, count in enumerate(row)
            if count and true != guess
        ]
        if wrong:
            line("most confused (true class, predicted class, count):")
        for count, true, guess in sorted(wrong, key=lambda entry: (-entry[0], entry[1:]))[:_LISTED]:
            reported = "".join(f"  {known[number]}" for number in (true, guess) if number in known)
            line(f"  {true:>5} {guess:>5} {count:>6}{reported}")
        return
    lost = bool(matrix[:, classes:].any())
    names = [*map(str, range(classes)), *(["none"] if lost else [])]
    width = max(3, *(len(str(count)) + 1 for count in matrix.ravel().tolist()), *(len(name) + 1 for name in names))
    line("confusion matrix (true classes down, predicted across), and recall:")
    line("  " + " " * 4 + "".join(f"{name:>{width}}" for name in names))
    for true, row in enumerate(matrix.tolist()):
        recall = "" if math.isnan(recalls[true]) else f"  {recalls[true]:.1f} %"
        reported = f"  {known[true]}" if true in known else ""
        line(f"  {true:>4}" + "".join(f"{count:>{width}}" for count in row[: len(names)]) + recall + reported)


def evaluate_result(
    folder: str | Path,
    *,
    split: str = "test",
    data: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    framework: str | None = None,
    device: str = "cpu",
    recipe: str | Path | None = None,
) -> Evaluation:
    """Evaluate a result's trained network.

    Args:
        folder: The result folder; nothing in it is executed.
        split: `"test"` or `"train"`.
        data: Another data set, by its registered name or as `FILE.py:NAME`; None: the run's, created again from its
            registered name.
        arguments: Arguments of that data set, by name.
        framework: The framework to use; None: the run's.
        device: The device to use.
        recipe: The recipe of the run, if the data set is the recipe's own code.

    Raises:
        UsageError: Not a result folder of a training run, or samples that cannot be created or do not fit.
    """
    from deep5.trained.load import class_names, executor_of, samples_of, trained

    if split not in ("test", "train"):
        raise UsageError(f"split {split!r}; allowed: 'test', 'train'")
    run = trained(folder, recipe)
    executor, notes = executor_of(run, framework, device)
    _check_names(executor.network)
    samples = samples_of(run, executor.network, split, data, arguments or {})
    sums, matrix = _counted(executor, samples.batches)
    rows, labels, right, top, loss = sums
    compared = split == "test" and samples.same is not False and (data is None or samples.same is True)
    unknown = [] if not samples.unknown else [f"whether the data are those of the run is unknown: {samples.unknown}"]
    settings = executor.settings()
    described = data or run.described.get("dataset")
    return Evaluation(
        folder=run.result.folder,
        framework=f"{framework or settings.get('framework', '')} {settings.get('version', '')}".strip(),
        split=split,
        data=described if isinstance(described, str) else str(samples.description.get("source", "the recipe's data")),
        same_data=samples.same,
        samples=rows,
        accuracy=100.0 * right / labels,
        loss=loss / rows,
        top_5=100.0 * top / labels if len(matrix) > _TOP else None,
        matrix=matrix,
        names=class_names(samples.description),
        recorded=_recorded(run.result) if compared else {},
        notes=(*run.notes, *notes, *unknown),
    )


def _check_names(network: Any) -> None:
    for name, where, what in (
        (_LOGITS, network.outputs, "output"),
        (_LOSS, network.outputs, "output"),
        (_LABEL, network.inputs, "input"),
    ):
        if name not in where:
            raise UsageError(f"the network has no {what} {name!r}; it has {', '.join(where)}")


def _counted(executor: Any, batches: Any) -> tuple[tuple[int, int, int, int, float], np.ndarray]:
    """Counts of samples, labels, correct and top-5 labels, and the sum of losses; and the confusion matrix."""
    from deep5.core.tensors import to_numpy
    from deep5.networks.labels import ignored_label
    from deep5.training.scores import class_rows, confusion, top_k_hits

    rows, labeled, right, top, total = 0, 0, 0, 0, 0.0
    ignored = ignored_label(executor.network, _LABEL)
    matrix: Any = 0
    for _, inputs in _reported(batches.batches(0), batches.steps(0)):
        outputs = executor.inference(inputs)
        scores, labels = class_rows(outputs[_LOGITS], inputs[_LABEL], ignored)
        size = len(next(iter(inputs.values())))
        right += top_k_hits(scores, labels, 1)
        top += top_k_hits(scores, labels, min(_TOP, scores.shape[1]))
        total += float(to_numpy(outputs[_LOSS])) * size
        rows, labeled = rows + size, labeled + len(labels)
        matrix = matrix + confusion(scores, labels)
    if not rows:
        raise UsageError("there are no samples to evaluate; allowed: at least one")
    return (rows, labeled, right, top, total), matrix


def _reported(batches: Iterable[Any], total: int | None) -> Iterator[Any]:
    """The batches, with a report of those that are done; for an unknown number of them, and the first one, the time."""
    if total is None:
        with Ongoing("evaluating"):
            yield from batches
        return
    # The first batch includes the compilation of the network.
    with Ongoing("evaluating the first batch") as first:
        for batch in tracked(batches, "evaluating batches", total):
            yield batch
            first.end()


def _recorded(result: Result) -> dict[str, float]:
    """Values of the run on its test set after the last epoch."""
    found: dict[str, float] = {}
    # If an event stopped the run within an epoch, the weights differ from those of its last evaluation.
    stopped = any(reason.startswith("stopped") for reason in result.reasons)
    names = {"test_accuracy": "accuracy", "test_loss": "loss", "top_k": "top_5"}
    for row in result.document["metrics"]:
        if row["value"] is None:
            continue
        if row["name"] == "final_test_accuracy":
            found["accuracy"] = float(row["value"])
        elif row["name"] in names and not stopped and row["parameters"].get("k", _TOP) == _TOP:
            found[names[row["name"]]] = float(row["value"])
    return found
