"""Hashes of files: of their bytes, read once while nothing changes."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from deep5.core import content_hashes
from deep5.core.content_hashes import file_hash, files_hash, kept_hashes


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    paths = [tmp_path / "data" / f"{number}.bin" for number in range(12)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 70_000)
    return [str(path) for path in paths]


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files that were written 50 ms ago count as settled."""
    monkeypatch.setattr(content_hashes, "_SETTLED_NS", 20_000_000)
    time.sleep(0.05)


def test_one_file_has_the_hash_of_its_bytes(files: list[str], tmp_path: Path) -> None:
    assert file_hash(files[1]) == hashlib.sha256(b"\1" * 70_000).hexdigest()
    small = tmp_path / "small"
    small.write_bytes(b"abc")
    assert file_hash(small) == hashlib.sha256(b"abc").hexdigest()


def test_several_files_have_a_hash_of_their_hashes_in_order(files: list[str]) -> None:
    each = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files]
    assert files_hash(files) == hashlib.sha256("\n".join(each).encode()).hexdigest()
    assert files_hash(files[::-1]) != files_hash(files)


def test_settled_files_are_read_once(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first = files_hash(files)
    assert len(list(kept_hashes().iterdir())) == 1
    monkeypatch.setattr(content_hashes, "_read", lambda path: pytest.fail(f"{path} was read again"))
    assert files_hash(files) == first


def test_files_that_were_just_written_are_not_kept(files: list[str]) -> None:
    files_hash(files)
    assert not kept_hashes().exists()


def test_a_change_with_the_same_size_and_time_of_modification_is_seen(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    first, before = files_hash(files), Path(files[3]).stat()
    with Path(files[3]).open("r+b") as file:
        file.write(b"x")
    os.utime(files[3], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Path(files[3]).stat().st_mtime_ns == before.st_mtime_ns
    time.sleep(0.05)
    assert files_hash(files) != first


def test_another_file_in_its_place_is_seen(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first, before = files_hash(files), Path(files[3]).stat()
    (tmp_path / "new").write_bytes(b"y" * 70_000)
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").replace(files[3])
    time.sleep(0.05)
    assert files_hash(files) != first


@pytest.mark.parametrize("content", ["", "0" * 63, "g" * 64, "\0" * 64])
def test_a_damaged_entry_is_made_again(content: str, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first = files_hash(files)
    [entry] = kept_hashes().iterdir()
    entry.write_text(content)
    assert files_hash(files) == first


def test_a_cache_that_cannot_be_written_only_costs_time(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    first = files_hash(files)
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "a file"))
    assert files_hash(files) == first


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
        with pytest.raises(OSError, match=r"regular file|No such file"):
            file_hash(path)
