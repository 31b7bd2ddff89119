"""The Frechet distance: of normal distributions with a known one, by two other formulas, and of generated images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError, UsageError
from deep5.metrics.frechet import frechet_distance, similarities

DIGITS = d5.datasets.digits(size=8, labels=False)


def sets(samples: int = 300, features: int = 12) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    first, second = (
        draw.standard_normal((samples, features)) @ draw.standard_normal((features, features)) for _ in "ab"
    )
    return first, second + draw.standard_normal(features)


def whitened(samples: np.ndarray) -> np.ndarray:
    """With mean 0 and covariance 1 exactly, except for rounding."""
    centered = samples - samples.mean(axis=0)
    root = np.linalg.cholesky(np.cov(centered, rowvar=False))
    return np.linalg.solve(root, centered.T).T


def test_exact_distances_of_normal_distributions() -> None:
    base = whitened(sets()[0])
    shift = np.arange(12.0)
    # Equal covariances: the square of the distance of the means.
    assert frechet_distance(base, base + shift) == pytest.approx(shift @ shift, rel=1e-12)
    # Covariances that commute: the sum of the squared differences of the standard deviations.
    one, other = np.linspace(0.5, 3, 12), np.linspace(2, 0.1, 12)
    assert frechet_distance(base * one, base * other) == pytest.approx(np.square(one - other).sum(), rel=1e-12)
    assert frechet_distance(base, base) == pytest.approx(0, abs=1e-12)


def test_the_formula_with_a_matrix_square_root() -> None:
    from scipy.linalg import sqrtm

    first, second = sets()
    c, d = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    difference = first.mean(axis=0) - second.mean(axis=0)
    wanted = difference @ difference + np.trace(c + d - 2 * sqrtm(c @ d).real)
    # The root of a product that is not symmetric loses half of the digits where eigenvalues are small.
    assert frechet_distance(first, second) == pytest.approx(wanted, rel=1e-9)
    assert frechet_distance(first, second) == pytest.approx(frechet_distance(second, first), rel=1e-12)


def test_torchmetrics_finds_the_same() -> None:
    torch = pytest.importorskip("torch")
    image = pytest.importorskip("torchmetrics.image.fid")
    first, second = sets()
    given = [torch.tensor(part) for features in (first, second) for part in (features.mean(axis=0), np.cov(features.T))]
    assert frechet_distance(first, second) == pytest.approx(float(image._compute_fid(*given)), rel=1e-9)


def test_fewer_samples_than_features() -> None:
    """The covariance has no inverse, and no root of the product by a general algorithm that is sure to converge."""
    first, second = sets(samples=6)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((12, 12)))[0]
    found = frechet_distance(first, second)
    assert found > 0
    assert frechet_distance(first @ rotation, second @ rotation) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second"), [((1, 3), (5, 3)), ((5, 3), (5, 4)), ((5,), (5,)), ((5, 3), (0, 3))], ids=str
)
def test_features_that_are_refused(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="frechet_distance got features of shape"):
        frechet_distance(np.zeros(first), np.zeros(second))


def test_the_baselines_in_the_recipes() -> None:
    """A fitted normal distribution does not reach the goal, and the training images do."""
    from deep5.recipe.recipe import load_recipe

    train, test = (
        part.batch(np.arange(len(part)))["input"].reshape(len(part), -1) for part in (DIGITS.train, DIGITS.test)
    )
    draw = d5.generator(0, "baseline")
    fitted = draw.multivariate_normal(train.mean(axis=0), np.cov(train.T.astype(np.float64)), 1000)
    real = similarities(test, train[:100], 1.0)
    found = [
        frechet_distance(real, similarities(images, train[:100], 1.0))
        for images in (draw.random((1000, 64)), fitted, fitted.clip(0, 1), train[100:])
    ]
    # Another draw changes the second and the third by about 0.001.
    assert found == pytest.approx([0.412, 0.116, 0.086, 0.0132], abs=0.003)
    for name in ("generation_diffusion", "generation_gan"):
        ((metric, goal), *_) = load_recipe(name).metrics
        assert metric == d5.FrechetDistance(samples=1000)
        assert goal.bound <= 0.7 * found[2]


class Copies:
    """Draws the first test images, and says what it was called with."""

    part = "input"

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, inputs: Any, ids: Any, epoch: int) -> Any:
        return {**inputs, "noise": inputs["input"], "time": np.zeros(len(inputs["input"]), np.int64)}

    def generate(self, executor: Any, count: int, seed: int) -> np.ndarray:
        self.calls.append((count, seed))
        return DIGITS.test.batch(np.arange(count))["input"].astype(np.float64)


def trained(transforms: list[Any], metric: d5.FrechetDistance, test: bool = True, events: Any = ()) -> Any:
    network = d5.networks.denoiser(image=8, width=4, layers=1, steps=10)
    train = d5.ShuffleSampler(DIGITS.train, 512, transforms=transforms)
    ordered = d5.OrderedSampler(DIGITS.test, 359, transforms=transforms) if test else None
    trainer = d5.Trainer(d5.framework("reference").executor(network), d5.Adam(), train, ordered)
    observer = metric.observer()
    trainer.train(1, [observer, *events])
    return observer


def test_the_test_images_themselves_are_at_no_distance() -> None:
    copies = Copies()
    observer = trained([copies], d5.FrechetDistance(samples=359))
    assert observer.value() == pytest.approx(0, abs=1e-9)
    ((count, _),) = copies.calls
    assert count == 359
    ((name, text),) = observer.files().items()
    lines = text.splitlines()
    assert (name, lines[:3]) == ("generated.pgm", ["P2", "90 90", "255"])
    pixels = np.array([line.split() for line in lines[3:]], dtype=int)
    image = np.rint(255 * DIGITS.test.batch(np.array([12]))["input"][0, 0]).astype(int)
    np.testing.assert_array_equal(pixels[10:18, 19:27], image)  # the thirteenth: second row, third column


def test_prefetched_batches_draw_too() -> None:
    network = d5.networks.denoiser(image=8, width=4, layers=1, steps=5)
    train, test = (d5.OrderedSampler(part, 128, transforms=[d5.AddNoise(5)]) for part in (DIGITS.train, DIGITS.test))
    values = []
    for source in (train, d5.Prefetched(train, depth=2)):
        observer = d5.FrechetDistance(samples=50).observer()
        trainer = d5.Trainer(d5.framework("reference").executor(network), d5.Adam(), source, test)
        trainer.train(1, [observer])
        values.append(observer.value())
    assert values[0] == values[1] > 0


def test_no_value_without_a_test_set_or_an_end() -> None:
    observer = trained([Copies()], d5.FrechetDistance(samples=50), test=False)
    assert (observer.value(), observer.missing(), observer.files()) == (None, "there is no test set", {})


def test_what_is_refused() -> None:
    for options, message in (
        ({"samples": 1}, "samples=1; allowed: an integer of at least 2"),
        ({"landmarks": True}, "landmarks=True"),
        ({"width": 0}, "width=0; allowed: a number above 0"),
    ):
        with pytest.raises(UsageError, match=message):
            d5.FrechetDistance(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="without a transform that draws images; allowed: 'add_noise'"):
        trained([Copies().__call__], d5.FrechetDistance())
    with pytest.raises(UsageError, match="landmarks=2000; allowed: at most 1438"):
        trained([Copies()], d5.FrechetDistance(landmarks=2000))
