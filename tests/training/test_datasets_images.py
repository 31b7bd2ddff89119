"""Image files: every format decodes to the same kind of array; folders and lists of them, ImageNet's layouts."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deep5 as d5
from deep5.core.errors import MissingDependency, UsageError
from deep5.training.dataset import StreamDataset
from deep5.training.datasets.class_folders import class_tree
from deep5.training.datasets.folders import IMAGE_SUFFIXES, image_folder
from deep5.training.datasets.generated_files import synthetic_files
from deep5.training.datasets.ilsvrc import imagenet
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.lists import file_list
from deep5.training.downloads import download_folder

RNG = np.random.default_rng(9)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEP5_DATA", raising=False)


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def colours(height: int = 6, width: int = 6) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


# Decoding


def test_rgb_is_read_as_it_is() -> None:
    pixels = colours()
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        ours = Decoder(size=6).decode(encoded(Image.fromarray(pixels), kind), "x")
        np.testing.assert_array_equal(ours, pixels.transpose(2, 0, 1))
        assert ours.flags.c_contiguous


def test_every_mode_becomes_rgb() -> None:
    pixels, grey = colours(), RNG.integers(0, 256, (6, 6), dtype=np.uint8)
    decoder = Decoder(size=6)
    np.testing.assert_array_equal(decoder.decode(encoded(Image.fromarray(grey)), "grey"), np.stack([grey] * 3))
    wide = grey.astype(np.uint16) * 256 + 77
    np.testing.assert_array_equal(decoder.decode(encoded(Image.fromarray(wide)), "16 bits"), np.stack([grey] * 3))
    bits = Image.fromarray(grey).convert("1")
    np.testing.assert_array_equal(decoder.decode(encoded(bits), "1 bit")[0], np.asarray(bits) * np.uint8(255))
    palette = Image.fromarray(pixels).quantize(16)
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(decoder.decode(encoded(palette), "palette"), expected)
    np.testing.assert_array_equal(decoder.decode(encoded(palette, "GIF"), "gif"), expected)
    # CMYK without black: red is white minus cyan.
    cmyk = np.dstack([255 - pixels, np.zeros((6, 6), np.uint8)])
    np.testing.assert_array_equal(
        decoder.decode(encoded(Image.fromarray(cmyk, mode="CMYK"), "TIFF"), "cmyk"), pixels.transpose(2, 0, 1)
    )
    flat = np.full((16, 16, 4), (0, 255, 255, 0), np.uint8)
    red = Decoder(size=16).decode(encoded(Image.fromarray(flat, mode="CMYK"), "JPEG", quality=95), "cmyk jpeg")
    # JPEG of one flat color: within 3 of 256.
    assert np.abs(red.mean((1, 2)) - [255, 0, 0]).max() < 3


@pytest.mark.parametrize("largest", [65535, 4095, 1000, 256])
@pytest.mark.parametrize("plain", [False, True])
def test_wide_grey_of_pgm_files(largest: int, plain: bool) -> None:
    """For 65535 the high byte; for a smaller maximum, the value is first scaled to 65535."""
    values = RNG.integers(0, largest + 1, (6, 6))
    values[0, :2] = 0, largest
    if plain:
        data = f"P2\n6 6\n{largest}\n{' '.join(map(str, values.ravel().tolist()))}\n".encode()
    else:
        data = f"P5\n6 6\n{largest}\n".encode() + values.astype(">u2").tobytes()
    expected = np.round(values / largest * 65535).astype(int) >> 8
    for turn in (True, False):
        ours = Decoder(size=6, channels=1, turn=turn).decode(data, "x.pgm")
        np.testing.assert_array_equal(ours[0], expected)
    if largest == 65535:
        np.testing.assert_array_equal(ours[0], values >> 8)
    assert ours[0, 0, :2].tolist() == [0, 255]


def test_what_is_transparent_stands_on_white() -> None:
    see_through = np.dstack([colours(), np.zeros((6, 6), np.uint8)])
    see_through[0, 0, 3] = 255
    ours = Decoder(size=6).decode(encoded(Image.fromarray(see_through)), "x")
    np.testing.assert_array_equal(ours[:, 0, 0], see_through[0, 0, :3])
    assert (ours.reshape(3, -1)[:, 1:] == 255).all()
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    ours = Decoder(size=2).decode(encoded(palette, transparency=b"\x00\xff"), "palette")
    assert ours[:, 0].T.tolist() == [[255, 255, 255], [200, 100, 50]]


def test_grey_on_request() -> None:
    pixels = colours()
    ours = Decoder(size=6, channels=1).decode(encoded(Image.fromarray(pixels)), "x")
    assert ours.shape == (1, 6, 6)
    # ITU-R 601-2 luma, rounded.
    assert np.abs(ours[0] - pixels @ [0.299, 0.587, 0.114]).max() <= 1


def test_orientation_is_followed_or_not() -> None:
    pixels = colours()
    exif = Image.Exif()
    exif[0x0112] = 6  # the right side was up: rotate by 90 degrees
    data = encoded(Image.fromarray(pixels), "PNG", exif=exif)
    np.testing.assert_array_equal(Decoder(size=6).decode(data, "x"), np.rot90(pixels, -1).transpose(2, 0, 1))
    np.testing.assert_array_equal(Decoder(size=6, turn=False).decode(data, "x"), pixels.transpose(2, 0, 1))


def test_sizes() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (60, 120, 3))
    data = encoded(Image.fromarray(np.ascontiguousarray(ramp)))
    stretched = Decoder(size=30).decode(data, "x").astype(float)
    assert stretched.shape == (3, 30, 30)
    # Every fourth step of the ramp: the mean of about eight neighbors, except at the edges.
    np.testing.assert_allclose(stretched[0, 5, 3:-3], np.arange(30)[3:-3] * 8 + 3, atol=1)
    cropped = Decoder(size=30, fit="crop").decode(data, "x").astype(float)
    np.testing.assert_allclose(cropped[0, 5], 60 + np.arange(30) * 4 + 1, atol=1)  # the middle of 60 columns
    # 28 of 32: the shorter side to 32, the middle 28.
    eighth = Decoder(size=28, fit="crop", share=0.875).decode(encoded(Image.fromarray(ramp[:32, :32].copy())), "x")
    np.testing.assert_array_equal(eighth, ramp[2:30, 2:30].transpose(2, 0, 1))
    # A photograph: the result of scaling the whole image and cropping the middle, within the rounding of a byte.
    photo = Image.fromarray(colours(75, 101))
    whole = np.asarray(photo.resize((round(101 * 32 / 75), 32), Image.Resampling.BILINEAR)).astype(int)
    ours = Decoder(size=28, fit="crop", share=0.875).decode(encoded(photo), "x")
    assert np.abs(ours.transpose(1, 2, 0) - whole[2:30, 7:35]).max() <= 1
    long = Decoder(size=28, fit="crop").decode(encoded(Image.new("RGB", (100_000, 1), (9, 8, 7))), "x")
    assert (long == np.array([9, 8, 7], np.uint8)[:, None, None]).all()
    enlarged = Decoder(size=8).decode(encoded(Image.new("RGB", (2, 3), (9, 8, 7))), "x")
    assert (enlarged == np.array([9, 8, 7], np.uint8)[:, None, None]).all()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is none of JPEG, PNG"),
        (b"not an image at all", "it is none of JPEG, PNG"),
        (encoded(Image.fromarray(colours(40, 40)), "JPEG")[:-200], "image file is truncated"),
        (encoded(Image.fromarray(colours(40, 40)))[:200], "."),
        (encoded(Image.fromarray(colours(40, 40)))[:60] + bytes(600), "."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "it is none of JPEG, PNG"),
    ],
)
def test_an_image_that_does_not_decode_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(
        UsageError, match=rf"the image a/b\.png does not decode \(.*{reason}.*\); remedy: get the file again"
    ):
        Decoder(size=8).decode(data, "a/b.png")


def test_images_without_a_range_and_images_made_to_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (
        encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
        encoded(Image.fromarray(np.ones((4, 4), np.int32)), "TIFF"),
        b"Pf\n2 2\n-1.0\n" + np.ones(4, "<f4").tobytes(),
    ):
        with pytest.raises(UsageError, match=r"the image x\.tiff holds 32-bit numbers, whose range is unknown"):
            Decoder(size=8).decode(data, "x.tiff")
    from deep5.training.datasets import images as module

    monkeypatch.setattr(module, "_MOST_PIXELS", 99)
    with pytest.raises(UsageError, match=r"the image x has 10 x 10 pixels; allowed: at most 99"):
        Decoder(size=8).decode(encoded(Image.fromarray(colours(10, 10))), "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "images of size 0; allowed: an integer from 1"),
        ({"size": 2.5}, "images of size 2.5"),
        ({"size": 8, "channels": 4}, r"images of 4 channels; allowed: 3 \(RGB\) or 1 \(gray\)"),
        ({"size": 8, "fit": "pad"}, "images with fit 'pad'; allowed: 'crop', 'stretch'"),
        ({"size": 8, "share": 0}, "images with share 0; allowed: a number above 0, at most 1"),
    ],
)
def test_bad_arguments_of_a_decoder(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Decoder(**options)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match=r"needs the package 'PIL'.*remedy: pip install 'deep5\[data\]'"):
        Decoder(size=8)


# Folders


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, count in (("zebra", 4), ("ant", 5), ("Bee", 3)):
        (root / name / "more").mkdir(parents=True)
        for number in range(count):
            place = root / name / ("more" if number == 2 else ".")
            Image.new("RGB", (5, 4), (count * 20, number, 0)).save(
                place / f"{number}.{'jpg' if number == 1 else 'PNG'}"
            )
        (root / name / "notes.txt").write_text("no image")
        (root / name / ".hidden.png").write_bytes(b"")
    return root


def test_image_folders(tree: Path) -> None:
    splits = image_folder(str(tree), size=8, pixels="uint8", test_share=0.25)
    assert splits.description["classes"] == ["Bee", "ant", "zebra"]
    assert splits.description["samples"] == {"train": 9, "test": 3}
    counts = {0: 60, 1: 100, 2: 80}
    for part in (splits.train, splits.test):
        batch = everything(part)
        for label, pixels in zip(batch["label"].tolist(), batch["input"], strict=True):
            assert abs(int(pixels[0, 4, 4]) - counts[label]) <= 2  # the error of a JPEG
        np.testing.assert_array_equal(part.labels(), batch["label"])
    assert np.bincount(everything(splits.test)["label"]).tolist() == [1, 1, 1]
    assert np.bincount(everything(image_folder(str(tree), limit=3).train)["label"]).tolist() == [1, 1, 1]
    unit = everything(image_folder(str(tree), size=8, test_share=0.25).train)["input"]
    np.testing.assert_array_equal(unit, everything(splits.train)["input"] / np.float32(255))
    scaled = image_folder(str(tree), size=8, test_share=0.25, mean=(0.1, 0.2, 0.3), std=(2, 4, 8))
    expected = (unit - np.float32([0.1, 0.2, 0.3])[:, None, None]) / np.float32([2, 4, 8])[:, None, None]
    np.testing.assert_array_equal(everything(scaled.train)["input"], expected)


def test_folders_with_a_split_of_their_own(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    root.mkdir()
    tree.rename(root / "train")
    (root / "val" / "ant").mkdir(parents=True)
    Image.new("L", (4, 4), 7).save(root / "val" / "ant" / "x.bmp")
    splits = image_folder(str(root), size=4, pixels="uint8")
    assert splits.description["samples"] == {"train": 12, "test": 1}
    assert everything(splits.test)["label"].tolist() == [1]
    assert everything(splits.test)["input"].tolist() == np.full((1, 3, 4, 4), 7).tolist()
    (root / "val" / "cat").mkdir()
    with pytest.raises(
        UsageError, match=r"val holds the class 'cat', which the training folder has not; allowed: Bee, ant"
    ):
        image_folder(str(root))


@pytest.mark.parametrize("beside", [None, "testing", "zebra"])
def test_training_samples_without_test_samples_are_no_class(tree: Path, tmp_path: Path, beside: str | None) -> None:
    root = tmp_path / "split"
    root.mkdir()
    tree.rename(root / "train")
    if beside is not None:
        (root / beside / "ant").mkdir(parents=True)
        Image.new("L", (4, 4), 7).save(root / beside / "ant" / "x.bmp")
    with pytest.raises(
        UsageError,
        match=r"image_folder: .*split/train holds folders of images, and .*split has no folder of test images beside "
        r"it; allowed: test, val, validation; remedy: folder='.*split/train', of which a split is drawn",
    ):
        image_folder(str(root), size=4)
    assert image_folder(str(root / "train"), size=4).description["classes"] == ["Bee", "ant", "zebra"]


def test_a_class_by_the_name_of_train(tree: Path) -> None:
    """Images of trains, not training samples: it contains no folders of images."""
    (tree / "train" / "notes").mkdir(parents=True)
    for number in range(2):
        Image.new("L", (4, 4), number).save(tree / "train" / f"{number}.png")
    assert image_folder(str(tree), size=4).description["classes"] == ["Bee", "ant", "train", "zebra"]


def test_the_hash_of_a_split_says_which_sample_went_where(tree: Path) -> None:
    names = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.suffix in (".PNG", ".jpg")]
    (tree / "list.txt").write_text("".join(f"{name} {name.split('/')[0]}\n" for name in sorted(names)))
    for read, given in ((image_folder, tree), (file_list, tree / "list.txt")):
        drawn: dict[str, set[str]] = {}
        for seed in range(6):
            splits = read(str(given), size=4, split_seed=seed, test_share=0.25)  # type: ignore[operator]
            drawn.setdefault(splits.split_hash, set()).add(splits.test.content_hash())
            assert read(str(given), size=4, split_seed=seed, test_share=0.25).split_hash in drawn  # type: ignore[operator]
        assert len(drawn) > 1
        assert all(len(contents) == 1 for contents in drawn.values())
        limited = read(str(given), size=4, limit=3)  # type: ignore[operator]
        assert limited.split_hash not in drawn


def test_the_description_of_numbers_is_of_plain_ones(tree: Path) -> None:
    mean, std = np.array([0.51, 0.49, 0.47]), np.array([0.26, 0.25, 0.24])
    ours = image_folder(str(tree), mean=tuple(mean), std=tuple(std), size=8)
    plain = image_folder(str(tree), mean=mean.tolist(), std=std.tolist(), size=8)
    assert ours.description["preparation"].endswith(
        "divided by 255, less (0.51, 0.49, 0.47), divided by (0.26, 0.25, 0.24)"
    )
    assert ours.description == plain.description
    assert ours.train.content_hash() == plain.train.content_hash()


def test_hash_of_files_is_of_names_sizes_labels_and_bytes(tree: Path) -> None:
    def hashes(**options: Any) -> str:
        digest = image_folder(str(tree), size=8, **options).train.content_hash()
        assert isinstance(digest, str)
        return digest

    first = hashes()
    assert hashes() == first
    assert len({first, hashes(pixels="uint8"), hashes(fit="crop"), hashes(channels=1), hashes(split_seed=1)}) == 5
    (tree / "ant" / "0.PNG").write_bytes((tree / "ant" / "0.PNG").read_bytes() + b"\0")
    (tree / "ant" / "3.PNG").write_bytes((tree / "ant" / "3.PNG").read_bytes() + b"\0\0")
    longer = hashes()
    assert longer != first
    # The same names, sizes and times of modification, and one other byte.
    for path in tree.rglob("*.PNG"):
        before = path.stat()
        path.write_bytes(path.read_bytes()[:-1] + b"\7")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hashes() != longer


def test_an_image_of_a_folder_that_does_not_decode(tree: Path) -> None:
    data = image_folder(str(tree), size=8, test_share=0.25).train
    for path in tree.rglob("*.PNG"):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UsageError, match=r"the image .*tree/\w+/(more/)?\d\.PNG does not decode"):
        everything(data)
    for path in tree.rglob("*.PNG"):
        path.unlink()
    with pytest.raises(UsageError, match=r"the image .*\.PNG cannot be read \(No such file or directory\)"):
        everything(data)


def test_samples_do_not_depend_on_workers(tree: Path) -> None:
    before = threading.active_count()
    batches = [
        everything(image_folder(str(tree), size=8, workers=workers, test_share=0.25).train)
        for workers in (1, 2, 5, None)
    ]
    for batch in batches[1:]:
        for name, array in batch.items():
            np.testing.assert_array_equal(array, batches[0][name])
    assert threading.active_count() == before
    with pytest.raises(UsageError, match="a data set of images with workers 0; allowed: None or at least 1"):
        image_folder(str(tree), workers=0)


def test_the_order_is_not_that_of_the_disk(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = class_tree(tree, "image", IMAGE_SUFFIXES)
    walk = os.walk

    def backwards(folder: Path) -> Any:
        for parent, inner, files in walk(folder):
            inner.reverse()
            yield parent, inner, sorted(files, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    found = class_tree(tree, "image", IMAGE_SUFFIXES)
    assert found[0] == expected[0] == sorted(expected[0])
    assert (found[1].tolist(), found[2]) == (expected[1].tolist(), ["Bee", "ant", "zebra"])


def test_casting_images(tree: Path) -> None:
    data = image_folder(str(tree), size=8).train
    network = {
        "input": d5.TensorSpec(shape=("N", 3, 8, 8), dtype="float64"),
        "label": d5.TensorSpec(shape=("N",), dtype="int64"),
    }
    double = data.cast(network)
    np.testing.assert_array_equal(everything(double)["input"], everything(data)["input"].astype(np.float64))
    assert everything(double)["input"].dtype == np.float64
    with pytest.raises(UsageError, match="are float32"):
        data.cast({**network, "input": d5.TensorSpec(shape=("N", 3, 9, 9))})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pixels": "normalised"}, "image_folder with pixels 'normalised'; remedy: mean= and std="),
        ({"mean": (0.5,)}, r"image_folder with mean \(0.5,\) and std None; allowed: 3 finite numbers each"),
        ({"mean": (0, 0, 0), "std": (1, 0, 1)}, "image_folder with std .*; allowed: numbers above 0"),
        ({"mean": (0, 0, float("nan")), "std": (1, 1, 1)}, "allowed: 3 finite numbers"),
        ({"test_share": 1}, "image_folder with test_share 1; allowed: a number between 0 and 1"),
        ({"limit": 99}, "image_folder with limit 99"),
    ],
)
def test_bad_arguments_of_image_folders(tree: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        image_folder(str(tree), **options)


def test_folders_that_are_not_right(tmp_path: Path) -> None:
    for wrong in (None, 5):
        with pytest.raises(UsageError, match=r"image_folder: got folder=(None|5); allowed: a path as a string"):
            image_folder(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"image_folder: the folder .*absent is not there"):
        image_folder(str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty holds no folder; allowed: one for each class"):
        image_folder(str(tmp_path / "empty"))
    (tmp_path / "empty" / "cat").mkdir()
    with pytest.raises(UsageError, match=r"the class folder .*cat holds no image; allowed: files that end in \.bmp"):
        image_folder(str(tmp_path / "empty"))


# Lists


def test_lists_of_files(tree: Path, tmp_path: Path) -> None:
    names = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.PNG") if not path.name.startswith("."))
    text, table = tree / "train.txt", tree / "test.csv"
    text.write_text("# a list\n\n" + "".join(f"{name} {name.split('/')[0]}\n" for name in names))
    table.write_text("path,label\n" + "".join(f'"{name}",{name.split("/")[0]}\n' for name in reversed(names)))
    splits = file_list(str(text), test=str(table), size=8, pixels="uint8")
    assert splits.description["classes"] == {"Bee": 0, "ant": 1, "zebra": 2}
    train, test = everything(splits.train), everything(splits.test)
    assert train["label"].tolist() == [{"Bee": 0, "ant": 1, "zebra": 2}[name.split("/")[0]] for name in names]
    np.testing.assert_array_equal(train["input"], test["input"][::-1])
    moved = tmp_path / "elsewhere.txt"
    moved.write_text(f"{tree / 'a file with spaces.png'} 4\n{names[0]} 1\n{names[1]} 1\n{names[2]} 4\n")
    Image.new("RGB", (4, 4)).save(tree / "a file with spaces.png")
    drawn = file_list(str(moved), root=str(tree), size=4, test_share=0.5, classes=5)
    assert sorted(everything(drawn.train)["label"].tolist() + everything(drawn.test)["label"].tolist()) == [1, 1, 4, 4]
    with pytest.raises(UsageError, match=r"elsewhere\.txt, line 1: got the label 4; allowed: 0 to 3"):
        file_list(str(moved), root=str(tree), classes=4)
    for wrong in ("3", 2.0, True, 0):
        with pytest.raises(UsageError, match=r"file_list of .* classes; allowed: None or an integer of at least 1"):
            file_list(str(moved), root=str(tree), classes=wrong)  # type: ignore[arg-type]
    moved.write_text(f"{names[0]} --5\n{names[1]} -\n{names[2]} --5\n{names[3]} -\n")
    odd = file_list(str(moved), root=str(tree), size=4, test_share=0.5)  # not numbers: names
    assert odd.description["classes"] == {"-": 0, "--5": 1}
    for options in ({"train": 5}, {"test": b"x"}, {"root": 5}):
        with pytest.raises(UsageError, match=rf"file_list: got {next(iter(options))}=.*; allowed: a path as a string"):
            file_list(**{"train": str(moved), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "lists no file; allowed: a line of a path and a label"),
        ("x.png 0\ny.png\n", r"line 2: got \['y.png'\]; allowed: a path and a label"),
        ("x.png -1\ny.png 0", r"line 1: got the label -1; allowed: integers from 0, or names"),
        ("x.png 0\nabsent.png 0\n", r"the image .*absent\.png is not there"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_lists_that_are_not_right(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message):
        file_list(str(path), test=str(path))


# ImageNet


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    synthetic_files(like="imagenet", train=24, test=8, classes=4, size=16)
    (folder,) = (download_folder() / "synthetic_files").iterdir()
    return folder


def test_imagenet_from_folders(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = imagenet(folder=str(photographs), size=16, train_size=18, pixels="uint8")
    assert splits.description["samples"] == {"train": 24, "test": 8}
    assert str(splits.train.specs["input"]) == "uint8[3, 18, 18]"
    assert everything(splits.train)["label"].tolist() == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    # The middle 16 of the 18 in training: both are cropped from the same scaled image.
    names = sorted(photographs.rglob("*.JPEG"))
    train = everything(splits.train)["input"]
    same = everything(imagenet(folder=str(photographs), size=16, pixels="uint8").train)["input"]
    np.testing.assert_array_equal(train[:, :, 1:17, 1:17], same)
    assert names[0].parent.name == "n90000000"
    limited = imagenet(folder=str(photographs), size=16, limit=5, test_limit=4)
    assert everything(limited.train)["label"].tolist() == [0, 0, 1, 2, 3]
    # The validation images in one folder, with a list; by WordNet ID and by number.
    lines = []
    for position, path in enumerate(sorted((photographs / "val").rglob("*.JPEG"))):
        label = path.parent.name
        lines.append(f"ILSVRC_{position}.JPEG {label if position % 2 else int(label[1:]) - 90_000_000}")
        path.rename(photographs / "val" / f"ILSVRC_{position}.JPEG")
    for path in (photographs / "val").iterdir():
        if path.is_dir():
            path.rmdir()
    with pytest.raises(UsageError, match=r"val holds no folders, and there is no list .*val\.txt"):
        imagenet(folder=str(photographs), size=16)
    (photographs / "val.txt").write_text("\n".join(reversed(lines)))
    listed = imagenet(folder=str(photographs), size=16, pixels="uint8")
    np.testing.assert_array_equal(everything(listed.test)["label"], everything(splits.train)["label"][::3])
    (photographs / "val.txt").write_text("ILSVRC_0.JPEG 4\n")
    with pytest.raises(UsageError, match=r"val\.txt, line 1: got the label '4'; allowed: 0 to 3, or a WordNet ID"):
        imagenet(folder=str(photographs), size=16)
    (tmp_path / "mine").mkdir()
    photographs.rename(tmp_path / "mine" / "imagenet")
    (tmp_path / "mine" / "imagenet" / "val.txt").write_text("\n".join(lines))
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path / "mine"))
    assert len(imagenet(size=16).test) == 8


def test_imagenet_from_records_is_imagenet_from_folders(photographs: Path) -> None:
    records = synthetic_files(like="imagenet_tfrecord", train=24, test=8, classes=4, size=16, pixels="uint8")
    folders = everything(imagenet(folder=str(photographs), size=16, pixels="uint8").train)
    found = everything(records.train)
    assert found["label"].tolist() == [index % 4 for index in range(24)]
    # Folders sort by class and by name as strings: the same photographs in another order.
    ours = {(int(label), pixels.tobytes()) for label, pixels in zip(found["label"], found["input"], strict=True)}
    theirs = {(int(label), pixels.tobytes()) for label, pixels in zip(folders["label"], folders["input"], strict=True)}
    assert ours == theirs
    assert len(ours) == 24
    stream = synthetic_files(
        like="imagenet_tfrecord", train=24, test=8, classes=4, size=16, pixels="uint8", stream=True, window=6
    )
    assert isinstance(stream.train, StreamDataset)
    assert records.description["hash"].startswith("names and sizes of the files, all records by the CRC-32C")
    assert stream.description["hash"] == records.description["hash"]
    described = imagenet(folder=str(photographs), size=16).description
    assert described["hash"].startswith("names, sizes, labels and bytes of")
    streamed = {(int(sample["label"]), sample["input"].tobytes()) for sample in stream.train.samples(2)}
    assert streamed == ours
    in_order = [int(sample["label"]) for sample in stream.test.samples(1)]
    assert in_order == [index % 4 for index in range(8)]
    assert synthetic_files(like="imagenet_tfrecord", train=24, test=8, classes=4, size=16, limit=7).description[
        "samples"
    ] == {
        "train": 7,
        "test": 8,
    }
    with pytest.raises(UsageError, match="imagenet with stream=True and limit=3; allowed: one of them"):
        synthetic_files(like="imagenet_tfrecord", train=24, test=8, classes=4, size=16, stream=True, limit=3)


def test_orientations_are_left_alone_in_imagenet(photographs: Path) -> None:
    before = everything(imagenet(folder=str(photographs), size=16, pixels="uint8").test)["input"]
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in sorted((photographs / "val").rglob("*.JPEG")):
        with Image.open(path) as image:
            image.load()
            image.save(path, "JPEG", exif=exif, quality="keep")
    after = everything(imagenet(folder=str(photographs), size=16, pixels="uint8").test)["input"]
    # Encoded again with the same tables: within a few of 256, where a rotated one would differ by tens.
    assert np.abs(before.astype(int) - after).mean() < 3


def test_a_label_beyond_the_classes_is_named(photographs: Path) -> None:
    splits = synthetic_files(like="imagenet_tfrecord", train=8, test=4, classes=4, size=16)
    assert len(splits.train) == 8
    folder = next(
        path for path in (download_folder() / "synthetic_files").iterdir() if path.name.startswith("imagenet_tf")
    )
    wrong = imagenet(folder=str(folder), size=16, classes=3)
    with pytest.raises(UsageError, match=r"train-0000\d-of-00004, record \d, holds the label 4; allowed: 1 to 3"):
        everything(wrong.train)
    with pytest.raises(UsageError, match="train holds 4 classes; allowed: 3; remedy: classes=4"):
        imagenet(folder=str(photographs), size=16, classes=3)


def test_imagenet_that_is_not_right(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"imagenet is not there: no folder .*imagenet; it is not downloaded, .*138 GiB"
    ):
        imagenet()
    for options, message in (
        ({"size": 0}, "imagenet with train_size 0"),
        ({"size": "16"}, "imagenet with train_size '16'"),
        ({"size": 16, "train_size": 19}, "imagenet with train_size 19; allowed: an integer from 1 to 18"),
        ({"size": 16, "classes": 0}, "imagenet of 0 classes"),
        ({"size": 16, "stream": True}, "imagenet with stream=True, but .* holds no TFRecord files"),
        ({"size": 16, "limit": 25}, "imagenet with limit 25; allowed: None or an integer from 1 to 24"),
    ):
        with pytest.raises(UsageError, match=message):
            imagenet(folder=str(photographs), **options)  # type: ignore[arg-type]
    (photographs / "train" / "n90000000").rename(photographs / "train" / "tench")
    with pytest.raises(UsageError, match="train holds the folder 'tench'; allowed: folders named by WordNet IDs"):
        imagenet(folder=str(photographs), size=16)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds neither the folders train and val nor TFRecord files"):
        imagenet(folder=str(tmp_path / "empty"))
    (tmp_path / "empty" / "train-00000-of-00001").write_bytes(b"")
    with pytest.raises(UsageError, match="holds TFRecord files of only one part"):
        imagenet(folder=str(tmp_path / "empty"))


def test_made_up_folders_follow_their_rule() -> None:
    splits = synthetic_files(like="image_folder", train=20, test=10, classes=5, size=24, pixels="uint8")
    train, test = everything(splits.train), everything(splits.test)
    assert np.bincount(train["label"]).tolist() == [4] * 5
    distances = ((test["input"][:, None].astype(float) - train["input"][None]) ** 2).mean((2, 3, 4))
    np.testing.assert_array_equal(train["label"][distances.argmin(1)], test["label"])
