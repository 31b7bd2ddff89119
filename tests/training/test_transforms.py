"""Transforms: their results on images, draws that depend only on (seed, epoch, sample), and their distributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

import deep5 as d5
from deep5.core.canonical import canonical_hash
from deep5.core.errors import UsageError
from deep5.core.plugins import load, registered
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.networks.philox import philox
from deep5.training.dataset import ArrayDataset
from deep5.training.transforms import fitted, kernels
from deep5.training.transforms.draws import whole_numbers

RNG = np.random.default_rng(3)
# A test of draws may fail by chance once in this many runs of it; all seeds are fixed anyway.
FALSE_ALARM = 1e-6

RANDOM: dict[str, Any] = {
    "crop": d5.RandomCrop(8, padding=2),
    "crop of floats, filled": d5.RandomCrop((6, 9), padding=3, fill=0.5),
    "flip": d5.Flip(),
    "cutout": d5.Cutout(5, fill=7),
    "area crop": d5.RandomResizedCrop(7),
    "area crop, nearest": d5.RandomResizedCrop((5, 9), method="nearest"),
}
FIXED: dict[str, Any] = {
    "center crop": d5.CenterCrop((3, 8)),
    "resize": d5.Resize((5, 13)),
    "resize, two pixels": d5.Resize((5, 13), antialias=False),
    "resize, nearest": d5.Resize((5, 13), method="nearest"),
    "normalise": d5.Normalise((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
}
TRANSFORMS = RANDOM | FIXED
# Half a byte is not a valid fill value.
CASES = [
    (name, dtype)
    for name in TRANSFORMS
    for dtype in ("uint8", "float32", "float64", "float16")
    if (name, dtype) != ("crop of floats, filled", "uint8")
]


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled kernels and without: both have to be bit-identical."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "_compiled", lambda: None)
    return str(request.param)


def images(count: int = 12, dtype: str = "uint8", height: int = 8, width: int = 10) -> np.ndarray:
    pixels = RNG.integers(0, 256, (count, 3, height, width))
    return pixels.astype(dtype) if dtype == "uint8" else (pixels / 255).astype(numpy_dtype(dtype))


def apply(transform: Any, pixels: np.ndarray, ids: Any = None, epoch: int = 0) -> np.ndarray:
    ids = np.arange(len(pixels)) if ids is None else np.asarray(ids)
    changed: np.ndarray = transform({"input": pixels}, ids, epoch)["input"]
    return changed


# Draws


def test_the_words_are_philox() -> None:
    """The known answers of Random123 for Philox4x32-10, where the last word of the counter is 0."""
    for source in (kernels._compiled, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "_compiled", source)
            found = kernels.words(np.zeros(1, np.int64), block=0, key=0)
            assert [hex(word) for word in found[:, 0].tolist()] == [
                "0x6627e8d5",
                "0xe169c58d",
                "0xbc57ac4c",
                "0x9b00dbd8",
            ]
    # The tests of dropout masks compare the full counter with the known answers.
    ids, key = np.arange(50), 0x299F31D0A4093822
    np.testing.assert_array_equal(kernels.words(ids, block=9, key=key), philox(ids, high=9, key=key))


def test_words_of_any_identity(way: str) -> None:
    ids = np.array([-1, 2**40, 0, 2**62, 5, -(2**63)])
    together = kernels.words(ids, block=2**32 - 1, key=2**63 - 1)
    assert together.dtype == np.uint32
    apart = [kernels.words(ids[at : at + 1], block=2**32 - 1, key=2**63 - 1)[:, 0] for at in range(6)]
    np.testing.assert_array_equal(together.T, apart)
    assert len(set(together.ravel().tolist())) == 24
    assert (
        kernels.words(ids[::2], block=0, key=1).T.tolist() == kernels.words(ids[::2].copy(), block=0, key=1).T.tolist()
    )


def test_whole_numbers_reach_both_ends() -> None:
    words = np.array([0, 2**32 - 1], np.uint32)
    assert whole_numbers(words, 9).tolist() == [0, 8]
    assert whole_numbers(words, np.array([1, 1000])).tolist() == [0, 999]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_both_ways_give_the_same_bits(name: str, dtype: str) -> None:
    pixels = images(9, dtype)
    compiled = apply(TRANSFORMS[name], pixels, epoch=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_compiled", lambda: None)
        plain = apply(TRANSFORMS[name], pixels, epoch=3)
    assert compiled.dtype == plain.dtype
    np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_sample_comes_out_the_same_in_any_batch(name: str, way: str) -> None:
    transform, pixels = TRANSFORMS[name], images(12, "float32")
    before, ids = pixels.copy(), np.arange(100, 112)
    whole = apply(transform, pixels, ids, 5)
    order = RNG.permutation(12)
    np.testing.assert_array_equal(apply(transform, pixels[order], ids[order], 5), whole[order])
    for at in range(12):
        np.testing.assert_array_equal(apply(transform, pixels[at : at + 1], ids[at : at + 1], 5)[0], whole[at])
    # Arrays that are not contiguous, and other epochs in between.
    apply(transform, pixels, ids, 6)
    strided = np.asfortranarray(pixels)
    np.testing.assert_array_equal(apply(transform, strided, ids, 5), whole)
    reversed_ = pixels[:, :, :, ::-1]
    np.testing.assert_array_equal(apply(transform, reversed_, ids, 5), apply(transform, reversed_.copy(), ids, 5))
    np.testing.assert_array_equal(pixels, before)
    assert not np.shares_memory(whole, pixels)
    assert whole.flags.c_contiguous


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_specs_say_what_comes_out(name: str, dtype: str) -> None:
    pixels = images(4, dtype)
    other = TensorSpec(shape=(), dtype="int64")
    said = TRANSFORMS[name].specs({"input": TensorSpec(shape=pixels.shape[1:], dtype=dtype), "label": other})
    made = apply(TRANSFORMS[name], pixels)
    assert said == {"input": TensorSpec(shape=made.shape[1:], dtype=str(made.dtype)), "label": other}
    empty = apply(TRANSFORMS[name], pixels[:0], ids=np.empty(0, np.int64))
    assert empty.shape == (0, *made.shape[1:])


@pytest.mark.parametrize("name", RANDOM)
def test_draws_follow_seed_epoch_and_sample(name: str) -> None:
    transform = RANDOM[name]
    pixels = np.repeat(images(1, "float32"), 60, axis=0)
    one, other = transform.seeded(1), transform.seeded(2)
    assert one.seeded(9) is one  # it already has a seed
    made = [apply(made_by, pixels, None, epoch) for made_by, epoch in ((one, 0), (one, 1), (other, 0), (one, 0))]
    np.testing.assert_array_equal(made[0], made[3])
    for first, second in ((0, 1), (0, 2), (1, 2)):
        same = (made[first] == made[second]).reshape(60, -1).all(axis=1).mean()
        assert same < 0.9  # flips agree half of the time: 30 of 60, standard deviation 4
    assert len({image.tobytes() for image in made[0]}) > 1


def test_a_sampler_seeds_its_transforms_apart() -> None:
    data = ArrayDataset({"input": images(40)})
    twice = [d5.Flip(), d5.Flip()]
    sampler = d5.OrderedSampler(data, 40, seed=4, transforms=twice)
    assert [transform.seed for transform in twice] == [None, None]  # the caller's objects are unchanged
    seeds = [transform.seed for transform in sampler.transforms]  # type: ignore[attr-defined]
    assert len({*seeds, None}) == 3
    again = d5.ShuffleSampler(data, 7, seed=4, transforms=twice)
    assert [transform.seed for transform in again.transforms] == seeds  # type: ignore[attr-defined]
    # So a sample is the same in any order and batch size.
    [(_, whole)] = sampler.batches(2)
    for ids, inputs in again.batches(2):
        np.testing.assert_array_equal(inputs["input"], whole["input"][ids])


# The effect of each


def test_crops_are_windows_of_the_filled_image(way: str) -> None:
    pixels = images(400)
    made = apply(d5.RandomCrop((8, 7), padding=2, fill=9), pixels)
    filled = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)), constant_values=9)
    places = np.zeros((5, 8))
    for image, out in zip(filled, made, strict=True):
        found = [
            (top, left)
            for top in range(5)
            for left in range(8)
            if (image[:, top : top + 8, left : left + 7] == out).all()
        ]
        assert len(found) == 1
        places[found[0]] += 1
    assert (places.sum(axis=0) > 0).all()
    assert (places.sum(axis=1) > 0).all()


def test_every_place_is_as_likely() -> None:
    # Two pixels show where an image of 9 x 9 was cropped.
    count = 81_000
    rows = np.broadcast_to(np.arange(9, dtype=np.uint8)[:, None], (9, 9))
    pixels = np.broadcast_to(np.stack([rows, rows.T]), (count, 2, 9, 9))
    places = apply(d5.RandomCrop(1), pixels)[:, :, 0, 0].astype(int)
    counts = np.bincount(places[:, 0] * 9 + places[:, 1], minlength=81)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    # Neighbors are independent, of each other and of the next epoch.
    for one, other in ((places[:-1, 0], places[1:, 0]), (places[:, 0], places[:, 1])):
        assert stats.chi2_contingency(np.histogram2d(one, other, bins=9)[0]).pvalue > FALSE_ALARM
    later = apply(d5.RandomCrop(1), pixels, epoch=1)[:, 0, 0, 0].astype(int)
    assert stats.chi2_contingency(np.histogram2d(places[:, 0], later, bins=9)[0]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flips(p: float, way: str) -> None:
    pixels = images(3000, height=2, width=5)
    made = apply(d5.Flip(p), pixels)
    flipped = (made == pixels[..., ::-1]).reshape(3000, -1).all(axis=1)
    np.testing.assert_array_equal(made[~flipped], pixels[~flipped])
    assert stats.binomtest(int(flipped.sum()), 3000, p).pvalue > FALSE_ALARM


def test_cutout_blots_a_square_out(way: str) -> None:
    pixels = np.ones((4000, 2, 8, 10), np.float32)
    made = apply(d5.Cutout(4, fill=-2), pixels)
    np.testing.assert_array_equal(made[:, 0], made[:, 1])
    gone = made[:, 0] == -2
    assert set(np.unique(made)) == {1.0, -2.0}
    # Rows first: each image's hidden rows are one run, at most 4 long, shorter only at the border; so are the columns.
    for axis, extent in ((2, 8), (1, 10)):
        hidden = gone.any(axis=axis)
        first, length = hidden.argmax(axis=1), hidden.sum(axis=1)
        np.testing.assert_array_equal(
            hidden, (np.arange(extent) >= first[:, None]) & (np.arange(extent) < (first + length)[:, None])
        )
        centre = np.where(first > 0, first + 2, length - 2)
        assert stats.chisquare(np.bincount(centre, minlength=extent)).pvalue > FALSE_ALARM
        np.testing.assert_array_equal(length, np.minimum(centre + 2, extent) - np.maximum(centre - 2, 0))
    np.testing.assert_array_equal(gone, gone.any(axis=2)[:, :, None] & gone.any(axis=1)[:, None, :])


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float64"])
def test_normalised(dtype: str, way: str) -> None:
    pixels, mean, std = images(5, dtype), np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
    made = apply(d5.Normalise(mean.tolist(), std.tolist()), pixels)
    exact = (pixels.astype(np.float64) / (255 if dtype == "uint8" else 1) - mean[:, None, None]) / std[:, None, None]
    assert made.dtype == (np.float64 if dtype == "float64" else np.float32)
    # Two rounded factors, a product and a sum, of values up to 5: four roundings of half a unit of the last place of 5.
    np.testing.assert_allclose(made, exact, rtol=0, atol=4 * 5 * np.finfo(made.dtype).eps)
    one = apply(d5.Normalise(0.5, 0.25), pixels)
    np.testing.assert_array_equal(one, apply(d5.Normalise([0.5] * 3, [0.25] * 3), pixels))


def test_center_crop() -> None:
    pixels = images(2, height=8, width=9)
    np.testing.assert_array_equal(apply(d5.CenterCrop((4, 4)), pixels), pixels[:, :, 2:6, 2:6])
    np.testing.assert_array_equal(apply(d5.CenterCrop((8, 9)), pixels), pixels)


SIZES = [(5, 13), (16, 20), (8, 10), (1, 1), (3, 31), (7, 10)]


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_resized_as_pytorch_does(size: tuple[int, int], antialias: bool, way: str) -> None:
    torch = pytest.importorskip("torch")
    pixels = images(3, "float64")
    theirs = torch.nn.functional.interpolate(torch.from_numpy(pixels), size, mode="bilinear", antialias=antialias)
    made = apply(d5.Resize(size, antialias=antialias), pixels)
    # PyTorch's sums of at most about ten terms up to 1, in another order.
    np.testing.assert_allclose(made, theirs.numpy(), rtol=0, atol=1e-14)
    single = apply(d5.Resize(size, antialias=antialias), pixels.astype(np.float32))
    np.testing.assert_allclose(single, made, rtol=0, atol=1e-6)
    nearest = torch.nn.functional.interpolate(torch.from_numpy(pixels), size, mode="nearest-exact")
    np.testing.assert_array_equal(apply(d5.Resize(size, method="nearest"), pixels), nearest.numpy())


@pytest.mark.parametrize("size", SIZES)
def test_resized_bytes_are_pillows(size: tuple[int, int], way: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    pixels = images(4)
    made = apply(d5.Resize(size), pixels)
    for ours, image in zip(made, pixels, strict=True):
        picture = image_module.fromarray(image.transpose(1, 2, 0))
        theirs = np.asarray(picture.resize(size[::-1], image_module.Resampling.BILINEAR)).transpose(2, 0, 1)
        # Pillow rounds after the columns and again after the rows; here the sums are rounded once.
        assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_the_shorter_side() -> None:
    spec = {"input": TensorSpec(shape=(3, 30, 40), dtype="uint8")}
    assert d5.Resize(15).specs(spec)["input"].shape == (3, 15, 20)
    assert d5.Resize(7).specs({"input": TensorSpec(shape=(3, 40, 30), dtype="uint8")})["input"].shape == (3, 9, 7)


def test_area_crops_have_the_stated_areas_and_shapes() -> None:
    crop = d5.RandomResizedCrop(8)
    windows = crop.windows(np.arange(20_000), 0, 200, 300)
    top, left, height, width = windows.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 200).all()
    assert (left + width <= 300).all()
    ratio, share = width / height, height * width / 60_000
    # Sizes are rounded to whole pixels, of at least about 60.
    assert ratio.min() > 0.75 - 0.02
    assert ratio.max() < 4 / 3 + 0.02
    assert 0.08 - 0.005 < share.min() < 0.1
    # Where every window fits, area and ratio are distributed as stated.
    small = d5.RandomResizedCrop(8, scale=(0.1, 0.3)).windows(np.arange(5000), 0, 2000, 2000)
    assert stats.kstest(small[:, 2] * small[:, 3] / 4e6, stats.uniform(0.1, 0.2).cdf).pvalue > FALSE_ALARM
    spread = np.log(16 / 9)
    assert stats.kstest(np.log(small[:, 3] / small[:, 2]), stats.uniform(np.log(0.75), spread).cdf).pvalue > FALSE_ALARM
    place = small[:, 0] / (2000 - small[:, 2])
    assert stats.kstest(place, stats.uniform().cdf).pvalue > FALSE_ALARM
    # If no window fits, it is the largest one in the middle with a ratio within the bounds.
    assert (
        d5.RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).windows(np.arange(2), 0, 20, 30).tolist()
        == [[0, 5, 20, 20]] * 2
    )
    assert d5.RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).windows(np.arange(1), 0, 30, 20).tolist() == [
        [5, 0, 20, 20]
    ]


def test_an_area_crop_is_a_crop_and_a_resize() -> None:
    crop, pixels = d5.RandomResizedCrop(6), images(5)
    made = apply(crop, pixels)
    for at, (top, left, height, width) in enumerate(crop.windows(np.arange(5), 0, 8, 10).tolist()):
        window = pixels[at : at + 1, :, top : top + height, left : left + width]
        np.testing.assert_array_equal(made[at], apply(d5.Resize((6, 6)), window)[0])


# For a given network


def network_inputs(dtype: str = "float32", size: int = 8) -> dict[str, TensorSpec]:
    return {
        "input": TensorSpec(shape=("N", 3, size, size), dtype=dtype),
        "label": TensorSpec(shape=("N",), dtype="int64"),
    }


def data(count: int = 6) -> ArrayDataset:
    return ArrayDataset({"input": images(count, height=8, width=8), "label": np.arange(count)})


def test_samples_are_fitted_to_a_network() -> None:
    same = data()
    pipeline = [d5.RandomCrop(8, padding=1), d5.Normalise(0.5, 0.5)]
    assert fitted(same, pipeline, network_inputs()) == (same, tuple(pipeline))
    _, made = fitted(same, pipeline, network_inputs("float64"))
    assert made[:2] == tuple(pipeline)
    [(_, inputs)] = d5.OrderedSampler(same, 6, transforms=made).batches(0)
    assert (inputs["input"].dtype, inputs["label"].dtype) == (np.float64, np.int64)
    floats = ArrayDataset({"input": images(6, "float64", 8, 8), "label": np.arange(6)})
    cast, none = fitted(floats, [], network_inputs())
    assert (cast.specs["input"].dtype, none) == ("float32", ())


def halved(inputs: dict[str, Any], ids: Any, epoch: int) -> dict[str, Any]:
    return {**inputs, "input": inputs["input"].astype(np.float32) / 2}


def test_a_function_without_specs_is_tried() -> None:
    _, made = fitted(data(), [d5.CenterCrop(4), halved], network_inputs(size=4))
    assert made == (d5.CenterCrop(4), halved)

    class Stream(d5.StreamDataset):
        specs = {"input": TensorSpec(shape=(2,), dtype="uint8")}  # noqa: RUF012

        def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
            yield {"input": np.ones(2, np.uint8)}

        def cast(self, specs: Any) -> Any:
            return self

    wanted = {"input": TensorSpec(shape=("N", 2))}
    assert fitted(Stream(), [halved], wanted)[1] == (halved,)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([d5.Flip()], r"after Flip: samples 'input' are uint8 but the network takes float32"),
        (
            [d5.CenterCrop(5), halved],
            r"after CenterCrop, halved: samples 'input' are float32\[3, 5, 5\] but the network",
        ),
        (
            [d5.Flip(part="image")],
            r"Flip: the samples have no part 'image'; allowed: input, label; remedy: Flip\(…, part='in",
        ),
        ([d5.Flip(part="label")], r"Flip: samples are int64\[\]; allowed: images, \(channels, height, width\)"),
        (
            [lambda inputs, ids, epoch: inputs["nothing"]],
            r"the transform <lambda> raised KeyError on the first sample: 'no",
        ),
        (
            [lambda inputs, ids, epoch: None],
            r"the transform <lambda> made None of a batch of one sample; allowed: a dict",
        ),
        (d5.Flip(), r"got Flip\(.*\) as transforms; allowed: a list of transforms"),
        ([d5.RandomCrop(9)], r"RandomCrop: got size=\(9, 9\) for images of 8 x 8 pixels; allowed: at most 8 x 8"),
        ([d5.RandomCrop(13, padding=2)], r"of 8 x 8 pixels with a margin of 2; allowed: at most 12 x 12"),
        ([d5.RandomCrop(8, fill=256)], r"RandomCrop: got fill=256; allowed: a number that uint8 holds"),
        ([d5.RandomCrop(8, fill=0.5)], r"RandomCrop: got fill=0.5; allowed: a number that uint8 holds"),
        ([d5.RandomCrop(8, fill=10**400)], r"RandomCrop: got fill=10+; allowed: a number that uint8 holds"),
        ([d5.Cutout(2, fill=-1)], r"Cutout: got fill=-1; allowed: a number that uint8 holds"),
        ([d5.Cutout(2, fill=0.5)], r"Cutout: got fill=0.5; allowed: a number that uint8 holds"),
        ([d5.Cutout(2, fill=float("nan"))], r"Cutout: got fill=nan; allowed: a number that uint8 holds"),
        ([d5.CenterCrop(9)], r"CenterCrop: got size=\(9, 9\) for images of 8 x 8"),
        (
            [d5.Normalise((1, 2), 1)],
            r"Normalise: samples are uint8\[3, 8, 8\], and there are 2 means or deviations; allowed",
        ),
        ([d5.Normalise(0, 1, part="label")], r"Normalise: samples are int64\[\]; allowed: uint8 or floating values"),
        ([d5.Cast("float64")], r"Cast: samples 'input' are uint8\[3, 8, 8\]; allowed: floating values"),
    ],
)
def test_what_does_not_fit(transforms: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fitted(data(), transforms, network_inputs())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: d5.RandomCrop(0), r"RandomCrop: got size=0; allowed: an integer of at least 1, or two"),
        (lambda: d5.RandomCrop((3, 4, 5)), r"RandomCrop: got size=\(3, 4, 5\); allowed"),
        (lambda: d5.RandomCrop(3, padding=-1), r"RandomCrop: got padding=-1; allowed: an integer of at least 0"),
        (lambda: d5.CenterCrop(2.5), r"CenterCrop: got size=2.5; allowed"),
        (lambda: d5.Flip(1.5), r"Flip: got p=1.5; allowed: a number from 0 to 1"),
        (lambda: d5.Flip(float("nan")), r"Flip: got p=nan; allowed: a number from 0 to 1"),
        (lambda: d5.Cutout(0), r"Cutout: got size=0; allowed: an integer of at least 1"),
        (lambda: d5.Cutout(2, fill="x"), r"Cutout: got fill='x'; allowed: a number"),
        (lambda: d5.Normalise("x", 1), r"Normalise: got mean='x'; allowed: a finite number, or one for each channel"),
        (lambda: d5.Normalise(0, (1, 0)), r"Normalise: got std=\(1, 0\); allowed: numbers above 0"),
        (lambda: d5.Normalise((1, 2), (1, 2, 3)), r"Normalise: got 2 means and 3 deviations; allowed: equal numbers"),
        (lambda: d5.Normalise(np.inf, 1), r"Normalise: got mean=inf; allowed: a finite number"),
        (lambda: d5.Cast("int64"), r"Cast: got 'int64'; allowed: float16, bfloat16, float32, float64"),
        (lambda: d5.Resize(4, method="cubic"), r"Resize: got method='cubic'; allowed: bilinear, nearest"),
        (lambda: d5.Resize(True), r"Resize: got size=True; allowed"),
        (
            lambda: d5.RandomResizedCrop(4, scale=(0.5, 2)),
            r"got scale=\(0.5, 2\); allowed: two numbers above 0 and at most 1",
        ),
        (
            lambda: d5.RandomResizedCrop(4, ratio=(2, 1)),
            r"got ratio=\(2, 1\); allowed: two numbers above 0, the smaller one",
        ),
    ],
)
def test_bad_transforms(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()


def test_draws_need_identities() -> None:
    with pytest.raises(
        UsageError, match=r"Flip: got samples without identities, by which it draws; allowed: batches of"
    ):
        d5.Flip()({"input": images(2)}, None, 0)


def test_a_batch_of_another_kind_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"RandomCrop: got size=\(8, 8\) for images of 4 x 4 pixels; allowed: at most 4 x 4"
    ):
        apply(d5.RandomCrop(8), images(2, height=4, width=4))


# In a recipe


def test_registered_transforms_describe_how_to_make_them_again() -> None:
    targets = [d5.MatchAnchors(3, (0.1, 0.3, 0.6)), d5.DrawCenters(3), d5.AddNoise(7), d5.DrawLatent(5)]
    made = {type(transform).__name__ for transform in [*TRANSFORMS.values(), *targets, d5.Cast("float32")]}
    assert {load("transforms", name).__name__ for name in registered("transforms")} == made
    for transform in [*TRANSFORMS.values(), *targets]:
        described = dict(transform.describe())
        again = load("transforms", described.pop("transform"))(**described)
        assert again == transform
        assert canonical_hash(again) == canonical_hash(transform)
    assert canonical_hash(d5.Flip()) != canonical_hash(d5.Flip(0.4))
    assert canonical_hash(d5.Flip()) != canonical_hash(d5.Flip(seed=3))


def test_transforms_are_values() -> None:
    transform = d5.Normalise([0.1, 0.2], [0.3, 0.4])
    assert hash(transform) == hash(d5.Normalise((0.1, 0.2), (0.3, 0.4)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.mean = 3  # type: ignore[misc]


def test_the_augmentation_of_cifar_leaves_its_input_as_it_is() -> None:
    pixels, ids = RNG.integers(0, 256, (128, 3, 32, 32), np.uint8), np.arange(128)
    kept = pixels.copy()
    batch: Any = {"input": pixels}
    for transform in (d5.RandomCrop(32, padding=4), d5.Flip(), d5.Normalise((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))):
        batch = transform(batch, ids, 0)
    assert batch["input"].dtype == np.float32
    assert np.array_equal(pixels, kept)
