"""Decoding libraries: the same pixels from each, and an error for every file that one of them would complete with gray.

Pillow, OpenCV's wheels and the system's library all contain libjpeg-turbo, whose inverse transform of integers
("islow"), smooth upsampling of chroma and conversion to RGB are exact rules: the pixels are bit-identical. Only the
conversion of CMYK, which OpenCV does itself, rounds differently.
"""

from __future__ import annotations

import io
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deep5.core.errors import MissingDependency, UsageError
from deep5.training.datasets import decoders
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.folders import image_folder
from deep5.training.datasets.image_headers import image_header, upright
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.record_files import write_records
from deep5.training.datasets.tfrecords import tfrecord
from deep5.training.datasets.webdatasets import webdataset

OTHERS = ("turbojpeg", "opencv")
RNG = np.random.default_rng(37)


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth colors with noise, as in a photograph."""
    rows, columns = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(9 * rows + 4 * columns + each) * np.cos(6 * rows - each * columns) for each in range(channels)]
    values = 127 + 100 * np.stack(waves, -1) + RNG.normal(0, 8, (height, width, channels))
    return np.clip(values, 0, 255).astype(np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    given = image
    if isinstance(image, np.ndarray):
        given = Image.fromarray(image[:, :, 0] if image.shape[2:] == (1,) else image)
    given.save(buffer, kind, **({"quality": 90} if kind == "JPEG" else {}), **options)
    return buffer.getvalue()


def decoded(data: bytes, name: str, **options: Any) -> np.ndarray:
    return Decoder(**{"size": 32, "name": name, **options}).decode(data, "x.jpg")


def of_file(data: bytes, name: str) -> np.ndarray:
    """The file's pixels by a library other than Pillow, unscaled."""
    return decoders.decode_by(name)(data, image_header(data))


# The same pixels


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (15, 17), (37, 53), (224, 224), (3, 200)])
def test_colors_are_bit_identical(name: str, size: tuple[int, int]) -> None:
    for subsampling in (0, 1, 2):  # chroma in full, by half across, and by half across and down
        for progressive in (False, True):
            data = encoded(picture(*size), subsampling=subsampling, progressive=progressive)
            ours = of_file(data, name)
            np.testing.assert_array_equal(ours, np.asarray(Image.open(io.BytesIO(data))))
            assert ours.shape == (*size, 3)


@pytest.mark.parametrize("name", OTHERS)
def test_gray_is_bit_identical(name: str) -> None:
    for size in ((40, 51), (8, 9)):
        data = encoded(picture(*size, 1))
        np.testing.assert_array_equal(of_file(data, name), np.asarray(Image.open(io.BytesIO(data))))
        for channels in (1, 3):
            ours = decoded(data, name, channels=channels)
            np.testing.assert_array_equal(ours, decoded(data, "pillow", channels=channels))


@pytest.mark.parametrize("name", OTHERS)
def test_red_stays_red(name: str) -> None:
    """OpenCV's channels are in the order blue, green, red."""
    data = encoded(np.full((32, 32, 3), (250, 10, 60), np.uint8))
    assert np.abs(decoded(data, name).mean((1, 2)) - [250, 10, 60]).max() < 3


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"channels": 1},
        {"fit": "crop"},
        {"fit": "crop", "share": 0.875},
        {"size": 75, "fit": "crop", "share": 0.875},
        {"size": 75},
        {"size": 101},
    ],
)
def test_scaling_and_colors_are_those_of_pillow(name: str, options: dict[str, Any]) -> None:
    for height, width in ((75, 101), (75, 75)):
        data = encoded(picture(height, width))
        ours = decoded(data, name, **options)
        np.testing.assert_array_equal(ours, decoded(data, "pillow", **options))
        assert ours.flags.c_contiguous


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_orientation(name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for shape in ((20, 32), (32, 32)):
        data = encoded(picture(*shape), exif=exif)
        assert image_header(data).orientation == (orientation if 1 <= orientation <= 8 else 1)
        for turn in (True, False):
            ours, theirs = (decoded(data, each, turn=turn) for each in (name, "pillow"))
            np.testing.assert_array_equal(ours, theirs)
    if 2 <= orientation <= 8:
        assert (decoded(data, name) != decoded(data, name, turn=False)).any()


def test_orientation_of_xmp() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="8"/></x:xmpmeta>'
    data = encoded(picture(20, 32), xmp=xmp)
    for name in OTHERS:
        np.testing.assert_array_equal(decoded(data, name), decoded(data, "pillow"))


def test_every_orientation_is_the_transposition_of_pillow() -> None:
    pixels = picture(3, 5)
    ways = [
        *(None, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM),
        *(Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE),
        Image.Transpose.ROTATE_90,
    ]
    for orientation, way in enumerate(ways, 1):
        theirs = Image.fromarray(pixels) if way is None else Image.fromarray(pixels).transpose(way)
        np.testing.assert_array_equal(upright(pixels, orientation), np.asarray(theirs))


def test_cmyk() -> None:
    """OpenCV converts it with other rounding than Pillow: one of 256 levels, measured; libjpeg-turbo does not."""
    data = encoded(Image.fromarray(picture(40, 51)).convert("CMYK"))
    ours, theirs = (decoded(data, each, size=40, fit="crop").astype(int) for each in ("opencv", "pillow"))
    assert np.abs(ours - theirs).max() <= 1
    with pytest.raises(UsageError, match=r"x\.jpg does not decode \(its colors are CMYK.*decoder='pillow' decodes it"):
        decoded(data, "turbojpeg")


def _pngs() -> dict[str, bytes]:
    colors, gray = picture(32, 32), picture(32, 32, 1)[:, :, 0]
    alpha = RNG.integers(0, 256, (32, 32), dtype=np.uint8)
    palette = Image.fromarray(colors).quantize(16)
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "colors": encoded(colors, "PNG"),
        "gray": encoded(gray, "PNG"),
        "gray of 16 bits": encoded(gray.astype(np.uint16) * 256 + 77, "PNG"),
        "1 bit": encoded(Image.fromarray(gray).convert("1"), "PNG"),
        "palette": encoded(palette, "PNG"),
        "palette with transparency": encoded(palette, "PNG", transparency=bytes(range(0, 160, 10))),
        "transparent": encoded(np.dstack([colors, alpha]), "PNG"),
        "gray and transparent": encoded(Image.fromarray(np.dstack([gray, alpha]), "LA"), "PNG"),
        "turned": encoded(colors, "PNG", exif=exif),
    }


@pytest.mark.parametrize("kind", _pngs())
@pytest.mark.parametrize("channels", [1, 3])
def test_png_by_opencv(kind: str, channels: int) -> None:
    data = _pngs()[kind]
    ours, theirs = (decoded(data, each, channels=channels) for each in ("opencv", "pillow"))
    np.testing.assert_array_equal(ours, theirs)


def test_formats_that_a_decoder_does_not_read() -> None:
    png = _pngs()["colors"]
    with pytest.raises(UsageError, match=r"it is PNG; the decoder 'turbojpeg' decodes JPEG; decoder='opencv' or"):
        decoded(png, "turbojpeg")
    for name in OTHERS:
        with pytest.raises(UsageError, match=r"it is none of JPEG, PNG"):
            decoded(encoded(picture(4, 4), "BMP"), name)
    frames = [Image.fromarray(picture(8, 8)) for _ in range(2)]
    animated = encoded(frames[0], "PNG", save_all=True, append_images=frames[1:])
    gray = encoded(picture(8, 8, 1), "PNG", transparency=7)
    for data, kind in ((animated, "with several frames"), (gray, "with a transparent color")):
        with pytest.raises(UsageError, match=f"it is a PNG {kind}, of which OpenCV"):
            decoded(data, "opencv")


# Incomplete and damaged files

JPEG = encoded(picture(224, 224))
MIDDLE = len(JPEG) // 2


@pytest.mark.parametrize("name", decoders.DECODERS)
@pytest.mark.parametrize("bytes_left", [0, 1, 2, 3, 10, 100, 400, 700, MIDDLE, -100, -2, -1])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_file(name: str, bytes_left: int, progressive: bool) -> None:
    data = encoded(picture(224, 224), progressive=True) if progressive else JPEG
    with pytest.raises(UsageError, match=r"the image x\.jpg does not decode \(.+\); remedy: get the file again"):
        decoded(data[:bytes_left], name)


@pytest.mark.parametrize("bytes_left", [8, 20, 40, 100, -1, -12])
def test_a_truncated_png(bytes_left: int) -> None:
    with pytest.raises(UsageError, match=r"does not decode \(.*(truncated|checksum)"):
        decoded(_pngs()["colors"][:bytes_left], "opencv")


def test_a_changed_byte_of_a_png() -> None:
    data = bytearray(_pngs()["colors"])
    data[len(data) // 2] ^= 1
    with pytest.raises(UsageError, match=r"the checksum of its chunk IDAT at byte \d+ is wrong"):
        decoded(bytes(data), "opencv")


def test_damage_that_only_libjpeg_sees() -> None:
    """Of a file cut in the middle and closed, it completes the picture and warns; the warning is an error."""
    damaged = JPEG[:MIDDLE] + b"\xff\xd9"
    with pytest.raises(UsageError, match=r"does not decode \(Corrupt JPEG data: premature end of data segment\)"):
        decoded(damaged, "turbojpeg")
    # By threads: filters of warnings belong to the process, so a filter in one thread is not an error in all.
    decoder = Decoder(size=32, name="turbojpeg")
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(decoder.decode, damaged if each % 2 else JPEG, "x") for each in range(64)]
    assert [isinstance(each.exception(), UsageError) for each in found] == [bool(each % 2) for each in range(64)]


@pytest.mark.parametrize("name", OTHERS)
def test_damaged_markers(name: str) -> None:
    for damaged, reason in (
        (JPEG[:MIDDLE] + b"\xff\x12" + JPEG[MIDDLE + 2 :], f"byte {MIDDLE} begins no segment"),
        (JPEG[:2] + b"\xff\xe0\x00\x01" + JPEG[6:], "byte 2 begins no segment"),
        (b"\xff\xd8\xff\xd9", "it holds no image"),
        (JPEG.replace(b"\x00\xe0\x00\xe0", b"\x00\x00\x00\xe0", 1), "it states 0 x 224 pixels"),
    ):
        with pytest.raises(UsageError, match=reason):
            decoded(damaged, name)


@pytest.mark.parametrize("name", OTHERS)
def test_no_damage_ends_in_another_error(name: str) -> None:
    """Random changes of a file give pixels or the error that names the image; nothing else."""
    decoder, refused = Decoder(size=32, name=name), list[str]()
    files = [JPEG, *([_pngs()["palette"]] if name == "opencv" else [])]
    for number in range(200):
        data = bytearray(files[number % len(files)])
        for _ in range(int(RNG.integers(1, 4))):
            data[int(RNG.integers(len(data) if number % 4 else 700))] = int(RNG.integers(256))
        try:
            assert decoder.decode(bytes(data), "x").shape == (3, 32, 32)
        except UsageError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all("does not decode" in each or "pixels; allowed" in each for each in refused)


def test_bytes_after_the_image_are_allowed() -> None:
    for name in OTHERS:
        np.testing.assert_array_equal(decoded(JPEG + b"a second image", name), decoded(JPEG, "pillow"))


def test_many_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training.datasets import images as module

    monkeypatch.setattr(module, "_MOST_PIXELS", 99)
    for name in OTHERS:
        with pytest.raises(UsageError, match=r"the image x\.jpg has 10 x 10 pixels; allowed: at most 99"):
            decoded(encoded(picture(10, 10)), name)


# Names and packages


@pytest.mark.parametrize("name", ["turbo", "Pillow", "", None, 3, ["pillow"]])
def test_unknown_names(name: Any) -> None:
    with pytest.raises(UsageError, match=r"unknown decoder .*; allowed: 'pillow', 'turbojpeg', 'opencv'"):
        Decoder(size=8, name=name)


@pytest.fixture
def _loaded_anew() -> Any:
    found = (decoders._turbojpeg, decoders._opencv)
    for each in found:
        each.cache_clear()
    yield
    for each in found:
        each.cache_clear()


@pytest.mark.usefixtures("_loaded_anew")
@pytest.mark.parametrize(("name", "module"), [("turbojpeg", "turbojpeg"), ("opencv", "cv2")])
def test_a_missing_package(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingDependency,
        match=rf"the decoder '{name}' needs the package '{module}'.*remedy: pip install 'deep5\[decoders\]'",
    ):
        Decoder(size=8, name=name)


@pytest.mark.usefixtures("_loaded_anew")
def test_a_missing_system_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import turbojpeg

    monkeypatch.setattr(turbojpeg, "find_library", lambda name: None)
    monkeypatch.setattr(turbojpeg, "DEFAULT_LIB_PATHS", {key: [] for key in turbojpeg.DEFAULT_LIB_PATHS})
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with pytest.raises(MissingDependency, match=r"needs the system library libturbojpeg.*remedy: apt install libturbo"):
        Decoder(size=8, name="turbojpeg")


@pytest.mark.usefixtures("_loaded_anew")
def test_another_version_whose_warnings_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    import turbojpeg

    monkeypatch.setattr(turbojpeg, "TurboJPEG", type("TurboJPEG", (), {}))
    with pytest.raises(MissingDependency, match=r"needs PyTurboJPEG 1, got 1\.8.*pip install 'deep5\[decoders\]'"):
        Decoder(size=8, name="turbojpeg")


# Data sets


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight pictures in a folder for each class, a tar file and a TFRecord file."""
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    files = [encoded(picture(40, 40)) for _ in range(8)]
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number, data in enumerate(files):
            path = tmp_path / "tree" / f"class_{number % 2}" / f"{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            for ending, content in (("jpg", data), ("cls", b"%d" % (number % 2))):
                entry = tarfile.TarInfo(f"{number:02}.{ending}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    records = [encode_example({"image": [data], "label": [number % 2]}) for number, data in enumerate(files)]
    write_records(tmp_path / "x.tfrecord", records)
    return tmp_path


def opened(folder: Path, kind: str, **options: Any) -> Any:
    if kind == "folder":
        return image_folder(str(folder / "tree"), size=40, test_share=0.5, **options)
    if kind == "tar":
        return webdataset(str(folder / "x.tar"), size=40, test_share=0.5, **options)
    features = {"input": "image: image[3, 40, 40]", "label": "label"}
    return tfrecord(str(folder / "x.tfrecord"), features=features, test_share=0.5, **options)


@pytest.mark.parametrize("kind", ["folder", "tar", "tfrecord"])
def test_data_sets_by_each_decoder(folder: Path, kind: str) -> None:
    sets = {name: opened(folder, kind, decoder=name) for name in decoders.DECODERS}
    batches = {name: each.train.batch(np.arange(4)) for name, each in sets.items()}
    for name, batch in batches.items():
        for part, values in batch.items():
            np.testing.assert_array_equal(values, batches["pillow"][part], err_msg=name)
    hashes = {name: each.train.content_hash() for name, each in sets.items()}
    assert len(set(hashes.values())) == 3  # the decoder belongs to the identity
    assert hashes["pillow"] == opened(folder, kind).train.content_hash()
    described = sets["opencv"].description
    stated = described.get("preparation") or described["features"]["input"]
    assert "decoded by opencv" in stated
    assert "decoded by" not in str(sets["pillow"].description.get("preparation", ""))
    with pytest.raises(UsageError, match="unknown decoder 'jpeg'"):
        opened(folder, kind, decoder="jpeg")


def test_the_library_is_stated(folder: Path) -> None:
    stated = opened(folder, "folder", decoder="turbojpeg").description["decoder"]
    assert stated.startswith("PyTurboJPEG 1.")
    assert "scaled by Pillow" in stated


@pytest.mark.parametrize("name", OTHERS)
def test_a_truncated_file_of_a_data_set_is_named(folder: Path, name: str) -> None:
    paths = sorted((folder / "tree" / "class_0").iterdir())
    for path in paths:
        path.write_bytes(path.read_bytes()[:-400])
    train = opened(folder, "folder", decoder=name).train
    with pytest.raises(UsageError, match=r"class_0/0\d\.jpg does not decode \(the file is truncated"):
        train.batch(np.arange(len(train)))


def test_images_for_a_trained_network_are_decoded_as_in_its_run() -> None:
    from deep5.trained.images import _LazyDecoder

    described = f"{Decoder(size=32, name='turbojpeg').describe()}; divided by 255"
    decoder = _LazyDecoder(None, None, described, 3, 32)
    np.testing.assert_array_equal(decoder.decode(JPEG, "x.jpg"), decoded(JPEG, "pillow"))
    with pytest.raises(UsageError, match="the decoder 'turbojpeg' decodes JPEG"):
        decoder.decode(_pngs()["colors"], "x.png")
