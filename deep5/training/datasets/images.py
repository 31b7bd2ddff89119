"""Decode image files to arrays of one size, in RGB or grayscale, with Pillow or another library."""

from __future__ import annotations

import functools
import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.content_hashes import files_hash
from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import Dataset, fitted, sample_ids
from deep5.training.datasets.decoders import PILLOW, check_decoder, decode_by, decoder_version
from deep5.training.datasets.image_headers import image_header, upright
from deep5.training.datasets.pixels import Scaling

__all__ = ["Decoder", "ImageDataset", "image_files"]

# A limit against files made to exhaust memory: a pixel takes 3 bytes, plus a copy.
_MOST_PIXELS = 1 << 27
# Other formats run programs (EPS) or do not hold pixels.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_MOST_WORKERS = 8
_FITS = ("crop", "stretch")


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Decodes image files to pixels of one size.

    Attributes:
        size: Height and width of the result.
        channels: 3 for RGB, 1 for grayscale.
        fit: "crop" scales the shorter side to `size` / `share` and crops the center; "stretch" scales both sides to
            `size` and may change the aspect ratio.
        share: Fraction of the shorter side that a crop keeps, in (0, 1].
        turn: Whether to apply the EXIF orientation.
        name: The decoding library, one of `decoders.DECODERS`. Colors and scaling are Pillow's with each of them.

    Raises:
        UsageError: An attribute is out of its range.
        MissingDependency: Pillow or the decoding library is not installed.
    """

    size: int
    channels: int = 3
    fit: str = "stretch"
    share: float = 1.0
    turn: bool = True
    name: str = PILLOW

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 1 << 14:
            raise UsageError(f"images of size {self.size!r}; allowed: an integer from 1 to {1 << 14}")
        if self.channels not in (1, 3):
            raise UsageError(f"images of {self.channels!r} channels; allowed: 3 (RGB) or 1 (gray)")
        if self.fit not in _FITS:
            raise UsageError(f"images with fit {self.fit!r:.60}; allowed: {', '.join(map(repr, _FITS))}")
        if isinstance(self.share, bool) or not isinstance(self.share, (int, float)) or not 0 < self.share <= 1:
            raise UsageError(f"images with share {self.share!r}; allowed: a number above 0, at most 1")
        for library in (PILLOW, self.name):
            check_decoder(library)

    def describe(self) -> str:
        """The operations, for readers and for hashes."""
        scaled = f"both sides scaled to {self.size}"
        if self.fit == "crop":
            scaled = f"shorter side scaled to {self._scaled()}, middle {self.size} x {self.size}"
        turned = ", turned as EXIF says" if self.turn else ""
        decoded = "" if self.name == PILLOW else f", decoded by {self.name}"
        return f"{'RGB' if self.channels == 3 else 'grey'}{turned}, {scaled} (bilinear, antialiased; Pillow){decoded}"

    @property
    def library(self) -> str:
        """The decoding library: the pixels of JPEG files may differ slightly between its versions."""
        return decoder_version(self.name)

    def decode(self, data: bytes, name: str) -> np.ndarray:
        """The pixels of an encoded image.

        Palettes become colors. Transparent pixels are blended onto white. CMYK and grayscale become RGB. Of 16-bit
        grayscale, the high 8 bits are kept.

        Args:
            data: The file's bytes: JPEG, PNG, BMP, GIF, TIFF, WebP, PBM, PGM or PPM; for OpenCV JPEG or PNG, for
                libjpeg-turbo JPEG in gray or RGB.
            name: The image's name in messages.

        Returns:
            uint8, shape (channels, size, size).

        Raises:
            UsageError: The image does not decode, or its format has no defined range of values; the message gives its
                name and the reason.
        """
        pixels = self._by_pillow(data, name) if self.name == PILLOW else self._by_library(data, name)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _by_library(self, data: bytes, name: str) -> np.ndarray:
        from PIL import Image

        try:
            header = image_header(data)
            _check_size(name, header.width, header.height)
            pixels = decode_by(self.name)(data, header)
            if self.turn:
                pixels = upright(pixels, header.orientation)
            plain = pixels.shape == ((self.size,) * 2 if self.channels == 1 else (self.size, self.size, 3))
            if plain and (self.fit == "stretch" or self._scaled() == self.size):
                return pixels
            image = _plain(Image.fromarray(pixels), "RGB" if self.channels == 3 else "L", name, sixteen=False)
            return np.asarray(self._sized(image))
        except UsageError:
            raise
        except Exception as error:  # also of Pillow, on invalid EXIF data
            raise _undecodable(name, str(error) or type(error).__name__) from error

    def _by_pillow(self, data: bytes, name: str) -> np.ndarray:
        from PIL import Image, ImageOps, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                _check_size(name, image.width, image.height)
                image.load()
                upright = ImageOps.exif_transpose(image) if self.turn else image
                # Pillow scales a PGM file of more than 8 bits to 16 bits, in 32-bit pixels.
                sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
                plain = _plain(upright, "RGB" if self.channels == 3 else "L", name, sixteen)
                return np.asarray(self._sized(plain))
        except UsageError:
            raise
        except UnidentifiedImageError as error:
            raise _undecodable(name, f"it is none of {', '.join(_FORMATS)}") from error
        except Exception as error:  # errors on truncated or invalid files have no other common base
            raise _undecodable(name, str(error) or type(error).__name__) from error

    def _scaled(self) -> int:
        return max(self.size, round(self.size / self.share))

    def _sized(self, image: Any) -> Any:
        from PIL import Image

        bilinear = Image.Resampling.BILINEAR
        if self.fit == "stretch":
            return image if image.size == (self.size,) * 2 else image.resize((self.size,) * 2, bilinear)
        scaled, shorter = self._scaled(), min(image.size)
        width, height = (max(scaled, round(extent * scaled / shorter)) for extent in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        if image.size == (width, height):
            return image.crop((left, top, left + self.size, top + self.size))
        # Only the cropped part of the scaled image is computed: the whole may be very long.
        across, down = image.width / width, image.height / height
        box = (left * across, top * down, (left + self.size) * across, (top + self.size) * down)
        return image.resize((self.size,) * 2, bilinear, box=box)


def _plain(image: Any, mode: str, name: str, sixteen: bool) -> Any:
    """The image in RGB or grayscale, one byte per channel; `sixteen` marks 16-bit grayscale."""
    from PIL import Image

    if sixteen:
        wide = np.asarray(image)
        image = Image.fromarray((wide >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise UsageError(
            f"the image {name} holds 32-bit numbers, whose range is unknown; allowed: 8 or 16 bits a channel; "
            "remedy: convert it, or use NumPy files (arrays)"
        )
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert("RGB").convert(mode)


def _check_size(name: str, width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise UsageError(f"the image {name} has {width} x {height} pixels; allowed: at most {_MOST_PIXELS}")


def _undecodable(name: str, reason: str) -> UsageError:
    return UsageError(
        f"the image {name} does not decode ({' '.join(reason.split())[:200]}); remedy: get the file again, or leave it "
        "out of the data set"
    )


class ImageDataset(Dataset):
    """Images that are decoded when a batch reads them.

    Args:
        read: Returns the image's bytes, its name for messages, and its label, given a sample's index.
        length: The number of samples.
        decoder: Decodes the bytes.
        scaling: Scales the pixels; None: they stay bytes.
        identity: Identifies the samples in the hash, e.g. names, sizes and labels of files.
        content: Returns a hash of the samples' bytes, where `identity` does not cover them; called when the hash of
            this data set is needed.
        labels: The labels of all samples, if known.
        workers: Threads that decode a batch; None: one per processor, up to eight. Samples do not depend on it.
        dtype: The dtype of the samples' values, which are computed in float32.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[bytes, str, int]],
        *,
        length: int,
        decoder: Decoder,
        scaling: Scaling | None,
        identity: str,
        content: Callable[[], str] = str,
        labels: np.ndarray | None = None,
        workers: int | None = None,
        dtype: str | None = None,
    ) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise UsageError(f"a data set of images with workers {workers!r}; allowed: None or at least 1")
        dtype = dtype or ("uint8" if scaling is None else "float32")
        self._read, self._length, self._decoder, self._scaling = read, length, decoder, scaling
        self._identity, self._content = identity, content
        self._labels, self._workers, self._dtype = labels, workers, dtype
        self.specs = {
            "input": TensorSpec(shape=(decoder.channels, decoder.size, decoder.size), dtype=dtype),
            "label": TensorSpec(shape=(), dtype="int64"),
        }

    def __len__(self) -> int:
        """Number of samples."""
        return self._length

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, read and decoded now; see `Dataset.batch`.

        Raises:
            UsageError: Also if a file cannot be read or does not decode.
        """
        indices = [int(index) for index in sample_ids(ids, self._length)]
        size, channels = self._decoder.size, self._decoder.channels
        pixels = np.empty((len(indices), channels, size, size), np.uint8)
        labels = np.empty(len(indices), np.int64)

        def one(position: int) -> None:
            data, name, labels[position] = self._read(indices[position])
            pixels[position] = self._decoder.decode(data, name)

        workers = min(self._workers or min(os.cpu_count() or 1, _MOST_WORKERS), len(indices))
        if workers > 1:
            # One pool per batch: it adds little to the decoding time, and no thread outlives the batch.
            with ThreadPoolExecutor(workers, thread_name_prefix="deep5-decode") as pool:
                for _ in pool.map(one, range(len(indices))):
                    pass
        else:
            for position in range(len(indices)):
                one(position)
        if self._scaling is None:
            return {"input": pixels, "label": labels}
        return {"input": self._scaling.apply(pixels).astype(numpy_dtype(self._dtype), copy=False), "label": labels}

    def labels(self, name: str = "label") -> np.ndarray | None:
        """The labels, if known; see `Dataset.labels`."""
        return self._labels if name == "label" else None

    def content_hash(self) -> str:
        """SHA-256 of the samples' identity, their bytes and the processing.

        Files are read once: the hash of their bytes is kept in deep5's cache until one of them changes.

        Raises:
            UsageError: A file cannot be read.
        """
        scaled = self._scaling.describe() if self._scaling else "none"
        text = f"{self._identity} {self._content()} {self._decoder.describe()} {scaled} {self._dtype}"
        return hashlib.sha256(text.encode()).hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> ImageDataset:
        """The same images with another dtype of the values."""
        return ImageDataset(
            self._read,
            length=self._length,
            decoder=self._decoder,
            scaling=self._scaling,
            identity=self._identity,
            content=self._content,
            labels=self._labels,
            workers=self._workers,
            dtype=fitted(self.specs, specs)["input"],
        )


def image_files(
    root: Path,
    names: Sequence[str],
    labels: np.ndarray,
    *,
    decoder: Decoder,
    scaling: Scaling | None,
    workers: int | None = None,
) -> ImageDataset:
    """A data set of image files.

    Args:
        root: The folder that `names` are relative to.
        names: The files, with `/` between folders.
        labels: An integer for each file.
        decoder: Decodes the files.
        scaling: Scales the pixels.
        workers: See `ImageDataset`.

    Raises:
        UsageError: There are no files, or one cannot be found.
    """
    if not names:
        raise UsageError(f"a data set of no images in {root}; allowed: at least one")
    labels = np.asarray(labels, dtype=np.int64)
    digest = hashlib.sha256()
    for name, label in zip(names, labels.tolist(), strict=True):
        try:
            size = (root / name).stat().st_size
        except OSError as error:
            raise UsageError(f"the image {root / name} is not there ({error.strerror or error})") from error
        digest.update(f"{name}\0{size}\0{label}\n".encode("utf-8", "surrogateescape"))

    def read(index: int) -> tuple[bytes, str, int]:
        path = root / names[index]
        try:
            return path.read_bytes(), str(path), int(labels[index])
        except OSError as error:
            raise UsageError(f"the image {path} cannot be read ({error.strerror or error})") from error

    @functools.cache
    def content() -> str:
        try:
            return files_hash([str(root / name) for name in names])
        except OSError as error:
            raise UsageError(f"the image {error.filename} cannot be read ({error.strerror or error})") from error

    return ImageDataset(
        read,
        length=len(names),
        decoder=decoder,
        scaling=scaling,
        identity=digest.hexdigest(),
        content=content,
        labels=labels,
        workers=workers,
    )
