"""Files of result folders are read only if they are regular files of bounded size: their origin is untrusted."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from deep5.core.errors import OutputError, UsageError
from deep5.results.comparison import load_comparison
from deep5.results.folder import ResultFolder
from deep5.results.kind import FILES, kind_of
from deep5.results.mllog import read_mllog
from deep5.results.reading import NotThere, parsed, read_bytes, read_json, read_object, read_rows, read_text
from deep5.results.result import load
from deep5.results.schema import blank_document
from deep5.results.study.folder import load_study_folder


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # the name of a socket has to be short
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(path.name)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((1 << 28) + 1)


@pytest.mark.parametrize(
    "read", [read_bytes, read_text, read_json, read_object, lambda path: list(read_rows(path, "a"))]
)
@pytest.mark.parametrize(
    ("put", "message"),
    [
        (os.mkfifo, "is not a plain file"),
        (os.mkdir, "is not a plain file"),
        (_socket, "is not a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link"),
        (lambda path: path.symlink_to("nowhere"), "is a link"),
        (lambda path: path.symlink_to(path), "is a link"),
        (_large, r"has 268435457 bytes; allowed: at most \d+"),
    ],
)
def test_what_is_no_plain_file_of_bounded_size_is_refused_at_once(
    read: Callable[[Path], object],
    put: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "a.json")
    with pytest.raises(UsageError, match=rf"a\.json {message}.*"):
        read(tmp_path / "a.json")


def test_what_is_not_there_is_told_from_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotThere, match=r"a\.json does not exist; .*remedy: check the path"):
        read_bytes(tmp_path / "a.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"a\.json does not exist: .*file is not a folder; allowed: ") as caught:
        read_bytes(tmp_path / "file" / "a.json")
    assert not isinstance(caught.value, NotThere)
    with pytest.raises(UsageError, match="embedded null"):
        read_bytes(tmp_path / "a\0b")


def test_no_link_below_the_root_is_followed_and_those_above_are(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    (tmp_path / "elsewhere" / "run" / "a.json").write_text("{}")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "inner").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"root/inner is a link; allowed: .*; remedy: replace it by a copy"):
        read_bytes(tmp_path / "root" / "inner" / "run" / "a.json", root=tmp_path / "root")
    assert read_bytes(tmp_path / "root" / "inner" / "run" / "a.json", root=tmp_path / "root" / "inner") == b"{}"
    for outside in ("../elsewhere/run/a.json", "inner/../../elsewhere/run/a.json"):
        with pytest.raises(UsageError, match="leads out of"):
            read_bytes(tmp_path / "root" / outside, root=tmp_path / "root")
    with pytest.raises(UsageError, match="is not in"):
        read_bytes("/etc/passwd", root=tmp_path / "root")


def test_messages_cannot_steer_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(NotThere) as caught:
        read_bytes(tmp_path / "\x1b[31m")
    assert "\\x1b[31m" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[1e999]", "1e999 is too large"),
        (b"[" * 100_000, "nests deeper than 100"),
        (b"[" * 150 + b"]" * 150, "nests deeper than 100"),
        (b"[" + b"[]," * 1_000_001 + b"0]", "more than 2000000 values"),
        (b"1" * 5000, "truncated or not JSON"),
        ('{"a": 1}'.encode("utf-16"), "truncated or not JSON"),
        (b'"\xff"', "truncated or not JSON"),
    ],
)
def test_what_is_no_bounded_json_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=rf"a\.json .*{re.escape(message)}.*remedy: restore it"):
        read_json(tmp_path / "a.json")


def test_json_is_read_as_it_stands(tmp_path: Path) -> None:
    assert parsed(b"[" * 99 + b"1" + b"]" * 99) is not None
    (tmp_path / "a.json").write_text('{"a": [1, 2.5, "\u00e9", 12345678901234567890]}')
    assert read_object(tmp_path / "a.json") == {"a": [1, 2.5, "\u00e9", 12345678901234567890]}
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(UsageError, match="holds no JSON object"):
        read_object(tmp_path / "a.json")
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"begins with \[\]; expected the columns a, b"),
        (b"a,c\n", r"begins with \['a', 'c'\]"),
        (b"a,b\n1,2\n3,4\n5,6\n", "has more than 2 rows"),
        (b'a,b\n"1', "cannot read .*remedy"),
        (b"a,b\n\xff,2\n", "cannot read .*utf-8"),
        (b"a,b\n" + b"," * (1 << 21), "a row is longer than 1048576 bytes"),
        (b"a,b\n" + b'"\n",' * 200, "a row is longer than .* or 100 lines"),
    ],
)
def test_a_table_that_is_none_or_has_no_bounds_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        list(read_rows(tmp_path / "a.csv", ("a", "b"), most_rows=2))


def test_a_table_is_read_row_by_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,"x\ny"\n3,4\n')
    assert list(read_rows(tmp_path / "a.csv", ("a", "b"))) == [(3, ["1", "x\ny"]), (4, ["3", "4"])]
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 500)
    assert len(list(read_rows(tmp_path / "a.csv", ("a", "b")))) == 500


# Reading a result


@pytest.mark.parametrize("name", ["samples.csv", "result.json"])
def test_a_pipe_in_the_place_of_a_runs_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank_document(recipe={"name": "digits"}, level=2))
    result = load(folder.path)
    assert result.samples() == {}
    (folder.path / name).unlink(missing_ok=True)
    os.mkfifo(folder.path / name)
    with pytest.raises(UsageError, match=f"{name} is not a plain file"):
        result.samples() if name == "samples.csv" else load(folder.path)


def test_a_pipe_in_the_place_of_a_studys_or_comparisons_document_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "study.json")
    with pytest.raises(UsageError, match=r"study\.json is not a plain file"):
        load_study_folder(tmp_path)
    os.mkfifo(tmp_path / "comparison.json")
    with pytest.raises(UsageError, match=r"comparison\.json is not a plain file"):
        load_comparison(tmp_path)
    os.mkfifo(tmp_path / "events.mllog")
    with pytest.raises(UsageError, match=r"events\.mllog is not a plain file"):
        read_mllog(tmp_path / "events.mllog")


def test_a_run_of_a_study_behind_a_link_is_not_read(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path / "elsewhere", "digits", blank_document(recipe={"name": "digits"}, level=2))
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "runs").symlink_to(tmp_path / "elsewhere")
    path = tmp_path / "study" / "runs" / folder.run_id
    assert load(path).status == "aborted"
    with pytest.raises(UsageError, match="study/runs is a link"):
        load(path, root=tmp_path / "study")


# The kind of a folder


@pytest.mark.parametrize(("kind", "name"), FILES.items())
def test_the_document_in_a_folder_tells_its_kind(kind: str, name: str, tmp_path: Path) -> None:
    assert kind_of(tmp_path) is None
    (tmp_path / name).symlink_to("nowhere")
    assert kind_of(tmp_path) == kind
    other = next(own for own in FILES.values() if own != name)
    (tmp_path / other).write_text("{}")
    with pytest.raises(UsageError, match=r"holds \w+\.json and \w+\.json; allowed: one of them.*remedy") as caught:
        kind_of(tmp_path)
    assert name in str(caught.value)
    assert other in str(caught.value)


# Resuming writes to a folder of unknown origin


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.parent.parent / "precious")])
def test_events_go_into_a_plain_file_of_the_folder_itself(put: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious, and no line")
    folder = ResultFolder.create(tmp_path, "digits", blank_document(recipe={"name": "digits"}, level=2))
    put(folder.path / "events.mllog")
    with pytest.raises(OutputError, match=r"cannot write .*events\.mllog"):
        folder.append_event("line")
    with pytest.raises(OutputError, match=r"cannot write .*events\.mllog"):
        folder.cut_events(0)
    assert (tmp_path / "precious").read_text() == "precious, and no line"


@pytest.mark.parametrize("size", [0, 10, (1 << 16) - 6, 1 << 16, 200_000])
@pytest.mark.parametrize("kept", ["", "first\n", "x" * (1 << 17) + "\n"])
def test_a_torn_event_of_any_length_is_cut_off(kept: str, size: int, tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank_document(recipe={"name": "digits"}, level=2))
    (folder.path / "events.mllog").write_text(kept + "t" * size)
    folder.append_event("last")
    assert (folder.path / "events.mllog").read_text() == f"{kept}last\n"


def test_a_damaged_event_is_told_however_deep_it_nests(tmp_path: Path) -> None:
    (tmp_path / "events.mllog").write_text(":::MLLOG " + "[" * 100_000 + "\n\n")
    with pytest.raises(UsageError, match=r"line 1 is damaged \(it nests deeper than 100\)"):
        read_mllog(tmp_path / "events.mllog")
