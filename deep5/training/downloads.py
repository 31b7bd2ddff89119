"""Data set files: existing ones, or a single https download with a SHA-256 check and its size announced before."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from deep5.core import quantities
from deep5.core.compiler import cache_folder
from deep5.core.errors import OutputError, UsageError, brief
from deep5.core.files import is_folder
from deep5.core.plugins import missing_dependency
from deep5.core.progress import counting
from deep5.training.archives import extract

__all__ = [
    "DataMissing",
    "Remote",
    "check_fetching",
    "data_folders",
    "download_folder",
    "fetch",
    "find_or_fetch",
    "given_path",
    "nothing_fetched",
]

_CONNECT_S, _SILENCE_S = 20.0, 60.0
_BLOCK = 1 << 18
# urllib3 before 2.2 waits until a block is full: this is what the slowest allowed server sends in a second.
_SMALL_BLOCK = 1 << 10
# Minimum transfer rate, averaged over this period; a slower server counts as stalled.
_SLOWEST_BYTES_PER_S, _PATIENCE_S = 1_000, 300.0


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file that can be downloaded.

    Attributes:
        name: Its file name on disk.
        urls: Its addresses, https only; tried in order.
        sha256: The checksum of its content.
        size_bytes: The size of the file.
        archive_of: The sibling folder to unpack it to; None: it is no archive.
        unpacked_bytes: The limit of the unpacked size.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str
    size_bytes: int
    archive_of: str | None = None
    unpacked_bytes: int = 0


class DataMissing(UsageError):
    """The files of a data set are not on this machine."""


_FETCHING = ContextVar("fetching", default=True)


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Inside the context, a data set that would be downloaded or generated as files raises `DataMissing` instead."""
    token = _FETCHING.set(False)
    try:
        yield
    finally:
        _FETCHING.reset(token)


def check_fetching(what: str) -> None:
    """Reject a download, or the writing of files, inside `nothing_fetched`.

    Raises:
        DataMissing: It is not allowed here.
    """
    if not _FETCHING.get():
        raise DataMissing(f"the data set {what} is not on this machine yet; a run fetches it")


def download_folder() -> Path:
    """The folder for data set downloads: `data` in deep5's cache."""
    return cache_folder() / "data"


def data_folders() -> tuple[Path, ...]:
    """The search path for data sets: `$DEEP5_DATA`, if set, then the download folder."""
    given = os.environ.get("DEEP5_DATA")
    return (*((Path(given),) if given else ()), download_folder())


def find_or_fetch(name: str, what: str, remotes: Sequence[Remote], *, folder: str | None, download: bool) -> Path:
    """The folder with a data set's files.

    Args:
        name: The folder's name in `$DEEP5_DATA` and in the download folder.
        what: The data set, for messages.
        remotes: The files to download if the folder is in neither.
        folder: The folder, if the caller specifies it; then there is no search and no download.
        download: Whether downloading is allowed.

    Raises:
        UsageError: The folder does not exist, and a download is not allowed or failed.
        MissingDependency: `pooch` is not installed.
    """
    if folder is not None:
        given = given_path(what, folder)
        if not is_folder(given):
            raise UsageError(f"{what}: the folder {folder} is not there; remedy: folder= the one that holds its files")
        return given
    for place in data_folders():
        if is_folder(place / name):
            return place / name
    size = quantities.size(sum(remote.size_bytes for remote in remotes))
    if not download:
        looked = " or ".join(str(place / name) for place in data_folders())
        raise UsageError(
            f"the data set {what} is not there: no folder {looked}; remedy: download=True ({size}), or set DEEP5_DATA "
            f"to the folder that holds {name}"
        )
    check_fetching(what)
    target = download_folder() / name
    sys.stderr.write(f"{what}: downloading {size} to {target}; set DEEP5_DATA if a folder already holds it\n")
    fetch(remotes, target)
    return target


def given_path(what: str, path: object, name: str = "folder") -> Path:
    """A path argument of a data set's function.

    Args:
        what: The data set, for messages.
        path: The argument's value.
        name: The argument's name.

    Raises:
        UsageError: It is not a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"{what}: got {name}={brief(path)}; allowed: a path as a string")
    return Path(path)


def fetch(remotes: Sequence[Remote], target: Path, *, plain_http: bool = False) -> None:
    """Download files, verify them, and unpack archives.

    They go into a hidden sibling of the data set's folder, which is renamed when it is complete and verified.

    Args:
        remotes: The files; an archive becomes the folder itself.
        target: The data set's folder.
        plain_http: Only for tests against a local server.

    Raises:
        UsageError: A file cannot be downloaded, has another checksum, or is an unsafe archive.
        OutputError: The folder cannot be written.
        MissingDependency: `pooch` is not installed.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    except OSError as error:
        raise OutputError(f"{target.parent} cannot be written ({error.strerror}); remedy: set DEEP5_CACHE") from error
    try:
        ready = waiting
        for remote in remotes:
            _fetch_one(remote, waiting, plain_http)
            if remote.archive_of is not None:
                unpacked = extract(waiting / remote.name, waiting / "unpacked", max_bytes=remote.unpacked_bytes)
                ready = unpacked / remote.archive_of
                if not is_folder(ready):
                    raise UsageError(f"{remote.name} holds no folder {remote.archive_of}; allowed: the published one")
        ready.chmod(0o755)
        try:
            ready.rename(target)
        except OSError as error:
            if not is_folder(target):  # another process was first: its result is equivalent
                raise OutputError(f"{target} cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(waiting, ignore_errors=True)


def _fetch_one(remote: Remote, folder: Path, plain_http: bool) -> None:
    """Download one file with pooch: to a temporary file, which is renamed after its checksum is verified."""
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise missing_dependency(f"the download of {remote.name}", error) from error
    failures = []
    with _quiet(pooch.get_logger()):
        for url in remote.urls:
            try:
                _check_scheme(url, plain_http)
                pooch.retrieve(
                    url=url,
                    known_hash=f"sha256:{remote.sha256}",
                    fname=remote.name,
                    path=folder,
                    downloader=_Downloader(remote, plain_http),
                )
            except UsageError as error:
                failures.append(f"{url}: {error}")
            except ValueError as error:  # pooch's exception for a wrong checksum
                failures.append(f"{url}: not the file with the SHA-256 {remote.sha256[:16]}… ({_first_line(error)})")
            except OSError as error:  # includes requests' errors
                if error.errno is not None and not isinstance(error, ConnectionError):
                    raise OutputError(
                        f"{folder / remote.name} cannot be written ({error.strerror}); remedy: make room for "
                        f"{quantities.size(remote.size_bytes)}, or set DEEP5_CACHE to another folder"
                    ) from error
                failures.append(f"{url}: {_network_reason(error)}")
            else:
                (folder / remote.name).chmod(0o644)  # only its owner can read a temporary file
                return
    raise UsageError(
        f"{remote.name} ({quantities.size(remote.size_bytes)}) could not be downloaded: {'; '.join(failures)}; remedy: "
        "try again, or get the file elsewhere and set DEEP5_DATA to the folder that holds it"
    )


class _Downloader:
    """The downloader for pooch: streams a file, never more than its size, and rejects redirects away from https."""

    def __init__(self, remote: Remote, plain_http: bool) -> None:
        self._remote, self._plain_http = remote, plain_http

    def __call__(self, url: str, output_file: str, _pooch: Any, check_only: bool = False) -> None:
        """Write the file at `url` to `output_file`."""
        import requests

        def no_way_out(response: Any, **_: Any) -> None:
            if response.is_redirect:
                _check_scheme(requests.compat.urljoin(response.url, response.headers["location"]), self._plain_http)

        with requests.get(
            url,
            stream=True,
            timeout=(_CONNECT_S, _SILENCE_S),
            headers={"Accept-Encoding": "identity"},
            hooks={"response": no_way_out},
        ) as response:
            response.raise_for_status()
            with (
                Path(output_file).open("wb") as file,
                counting(f"downloading {self._remote.name}", self._remote.size_bytes, shown=quantities.size) as advance,
            ):
                self._copy(response, file, advance)

    def _copy(self, response: Any, file: IO[bytes], advance: Any) -> None:
        import urllib3

        size, copied, began = self._remote.size_bytes, 0, time.monotonic()
        # Partial reads instead of whole blocks: with a slow server these would arrive too late to measure the rate.
        read1 = getattr(response.raw, "read1", None)
        read, most = (response.raw.read, _SMALL_BLOCK) if read1 is None else (read1, _BLOCK)
        while True:
            try:
                # Raw bytes: no Content-Encoding is decoded, the checksum is that of the file itself.
                block = read(most, decode_content=False)
            except urllib3.exceptions.HTTPError as error:
                raise UsageError(f"the connection broke after {copied} of the file's {size} bytes ({error})") from error
            if not block:
                break
            copied += len(block)
            if copied > size:
                raise UsageError(f"the server sends more than the {size} bytes of the file")
            file.write(block)
            advance(len(block))
            spent = time.monotonic() - began
            if spent > _PATIENCE_S and copied < spent * _SLOWEST_BYTES_PER_S:
                raise UsageError(f"the server sent {copied} bytes in {spent:.0f} s")
        if copied < size:
            raise UsageError(f"the server sent {copied} of the file's {size} bytes")


def _check_scheme(url: str, plain_http: bool) -> None:
    scheme = urlsplit(url).scheme
    if scheme != "https" and not (plain_http and scheme == "http"):
        raise UsageError(f"the address leads to {url[:120]!r}; allowed: https")


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Suppress pooch's log: the size has been announced, and failures become errors."""
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def _network_reason(error: BaseException) -> str:
    """The cause in requests' errors, without the objects that they name."""
    cause = error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
    return _first_line(getattr(cause, "reason", None) or cause).rpartition("): ")[2]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
