"""Arrays from NumPy files, memory-mapped where possible."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core import quantities
from deep5.core.content_hashes import file_hash
from deep5.core.errors import UsageError, brief
from deep5.training.dataset import ArrayDataset, Dataset, Splits
from deep5.training.datasets.mapped import MappedDataset, not_finite
from deep5.training.datasets.splitting import check_limit, drawn, split_hash

__all__ = ["NPY", "arrays", "check_npy"]

NPY = b"\x93NUMPY"
"""The first bytes of an .npy file."""

# Arrays of files that are larger in sum are not copied: only the samples of a batch are read.
_COPIED_BYTES = 64 << 20
# The files of larger arrays are hashed instead of the arrays, so that the hash can be kept while a file is unchanged.
_WHOLE_BYTES = 1 << 30
_PIECE_BYTES = 1 << 24

_Path = str | os.PathLike[str]
_Given = _Path | Mapping[str, _Path]


def arrays(
    train: _Given,
    *,
    test: _Given | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Splits:
    """NumPy files: an .npz with one array per input, or one .npy file per input, memory-mapped instead of read.

    Args:
        train: An .npz file whose arrays have the names of the network's inputs, or an .npy file for each name. The
            first dimension of every array is the number of samples.
        test: The same for the test samples; None: a seeded fraction of the training samples, drawn regardless of
            labels.
        test_share: That fraction.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.

    Returns:
        Samples with the names and dtypes of the arrays; `label`, if present, is int64.

    Raises:
        UsageError: A file is missing or corrupt, or holds objects; or the arrays have different numbers of samples.

    >>> import tempfile
    >>> import numpy as np
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/train.npz", input=np.ones((10, 3), np.float32), label=np.arange(10) % 2)
    ...     data = d5.datasets.arrays(f"{folder}/train.npz", test_share=0.2)
    ...     print(len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()})
    8 2 {'input': 'float32[3]', 'label': 'int64[]'}
    """
    what = "arrays"
    read, digest = _read(train)
    _check_lengths(train, read)
    length = len(next(iter(read.values())))
    if test is None:
        chosen = list(drawn(what, length, test_share, split_seed))
        sources = [(read, digest), (read, digest)]
        split = f"{test_share:g} of the samples to the test set, seed {split_seed}"
    else:
        other, other_digest = _read(test)
        _check_lengths(test, other)
        _check_alike(test, read, other)
        chosen = [np.arange(length), np.arange(len(next(iter(other.values()))))]
        sources = [(read, digest), (other, other_digest)]
        split = "the files given"
    parts: list[Dataset] = []
    for position, (name, most) in enumerate((("limit", limit), ("test_limit", test_limit))):
        chosen[position] = chosen[position][: check_limit(what, name, most, len(chosen[position]))]
        given = train if test is None or position == 0 else test
        large = isinstance(given, Mapping) and sum(a.nbytes for a in sources[position][0].values()) > _COPIED_BYTES
        parts.append((_mapped_part if large else _part)(*sources[position], chosen[position]))
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=split_hash(*chosen),
        description={
            "source": f"NumPy files {_shown(train)}" + ("" if test is None else f" and {_shown(test)}"),
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "split": split,
            "hash": f"all bytes of the arrays; of one above {quantities.size(_WHOLE_BYTES)}, all bytes of its file",
        },
    )


def _part(read: Mapping[str, np.ndarray], digest: str, ids: np.ndarray) -> ArrayDataset:
    """The samples with these indices: all samples stay memory-mapped, a subset is copied."""
    whole = all(len(array) == len(ids) for array in read.values())
    chosen = {name: array if whole else array[ids] for name, array in read.items()}
    if "label" in chosen and chosen["label"].dtype.kind in "iu":
        label = chosen["label"]
        if label.dtype == np.uint64 and label.size and label.max() > np.iinfo(np.int64).max:
            raise UsageError(f"the label {label.max()} is out of range; allowed: signed 64-bit integers")
        chosen["label"] = label.astype(np.int64, copy=False)
    known = hashlib.sha256(f"{digest} ".encode() + ids.astype(np.int64).tobytes()).hexdigest()
    return ArrayDataset(chosen, content_hash=known)


def _mapped_part(read: Mapping[str, np.ndarray], digest: str, ids: np.ndarray) -> MappedDataset:
    """The samples with these indices, which stay in the files."""
    dtypes = {name: "int64" if name == "label" and a.dtype.kind in "iu" else str(a.dtype) for name, a in read.items()}
    return MappedDataset(read, ids, content_hash=digest, dtypes=dtypes)


def _read(given: _Given) -> tuple[dict[str, np.ndarray], str]:
    """Arrays by name, and the SHA-256 of their contents."""
    if isinstance(given, (str, os.PathLike)):
        found = _read_npz(Path(given))
        files = dict.fromkeys(found, str(given))
    elif isinstance(given, Mapping) and given and all(map(_is_entry, given.items())):
        found = {name: _read_npy(Path(path)) for name, path in given.items()}
        files = {name: str(path) for name, path in given.items()}
    else:
        arrays_given = isinstance(given, Mapping) and any(isinstance(one, np.ndarray) for one in given.values())
        raise UsageError(
            f"arrays of {brief(given)}; allowed: an .npz file, or a dict of names and .npy files"
            + ("; remedy: numpy.savez, or d5.Splits of two d5.ArrayDataset" if arrays_given else "")
        )
    digest = hashlib.sha256()
    for name, array in sorted(found.items()):
        digest.update(f"{name} {array.dtype}{array.shape}\n".encode())
        if array.nbytes <= _WHOLE_BYTES:
            _check_finite(files[name], name, array)
            digest.update(array.reshape(-1).view(np.uint8).data)
            continue
        try:
            digest.update(file_hash(files[name]).encode())
        except OSError as error:
            raise _unreadable(Path(files[name]), error) from error
    return found, digest.hexdigest()


def _is_entry(entry: tuple[object, object]) -> bool:
    return isinstance(entry[0], str) and isinstance(entry[1], (str, os.PathLike))


def _check_alike(given: _Given, train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray]) -> None:
    """Reject test samples that differ from the training samples in names, shapes or dtypes.

    Raises:
        UsageError: The message has both.
    """
    own, other = (
        {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in sorted(part.items())}
        for part in (train, test)
    )
    if own != other:
        got, allowed = (", ".join(f"{name} {spec}" for name, spec in part.items()) for part in (other, own))
        raise UsageError(f"{_shown(given)} holds test samples of {got}; allowed: {allowed}, as the training samples")


def check_npy(begin: bytes) -> None:
    """Reject a file without the header of .npy files; NumPy itself would report a pickle, and how to load it unsafely.

    Args:
        begin: The first bytes of the file, as many as `NPY` has.

    Raises:
        ValueError: They differ from `NPY`.
    """
    if begin != NPY:
        raise ValueError("it has no NumPy header" if begin else "it is empty")


def _check_finite(file: str, name: str, array: np.ndarray) -> None:
    """Reject NaN and infinity, in pieces of the file.

    Raises:
        UsageError: The message names the file, the array and the place.
    """
    rows = max(1, _PIECE_BYTES * len(array) // max(1, array.nbytes)) if len(array) else 1
    for begin in range(0, len(array), rows):
        if (place := not_finite(array[begin : begin + rows])) is not None:
            value, (row, *inner) = array[begin : begin + rows][place], place
            raise UsageError(
                f"{file}: the array {name!r} is {value} at {(begin + row, *inner)}; allowed: finite numbers; remedy: "
                "correct the file, or leave the sample out"
            )


def _read_npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            begin = file.read(len(NPY))
        if not begin.startswith(b"PK"):
            check_npy(begin)
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, OverflowError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(mapped, np.ndarray):
        raise UsageError(f"{path} holds several arrays; allowed: an .npy file here; remedy: give the .npz file itself")
    return _plain(path, mapped)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    import psutil

    try:
        with zipfile.ZipFile(path) as archive:
            size, room = sum(member.file_size for member in archive.infolist()), psutil.virtual_memory().available
        if size > room:
            raise UsageError(
                f"{path} holds {size} bytes, and {room} are free; remedy: an .npy file for each array, which is mapped"
            )
        with np.load(path, allow_pickle=False) as archive:
            return {name: _plain(f"{path}, array {name!r}", archive[name]) for name in archive.files}
    except (OSError, ValueError, EOFError, SyntaxError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise _unreadable(path, error) from error


def _plain(what: object, array: Any) -> np.ndarray:
    """The array in native byte order, in the order of the samples; memory-mapped if it was."""
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"{what} is not an array; allowed: members of an .npz file that numpy.savez writes; remedy: leave it out"
        )
    if array.dtype.kind not in "biuf" or array.ndim == 0 or array.dtype.itemsize > 8:
        raise UsageError(
            f"{what} holds {array.dtype}{list(array.shape)}; allowed: numbers of at most 8 bytes, with the samples as "
            "the first dimension"
        )
    converted = not array.dtype.isnative or not array.flags.c_contiguous
    if isinstance(array, np.memmap) and array.nbytes > _WHOLE_BYTES and converted:
        raise UsageError(
            f"{what} holds {array.nbytes} bytes in another byte order or column by column; allowed: C order and this "
            "machine's byte order for files that are mapped; remedy: numpy.save(…, numpy.ascontiguousarray(…))"
        )
    array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array)


def _check_lengths(given: _Given, read: Mapping[str, np.ndarray]) -> None:
    lengths = {name: len(array) for name, array in read.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        found = ", ".join(f"{name}: {length}" for name, length in lengths.items()) or "no array"
        raise UsageError(f"{_shown(given)} holds samples of {found}; allowed: as many of each, at least one")


def _shown(given: _Given) -> str:
    return Path(given).name if not isinstance(given, Mapping) else ", ".join(Path(p).name for p in given.values())


def _unreadable(path: Path, error: BaseException) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(
            f"the data file {path} is not there; allowed: an .npz file, or a dict of names and .npy files"
        )
    raw = "no NumPy header" in str(error)
    remedy = f"; remedy: numpy.save('NEW.npy', numpy.memmap({str(path)!r}, DTYPE, 'r', shape=…)) if it is raw" * raw
    if isinstance(error, zipfile.BadZipFile) and path.suffix == ".npy":
        remedy = "; remedy: {'input': " + repr(str(path)) + ", …}, since an .npy file has one array"
    return UsageError(
        f"{path} cannot be read ({' '.join(str(error).split())[:200]}); allowed: a whole file as numpy.save or "
        f"numpy.savez writes it, without objects{remedy}"
    )
