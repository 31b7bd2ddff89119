"""Prediction: a result's trained network applied to arrays and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.core.files import is_file, is_folder
from deep5.core.progress import Ongoing, tracked

if TYPE_CHECKING:
    import numpy as np

    from deep5.core.tensors import TensorSpec
    from deep5.trained.images import Preparation

__all__ = ["Prediction", "predict_files"]

_LOGITS, _LABEL = "logits", "label"
_ARRAYS = (".npy", ".npz")
# Samples per batch.
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The network's prediction for one sample.

    Attributes:
        file: File of the sample.
        index: Its index in a file of several; None if the file is a single sample.
        ranked: Pairs of class and probability, the most probable first; empty if a logit is NaN or the largest is not
            finite.
        names: Names of the classes, if the data set has them.
    """

    file: str
    index: int | None
    ranked: tuple[tuple[int, float], ...]
    names: Mapping[int, str]

    def document(self) -> dict[str, Any]:
        """The prediction in JSON types."""
        top = [
            {"class": number, "name": self.names.get(number), "probability": probability}
            for number, probability in self.ranked
        ]
        first: dict[str, Any] = top[0] if top else {"class": None, "name": None, "probability": None}
        return {"file": self.file, "index": self.index, **first, "top": top}

    def line(self) -> str:
        """The prediction as a line for a terminal."""
        place = "" if self.index is None else f"[{self.index}]"
        classes = (
            f"{number}{f' ({self.names[number]})' if number in self.names else ''} {100 * probability:.2f} %"
            for number, probability in self.ranked
        )
        return f"{self.file}{place}  " + (
            "  ".join(classes) if self.ranked else "no prediction: its logits are not finite"
        )


def predict_files(
    folder: str | Path,
    files: Sequence[str | Path],
    *,
    top: int = 1,
    framework: str | None = None,
    device: str = "cpu",
    recipe: str | Path | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    fit: str | None = None,
    invert: bool = False,
) -> tuple[list[Prediction], tuple[str, ...]]:
    """Classify the samples in some files with a result's trained network.

    Args:
        folder: The result folder; nothing in it is executed.
        files: Arrays (.npy, .npz) as the network takes them, one sample or several along the first dimension; otherwise
            images.
        top: Number of classes per sample.
        framework: The framework to use; None: the run's.
        device: The device to use.
        recipe: The recipe of the run, if its network or the transforms of its test samples are the recipe's own code.
        size: Height and width of the resized images; None: those of the run's samples.
        mean: Mean per channel, of pixels in [0, 1]; None: as in the preparation of the run's samples.
        std: Standard deviation per channel, likewise.
        fit: `"crop"` or `"stretch"`; None: as in the preparation of the run's samples.
        invert: Whether images are inverted.

    Returns:
        One prediction per sample in the order of the files, and notes, one sentence each.

    Raises:
        UsageError: Not a result folder of a training run, or a file that does not exist, cannot be read, or does not
            fit the network.
        MissingDependency: An image is given, and Pillow is not installed.
    """
    from deep5.trained.images import preparation_of
    from deep5.trained.load import class_names, executor_of, trained

    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise UsageError(f"top {top!r:.60}; allowed: an integer of at least 1")
    run = trained(folder, recipe)
    executor, notes = executor_of(run, framework, device)
    network = executor.network
    if _LOGITS not in network.outputs:
        raise UsageError(f"the network has no output {_LOGITS!r}; it has {', '.join(network.outputs)}")
    inputs = {name: spec for name, spec in network.inputs.items() if name != _LABEL}
    preparation = preparation_of(run, inputs, size=size, mean=mean, std=std, fit=fit, invert=invert)
    names = class_names(preparation.description)
    found: list[Prediction] = []
    # The first batch includes the compilation of the network.
    with Ongoing("predicting the first batch") as first:
        for batch in _batched(_samples(files, inputs, preparation), _batch_size(network.inputs)):
            logits = _logits(executor, [arrays for _, _, arrays in batch])
            for (file, index, _), row in zip(batch, logits, strict=True):
                found.append(Prediction(file=file, index=index, ranked=_ranked(row, top), names=names))
            first.end()
    images = any(Path(file).suffix.lower() not in _ARRAYS for file in files)
    return found, (*run.notes, *notes, *(preparation.notes if images else ()))


_Sample = tuple[str, "int | None", "dict[str, np.ndarray]"]


def _samples(
    files: Sequence[str | Path], inputs: Mapping[str, TensorSpec], preparation: Preparation
) -> Iterator[_Sample]:
    for given in tracked(files, "predicting files", len(files)):
        path = Path(given)
        if not is_file(path):
            state = "is a folder" if is_folder(path) else "is not there"
            raise UsageError(f"the file {path} {state}; allowed: .npy and .npz files, and images")
        if path.suffix.lower() in _ARRAYS:
            yield from _arrays(path, inputs)
        else:
            yield str(given), None, preparation.image(path)


def _arrays(path: Path, inputs: Mapping[str, TensorSpec]) -> Iterator[_Sample]:
    """The samples of a NumPy file; nothing in it is executed."""
    held = _read(path)
    if isinstance(held, Mapping):
        parts = {name: array for name, array in held.items() if name != _LABEL}
        if len(parts) == 1 and len(inputs) == 1:
            parts = dict(zip(inputs, parts.values(), strict=True))
    else:
        parts = dict.fromkeys(list(inputs)[:1], held)
    if parts.keys() != inputs.keys():
        raise UsageError(
            f"{path} holds {', '.join(map(repr, held)) or 'nothing'}; the network takes {', '.join(inputs)}"
        )
    fitted, single = {}, None
    for name, array in parts.items():
        one, fitted[name] = _fitted(path, name, array, inputs[name])
        single = one if single is None else single and one
    lengths = {len(array) for array in fitted.values()}
    if len(lengths) != 1:
        raise UsageError(f"{path} holds {sorted(lengths)} samples in its arrays; allowed: the same number in each")
    for index in range(lengths.pop()):
        yield str(path), None if single else index, {name: array[index] for name, array in fitted.items()}


def _read(path: Path) -> Any:
    import numpy as np

    try:
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            return held if isinstance(held, np.ndarray) else {name: held[name] for name in held.files}
    except Exception as error:  # the zip reader raises its own error types
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(
            f"{path} cannot be read ({reason}); allowed: arrays of numbers as numpy.save writes them"
        ) from error


def _fitted(path: Path, name: str, array: np.ndarray, spec: TensorSpec) -> tuple[bool, np.ndarray]:
    """Whether the array is a single sample, and the array with a batch dimension, in the network's element type."""
    import numpy as np

    from deep5.core.tensors import numpy_dtype

    single = array.ndim == len(spec.shape) - 1
    many = array[None] if single else array
    dtype = numpy_dtype(spec.dtype)
    shape = tuple(spec.shape[1:])
    fits = many.ndim == len(spec.shape) and all(
        not isinstance(want, int) or want == got for want, got in zip(shape, many.shape[1:], strict=True)
    )
    whole = array.dtype.kind in "iu"
    floating = array.dtype.kind == "f"
    if not fits or not (whole or floating) or (whole and dtype.kind not in "iu") or (floating and dtype.kind in "iu"):
        raise UsageError(
            f"{path} holds {array.dtype} of shape {array.shape} for {name!r}; the network takes {spec.dtype} of shape "
            f"{shape}, or several with their axis first"
            + (_PIXELS if fits and whole and dtype.kind not in "iu" else "")
        )
    if whole and many.size and not (np.iinfo(dtype).min <= many.min() and many.max() <= np.iinfo(dtype).max):
        raise UsageError(f"{path} holds integers for {name!r} that are out of the range of {dtype}")
    return single, many.astype(dtype)


_PIXELS = "; remedy: prepare pixels as the data set does, or give the image's file"


def _batch_size(inputs: Mapping[str, TensorSpec]) -> int | None:
    """Batch size, if the network has a fixed one; None if it takes any."""
    return next((spec.shape[0] for spec in inputs.values() if spec.shape and isinstance(spec.shape[0], int)), None)


def _batched(samples: Iterator[_Sample], fixed: int | None) -> Iterator[list[_Sample]]:
    batch: list[_Sample] = []
    for sample in samples:
        # Samples of different sizes (such as sentences) cannot share a batch.
        if batch and any(batch[0][2][name].shape != array.shape for name, array in sample[2].items()):
            yield batch
            batch = []
        batch.append(sample)
        if len(batch) == (fixed or _BATCH):
            yield batch
            batch = []
    if batch:
        yield batch


def _logits(executor: Any, samples: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """One row of logits per sample."""
    import numpy as np

    from deep5.core.tensors import numpy_dtype, to_numpy

    network = executor.network
    rows = _batch_size(network.inputs) or len(samples)
    feed = {}
    for name in samples[0]:
        stacked = np.stack([sample[name] for sample in samples])
        # For a network with a fixed batch size, the last sample fills the batch.
        feed[name] = np.concatenate([stacked, np.repeat(stacked[-1:], rows - len(samples), axis=0)])
    if _LABEL in network.inputs:  # for the loss, which is not used
        label = network.inputs[_LABEL]
        extents = {
            symbol: extent
            for name, array in feed.items()
            for symbol, extent in zip(network.inputs[name].shape, array.shape, strict=True)
            if isinstance(symbol, str)
        }
        shape = [rows, *(extent if isinstance(extent, int) else extents.get(extent, 1) for extent in label.shape[1:])]
        feed[_LABEL] = np.zeros(shape, numpy_dtype(label.dtype))
    found = to_numpy(executor.inference(feed)[_LOGITS])
    if found.ndim != 2:
        raise UsageError(
            f"the network's logits have the shape {found.shape}; allowed: a row of classes a sample, as a network that "
            "classifies whole samples has"
        )
    rows_found: np.ndarray = found[: len(samples)].astype(np.float64)
    return rows_found


def _ranked(logits: np.ndarray, top: int) -> tuple[tuple[int, float], ...]:
    import numpy as np

    if not np.isfinite(logits.max()):  # the maximum is NaN if any logit is
        return ()
    shifted = np.exp(logits - logits.max())
    probabilities = shifted / shifted.sum()
    order = np.argsort(-logits, kind="stable")[:top]
    return tuple((int(number), float(probabilities[number])) for number in order)
