"""Results on disk: always valid, exact, and marked aborted until the run has ended, also when it is killed."""

from __future__ import annotations

import copy
import dataclasses
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from deep5.core.errors import Deep5Error, OutputError, UsageError
from deep5.core.files import write_atomically
from deep5.core.metric import Goal, Metric, Observer, Sample
from deep5.measuring.samples import Interval
from deep5.results.folder import ResultFolder
from deep5.results.mllog import MLLog, read_mllog
from deep5.results.result import load
from deep5.results.samples_file import SampleRow, sample_rows
from deep5.results.schema import blank_document, metric_row, schema
from deep5.results.store import result_folders
from deep5.results.table import to_json, verdict_table
from deep5.results.validation import check_document, encode

VALIDATOR = jsonschema.Draft202012Validator(schema())
HASH = "0123456789abcdef" * 4


class Accuracy(Metric):
    name, unit, direction = "test_accuracy", "%", "higher"

    def __init__(self, split: str = "test") -> None:
        self.split = split

    def observer(self) -> Observer:
        return Observer()


class Time(Metric):
    name, unit, direction = "time_to_accuracy", "s", "lower"

    def observer(self) -> Observer:
        return Observer()


class Slowdown(Metric):
    name, unit, direction = "slowdown", "ratio", "lower"

    def observer(self) -> Observer:
        return Observer()


AT_LEAST_97 = Goal(relation=">=", bound=97.0)
AT_MOST_60 = Goal(relation="<=", bound=60.0)


def blank(**parts: Any) -> dict[str, Any]:
    return blank_document(recipe={"name": "digits", "hash": HASH, "division": "closed"}, level=2, **parts)


def full(**changes: Any) -> dict[str, Any]:
    document = blank(
        run_id="digits-x",
        framework={"name": "reference"},
        system={
            "host": "h",
            "cpu": dict.fromkeys(["model", "vendor", "physical_cores", "logical_cores", "clock_mhz"])
            | {"architecture": "x86_64"},
            "affinity": [0, 1],
            "memory_bytes": {"total": 2, "available": 1},
            "load_average": [0.0, 0.5, 1.0],
            "accelerators": [{"name": "x", "driver": "1", "clock_mhz": 3}],
            "accelerators_error": None,
        },
        software={
            "python": "3.11.7",
            "implementation": "CPython",
            "platform": "Linux",
            "deep5": "0.1.0",
            "packages": {"numpy": "2.4.6"},
            "package_count": 1,
            "package_list_hash": HASH,
            "environment_variables": {"OMP_NUM_THREADS": "2"},
            "commit": {"id": "0" * 40, "dirty": False},
        },
        numerics={"dtype": "float32", "tf32": False},
        threads={"asked": 2, "framework": 2, "pools": {"openblas (libopenblas.so)": 2}},
        measurement={"clock": "time.perf_counter_ns", "mode": "quick", "processes": 1, "first_call_s": 0.5},
        provenance={"data": HASH, "network": f"blake2b:{HASH}"},
        seeds={"run": 0},
        started="2025-01-31T12:00:00Z",
        metrics=[
            metric_row(
                Accuracy(),
                AT_LEAST_97,
                value=97.5,
                interval=Interval(low=97.0, high=98.0, confidence=0.95),
                samples=3,
                scope="evaluation only",
            ),
            metric_row(Time(), None, value=math.inf, interval=(1.5, math.inf), samples=2),
        ],
    )
    document |= {"status": "success", "reasons": [], "accepted": True, "finished": "2025-01-31T12:01:00.5Z"}
    return encode(document | {"resources": {"wall_time_s": 60.0, "peak_memory_bytes": None}} | changes)


# --- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_is_a_schema_and_uses_no_keyword_that_our_validator_does_not_know() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    known = {
        "$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "properties", "required",
        "additionalProperties", "items", "minItems", "maxItems", "minLength", "pattern", "minimum", "exclusiveMinimum",
        "exclusiveMaximum", "anyOf", "allOf", "not", "if", "then",
    }  # fmt: skip

    def visit(rule: Any) -> None:
        if not isinstance(rule, dict):
            return
        assert not set(rule) - known, set(rule) - known
        for key in ("properties", "$defs"):
            for inner in rule.get(key, {}).values():
                visit(inner)
        for key in ("items", "additionalProperties", "not", "if", "then"):
            visit(rule.get(key))
        for key in ("anyOf", "allOf"):
            for inner in rule.get(key, []):
                visit(inner)

    visit(schema())


def test_blank_and_full_documents_are_valid() -> None:
    for document in (encode(blank()), full()):
        VALIDATOR.validate(document)
        check_document(document)
    assert blank()["status"] == "aborted"
    assert blank()["reasons"] == ["the run has not finished"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], change: Any) -> Any:
    document = copy.deepcopy(document)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if change is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = change(parent[path[-1]])
    return document


CHANGES = {
    "lacks": None,
    "null": lambda value: None,
    "object": lambda value: {"no such field": 1},
    "list": lambda value: [],
    "text": lambda value: "",
    "other text": lambda value: "no such choice",
    "negative": lambda value: -1,
    "fraction": lambda value: 0.5,
    "yes": lambda value: True,
    "infinite": lambda value: "inf",
}


def fault(document: dict[str, Any]) -> str | None:
    try:
        check_document(document)
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", CHANGES)
def test_our_validator_agrees_with_jsonschema_on_every_damaged_document(name: str) -> None:
    document, refused = full(), 0
    paths = [path for path in places(document) if path]
    for path in paths:
        damaged = changed(document, path, CHANGES[name])
        refused += not VALIDATOR.is_valid(damaged)
        theirs = [error.message for error in VALIDATOR.iter_errors(damaged)]
        ours = fault(damaged)
        assert (ours is None) == (not theirs), f"{path}: {ours}; jsonschema: {theirs}"
    # At least a third of all fields must not accept any of these changes, otherwise the schema is too weak.
    assert refused > len(paths) / 3


@pytest.mark.parametrize("field", list(blank()))
def test_a_document_that_lacks_a_field_is_caught(field: str) -> None:
    document = full()
    del document[field]
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(UsageError, match=f"the document has no {field}$"):
        check_document(document)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "failed", "accepted": False}, "reasons has 0 items.*states why"),
        ({"finished": None}, "finished is of type NoneType.*has an end"),
        ({"status": "failed", "reasons": ["killed"]}, "status is 'failed'.*[Oo]nly a success"),
        ({"metrics": [metric_row(Accuracy(), AT_LEAST_97, value=96.0)]}, r"metrics\[0\].passed is False"),
        ({"metrics": [metric_row(Accuracy(), AT_LEAST_97, evaluated=False)]}, r"metrics\[0\].passed is None"),
        (
            {"metrics": [metric_row(Accuracy(), None) | {"passed": True}]},
            r"metrics\[0\].passed .*without a goal has no verdict",
        ),
        ({"seeds": {"run": "zero"}}, "seeds.run is of type str; allowed: integer"),
        ({"status": "good"}, "status is 'good'; allowed: 'success', 'failed', 'aborted', 'invalid'"),
        ({"started": "yesterday"}, "started is 'yesterday'"),
        ({"mood": 1}, "unknown field 'mood'"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    document = full(**changes)
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(UsageError, match=message):
        check_document(document)


def test_parts_are_checked_by_name() -> None:
    with pytest.raises(UsageError, match="unknown field 'wramups' of measurement; allowed: mode, clock"):
        blank(measurement={"wramups": 3})


def test_passed_follows_from_goal_and_value() -> None:
    assert metric_row(Accuracy("valid"), AT_LEAST_97, value=97.0)["passed"] is True
    assert metric_row(Accuracy(), AT_LEAST_97, value=96.9)["passed"] is False
    assert metric_row(Accuracy(), AT_LEAST_97)["passed"] is False, "no value meets no goal"
    assert metric_row(Accuracy(), AT_LEAST_97, value=98.0, evaluated=False)["passed"] is None
    assert metric_row(Accuracy(), None, value=98.0)["passed"] is None
    assert metric_row(Accuracy("valid"), None)["parameters"] == {"split": "valid"}


def test_encode_writes_what_json_cannot() -> None:
    value = {
        "a": (1, np.float32(0.5), np.int64(2), np.bool_(True)),
        "b": math.inf,
        "c": -math.inf,
        "d": np.float64("nan"),
    }
    assert encode(value) == {"a": [1, 0.5, 2, True], "b": "inf", "c": "-inf", "d": "nan"}
    with pytest.raises(UsageError, match=r"document.a\[1\] is of type ndarray.*write_file"):
        encode({"a": [1, np.ones(3)]})
    with pytest.raises(UsageError, match="the key 1 of type int"):
        encode({1: 2})


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_new_folder_is_complete_and_marked_aborted(tmp_path: Path) -> None:
    given = blank()
    before = copy.deepcopy(given)
    folder = ResultFolder.create(tmp_path / "a" / "b", "digits_lenet", given)
    assert given == before, "the caller's document is not changed"
    assert re.fullmatch(r"digits_lenet-\d{8}-\d{6}-[0-9a-f]{6}", folder.path.name)
    assert sorted(tmp_path.rglob("*")) == sorted(
        [tmp_path / "a", tmp_path / "a/b", folder.path, folder.path / "result.json"]
    )
    result = load(folder.path)
    VALIDATOR.validate(result.document)
    assert (result.status, result.accepted, bool(result)) == ("aborted", None, False)
    assert result.reasons == ("the run has not finished",)
    assert result.document["run_id"] == folder.run_id
    assert result.samples() == {}


def test_nobody_sees_a_folder_without_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def write_and_look(path: Path, data: str) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        write_atomically(path, data)
        seen.append([path.name for path in tmp_path.iterdir()])

    monkeypatch.setattr("deep5.results.folder.write_atomically", write_and_look)
    ResultFolder.create(tmp_path, "digits", blank())
    assert [len(names) for names in seen] == [1, 1]
    assert all(name.startswith(".digits-") for names in seen for name in names), "hidden until it is complete"


def test_a_new_folder_has_its_files_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before the recipe is written would leave a hash of a file that is not there."""
    named: list[str] = []
    rename = Path.rename

    def look(path: Path, target: Path) -> Path:
        named.extend(sorted(each.name for each in path.iterdir()))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", look)
    folder = ResultFolder.create(tmp_path, "digits", blank(), {"recipe.py": b"FIXED = {}\n"})
    assert named == ["recipe.py", "result.json"]
    assert (folder.path / "recipe.py").read_bytes() == b"FIXED = {}\n"


KILLED = """
import os, signal, sys
from pathlib import Path
from deep5.results import folder
from deep5.results.schema import blank_document

def ended(path, data):
    (Path(path).parent / f".{Path(path).name}.abcdefgh.tmp").write_text("half")
    print("writes", flush=True)
    signal.pause()

folder.write_atomically = ended
folder.ResultFolder.create(sys.argv[1], "digits", blank_document(recipe={"name": "digits"}, level=2))
"""


def test_what_killed_processes_left_hidden_goes_and_what_others_make_stays(tmp_path: Path) -> None:
    (tmp_path / ".mine.tmp").mkdir()
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        (hidden,) = tmp_path.glob(".digits-*.tmp")
        first = ResultFolder.create(tmp_path, "digits", blank())
        assert hidden.is_dir(), "its process lives"
        process.kill()
    assert [path.name for path in hidden.iterdir()] == [".result.json.abcdefgh.tmp"]
    second = ResultFolder.create(tmp_path, "digits", blank())
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / ".mine.tmp", first.path, second.path])


def test_a_folder_is_made_where_another_process_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped while it removes hidden folders delays others, but not without end."""
    monkeypatch.setattr("deep5.results.folder._LOCK_TRIES", 3)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder = ResultFolder.create(tmp_path, "digits", blank())
    finally:
        os.close(handle)
    assert load(folder.path).status == "aborted"


def test_who_opens_a_folder_removes_what_a_killed_process_left_half_written(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank()).path
    for name in (".result.json.a_cdef12.tmp", ".samples-rank-1.csv.abcdefgh.tmp", ".mine.tmp", "notes.abcdefgh.tmp"):
        (folder / name).write_text("half")
    (folder / ".link.abcdefgh.tmp").symlink_to(tmp_path)
    ResultFolder.open(folder).close()
    left = sorted(path.name for path in folder.iterdir())
    assert left == [".link.abcdefgh.tmp", ".mine.tmp", "notes.abcdefgh.tmp", "result.json"]


def test_a_result_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    folder.write_result(full(run_id=folder.run_id))
    result = load(folder.path / "result.json")
    assert result
    assert result.document == full(run_id=folder.run_id)
    accuracy, seconds = result.verdicts
    assert (accuracy.goal, accuracy.word, accuracy.interval) == (AT_LEAST_97, "passed", (97.0, 98.0))
    assert (seconds.goal, seconds.word, seconds.interval) == (None, "reported", (1.5, math.inf))
    assert result.metric("test_accuracy") == 97.5
    assert result.metric("time_to_accuracy") == math.inf
    assert result.division == "closed"
    with pytest.raises(UsageError, match=r"0 metrics are named 'accuracy'.*metrics: test_accuracy, time_to_accuracy"):
        result.metric("accuracy")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.folder = tmp_path  # type: ignore[misc]


def test_an_invalid_document_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    before = (folder.path / "result.json").read_bytes()
    with pytest.raises(UsageError, match="has no seeds"):
        folder.write_result({key: value for key, value in full(run_id=folder.run_id).items() if key != "seeds"})
    with pytest.raises(UsageError, match="the document is of run 'digits-x'; this folder is of 'digits-2"):
        folder.write_result(full())
    assert (folder.path / "result.json").read_bytes() == before


def test_samples_come_back_to_the_last_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 500, dtype=np.uint64).view(np.float64)  # any double: tiny, huge, denormal
    values = [*bits[np.isfinite(bits)].tolist(), 0.1, -0.0, 5e-324, math.inf, -math.inf]
    odd = 'a metric, "quoted"\nin two lines'
    rows = [
        *sample_rows("latency", "s", [Sample(v, step=i, epoch=i // 9, time_s=v / 3) for i, v in enumerate(values)]),
        *sample_rows(odd, "µs", [Sample(np.float64(1 / 3)), Sample(2, time_s=np.float32(0.1))]),
    ]
    folder = ResultFolder.create(tmp_path, "digits", blank())
    folder.write_samples(rows)
    found = load(folder.path).samples()
    assert list(found) == ["latency", odd]
    assert [*found["latency"], *found[odd]] == rows
    assert math.copysign(1, found["latency"][values.index(0.1) + 1].value) == -1
    assert type(found[odd][1].value) is float
    folder.write_samples([SampleRow(metric="m", index=0, value=math.nan, unit="s")])
    assert math.isnan(load(folder.path).samples()["m"][0].value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric,value\n", "expected the columns metric, index, value, unit, step, epoch, time_s"),
        ("metric,index,value,unit,step,epoch,time_s\nm,0,1.0,s,,,\nm,1,0.", "line 3 is not a sample"),
        ("metric,index,value,unit,step,epoch,time_s\nm,0,__import__('os'),s,,,\n", "line 2 is not a sample"),
        ('metric,index,value,unit,step,epoch,time_s\n"m', "cannot read"),
    ],
)
def test_damaged_samples_are_refused(tmp_path: Path, text: str, message: str) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    (folder.path / "samples.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        load(folder.path).samples()


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/b", ".hidden", "", ".", "result.json", "samples.csv", "events.mllog"]
)
def test_files_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    with pytest.raises(UsageError, match="allowed: a plain file name"):
        folder.write_file(name, "x")


@pytest.mark.parametrize("name", ["", "../x", ".x", "a/b", "a b"])
def test_the_name_of_a_folder_is_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a result folder"):
        ResultFolder.create(tmp_path, name, blank())
    assert list(tmp_path.iterdir()) == []


def test_raw_files_have_hashes_and_pictures_have_none(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    folder.write_samples([])
    folder.write_file("confusion.csv", "a,b\n")
    folder.write_file("operators.svg", "<svg/>")
    folder.append_event("an event")
    (folder.path / "notes.txt").write_text("of the user, not of the run")
    names = ("confusion.csv", "events.mllog", "samples.csv")
    assert folder.raw_hashes() == {
        name: hashlib.sha256((folder.path / name).read_bytes()).hexdigest() for name in names
    }
    (folder.path / "confusion.csv").unlink()
    with pytest.raises(OutputError, match=r"cannot read the files in .*: No such file"):
        folder.raw_hashes()


def test_files_are_written_whole(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    folder.write_file("recipe.py", "é = 1\n")
    folder.write_file("network.onnx", b"\x00\xff")
    assert (folder.path / "recipe.py").read_text("utf-8") == "é = 1\n"
    assert (folder.path / "network.onnx").read_bytes() == b"\x00\xff"


# --- where it cannot be written, or read ------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["file", "file/out", "file/out/deep"])
def test_a_folder_below_a_file_is_refused(tmp_path: Path, inner: str) -> None:
    # Permission bits do not stop root; a file in place of a folder stops every user.
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=r"cannot write results to .*file.*allowed: .* is a file; remedy: remove it"):
        ResultFolder.create(tmp_path / inner, "digits", blank())
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


@pytest.mark.parametrize("step", ["write_atomically", "rename"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full_disk(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = "deep5.results.folder.write_atomically" if step == "write_atomically" else "pathlib.Path.rename"
    with monkeypatch.context() as patch:
        patch.setattr(target, full_disk)
        with pytest.raises(OutputError, match=r"No space left on device; allowed: .*free some space"):
            ResultFolder.create(tmp_path / "new" / "out", "digits", blank())
    assert list(tmp_path.iterdir()) == []
    folder = ResultFolder.create(tmp_path, "digits", blank())
    monkeypatch.setattr("deep5.results.folder.write_atomically", full_disk)
    with pytest.raises(OutputError, match=r"result.json: No space left"):
        folder.write_result(full(run_id=folder.run_id))
    assert load(folder.path).status == "aborted"


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    folder.path.rename(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=r"events.mllog: No such file"):
        folder.append_event("x")
    with pytest.raises(OutputError, match=r"samples.csv: No such file"):
        folder.write_samples([])


def test_every_truncation_of_a_result_is_refused(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    file = folder.path / "result.json"
    content = file.read_bytes().rstrip()
    for length in [0, *range(1, len(content), 97), len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(Deep5Error, match="is truncated or not JSON"):
            load(folder.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "schema version None.*not written by deep5"),
        (b'{"name": "x"}', "not written by deep5"),
        (b'{"schema_version": "2"}', "schema version '2'; this deep5 reads '3'; read it with the deep5 that wrote it"),
        (b'{"schema_version": "3"}', "the document has no run_id, recipe"),
        (b'{"schema_version": NaN}', "NaN is not JSON"),
        (b"\xff\xfe", "is truncated or not JSON"),
        (b"[" * 100_000, "is truncated or not JSON"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load(tmp_path)


def test_what_is_no_result_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a result folder: it holds no result\.json"):
        load(tmp_path)
    with pytest.raises(UsageError, match=r"cannot list .*nowhere"):
        result_folders(tmp_path / "nowhere")


# --- events -----------------------------------------------------------------------------------------------------------


def run_events(log: MLLog, percents: list[float]) -> None:
    log.before_training(None)
    for epoch, percent in enumerate(percents):
        log.before_epoch(None, epoch)
        log.before_evaluation(None, epoch)
        log.after_evaluation(None, epoch, {"accuracy": percent, "loss": 0.1, "samples": 10})
        log.after_epoch(None, epoch)
    log.after_training(None)


def test_a_run_is_logged_as_mlperf_wants_it(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    log = MLLog(folder.append_event, keys={"seed": 7, "global_batch_size": np.int64(64), "opt_name": "sgd"})
    run_events(log, [50.0, 97.5])
    path = folder.path / "events.mllog"
    for text in path.read_text().splitlines():
        # The regular expression of mlcommons/logging's parser.
        match = re.fullmatch(r":::MLLOG (\{.*\})", text)
        assert list(json.loads(match[1])) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
    lines = read_mllog(path)
    epoch = ["epoch_start", "eval_start", "eval_accuracy", "eval_stop", "epoch_stop"]
    assert [line.key for line in lines] == [
        "init_start", "seed", "global_batch_size", "opt_name", "init_stop", "run_start", *epoch, *epoch, "run_stop",
    ]  # fmt: skip
    ends = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    assert [line.event_type for line in lines] == [
        ends.get(line.key.rpartition("_")[2], "POINT_IN_TIME") for line in lines
    ]
    assert [line.value for line in lines if line.key == "eval_accuracy"] == [0.5, 0.975]
    assert [line.metadata for line in lines if "ep" in line.key or "eval" in line.key] == [{"epoch_num": 1}] * 5 + [
        {"epoch_num": 2}
    ] * 5
    assert lines[-1].metadata == {"status": "success"}
    times = [line.time_ms for line in lines]
    assert times == sorted(times)
    assert abs(times[-1] - time.time() * 1000) < 60_000  # milliseconds since the epoch, not of another clock


@pytest.mark.parametrize(
    ("percents", "status"),
    [([50.0, 97.0], "success"), ([50.0, 96.9], "aborted"), ([math.nan], "aborted"), ([], "aborted")],
)
def test_success_means_that_the_target_was_reached(percents: list[float], status: str) -> None:
    lines: list[str] = []
    run_events(MLLog(lines.append, target=AT_LEAST_97), percents)
    assert f'"status": "{status}"' in lines[-1]


def test_a_run_that_breaks_off_ends_what_it_began() -> None:
    lines: list[str] = []
    log = MLLog(lines.append)
    log.before_training(None)
    log.before_epoch(None, 0)
    log.before_evaluation(None, 0)
    log.stop("aborted")
    log.stop("success")
    keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines]
    assert keys[-3:] == ["eval_stop", "epoch_stop", "run_stop"]
    assert '"status": "aborted"' in lines[-1]


def test_a_torn_last_line_is_left_out_and_mended(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    log = MLLog(folder.append_event)
    log.event("a")
    log.event("b", 2)
    path = folder.path / "events.mllog"
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for length in range(last + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert [line.key for line in read_mllog(path)] == ["init_start", "a"]
    folder.close()
    # A resumed run begins on a new line, so that the file stays one that MLPerf's tools read.
    again = ResultFolder.open(folder.path)
    again.append_event(whole.decode().splitlines()[-1])
    assert path.read_bytes() == whole
    path.write_bytes(b"foreign line\n" + whole[: last - 5] + b"\n" + whole[last:])
    with pytest.raises(UsageError, match=r"line 3 is damaged"):
        read_mllog(path)


def test_an_event_is_one_line(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    with pytest.raises(UsageError, match="an event is one line"):
        folder.append_event("a\nb")
    assert not (folder.path / "events.mllog").exists()


# --- a run that is killed ---------------------------------------------------------------------------------------------

CHILD = """
import sys
from deep5.core.metric import Sample
from deep5.results.folder import ResultFolder
from deep5.results.mllog import MLLog
from deep5.results.samples_file import sample_rows
from deep5.results.schema import blank_document

print("ready", flush=True)
while True:
    document = blank_document(recipe={"name": "killed"})
    folder = ResultFolder.create(sys.argv[1], "killed", document)
    document = {**document, "run_id": folder.run_id}
    log = MLLog(folder.append_event, keys={"padding": "x" * 2000})
    for step in range(4):
        log.event("step", step)
        folder.write_samples(sample_rows("latency", "s", [Sample(i / 3, step=i) for i in range(200 * step)]))
        folder.write_file("environment.json", "{}")
        folder.write_result({**document, "seeds": {"run": step}, "warnings": ["padding" * 500]})
"""


def refusals(out: Path) -> list[str]:
    """Errors of the folders that a killed run left."""
    found = []
    for path in result_folders(out):
        try:
            result = load(path)
            result.samples()
            if (path / "events.mllog").exists():
                read_mllog(path / "events.mllog")
        except Deep5Error as error:
            found.append(str(error))
            continue
        if not VALIDATOR.is_valid(result.document) or result.status != "aborted" or result:
            found.append(f"{path} is not valid, or not marked aborted")
    return found


def test_a_killed_run_leaves_folders_that_read_and_say_so(tmp_path: Path) -> None:
    rng = random.Random(0)  # noqa: S311 - moments to kill at
    seen = 0
    for _ in range(12):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
        with child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.01, 0.15))
            child.send_signal(signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        assert refusals(tmp_path) == []
        # Every folder that is not hidden is a result: none without its result.json.
        assert result_folders(tmp_path) == sorted(path for path in tmp_path.iterdir() if path.name[0] != ".")
        seen = len(result_folders(tmp_path))
    assert seen >= 12, "the children were killed before they wrote anything: the test shows nothing"


def test_the_check_above_can_fail(tmp_path: Path) -> None:
    paths = [ResultFolder.create(tmp_path, "killed", blank()).path for _ in range(3)]
    assert refusals(tmp_path) == []
    (paths[0] / "result.json").write_text((paths[0] / "result.json").read_text()[:-9])
    (paths[1] / "result.json").write_text(json.dumps(full(run_id=paths[1].name)))
    (paths[2] / "samples.csv").write_text("metric,ind")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "result.json").write_text("{")
    assert len(refusals(tmp_path)) == 3


# --- for the eye ------------------------------------------------------------------------------------------------------


def printed(folder: ResultFolder, document: dict[str, Any], width: int = 80) -> list[str]:
    folder.write_result(document)
    out = io.StringIO()
    verdict_table(load(folder.path), Console(file=out, width=width))
    assert "\x1b" not in out.getvalue()
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_table_shows_every_verdict(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    rows = [
        metric_row(Accuracy(), AT_LEAST_97, value=97.5, interval=Interval(low=97.0, high=98.0, confidence=0.95)),
        metric_row(Time(), AT_MOST_60, value=math.inf),
        metric_row(Time(), None, value=1.25, interval=(1.0, 1.5)),
        metric_row(Time(), AT_MOST_60, evaluated=False),
        metric_row(Slowdown(), AT_MOST_60, value=0.9999996, interval=(0.96, 0.999998)),
    ]
    document = full(
        run_id=folder.run_id, metrics=rows, accepted=False, reasons=["time [to] accuracy"], warnings=["drift"]
    )
    lines = printed(folder, document)
    cells = [re.split(r"  +", line.strip()) for line in lines]
    assert cells[0] == ["metric", "value", "goal", "verdict"], "no empty line above"
    assert lines[lines.index("not accepted (closed; success)") - 1] == ""
    assert ["test_accuracy", "97.5 %", ">= 97", "passed"] in cells
    assert ["97 … 98 (95 %)"] in cells
    assert ["time_to_accuracy", "inf s", "<= 60", "FAILED"] in cells
    assert ["time_to_accuracy", "1.25 s", "reported"] in cells
    assert ["1 … 1.5"] in cells
    assert ["time_to_accuracy", "no value", "<= 60", "not evaluated"] in cells
    assert ["slowdown", "0.9999996 ratio", "<= 60", "passed"] in cells
    assert ["0.96 … 0.999998"] in cells, "not rounded to the ratio of equal times"
    assert "not accepted (closed; success)" in lines
    assert "  reason: time [to] accuracy" in lines
    assert "  warning: drift" in lines
    assert lines[-1] == str(folder.path)


class Best(Metric):
    """One of k."""

    name, unit, direction = "best_of", "%", "higher"

    def __init__(self, k: int) -> None:
        self.k, self.logits = k, "logits"

    def observer(self) -> Observer:
        return Observer()


def test_metrics_of_one_name_are_told_apart_by_their_parameters(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    rows = [
        metric_row(metric, None, value=value) for metric, value in ((Best(1), 1.0), (Best(5), 5.0), (Accuracy(), 2))
    ]
    lines = printed(folder, full(run_id=folder.run_id, metrics=rows))
    names = [line.split()[0] for line in lines if line.endswith("reported")]
    assert names == ["best_of[k=1]", "best_of[k=5]", "test_accuracy"]
    assert [verdict.label for verdict in load(folder.path).verdicts[:2]] == ["best_of[k=1]", "best_of[k=5]"]
    assert load(folder.path).metric("best_of[k=5]") == 5.0
    with pytest.raises(UsageError, match=r"2 metrics are named 'best_of' .*; metrics: best_of\[k=1\], best_of\[k=5\]"):
        load(folder.path).metric("best_of")


def test_the_overall_line_follows_accepted(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    assert "accepted (closed; success)" in printed(folder, full(run_id=folder.run_id))
    assert "not evaluated (closed; aborted)" in printed(folder, {**blank(), "run_id": folder.run_id})


class Long(Metric):
    name, unit, direction = "slowdown_of_the_trainer_against_the_native_loop", "samples/s", "lower"

    def observer(self) -> Observer:
        return Observer()


def test_no_value_is_cut_or_broken_at_80_columns(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    goal = Goal(relation="<=", bound=-1.23457e-05)
    interval = Interval(low=-1.23456e-05, high=-1.23454e-05, confidence=0.95)
    row = metric_row(Long(), goal, value=-1.234551e-05, interval=interval)
    lines = printed(folder, full(run_id=folder.run_id, metrics=[row], accepted=False, reasons=["x" * 200]))
    text = "\n".join(lines)
    for part in ("-1.23455e-05 samples/s", "-1.2346e-05 … -1.2345e-05 (95 %)", "<= -1.23457e-05", "FAILED"):
        assert part in text
    assert "…" not in text.replace("-1.2346e-05 … -1.2345e-05", ""), "an ellipsis stands for something cut"
    first_cells = [re.split(r"  +", line.strip())[0] for line in lines]
    assert Long.name in "".join(first_cells), "the name is folded, not cut"
    assert text.count("x") >= 200
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[-1] == str(folder.path), "the path is one line, however long"


def test_json_is_the_document_and_its_folder(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path, "digits", blank())
    folder.write_result(full(run_id=folder.run_id))
    answer = json.loads(to_json(load(folder.path)))
    assert answer.pop("folder") == str(folder.path)
    assert answer == full(run_id=folder.run_id)


def test_importing_the_results_loads_nothing_heavy() -> None:
    code = (
        "import sys; import deep5.results.folder, deep5.results.mllog, deep5.results.table\n"
        "heavy = {'numpy', 'scipy', 'rich', 'jsonschema', 'pandas', 'psutil', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
