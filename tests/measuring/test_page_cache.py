"""The page cache is emptied and filled by file, and a file that stays in it is noticed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from deep5.core.errors import UsageError
from deep5.measuring import page_cache
from deep5.measuring.page_cache import check_cold, drop_pages, fill_pages, resident_share

PAGES = 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 64 pages on a disk."""
    made = tmp_path / "x"
    made.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    drop_pages([made])
    if resident_share([made]) > 0:
        pytest.skip("the folder for temporary files is in memory: no file in it can be cold")
    return made


def test_pages_leave_and_come_back(path: Path) -> None:
    assert resident_share([path]) == 0
    fill_pages([path])
    assert resident_share([path]) == 1
    assert check_cold([path]) == 0
    assert resident_share([path]) == 0


def test_a_part_of_a_file_counts(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        os.pread(handle, 1, 0)
    finally:
        os.close(handle)
    assert 0 < resident_share([path]) < 0.5


def test_several_files_and_empty_ones(path: Path) -> None:
    empty, other = path.with_name("empty"), path.with_name("other")
    empty.touch()
    other.write_bytes(path.read_bytes())
    fill_pages([path])
    drop_pages([other])
    assert resident_share([path, other, empty]) == 0.5
    assert resident_share([empty]) == resident_share([]) == 1


def test_a_mapped_file_stays(path: Path) -> None:
    """The check of cold files can fail: pages in use are not removed."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:].count(0) > 0  # reads every page
        with pytest.raises(
            UsageError, match=r"% of the pages of 1 files in .* stay in the page cache .*remedy: a fold"
        ):
            check_cold([path])
    assert check_cold([path]) == 0


def test_a_file_system_in_memory() -> None:
    folder = Path("/dev/shm")  # noqa: S108 - a file system in memory
    if not os.access(folder, os.W_OK):
        pytest.skip("there is no /dev/shm to write to")
    made = folder / f"deep5-test-{os.getpid()}"
    try:
        made.write_bytes(bytes(10 * mmap.PAGESIZE))
        with pytest.raises(UsageError, match=r"100 % of the pages of 1 files in /dev/shm stay in the page cache"):
            check_cold([made])
    finally:
        made.unlink(missing_ok=True)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for work in (drop_pages, fill_pages, resident_share, check_cold):
        with pytest.raises(UsageError, match=r"gone cannot be opened \(No such file or directory\); allowed"):
            work([tmp_path / "gone"])


def test_a_system_without_the_calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache.ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(UsageError, match=r"this system has no mincore .* remedy: a folder on a local disk"):
        resident_share([path])
    monkeypatch.delattr(os, "posix_fadvise")
    with pytest.raises(UsageError, match="this system has no posix_fadvise"):
        drop_pages([path])
