"""The Frechet distance of generated images from test images, in a fixed space of features."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from deep5.core.errors import ShapeError, UsageError, brief
from deep5.core.metric import Metric, Observer
from deep5.core.seeds import derive_seed
from deep5.metrics.after_training import AfterTraining
from deep5.metrics.training_set import dataset_of
from deep5.training.dataset import Dataset

__all__ = ["FrechetDistance", "frechet_distance", "similarities"]

_CHUNK = 256
# Images in the picture of a result.
_ROWS = 10


def frechet_distance(first: np.ndarray, second: np.ndarray) -> float:
    """The Frechet distance of two normal distributions with the means and covariances of two sets of features.

    |m - n|^2 + tr(C + D - 2 (C D)^(1/2)), with covariances that divide by the number of samples minus 1. The trace of
    the root is the sum of the square roots of the eigenvalues of C^(1/2) D C^(1/2), which is symmetric.

    Args:
        first: Shape (samples, features), at least two samples.
        second: Likewise, with the same features.

    Returns:
        A number of at least 0, except for rounding.

    Raises:
        ShapeError: A set has fewer than two samples, or the numbers of features differ.

    References:
        Heusel et al., GANs trained by a two time-scale update rule converge to a local Nash equilibrium, NeurIPS 2017,
        arXiv:1706.08500, equation 6.

    >>> one = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]])
    >>> round(frechet_distance(one, one), 12), round(frechet_distance(one, one + [3.0, 0.0]), 12)
    (0.0, 9.0)
    >>> round(frechet_distance(one, 2 * one), 9)  # means 1, 2 and 2, 4; variances 4/3, 16/3, times 4
    11.666666667
    """
    for features in (first, second):
        if features.ndim != 2 or len(features) < 2 or features.shape[1:] != first.shape[1:]:
            raise ShapeError(
                f"frechet_distance got features of shape {first.shape} and {second.shape}; allowed: (samples, "
                "features) with at least two samples, and the same number of features"
            )
    one, other = (np.asarray(features, dtype=np.float64) for features in (first, second))
    difference = one.mean(axis=0) - other.mean(axis=0)
    c, d = (np.atleast_2d(np.cov(features, rowvar=False)) for features in (one, other))
    values, axes = np.linalg.eigh(c)
    root = (axes * np.sqrt(np.maximum(values, 0))) @ axes.T
    shared = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ d @ root), 0)).sum()
    return float(difference @ difference + np.trace(c) + np.trace(d) - 2 * shared)


def similarities(images: np.ndarray, landmarks: np.ndarray, width: float) -> np.ndarray:
    """exp(-|x - c|^2 / (2 width^2)) of each image x to each landmark c.

    Args:
        images: Shape (samples, …).
        landmarks: Shape (landmarks, …), the same shape of an image.
        width: Above 0.

    Returns:
        float64, shape (samples, landmarks).

    >>> similarities(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0]]), width=5.0).round(4).tolist()
    [[1.0], [0.6065]]
    """
    x, c = (part.reshape(len(part), -1).astype(np.float64) for part in (images, landmarks))
    # Without a product of matrices: the bits then do not depend on a library's order of sums.
    squares = np.stack([np.square(x - one).sum(axis=1) for one in c], axis=1)
    found: np.ndarray = np.exp(-squares / (2 * width**2))
    return found


class _Frechet(AfterTraining):
    def __init__(self, metric: FrechetDistance) -> None:
        super().__init__()
        self._metric = metric
        self._images: np.ndarray | None = None

    def before_training(self, trainer: Any) -> None:
        _drawing(trainer.train_sampler)

    def measured(self, trainer: Any) -> float | None:
        metric, drawing = self._metric, _drawing(trainer.train_sampler)
        train, test = dataset_of(trainer.train_sampler), dataset_of(trainer.validation_sampler)
        if train is None or test is None:
            self._missing = "the samples of the data set have no index"
            return None
        if metric.landmarks > len(train):
            raise UsageError(
                f"frechet_distance with landmarks={metric.landmarks}; allowed: at most {len(train)}, the number of "
                "training samples"
            )
        landmarks = _part(train, drawing.part, metric.landmarks)
        # As in an evaluation: a rule may have other parameters for it.
        with getattr(trainer.optimizer, "averaged", nullcontext)():
            drawn = drawing.generate(trainer.executor, metric.samples, derive_seed(trainer.seed, "generated"))
        self._images = drawn[: _ROWS**2]
        real, made = (
            similarities(images, landmarks, metric.width) for images in (_part(test, drawing.part, len(test)), drawn)
        )
        return frechet_distance(real, made)

    def files(self) -> dict[str, bytes | str]:
        if self._images is None or self._images.ndim != 4 or self._images.shape[1] != 1:
            return {}
        return {"generated.pgm": _picture(self._images[:, 0])}


def _drawing(sampler: Any) -> Any:
    """The transform of the training samples that draws images."""
    source = sampler
    while source is not None:
        for transform in getattr(source, "transforms", ()):
            if hasattr(transform, "generate"):
                return transform
        source = getattr(source, "source", getattr(source, "sampler", None))
    raise UsageError(
        f"frechet_distance of a training by {type(sampler).__name__} without a transform that draws images; allowed: "
        "'add_noise' and 'draw_latent' among train_transforms"
    )


def _part(dataset: Dataset, name: str, count: int) -> np.ndarray:
    """A part of the first samples, without transforms."""
    begins = range(0, count, _CHUNK)
    return np.concatenate([dataset.batch(np.arange(begin, min(begin + _CHUNK, count)))[name] for begin in begins])


def _picture(images: np.ndarray) -> str:
    """Images side by side with a margin, as a text file of the format PGM."""
    padded = np.pad(images.clip(0, 1), ((0, -len(images) % _ROWS), (1, 0), (1, 0)))
    count, height, width = padded.shape
    sheet = padded.reshape(count // _ROWS, _ROWS, height, width).swapaxes(1, 2).reshape(-1, _ROWS * width)
    rows = [" ".join(map(str, row)) for row in np.rint(255 * sheet).astype(int)]
    return "\n".join(["P2", f"{sheet.shape[1]} {sheet.shape[0]}", "255", *rows]) + "\n"


class FrechetDistance(Metric):
    """Frechet distance between generated images and the test images after training.

    The features of an image x are its similarities exp(-|x - c|^2 / (2 width^2)) to the first training images c, of
    pixels from 0 to 1 without transforms. So the space is fixed by the data set; unlike in a linear space, a normal
    distribution with the mean and covariance of the data is far from the data. Copies of training images have a
    distance that is near that of the training images themselves: the metric does not detect memorizing.

    The images are drawn by a transform of the training samples with `generate`, such as `AddNoise` or `DrawLatent`,
    with the trained network and noise of the run's seed. The result's file `generated.pgm` has the first hundred images
    of one channel.

    Nothing is on a clock.

    Args:
        samples: Number of images to draw.
        landmarks: Number of training images c, the features.
        width: Width of the similarity.

    Raises:
        UsageError: An argument is out of its range.

    References:
        As `frechet_distance`; there the features are those of an Inception network for photographs.

    >>> import deep5 as d5
    >>> data = d5.datasets.digits(size=8, labels=False)
    >>> network = d5.networks.denoiser(image=8, width=16, layers=1, steps=10)
    >>> noise = [d5.AddNoise(10)]
    >>> train, test = (d5.OrderedSampler(part, 64, transforms=noise) for part in (data.train, data.test))
    >>> trainer = d5.Trainer(d5.framework("reference").executor(network), d5.Adam(), train, test)
    >>> observer = d5.FrechetDistance(samples=100).observer()
    >>> trainer.train(epochs=1, events=[observer])
    >>> observer.value() > 0.1  # one epoch does not suffice
    True
    """

    name = "frechet_distance"
    unit = "distance"
    direction = "lower"

    def __init__(self, samples: int = 1000, *, landmarks: int = 100, width: float = 1.0) -> None:
        for name, given in (("samples", samples), ("landmarks", landmarks)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 2:
                raise UsageError(f"frechet_distance with {name}={brief(given)}; allowed: an integer of at least 2")
        if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width < float("inf"):
            raise UsageError(f"frechet_distance with width={brief(width)}; allowed: a number above 0")
        self.samples, self.landmarks, self.width = samples, landmarks, width

    def observer(self) -> Observer:
        """Samples: the distance."""
        return _Frechet(self)
