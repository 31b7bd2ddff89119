"""The store: every result under a root is found, listed and joined, whatever else the folders contain."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import deep5 as d5
import report_cases as cases
from command import Command
from deep5.cli.clean import cleaned, found_in_cache, found_in_results
from deep5.core.errors import MissingDependency, UnknownName, UsageError
from deep5.results.comparison import load_comparison
from deep5.results.folder import ResultFolder
from deep5.results.index import index_folder, index_of, list_results
from deep5.results.kind import STUDY
from deep5.results.samples_file import SampleRow, samples_text
from deep5.results.schema import blank_document
from deep5.results.store import FILES, result_folders, survey
from deep5.results.stored import Stored, printable
from deep5.results.validation import check_document

HASH = "0123456789abcdef" * 4


def document(name: str = "digits-1", **changes: Any) -> dict[str, Any]:
    """A valid result.json of a successful run."""
    made = blank_document(
        run_id=name,
        recipe={
            "name": "digits",
            "hash": HASH,
            "size": "full",
            "division": "closed",
            "mutable": {"batch_size": 64, "optimizer_kwargs": {"lr": 0.01}, "layers": [1, 2], "seed": 3},
        },
        framework={"name": "reference", "version": "2.0", "device": "cpu"},
        level=2,
        seeds={"run": 3},
        threads={"asked": 2, "framework": 2, "pools": {}},
        metrics=[metric("test_accuracy", 97.5, "%")],
        started="2026-01-02T03:04:05Z",
    )
    return made | {
        "status": "success",
        "reasons": [],
        "finished": "2026-01-02T03:05:05Z",
        "resources": {"set_up_s": 1.0, "wall_time_s": 60.0, "cpu_time_s": 1.0},
        **changes,
    }


def metric(name: str, value: float | str | None, unit: str) -> dict[str, Any]:
    return {
        "name": name,
        "unit": unit,
        "direction": "higher",
        "goal": None,
        "value": value,
        "passed": None,
        "interval": None,
        "samples": 1,
        "scope": None,
        "missing": None,
        "parameters": {},
    }


def put(folder: Path, made: dict[str, Any] | None = None, *, settled: bool = True) -> Path:
    """Write a result folder; settled: long enough ago that the index trusts the file's times."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(made or document(folder.name)))
    if settled:
        settle()
    return folder


def settle() -> None:
    time.sleep(0.03)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process the index trusts files that are 20 ms old, instead of a second."""
    monkeypatch.setattr("deep5.results.index._SETTLED_NS", 20_000_000)


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """All paths in a folder, with the times of its entries; links are not followed."""
    return {
        str(path): (about.st_mtime_ns, about.st_size, str(path.readlink()) if path.is_symlink() else "")
        for path in (folder, *folder.rglob("*"))
        for about in [path.lstat()]
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs side by side, within folders, and in a study; and many other files and folders."""
    out = tmp_path / "results"
    check_document(document())
    put(out / "b", document("b", started="2026-01-03T00:00:00Z"), settled=False)
    put(out / "deeper" / "and deeper" / "a", document("a", started="2026-01-01T00:00:00Z"), settled=False)
    put(out / ".c.tmp", settled=False)
    put(out / "b" / "checkpoints" / "inner", settled=False)
    study = out / "digits-study-20260102-000000-abcdef"
    put(study / "runs" / "d", document("d"), settled=False)
    candidate = {"settings": {}, "runs": ["runs/d"], "seeds": [0], "failures": ["seed 1: it failed"], "metrics": {}}
    told = {"recipe": "digits", "size": "full", "candidates": {"one": candidate}, "notes": []}
    (study / STUDY).write_text(json.dumps(told))
    (out / "notes.txt").write_text("nothing")
    (out / "linked").symlink_to(out / "b")
    settle()
    return out


def names(root: Path, **options: Any) -> list[str | None]:
    return [own.run_id for own in list_results(root, **options).results]


def test_every_result_is_found_the_oldest_first(root: Path) -> None:
    assert FILES["study"] == STUDY
    study = "digits-study-20260102-000000-abcdef"
    assert names(root) == ["a", study, "d", "b"]
    rows = {own.run_id: own for own in list_results(root).results}
    assert rows["a"].folder == "deeper/and deeper/a"
    assert rows["a"].study is None
    assert (rows["d"].study, rows[study].kind) == (study, "study")
    assert rows[study].verdict == "1 candidate, 1 run, 1 failed"
    assert rows[study].started == "2026-01-02T00:00:00Z"
    assert rows["b"].settings == {"batch_size": 64, "optimizer_kwargs.lr": 0.01, "layers": "[1, 2]", "seed": 3}
    assert rows["b"].metrics == {"test_accuracy": (97.5, "%")}
    assert (rows["b"].seconds, rows["b"].threads, rows["b"].seeds) == (60.0, 2, {"run": 3})


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({}, "success", None),
        ({"schema_version": "2", "hash": HASH, "finished": True}, "success", None),
        ({"schema_version": "2", "hash": HASH, "finished": False}, "aborted", None),
        ({"notes": ["the study was interrupted"]}, "aborted", "the study was interrupted"),
        ({"schema_version": "99"}, "unreadable", "schema version '99'; this deep5 reads '2'"),
    ],
)
def test_studies_of_both_versions_say_how_they_ended(
    changes: dict[str, Any], status: str, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    told = {"recipe": "digits", "size": "full", "candidates": {}, "notes": [], **changes}
    (tmp_path / "a" / STUDY).write_text(json.dumps(told))
    (own,) = list_results(tmp_path).results
    assert (own.status, own.reason, own.hash) == (status, reason, changes.get("hash"))


def test_a_result_folder_is_a_root_of_one(root: Path) -> None:
    assert names(root / "b") == ["b"]
    assert list_results(root / "b").results[0].folder == "."


@pytest.mark.parametrize("what", ["nothing", "file"])
def test_a_root_that_is_no_folder_is_refused(what: str, tmp_path: Path) -> None:
    if what == "file":
        (tmp_path / what).write_text("")
    with pytest.raises(UsageError, match=r"cannot list .*; allowed: a folder that holds result folders"):
        survey(tmp_path / what)


def test_folders_that_go_too_deep_are_left_out_with_a_note(tmp_path: Path) -> None:
    put(tmp_path.joinpath(*"12345678"), document("there"), settled=False)
    put(tmp_path.joinpath(*"abcdefghi"), document("beyond"), settled=False)
    listing = list_results(tmp_path)
    assert [own.run_id for own in listing.results] == ["there"]
    assert listing.notes == ("a/b/c/d/e/f/g/h is 8 folders deep; deeper folders are left out",)


def test_a_root_with_too_many_folders_is_cut_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.results.store._MOST", 3)
    for name in "abcde":
        (tmp_path / name).mkdir()
    (note,) = survey(tmp_path).notes
    assert "has more than 3 folders; the rest is left out" in note


# The index


def test_the_index_saves_reading_and_sees_every_change(root: Path) -> None:
    assert list_results(root).read == 4
    assert index_of(root).is_file()
    assert index_of(root) == index_of(root / "deeper" / "..")
    first = list_results(root)
    assert first.read == 0
    put(root / "b", document("b", warnings=["new"]))
    assert list_results(root).read == 1
    put(root / "e", document("e"))
    assert (list_results(root).read, "e" in names(root)) == (1, True)
    (root / "e" / "result.json").unlink()
    assert "e" not in names(root)
    (root / "b").rename(root / "f")
    listing = list_results(root)
    assert [own.folder for own in listing.results if own.run_id == "b"] == ["f"]
    kept = {json.loads(line)[0] for line in index_of(root).read_text().splitlines()[1:]}
    assert {"e", "b"} & kept == set()
    assert "f" in kept


def test_a_run_is_of_no_study_any_more_where_the_study_is_gone(root: Path) -> None:
    def row(name: str) -> Stored:
        return next(own for own in list_results(root).results if own.folder.endswith(name))

    study = root / "digits-study-20260102-000000-abcdef"
    assert row("runs/d").study == study.name
    (study / STUDY).rename(study / "away.json")
    assert row("runs/d").study is None
    (study / "away.json").rename(study / STUDY)
    assert row("runs/d").study == study.name


def test_a_folder_that_is_of_another_kind_now_is_read_again(root: Path) -> None:
    names(root)
    study = {"recipe": "digits", "size": "full", "candidates": {}, "notes": []}
    (root / "b" / "result.json").unlink()
    (root / "b" / STUDY).write_text(json.dumps(study))
    # Runs inside a study are also searched.
    kinds = {own.folder: own.kind for own in list_results(root).results}
    assert (kinds["b"], kinds["b/checkpoints/inner"]) == ("study", "run")


def test_a_folder_that_is_two_things_at_once_is_neither(root: Path) -> None:
    names(root)
    (root / "b" / STUDY).write_text("{}")
    for _ in range(2):
        own = {own.folder: own for own in list_results(root).results}["b"]
        assert (own.kind, own.status) == ("unclear", "unreadable")
        assert "holds result.json and study.json; allowed: one of them" in (own.reason or "")
    (root / "b" / STUDY).unlink()
    assert {own.folder: own.kind for own in list_results(root).results}["b"] == "run"
    (root / "profile.json").write_text("{}")
    assert len(list_results(root).results) == 4


@pytest.mark.parametrize("settled", [False, True])
def test_a_file_that_is_written_again_with_the_same_size_and_time_is_seen(settled: bool, tmp_path: Path) -> None:
    put(tmp_path / "a", document("one"), settled=settled)
    assert names(tmp_path) == ["one"]
    about = (tmp_path / "a" / "result.json").stat()
    put(tmp_path / "a", document("two"), settled=False)
    os.utime(tmp_path / "a" / "result.json", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert names(tmp_path) == ["two"]


def _foreign(path: Path) -> None:
    path.write_text('{"photos": 3}\n["b", "stamp", {}]\n')


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _lies(path: Path) -> None:
    lines = path.read_text().splitlines()
    wrong = [json.dumps([*json.loads(line)[:2], {"folder": 3}]) for line in lines[1:]]
    path.write_text("\n".join([lines[0], *wrong]))


def _swapped(path: Path) -> None:
    header, *rows = path.read_text().splitlines()
    told = [json.loads(row) for row in rows]
    path.write_text("\n".join([header, *(json.dumps([*own[:2], told[0][2]]) for own in told)]))


def _older(path: Path) -> None:
    text = path.read_text().replace('"digits"', '"as it was read then"')
    path.write_text(text.replace('"version": 9', '"version": 8', 1))


def _junk(path: Path) -> None:
    path.write_bytes(b"\xff\x00" * 1000)


def _deep(path: Path) -> None:
    path.write_text(path.read_text().partition("\n")[0] + "\n" + "[" * 100_000)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_foreign, _torn, _lies, _swapped, _older, _junk, _deep, _empty])
def test_an_index_that_is_no_good_is_made_anew(damage: Any, root: Path) -> None:
    expected = list_results(root).results
    damage(index_of(root))
    assert list_results(root).results == expected
    assert list_results(root).read == 0
    assert list_results(root).results == expected


def test_without_an_index_that_can_be_written_one_does_without(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list_results(root).results
    index = index_of(root)
    index.unlink()
    index.mkdir()
    assert list_results(root, rebuild=True).results == expected
    index.rmdir()
    os.mkfifo(index)
    assert list_results(root).results == expected
    index.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    index.symlink_to(elsewhere)
    assert list_results(root).results == expected
    assert elsewhere.read_text() == "untouched"
    monkeypatch.setenv("DEEP5_CACHE", str(elsewhere))
    for _ in range(2):
        assert list_results(root).results == expected


def test_only_the_indices_that_were_written_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.results.index._MOST_INDICES", 3)
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    roots = [tmp_path / name for name in "abcde"]
    for root in roots:
        put(root / "run")
        names(root)
    assert [index_of(root).exists() for root in roots] == [False, False, True, True, True]
    assert index_folder().stat().st_mode & 0o077 == 0
    monkeypatch.setattr("deep5.results.index._MOST_BYTES", index_of(roots[4]).stat().st_size * 3 // 2)
    put(roots[4] / "run")
    names(roots[4])
    assert [index_of(root).exists() for root in roots] == [False, False, False, False, True]
    assert {entry.kind for entry in found_in_cache()} == {"listings"}
    cleaned(found_in_cache())
    assert list(index_folder().iterdir()) == []


def test_nothing_is_written_where_the_results_are(root: Path, deep5: Command) -> None:
    root.chmod(0o555)
    before = tree(root)
    for arguments in ((), ("--rebuild",), ("--json",), ("--csv",)):
        assert deep5("results", str(root), *arguments).status == 0
    d5.results.load(root)
    assert tree(root) == before
    root.chmod(0o755)


def _trap(base: Path, victim: Path) -> None:
    """An SQLite database whose journal says that a transaction over several files was cut short.

    SQLite deletes the file that the journal names as soon as a reader opens the database.
    """
    with sqlite3.connect(base) as made:
        made.execute("PRAGMA page_size = 4096")
        made.execute("CREATE TABLE results (folder)")
    made.close()
    name = os.fsencode(victim)
    magic = bytes.fromhex("d9d505f920a163d7")
    header = magic + struct.pack(">IIIII", 0, 0, base.stat().st_size // 4096, 512, 4096)
    page = struct.pack(">I", (1 << 30) // 4096 + 1)
    end = page + name + struct.pack(">II", len(name), sum(name)) + magic
    Path(f"{base}-journal").write_bytes(header.ljust(512, b"\0") + end)


def test_data_bases_that_lie_in_a_foreign_root_are_not_opened(root: Path, tmp_path: Path, deep5: Command) -> None:
    victim = tmp_path / "precious.txt"
    victim.write_text("precious")
    _trap(tmp_path / "proof.sqlite", victim)
    with sqlite3.connect(tmp_path / "proof.sqlite") as opened:
        opened.execute("SELECT * FROM results").fetchall()
    opened.close()
    assert not victim.exists(), "it is no trap"
    victim.write_text("precious")
    for name in (".deep5-index.sqlite", index_of(root).name, "index.sqlite", "results.sqlite"):
        _trap(root / name, victim)
    before = tree(root)
    assert deep5("results", str(root)).status == 0
    assert deep5("results", str(root), "--rebuild").status == 0
    assert victim.read_text() == "precious"
    assert tree(root) == before


def test_others_are_not_confused_by_the_index(root: Path) -> None:
    list_results(root)
    assert [folder.name for folder in result_folders(root)] == ["b"]
    assert found_in_results(root) == []


_WRITER = """
import sys
from deep5.results.folder import ResultFolder
from deep5.results.schema import blank_document
for number in range(int(sys.argv[2])):
    ResultFolder.create(sys.argv[1], sys.argv[3], blank_document(recipe={"name": sys.argv[3]}, level=2)).close()
"""


def test_eight_that_write_and_two_that_list_at_once_lose_nothing(tmp_path: Path) -> None:
    each = 25
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, tmp_path, str(each), name]) for name in "abcdefgh"]
    lister = "import sys; from deep5.results.index import list_results\nfor _ in range(15): list_results(sys.argv[1])"
    listers = [subprocess.Popen([sys.executable, "-c", lister, tmp_path], stderr=subprocess.PIPE)]
    most = 0
    while any(writer.poll() is None for writer in writers):
        listing = list_results(tmp_path)
        assert all(own.status == "aborted" for own in listing.results), "a half-written folder was seen"
        assert len(listing.results) >= most
        most = len(listing.results)
    for process in (*writers, *listers):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    settle()
    for _ in range(2):
        assert len(list_results(tmp_path).results) == 8 * each
    assert list_results(tmp_path).read == 0


# Files of unknown origin


def hostile(folder: Path) -> dict[str, str]:
    """Folders that are not deep5's, with the message for each, by name."""
    made = {
        "empty": (b"", "truncated or not JSON"),
        "torn": (json.dumps(document()).encode()[:-40], "truncated or not JSON"),
        "list": (b"[1, 2]", "holds no JSON object"),
        "other": (b"{}", "schema version None; this deep5 reads"),
        "deep": (b"[" * 100_000, "truncated or not JSON"),
        "nan": (json.dumps(document()).replace("97.5", "NaN").encode(), "NaN is not JSON"),
        "huge": (json.dumps(document()).replace("97.5", "1" + "0" * 400).encode(), "is not as deep5 writes it"),
        "infinite": (
            json.dumps(document()).replace("97.5", "1e999").encode(),
            "1e999 is too large; allowed: a finite number",
        ),
        "digits": (json.dumps(document()).replace("97.5", "1" * 5000).encode(), "truncated or not JSON"),
        "binary": (b"\xff\xfe\x00", "truncated or not JSON"),
        "typed": (json.dumps(document(recipe="x")).encode(), "recipe is of type str"),
    }
    for name, (content, _) in made.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "result.json").write_bytes(content)
    said = {name: message for name, (_, message) in made.items()}
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "result.json")
    (folder / "link").mkdir()
    (folder / "link" / "result.json").symlink_to("/etc/passwd")
    (folder / "folder" / "result.json").mkdir(parents=True)
    (folder / "large").mkdir()
    with (folder / "large" / "result.json").open("wb") as file:
        file.truncate(1 << 30)
    (folder / "study").mkdir()
    (folder / "study" / STUDY).write_text('{"candidates": {"a": 3}}')
    said |= {
        "pipe": "result.json is not a plain file",
        "link": "result.json is a link",
        "folder": "result.json is not a plain file",
        "large": "result.json has 1073741824 bytes; allowed: at most",
        "study": "study.json is not as deep5 writes it",
    }
    return said


def test_hostile_folders_are_rows_that_say_why(tmp_path: Path) -> None:
    said = hostile(tmp_path)
    put(tmp_path / "good", document("good"))
    for _ in range(2):
        rows = {own.folder: own for own in list_results(tmp_path).results}
        assert set(rows) == {*said, "good"}
        assert rows["good"].status == "success"
        for name, message in said.items():
            assert rows[name].status == "unreadable"
            assert message in (rows[name].reason or ""), name
    assert list_results(tmp_path).read == 0


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place within a document: its container and its key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


_ODD = (None, True, -1, 1e308, 10**300, "x" * 10_000, "\x1b[2J", "nan", [], {}, [[]], {"": {}}, "\ud800")


def test_no_change_of_a_document_breaks_the_listing(tmp_path: Path) -> None:
    draw = random.Random(0)  # noqa: S311 - which places are changed, no secret
    for number in range(400):
        own = document(f"r{number}")
        for _ in range(draw.choice((1, 1, 3))):
            inside, key = draw.choice(list(_places(own)))
            if draw.random() < 0.2:
                del inside[key]
            else:
                inside[key] = draw.choice(_ODD)
        (tmp_path / f"r{number}").mkdir()
        (tmp_path / f"r{number}" / "result.json").write_text(json.dumps(own))
    frame = d5.results.load(tmp_path)
    assert len(frame) == 400
    assert 0 < (frame["status"] == "unreadable").sum() < 400
    assert frame["reason"][frame["status"] == "unreadable"].notna().all()
    assert all(len(text) <= 500 for text in frame["reason"].dropna())
    settle()
    assert list_results(tmp_path).results == list_results(tmp_path).results


def test_names_cannot_steer_the_terminal(tmp_path: Path, deep5: Command) -> None:
    nasty = "\x1b[31mred\x07<script>alert(1)</script>\u202e../../etc"
    own = document(nasty)
    own["recipe"] |= {"name": nasty, "mutable": {nasty: nasty}}
    own["metrics"] = [metric(nasty, 1.0, nasty)]
    put(tmp_path / "results" / nasty.replace("/", "-"), own, settled=False)
    put(Path(os.fsdecode(os.fsencode(tmp_path / "results") + b"/\xff\xfe")))
    for arguments in ((), ("--json",), ("--csv",), ("--columns", "run_id,folder,recipe")):
        for _ in range(2):
            answer = deep5("results", *arguments)
            assert answer.status == 0
            assert not {"\x1b", "\x07", "\u202e", "\udcff"} & {*answer.out}
            assert "\\x1b[31mred" in answer.out.replace("\\\\", "\\").replace("\n", "")
    frame = d5.results.load()
    assert "<script>" not in frame.to_html()
    assert len(frame) == 2


def test_a_long_text_is_bounded() -> None:
    assert len(printable("x" * 10**6)) == 500
    own = Stored(folder="a\udcff", kind="run", metrics={"m": (float("inf"), "s")}, seeds={"run": 2**63})
    assert Stored.of_document(json.loads(json.dumps(own.document()))) == own


# The DataFrame


def test_load_gives_a_row_a_result_with_units(root: Path) -> None:
    put(root / "inf", document("inf", metrics=[metric("test_accuracy", "inf", "%"), metric("loss", 1.5, "nat")]))
    frame = d5.results.load(root)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["run_id"])[-1] == "b"
    assert frame.attrs["units"] == {"metric.test_accuracy": "%", "metric.loss": "nat"}
    runs = frame[frame["kind"] == "run"].set_index("run_id")
    assert runs.loc["a", "metric.test_accuracy"] == 97.5
    assert runs.loc["inf", "metric.test_accuracy"] == np.inf
    assert np.isnan(runs.loc["a", "metric.loss"])
    assert runs.loc["a", "set.optimizer_kwargs.lr"] == 0.01
    assert runs["started"].dt.year.tolist() == [2026] * 4
    assert str(frame["started"].dtype).startswith("datetime64")
    assert frame["threads"].dtype == "Int64"
    assert json.loads(runs.loc["a", "seeds"]) == {"run": 3}


def test_load_of_an_empty_root(tmp_path: Path) -> None:
    frame = d5.results.load(tmp_path)
    assert len(frame) == 0
    assert {"run_id", "recipe", "status"} <= {*frame}
    assert len(d5.results.load(tmp_path, samples=True)) == 0


def test_a_metric_with_two_units_is_two_columns(tmp_path: Path) -> None:
    put(tmp_path / "a", document("a", metrics=[metric("time", 1.0, "s")]), settled=False)
    put(tmp_path / "b", document("b", metrics=[metric("time", 1.0, "ms")]), settled=False)
    frame = d5.results.load(tmp_path)
    assert frame.attrs["units"] == {"metric.time [s]": "s", "metric.time [ms]": "ms"}
    assert "metric.time" not in frame


def test_only_what_ran_the_same_may_be_compared(tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "same": {},
        "again": {},
        "other": {"hash": "f" * 64},
        "smaller": {"size": "smoke"},
        "open": {"division": "open"},
    }
    for name, change in changes.items():
        own = document(name)
        own["recipe"] |= change
        put(tmp_path / name, own, settled=False)
    put(tmp_path / "failed", document("failed", status="failed", reasons=["it failed"]), settled=False)
    marks = d5.results.load(tmp_path).set_index("run_id")["comparable"]
    assert marks["same"] == marks["again"] == "0123456789ab full"
    assert len({marks[name] for name in ("same", "other", "smaller")}) == 3
    assert marks[["open", "failed"]].isna().all()


def test_where_chooses_by_column(root: Path) -> None:
    assert list(d5.results.load(root, where={"run_id": "a"})["run_id"]) == ["a"]
    assert len(d5.results.load(root, where={"set.batch_size": 64, "recipe": "dig*"})) == 3
    assert len(d5.results.load(root, where={"set.batch_size": 32})) == 0
    with pytest.raises(UnknownName, match=r"unknown column 'recip'; allowed: .*did you mean 'recipe'"):
        d5.results.load(root, where={"recip": "x"})
    with pytest.raises(UsageError, match="allowed: a mapping"):
        d5.results.load(root, where="recipe=digits")  # type: ignore[arg-type]


def test_samples_are_joined_in_long_form_to_the_same_bits(root: Path) -> None:
    values = [0.1 + 0.2, 5e-324, -0.0, float("inf"), float("nan"), 1 / 3]
    rows = [SampleRow(metric="loss", index=i, value=value, unit="nat", step=i) for i, value in enumerate(values)]
    (root / "b" / "samples.csv").write_text(samples_text(rows))
    frame = d5.results.load(root, samples=True)
    assert frame["value"].to_numpy().tobytes() == np.array(values).tobytes()
    assert set(frame["run_id"]) == {"b"}
    assert list(frame["step"]) == [0, 1, 2, 3, 4, 5]
    assert frame["epoch"].isna().all()
    (root / "b" / "samples.csv").unlink()
    os.mkfifo(root / "b" / "samples.csv")
    with pytest.raises(UsageError, match=r"samples\.csv is not a plain file"):
        d5.results.load(root, samples=True)


@pytest.mark.parametrize("index", [2**63, 2**70])
def test_a_whole_number_that_no_column_holds_is_told(index: int, root: Path) -> None:
    (root / "b" / "samples.csv").write_text(samples_text([SampleRow(metric="loss", index=index, value=1.0, unit="")]))
    with pytest.raises(UsageError, match="does not fit into 64 bits"):
        d5.results.load(root, samples=True)


def test_without_pandas_the_command_that_installs_it_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"needs pandas.*pip install 'deep5\[report\]'"):
        d5.results.load(root)
    assert len(list_results(root).results) == 4


def test_the_name_is_there_and_costs_nothing() -> None:
    program = (
        "import sys, deep5 as d5; assert callable(d5.results.__getattr__); "
        "print(sorted({'pandas', 'sqlite3', 'rich', 'pyarrow'} & set(sys.modules))); print(d5.results.load.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["[]", "load"]
    with pytest.raises(AttributeError, match=r"module 'deep5\.results' has no attribute 'lod'"):
        _ = d5.results.lod  # type: ignore[attr-defined]


# Comparisons


def test_ratios_and_verdicts_of_comparisons_are_columns(tmp_path: Path, deep5: Command) -> None:
    cases.comparison(tmp_path / "results", "rigorous", labels=("reference", "jax", "pytorch, lr=0.1"))
    cases.comparison(tmp_path / "results", "quick", labels=("reference", "jax"), rounds=2)
    cases.comparison(tmp_path / "results", "ops", labels=("reference", "jax"), workloads=("gemm-1", "a[b]"), rounds=2)
    settle()
    for read in (3, 0):  # read from the folders, and from the index
        assert list_results(tmp_path / "results").read == read
        frame = d5.results.load(tmp_path / "results").set_index("run_id")
        told = {row["candidate"]: row for row in load_comparison(tmp_path / "results" / "rigorous").verdicts}
        for name, row in told.items():
            assert frame.loc["rigorous", f"verdict.{name}"] == row["word"] == "slower"
            assert frame.loc["rigorous", f"ratio.{name}"] == row["ratio"]
            assert frame.loc["rigorous", f"ratio_low.{name}"] == row["low"] < row["ratio"]
            assert frame.loc["rigorous", f"ratio_high.{name}"] == row["high"] > row["ratio"]
        assert frame["ratio_low.jax"].dtype == frame["ratio.jax"].dtype == np.float64
        assert np.isnan(frame.loc["quick", "ratio_low.jax"])
        assert frame.loc["quick", "ratio.jax"] == pytest.approx(1.5, rel=0.02)
        assert frame.loc["ops", "verdict.jax[gemm-1]"] == frame.loc["ops", "verdict.jax[a[b]]"] == "slower"
        assert pd.isna(frame.loc["ops", "verdict.jax"])
    listed = " ".join(deep5("results", "--columns", "run_id,verdict").out.split())
    jax = told["jax"]
    assert f"jax {jax['ratio']:.3g} [{jax['low']:.3g}, {jax['high']:.3g}] slower; pytorch, lr=0.1 2." in listed
    assert f"jax {load_comparison('results/quick').verdicts[0]['ratio']:.3g} slower" in listed
    # Names of candidates contain the separators of columns, and of a column and its value.
    columns = ("--columns", "run_id,verdict.pytorch, lr=0.1,ratio.jax[a[b]]")
    rows = json.loads(deep5("results", "--json", *columns, "--where", "verdict.pytorch, lr=0.1=slower").out)
    assert rows == [{"run_id": "rigorous", "verdict.pytorch, lr=0.1": "slower"}]
    (row,) = json.loads(deep5("results", "--json", *columns, "--where", "run_id=ops").out)
    assert row["ratio.jax[a[b]]"] == pytest.approx(1.5, rel=0.02)


def test_what_was_compared_and_how_are_columns(tmp_path: Path, deep5: Command) -> None:
    root = tmp_path / "results"
    cases.comparison(root, "one", rounds=1, kind="inference", mode="quick")
    cases.comparison(root, "two", kind="training", mode="rigorous")
    put(root / "run")
    settle()
    for read in (3, 0):
        assert list_results(root).read == read
        frame = d5.results.load(root).set_index("run_id")
        assert list(frame.loc[["one", "two"], "compared"]) == ["inference", "training"]
        assert list(frame.loc[["one", "two"], "mode"]) == ["quick", "rigorous"]
        assert frame.loc["run", "compared"] is None
    (row,) = json.loads(deep5("results", "--json", "--where", "compared=inference").out)
    assert (row["run_id"], row["mode"]) == ("one", "quick")
    heads, *_ = deep5("results", "--csv").out.splitlines()
    assert {"compared", "mode"} <= set(heads.split(","))
    assert set(d5.results.load(root, samples=True)["mode"]) == {"quick", "rigorous"}


def test_hostile_comparisons_are_rows_of_bounded_columns(tmp_path: Path, deep5: Command) -> None:
    cases.hostile(tmp_path / "results")
    workloads = tuple(f"w{number}" for number in range(400))
    cases.comparison(tmp_path / "results", "wide", labels=("a", "b"), workloads=workloads, rounds=2)
    frame = d5.results.load()
    assert list(frame["status"]) == ["success"] * 2
    own = [name for name in frame.columns if name.startswith(("ratio", "verdict."))]
    assert 4 * 300 < len(own) <= 4 * 305
    assert all(len(name) < 520 and name.isprintable() for name in own)
    for arguments in ((), ("--json",), ("--csv",)):
        answer = deep5("results", *arguments)
        assert (answer.status, "\x1b" in answer.out) == (0, False)


# The command


def test_a_value_that_no_result_has_is_told_with_those_there_are(root: Path, deep5: Command) -> None:
    put(root / "e", document("e", framework={"name": "pytorch", "version": "1", "device": "cpu"}), settled=False)
    cases.comparison(root, "compared", labels=("jax", "reference"), rounds=2)
    said = "no result has framework 'pytoch'; available: jax, pytorch, reference; did you mean 'pytorch'?"
    for arguments in ((), ("--json",), ("--csv",)):
        answer = deep5("results", str(root), "--framework", "pytoch", *arguments)
        assert (answer.status, answer.err) == (0, f"deep5: note: {said}\n")
    assert deep5("results", str(root), "--framework", "pytoch").out == "0 of 6 results\n"
    assert deep5("results", str(root / "e"), "--recipe", "x").out == "0 of 1 result\n"
    assert d5.results.load(root, where={"framework": "pytoch"}).attrs["notes"] == [said]
    # Each of these exists, but no result has both.
    answer = deep5("results", str(root), "--framework", "pytorch", "--where", "kind=comparison")
    assert (answer.out, answer.err) == ("0 of 6 results\n", "")
    answer = deep5("results", str(root), "--where", "seconds=1", "--where", "accepted=yes", "--recipe", "di*")
    assert answer.err.splitlines() == [
        "deep5: note: no result has seconds '1'; available: 60.0",
        "deep5: note: no result has accepted 'yes'; no result has any",
    ]


def test_of_very_many_values_some_are_told(tmp_path: Path, deep5: Command) -> None:
    for number in range(30):
        put(tmp_path / "results" / f"r{number}", document(f"{number}\x1b" * 99), settled=False)
    answer = deep5("results", "--where", "run_id=\x1b" + "y" * 999)
    assert len(answer.err) < 1_500
    assert "\x1b" not in answer.err
    assert answer.err.endswith(" and 20 more\n")


def test_the_table_names_every_result_whole_in_eighty_columns(
    root: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "digits_lenet-compare-20261122-135228-cb36a4"
    put(root / name, document(name, status="failed", reasons=["the disk is full " * 20]), settled=False)
    answer = deep5("results", str(root))
    assert answer.status == 0
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert f" {name} " in answer.out
    assert "└ d " in answer.out
    assert "failed: the disk" in " ".join(answer.out.split())


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    """A full run, one of a small size, and a full one without values."""
    values = {"accuracy": (97.5, "%"), "time": (1.5, "s"), "loss": (0.5, "nat"), "rate": (1.0, "/s")}
    rows = [metric(name, *value) for name, value in values.items()]
    for name, size, division in (("a", "full", "closed"), ("b", "smoke", "open"), ("c", "full", "closed")):
        own = document(name, metrics=rows if name != "c" else [])
        own["recipe"] |= {"size": size, "division": division}
        put(tmp_path / "results" / name, own, settled=False)
    return tmp_path / "results"


def test_a_pipe_shows_size_metrics_and_what_is_comparable(
    sizes: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of a pipe is too long for them."""
    monkeypatch.delenv("COLUMNS", raising=False)
    head, _, *rows = [line for line in deep5("results", str(sizes)).out.splitlines() if line.strip()]
    columns = ["result", "size", "division", "framework", "device", "outcome", "figures", "comparable", "started"]
    assert head.split() == columns
    cells = {found[0]: found for line in rows if (found := re.split(r"\s{2,}", line.strip()))}
    assert [cells["a"][place] for place in (1, 2, 6, 7)] == [
        "full", "closed", "accuracy 97.5 %, time 1.5 s, loss 0.5 nat, …", "0123456789ab full",
    ]  # fmt: skip
    assert [cells["b"][place] for place in (1, 2, 7)] == ["smoke", "open", "-"]
    assert "size smoke" in cells["b"][5]
    assert [cells["c"][place] for place in (6, 7)] == ["-", "0123456789ab full"]


def test_narrow_terminals_show_the_size_and_name_the_columns_left_out(
    sizes: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        out = deep5("results", str(sizes)).out
        assert "smoke" in out
        command = out.splitlines()[-1].partition(": ")[2]
        assert command.startswith("--columns ")
        assert "accuracy 97.5 %" in " ".join(deep5("results", str(sizes), *command.split()).out.split())
    monkeypatch.setenv("COLUMNS", "80")
    assert all(len(line) <= 80 for line in deep5("results", str(sizes)).out.splitlines())


def test_columns_of_the_table_are_values_in_csv_and_json(sizes: Path, deep5: Command) -> None:
    wanted = ("--columns", "result,outcome,figures", "--where", "run_id=b")
    (row,) = json.loads(deep5("results", str(sizes), "--json", *wanted).out)
    assert (row["result"], row["figures"]) == ("b", "accuracy 97.5 %, time 1.5 s, loss 0.5 nat, …")
    table = list(csv.DictReader(io.StringIO(deep5("results", str(sizes), "--csv", *wanted).out)))
    assert table == [row]


def test_the_last_come_last_and_what_is_left_out_is_said(tmp_path: Path, deep5: Command) -> None:
    for number in range(53):
        own = document(f"r{number:02}", started=f"2026-01-02T03:{number:02}:00Z")
        put(tmp_path / "results" / f"r{number:02}", own, settled=False)
    lines = deep5("results").out.splitlines()
    assert lines[-1] == "the last 50; 3 more before them: --last 0 shows all"
    assert [line.split()[0] for line in lines if line.strip().startswith("r") and line.strip()[1:3].isdigit()] == [
        f"r{number:02}" for number in range(3, 53)
    ]
    assert deep5("results", "--last", "2").out.count("digits") == 0
    assert "the last 2; 51 more" in deep5("results", "--last", "2").out
    assert "more before" not in deep5("results", "--last", "0").out
    assert len(json.loads(deep5("results", "--json").out)) == 53
    assert [row["run_id"] for row in json.loads(deep5("results", "--json", "--last", "1").out)] == ["r52"]


def test_filters_order_and_columns(root: Path, deep5: Command) -> None:
    put(root / "e", document("e", framework={"name": "jax", "version": "1", "device": "cpu"}), settled=False)

    def listed(*arguments: str) -> list[str]:
        return [row["run_id"] for row in json.loads(deep5("results", str(root), "--json", *arguments).out)]

    assert listed("--framework", "jax") == ["e"]
    assert listed("--status", "success", "--where", "kind=run", "--framework", "reference") == ["a", "d", "b"]
    assert listed("--where", "set.optimizer_kwargs.lr=1e-2", "--sort", "run_id") == ["a", "b", "d", "e"]
    assert listed("--where", "recipe=nothing") == []
    assert deep5("results", str(root), "--where", "kind=study").out.splitlines()[-1] == "1 of 5 results"
    table = list(csv.reader(io.StringIO(deep5("results", str(root), "--csv", "--columns", "run_id,seconds").out)))
    assert table[0] == ["run_id", "seconds"]
    assert ["b", "60.0"] in table


def test_every_number_of_a_metric_has_its_unit(tmp_path: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    root = tmp_path / "results"
    put(root / "a", document("a", metrics=[metric("time", 1.5, "s"), metric("loss", 0.5, "nat")]), settled=False)
    put(root / "b", document("b", metrics=[metric("time", 2.5, "ms")]), settled=False)
    wanted = ("--columns", "run_id,metric.time [s],metric.time [ms],metric.loss")
    table = list(csv.reader(io.StringIO(deep5("results", "--csv", *wanted).out)))
    assert table == [
        ["run_id", "metric.time [s]", "metric.time [ms]", "metric.loss [nat]"],
        ["a", "1.5", "", "0.5"],
        ["b", "", "2.5", ""],
    ]
    shown = deep5("results", *wanted).out
    assert all(name in shown for name in table[0])
    first, second = json.loads(deep5("results", "--json", *wanted).out)
    assert first == {"run_id": "a", "metric.time [s]": 1.5, "metric.loss": 0.5, "units": first["units"]}
    assert first["units"] == {"metric.time [s]": "s", "metric.loss": "nat"}
    assert second["units"] == {"metric.time [ms]": "ms"}
    answer = deep5("results", "--columns", "metric.time")
    assert (answer.status, "allowed: " in answer.err, "metric.time [ms]" in answer.err) == (2, True, True)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", " =1"])
def test_no_text_in_a_csv_file_is_a_formula(text: str, tmp_path: Path, deep5: Command) -> None:
    own = document("a", metrics=[metric("loss", -0.5, "nat"), metric("worst", "-inf", "nat")])
    own["recipe"] |= {"name": text, "mutable": {"x": text, "lr": -3}}
    put(tmp_path / "results" / text.replace("/", ":"), own, settled=False)
    (row,) = csv.DictReader(io.StringIO(deep5("results", "--csv").out))
    assert row["recipe"] == row["set.x"] == f"'{text}"
    assert row["folder"] == "'" + text.replace("/", ":")
    assert (row["metric.loss [nat]"], row["metric.worst [nat]"], row["set.lr"]) == ("-0.5", "-inf", "-3")
    sample = SampleRow(metric=text, index=0, value=-0.5, unit=text)
    (tmp_path / "results" / text.replace("/", ":") / "samples.csv").write_text(samples_text([sample]))
    assert deep5("export", "results", "--format", "csv", "-o", "out.csv").status == 0
    (row,) = csv.DictReader(io.StringIO(Path("out.csv").read_text()))
    assert row["recipe"] == row["metric"] == row["unit"] == f"'{text}"
    assert row["value"] == "-0.5"


def test_a_folder_is_a_path_and_escaped_only_where_it_is_shown(tmp_path: Path, deep5: Command) -> None:
    name = os.fsdecode(b"red\x1b[31m\xff")
    put(tmp_path / "results" / name, document("a"), settled=False)
    rows = [SampleRow(metric="loss", index=0, value=0.5, unit="nat")]
    (tmp_path / "results" / name / "samples.csv").write_text(samples_text(rows))
    (own,) = list_results("results").results
    assert own.folder == name
    assert d5.results.load("results", samples=True)["value"].tolist() == [0.5]
    assert json.loads(deep5("results", "--json").out)[0]["folder"] == name
    for arguments in ((), ("--csv",), ("--columns", "folder")):
        assert "red\\x1b[31m\\udcff" in deep5("results", *arguments).out


def test_what_was_left_out_is_told_on_standard_error(tmp_path: Path, deep5: Command) -> None:
    put(tmp_path.joinpath("results", *"abcdefghi"), document("beyond"), settled=False)
    for arguments in ((), ("--json",), ("--csv",)):
        answer = deep5("results", *arguments)
        assert "is 8 folders deep; deeper folders are left out" in answer.err
        assert "folders deep" not in answer.out
        assert answer.status == 0


def test_samples_beyond_the_bound_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [SampleRow(metric="loss", index=index, value=0.5, unit="nat") for index in range(5)]
    for folder in (root / "b", root / "deeper" / "and deeper" / "a"):
        (folder / "samples.csv").write_text(samples_text(rows))
    assert len(d5.results.load(root, samples=True)) == 10
    monkeypatch.setattr("deep5.results.frame.TABLE_ROWS", 9)
    with pytest.raises(UsageError, match=r"have more than 9 samples; allowed: .*remedy: where="):
        d5.results.load(root, samples=True)


def test_values_that_are_no_json_numbers_stay_readable(tmp_path: Path, deep5: Command) -> None:
    put(tmp_path / "results" / "a", document("a", metrics=[metric("m", "inf", "s")]), settled=False)
    assert json.loads(deep5("results", "--json").out)[0]["metric.m"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--where", "recipe"), "--where 'recipe'; allowed: KEY=VALUE"),
        (("--where", "nothing=1"), "unknown column 'nothing'"),
        (("--where", "recipe=a", "--recipe", "b"), "'recipe' is given twice"),
        (("--sort", "metric.nothing"), "unknown column 'metric.nothing'"),
        (("--columns", "run_id,nothing"), "unknown column 'nothing'"),
        (("--last", "-1"), "Invalid value for '--last'"),
        (("--json", "--csv"), "--json and --csv are both given"),
    ],
)
def test_wrong_usage_ends_with_two(arguments: tuple[str, ...], message: str, root: Path, deep5: Command) -> None:
    answer = deep5("results", str(root), *arguments)
    assert answer.status == 2
    assert message in answer.err


def test_a_root_that_is_not_there_and_one_without_results(tmp_path: Path, deep5: Command) -> None:
    answer = deep5("results", "nowhere")
    assert (answer.status, "cannot list nowhere" in answer.err) == (2, True)
    (tmp_path / "results").mkdir()
    assert deep5("results", "--sort", "metric.x").out == "no results in results; 'deep5 run RECIPE' makes one\n"


def test_rebuild_reads_every_folder_again(root: Path, deep5: Command) -> None:
    list_results(root)
    index_of(root).write_text(index_of(root).read_text().replace('"run_id": "a"', '"run_id": "false"'))
    assert "false" in names(root)
    assert deep5("results", str(root), "--rebuild").status == 0
    assert "false" not in names(root)


# Ten thousand


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many results as a store has to list at once."""
    out = tmp_path_factory.mktemp("many")
    own = document("RUN", metrics=[metric(f"metric_{number}", 1.5, "s") for number in range(10)])
    own["warnings"] = ["a warning of some length " * 8] * 20
    text = json.dumps(own, indent=2)
    for number in range(1000):
        folder = out / f"digits-20260102-{number:06d}-{number:06x}"
        folder.mkdir()
        (folder / "result.json").write_text(text.replace('"RUN"', f'"{folder.name}"').replace("1.5", f"{number}.5"))
    time.sleep(1.1)  # another process lists them, with the index as it is
    return out


def test_a_thousand_results_are_listed_from_the_index(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an index no result is read again."""
    opened: list[Path] = []
    read = Path.read_text

    def noted(self: Path, *given: Any, **named: Any) -> str:
        if self.name == "result.json":
            opened.append(self)
        return read(self, *given, **named)

    monkeypatch.setattr(Path, "read_text", noted)
    assert len(list_results(many).results) == 1000
    opened.clear()
    assert len(list_results(many).results) == 1000
    assert opened == []


def test_results_folder_is_still_that_of_runs(tmp_path: Path) -> None:
    made = ResultFolder.create(tmp_path, "digits", blank_document(recipe={"name": "digits"}, level=2))
    (own,) = list_results(tmp_path).results
    assert (own.run_id, own.status, own.reason) == (made.run_id, "aborted", "the run has not finished")
    made.close()
