"""MNIST and Fashion-MNIST, read from their IDX files."""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.files import is_file
from deep5.training.archives import inflated
from deep5.training.dataset import Splits
from deep5.training.datasets.pixels import image_arrays, scaling_of
from deep5.training.datasets.splitting import check_limit
from deep5.training.downloads import Remote, find_or_fetch

__all__ = ["fashion_mnist", "mnist", "read_idx"]

_UNSIGNED_BYTE = 0x08
_LARGEST_BYTES = 1 << 30


def _remotes(addresses: tuple[str, ...], files: dict[str, tuple[int, str]]) -> tuple[Remote, ...]:
    """The gzipped files of a data set, each with its size in bytes and its SHA-256."""
    return tuple(
        Remote(
            name=f"{file}.gz",
            urls=tuple(f"{address}{file}.gz" for address in addresses),
            sha256=sha256,
            size_bytes=size_bytes,
        )
        for file, (size_bytes, sha256) in files.items()
    )


# SHA-256 and sizes: tensorflow/datasets, url_checksums/mnist.txt; torchvision's MD5 sums are of the same files.
_MNIST = _remotes(
    ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    {
        "train-images-idx3-ubyte": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        "train-labels-idx1-ubyte": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        "t10k-images-idx3-ubyte": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        "t10k-labels-idx1-ubyte": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
)
# SHA-256 and sizes: tensorflow/datasets, url_checksums/fashion_mnist.txt; the MD5 sums in the README of
# zalandoresearch/fashion-mnist are of the same files.
_FASHION = _remotes(
    ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
    {
        "train-images-idx3-ubyte": (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        "train-labels-idx1-ubyte": (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        "t10k-images-idx3-ubyte": (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        "t10k-labels-idx1-ubyte": (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    },
)


def mnist(
    *,
    folder: str | None = None,
    pixels: str = "normalised",
    limit: int | None = None,
    test_limit: int | None = None,
    download: bool = True,
) -> Splits:
    """MNIST: 70 000 grayscale images of handwritten digits, 28 x 28 pixels, in ten classes (IDX files, 11.1 MiB).

    Args:
        folder: The folder with the four files, gzipped or not; by default `mnist` in `$DEEP5_DATA`, else in deep5's
            cache.
        pixels: "normalised" by the mean and standard deviation of the training images, "unit" for values in [0, 1], or
            "uint8".
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.
        download: Whether to download files that are in neither folder.

    Returns:
        Samples `input` float32 or uint8 (1, 28, 28) and `label` int64 ().

    Raises:
        UsageError: A file is missing, cannot be downloaded, has another format, or holds an invalid label.

    References:
        LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, Proceedings of the
        IEEE 86(11), 1998; the IDX format: "The MNIST database of handwritten digits".

    >>> import struct, tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "t10k"):  # two black images of class 5
    ...         pixels = struct.pack(">4i", 2051, 2, 28, 28) + bytes(2 * 28 * 28)
    ...         _ = Path(folder, f"{part}-images-idx3-ubyte").write_bytes(pixels)
    ...         _ = Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, 2) + bytes([5, 5]))
    ...     data = d5.datasets.mnist(folder=folder, pixels="unit")
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (2, 2, {'input': 'float32[1, 28, 28]', 'label': 'int64[]'})
    """
    root = find_or_fetch("mnist", "mnist", _MNIST, folder=folder, download=download)
    # Mean and standard deviation of the 60 000 training images, with values in [0, 1].
    return _splits("MNIST", root, pixels, (0.1307, 0.3081), limit, test_limit)


def fashion_mnist(
    *,
    folder: str | None = None,
    pixels: str = "normalised",
    limit: int | None = None,
    test_limit: int | None = None,
    download: bool = True,
) -> Splits:
    """Fashion-MNIST: 70 000 grayscale images of clothing, 28 x 28 pixels, in ten classes (IDX files, 29.4 MiB).

    Args:
        folder: The folder with the four files, gzipped or not; by default `fashion-mnist` in `$DEEP5_DATA`, else in
            deep5's cache.
        pixels: "normalised" by the mean and standard deviation of the training images, "unit" for values in [0, 1], or
            "uint8".
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.
        download: Whether to download files that are in neither folder.

    Returns:
        Samples `input` float32 or uint8 (1, 28, 28) and `label` int64 ().

    Raises:
        UsageError: A file is missing, cannot be downloaded, has another format, or holds an invalid label.

    References:
        Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms,
        arXiv:1708.07747, 2017.

    >>> import struct, tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "t10k"):  # two black images of class 5
    ...         pixels = struct.pack(">4i", 2051, 2, 28, 28) + bytes(2 * 28 * 28)
    ...         _ = Path(folder, f"{part}-images-idx3-ubyte").write_bytes(pixels)
    ...         _ = Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, 2) + bytes([5, 5]))
    ...     data = d5.datasets.fashion_mnist(folder=folder, pixels="unit")
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (2, 2, {'input': 'float32[1, 28, 28]', 'label': 'int64[]'})
    """
    root = find_or_fetch("fashion-mnist", "fashion_mnist", _FASHION, folder=folder, download=download)
    return _splits("Fashion-MNIST", root, pixels, (0.2860, 0.3530), limit, test_limit)


def _splits(
    source: str,
    root: Path,
    pixels: str,
    statistics: tuple[float, float],
    limit: int | None,
    test_limit: int | None,
) -> Splits:
    scaling = scaling_of(pixels, statistics[:1], statistics[1:], source)
    digest = hashlib.sha256()
    parts = []
    for stem, name, given in (("train", "limit", limit), ("t10k", "test_limit", test_limit)):
        images_file, labels_file = _found(root, f"{stem}-images-idx3-ubyte"), _found(root, f"{stem}-labels-idx1-ubyte")
        images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
        if len(images) != len(labels):
            raise UsageError(
                f"{images_file} has {len(images)} images and {labels_file} {len(labels)} labels; allowed: equal numbers"
            )
        if labels.max() > 9:
            wrong = int((labels > 9).argmax())
            raise UsageError(f"{labels_file}, sample {wrong}, holds the label {labels[wrong]}; allowed: 0 to 9")
        most = check_limit(source, name, given, len(images))
        images, labels = images[:most], labels[:most]
        digest.update(images.tobytes() + labels.tobytes())
        parts.append(image_arrays(images[:, None], labels, scaling))
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=digest.hexdigest(),
        description={
            "source": f"{source}, IDX files",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "split": "the one that the files have",
            "preparation": scaling.describe() if scaling else "none",
        },
    )


def _found(root: Path, name: str) -> Path:
    """The file under any of its usual names."""
    names = [name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz"]
    for candidate in names:
        if is_file(root / candidate):
            return root / candidate
    raise UsageError(
        f"the data file {root / name} is not there; allowed: {', '.join(names)}; remedy: put it there, or delete the "
        "folder and let it be downloaded"
    )


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An IDX file of unsigned bytes, gzipped or not.

    Args:
        path: The file.
        dimensions: The rank that the file must have.

    Returns:
        uint8, of the shape in the file, in which no size is zero.

    Raises:
        UsageError: The file cannot be read, is corrupt, has another magic number, or its length differs from its
            header.

    References:
        LeCun, Cortes and Burges, The MNIST database of handwritten digits, "File formats": two bytes of zero, one for
        the element type, one for the number of dimensions; their sizes, four bytes each, big-endian; the elements in
        row-major order.
    """
    content = inflated(path, _LARGEST_BYTES)
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise UsageError(
            f"{path} has the magic number 0x{content[:4].hex() or '0 bytes'}; allowed: 0x{magic.hex()}, unsigned bytes "
            f"in {dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    if len(content) < header:
        raise UsageError(f"{path} ends after {len(content)} bytes; allowed: a header of {header} bytes at least")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if math.prod(shape) == 0 or len(content) - header != math.prod(shape):
        raise UsageError(
            f"{path} has {len(content) - header} bytes of elements, but says that its shape is {shape}; allowed: as "
            "many bytes as elements, at least one; remedy: get the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
