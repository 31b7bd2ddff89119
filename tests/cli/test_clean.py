"""`deep5 clean`: what is deleted, what stays, and what is never touched."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import click
import pytest

from command import Command
from deep5.cli import main as cli
from deep5.cli.clean import clean_command, cleaned, found_in_cache, found_in_results
from deep5.core.errors import OutputError, UsageError
from deep5.core.owner_secret import owner_secret, secret_path
from deep5.core.private_files import ExposedFile
from deep5.training.checkpointer import name_of

KIB = 1024


@pytest.fixture(scope="module", autouse=True)
def command() -> None:
    assert isinstance(cli._cli, click.Group)
    cli._cli.add_command(clean_command(cli.errors))


def put(path: Path, kib: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(kib * KIB))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DEEP5_CACHE", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("a.so", "a.sha256", "a.includes", "own.txt"):
        put(folder / "kernels" / name)
    put(folder / "torchinductor" / "ab" / "x.so", 4)
    put(folder / "data" / "mnist" / "train-images-idx3-ubyte", 100)
    put(folder / "data" / "mine" / "photo.png", 7)
    put(folder / "tfrecord" / ("0" * 64 + ".npy"), 2)
    put(folder / "tfrecord" / "other.npy")
    put(folder / "hashes" / ("0" * 64 + ".sha256"), 1)
    put(folder / "hashes" / "other.sha256")
    put(folder / "real_files" / "a-1.0-py3-none-any.whl", 1)
    put(folder / "real_files" / "own.onnx")
    put(folder / "results" / ("0" * 32 + ".index.jsonl"), 5)
    put(folder / "results" / ("." + "0" * 32 + ".index.jsonl.abc.tmp"), 6)
    put(folder / "results" / "own.jsonl")
    put(folder / "notes.txt")
    return folder


def remaining(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


OWN = {
    "kernels/own.txt",
    "results/own.jsonl",
    "data/mine/photo.png",
    "tfrecord/other.npy",
    "hashes/other.sha256",
    "real_files/own.onnx",
    "notes.txt",
}
WHEEL = "real_files/a-1.0-py3-none-any.whl"
DATA = {"data/mnist/train-images-idx3-ubyte", WHEEL, f"tfrecord/{'0' * 64}.npy", f"hashes/{'0' * 64}.sha256"}


def test_compiled_code_goes_and_data_stays(cache: Path, deep5: Command) -> None:
    answer = deep5("clean")
    assert answer.out.splitlines() == [
        f"freed 18 KiB in {cache}",
        "kept 104 KiB of downloads, indices of TFRecord files, and hashes of files: deep5 clean --data deletes them",
    ]
    assert remaining(cache) == OWN | DATA


def test_the_secret_of_compiled_code_goes_with_it(cache: Path, tmp_path: Path, deep5: Command) -> None:
    owner_secret()
    secret, torn = secret_path(), secret_path().with_name(f".cache.secret.{'0' * 16}.tmp")
    torn.write_bytes(b"")
    (secret.parent / "own.txt").write_text("mine")
    assert f"would delete the secret of compiled code, {secret}" in deep5("clean", "--dry-run").out.splitlines()
    assert "kept 32 B of the secret of compiled code: deep5 clean deletes them" in deep5("clean", "--data").out
    assert deep5("clean").out.splitlines()[:3] == [
        f"freed 18 KiB in {cache}",
        f"deleted the secret of compiled code, {torn}",
        f"deleted the secret of compiled code, {secret}",
    ]
    assert remaining(tmp_path / "state") == {"deep5/own.txt"}


@pytest.mark.parametrize("kind", ["pipe", "link to a file", "link to a folder", "dangling link", "open to all"])
def test_what_is_refused_as_a_secret_is_deleted(cache: Path, tmp_path: Path, deep5: Command, kind: str) -> None:
    owner_secret()
    secret, target = secret_path(), put(tmp_path / "elsewhere" / "own")
    if kind == "open to all":
        secret.chmod(0o644)
    else:
        secret.unlink()
    if kind == "pipe":
        os.mkfifo(secret)
    elif "link" in kind:
        secret.symlink_to({"link to a file": target, "link to a folder": target.parent}.get(kind, tmp_path / "nothing"))
    # A link to the folder of the state is followed, as deep5 does when it reads the secret.
    (tmp_path / "state" / "deep5").rename(tmp_path / "real")
    (tmp_path / "state" / "deep5").symlink_to(tmp_path / "real")
    with pytest.raises(ExposedFile, match="remedy: deep5 clean"):
        owner_secret()
    assert f"deleted the secret of compiled code, {secret}" in deep5("clean").out.splitlines()
    assert owner_secret()
    assert target.exists()


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_in_the_place_of_the_secret_stays_with_the_remedy(cache: Path, deep5: Command, full: bool) -> None:
    owner_secret()
    secret = secret_path()
    secret.unlink()
    secret.mkdir()
    if full:
        put(secret / "own")
    with pytest.raises(ExposedFile, match=r"and is a folder; allowed: .*; remedy: move this folder elsewhere"):
        owner_secret()
    kept = f"and this is a folder; remedy: move {secret} elsewhere"
    assert any(line.endswith(kept) for line in deep5("clean").out.splitlines())
    assert (secret / "own").exists() == full
    secret.rename(secret.with_name("moved"))
    assert owner_secret()


def test_what_a_killed_process_left_of_a_library_goes(cache: Path) -> None:
    old, new = put(cache / "kernels" / "build-abc" / "kernel.c"), put(cache / "kernels" / "build-def" / "kernel.c")
    long_ago = time.time() - 7200
    for path in (old, old.parent):
        os.utime(path, (long_ago, long_ago))
    assert {entry.path: entry.kept for entry in found_in_cache()}[new.parent] == "a process may still use it"
    cleaned(found_in_cache())
    assert (old.parent.exists(), new.exists()) == (False, True)


def test_data_goes_when_it_is_asked_for(cache: Path, deep5: Command) -> None:
    assert deep5("clean", "--data").out.splitlines()[0] == f"freed 104 KiB in {cache}"
    assert (cache / "kernels" / "a.so").exists()
    assert deep5("clean", "--all").out == f"freed 18 KiB in {cache}\n"
    assert remaining(cache) == OWN


def test_nothing_goes_in_a_dry_run(cache: Path, deep5: Command) -> None:
    before = remaining(cache)
    lines = deep5("clean", "--all", "--dry-run").out.splitlines()
    assert lines[0] == f"would free 122 KiB in {cache}"
    assert f"  {cache / 'data' / 'mnist'}  100 KiB" in lines
    assert remaining(cache) == before
    document = json.loads(deep5("clean", "--all", "--dry-run", "--json").out)
    assert (document["freed_bytes"], document["dry_run"]) == (0, True)
    document = json.loads(deep5("clean", "--all", "--json").out)
    assert document["freed_bytes"] == 122 * KIB
    assert {entry["kind"] for entry in document["deleted"]} == {"compiled", "listings", "data"}
    assert document["left"] == []


def test_an_empty_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep5: Command) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    assert deep5("clean", "--all").out == f"freed 0 B in {tmp_path / 'nothing'}\n"
    assert not (tmp_path / "nothing").exists()


FOLDERS = ["kernels", "torchinductor", "data", "data/mnist", "tfrecord", "hashes", "real_files", "results"]


@pytest.mark.parametrize("name", FOLDERS)
def test_links_are_not_followed(name: str, cache: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (cache / name).rename(outside)
    (cache / name).symlink_to(outside)
    before = remaining(outside)
    cleaned(found_in_cache())
    assert remaining(outside) == before
    assert (cache / name).is_symlink()


def test_links_inside_are_deleted_and_what_they_lead_to_is_not(cache: Path, tmp_path: Path) -> None:
    precious = put(tmp_path / "precious" / "a", 50)
    (cache / "data" / "mnist" / "link").symlink_to(precious.parent)
    (cache / "kernels" / "b.so").symlink_to(precious)
    found = found_in_cache()
    assert sum(entry.size_bytes for entry in found) == 122 * KIB  # deleting a link frees nothing
    cleaned(found)
    assert precious.exists()
    assert (cache / "kernels" / "b.so").is_symlink()
    assert not (cache / "data" / "mnist").exists()


def test_a_users_data_is_never_looked_at(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = put(tmp_path / "own" / "mnist" / "a")
    monkeypatch.setenv("DEEP5_DATA", str(own.parent.parent))
    cleaned(found_in_cache())
    assert own.exists()


def test_a_download_that_was_killed_goes_and_one_under_way_stays(cache: Path) -> None:
    old, new = put(cache / "data" / ".mnist.abc.tmp" / "a"), put(cache / "data" / ".mnist.def.tmp" / "a")
    long_ago = time.time() - 7200
    for path in (old, old.parent):
        os.utime(path, (long_ago, long_ago))
    found = {entry.path: entry.kept for entry in found_in_cache()}
    assert found[new.parent] == "a download may still write there"
    cleaned(found_in_cache())
    assert (old.parent.exists(), new.exists()) == (False, True)


# Checkpoints


def run(folder: Path, *steps: int, best: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    put(folder / "weights.safetensors", 3)
    for step in steps:
        put(folder / "checkpoints" / f"step-{step:010d}.safetensors", 10)
    if best:
        put(folder / "checkpoints" / "best.safetensors", 10)
    return folder


def test_old_checkpoints_go_and_the_last_stay(tmp_path: Path, cache: Path, deep5: Command) -> None:
    one, two = run(tmp_path / "results" / "a", 5, 100, 20, best=True), run(tmp_path / "results" / "b", 7)
    put(one / "checkpoints" / "notes.safetensors")
    put(one / "checkpoints" / ".step-0000000030.safetensors.x1.tmp")
    put(tmp_path / "results" / "no-run" / "checkpoints" / "step-0000000001.safetensors")
    lines = deep5("clean", "--checkpoints", "results").out.splitlines()
    assert lines[0] == "freed 21 KiB in results"
    assert "kept 30 KiB of checkpoints: it is the last one; it is the checkpoint of the best evaluation" in lines
    assert remaining(one / "checkpoints") == {"step-0000000100.safetensors", "best.safetensors", "notes.safetensors"}
    assert remaining(two) == {"result.json", "weights.safetensors", "checkpoints/step-0000000007.safetensors"}
    assert (tmp_path / "results" / "no-run" / "checkpoints" / "step-0000000001.safetensors").exists()
    assert (cache / "kernels" / "a.so").exists()  # only the requested files
    deep5("clean", "--checkpoints", "results", "--keep", "0")
    assert remaining(one / "checkpoints") == {"notes.safetensors"}
    assert not (two / "checkpoints").exists()
    assert (two / "weights.safetensors").exists()


def test_how_many_stay(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", 1, 2, 3, 40)
    stay = [entry.path.name for entry in found_in_results(folder, keep=2) if entry.kept]
    assert stay == ["step-0000000040.safetensors", "step-0000000003.safetensors"]
    assert len(cleaned(found_in_results(folder, keep=2))) == 2
    for keep in (-1, True, 1.5):
        with pytest.raises(UsageError, match="allowed: an integer of at least 0"):
            found_in_results(folder, keep=keep)  # type: ignore[arg-type]


def of_ranks(folder: Path, ranks: int, **steps: tuple[int, ...]) -> Path:
    """A run of this many ranks; for each step, the ranks that have written their part."""
    run(folder)
    (folder / "result.json").write_text(json.dumps({"ranks": ranks}))
    for step, there in steps.items():
        for rank in there:
            put(folder / "checkpoints" / name_of(int(step[1:]), rank), 10)
    return folder


def test_parts_of_ranks_stay_and_go_with_their_checkpoint(tmp_path: Path, cache: Path, deep5: Command) -> None:
    folder = of_ranks(tmp_path / "a", 3, s5=(0, 1, 2), s20=(0, 1, 2), s100=(0, 1, 2))
    put(folder / "checkpoints" / f".{name_of(100, 2)}.x1.tmp")
    put(folder / "checkpoints" / "step-0000000005.rank-x.safetensors")
    assert [entry.path.name for entry in found_in_results(folder, keep=2) if entry.kept] == [
        name_of(step, rank) for step in (100, 20) for rank in range(3)
    ]
    lines = deep5("clean", "--checkpoints", "a").out.splitlines()
    assert lines[0] == "freed 61 KiB in a"
    assert "kept 30 KiB of checkpoints: it is the last one" in lines
    assert remaining(folder / "checkpoints") == {
        "step-0000000005.rank-x.safetensors",
        *(name_of(100, rank) for rank in range(3)),
    }
    cleaned(found_in_results(folder, keep=0))
    assert remaining(folder / "checkpoints") == {"step-0000000005.rank-x.safetensors"}


def test_a_checkpoint_that_a_rank_has_no_part_of_does_not_stand_for_a_whole_one(tmp_path: Path) -> None:
    folder = of_ranks(tmp_path / "a", 2, s1=(0, 1), s2=(0, 1), s3=(0,), s4=(1,))
    assert {entry.path.name: entry.kept for entry in found_in_results(folder)} == {
        name_of(4, 1): "",
        name_of(3): "it is newer than the last complete one",
        name_of(2): "it is the last one",
        name_of(2, 1): "it is the last one",
        name_of(1): "",
        name_of(1, 1): "",
    }


def test_where_no_checkpoint_has_a_part_of_every_rank_the_last_stays(tmp_path: Path) -> None:
    """As if two ranks ended while three continue."""
    folder = of_ranks(tmp_path / "a", 3, s1=(0, 1), s2=(0, 1))
    stay = [entry.path.name for entry in found_in_results(folder) if entry.kept]
    assert stay == [name_of(2), name_of(2, 1)]


def test_a_run_that_still_writes_is_left_alone(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", 1, 2)
    before = found_in_results(folder, keep=0)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert {entry.kept for entry in found_in_results(folder, keep=0)} == {"a run still writes to it"}
        assert cleaned(before) == []  # the run began after the search
    finally:
        os.close(handle)
    assert len(cleaned(found_in_results(folder, keep=0))) == 2


def test_the_lock_is_that_of_a_result_folder(tmp_path: Path) -> None:
    """The search looks for the lock that a run holds."""
    import deep5 as d5
    from deep5.results.folder import ResultFolder

    fixed = {"model": "mlp", "dataset": "synthetic", "dataset_kwargs": {"shape": (784,), "train": 40}, "epochs": 1}
    mutable = {"batch_size": 20, "framework": "reference", "optimizer": "sgd"}
    path = d5.run_recipe(fixed, mutable, [], out=tmp_path, quiet=True).folder
    put(path / "checkpoints" / "step-0000000001.safetensors")
    folder = ResultFolder.open(path)
    assert [entry.kept for entry in found_in_results(path, keep=0)] == ["a run still writes to it"]
    folder.close()
    assert [entry.kept for entry in found_in_results(path, keep=0)] == [""]


def test_checkpoints_behind_a_link_stay(tmp_path: Path) -> None:
    outside = run(tmp_path / "elsewhere" / "a", 1, 2)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a").symlink_to(outside)
    inside = run(tmp_path / "results" / "b")
    (inside / "checkpoints").symlink_to(outside / "checkpoints")
    assert found_in_results(tmp_path / "results", keep=0) == []


def test_wrong_usage(tmp_path: Path, deep5: Command) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, told in (
        (["--keep", "2"], "--keep is for --checkpoints DIR"),
        (["--checkpoints", "empty"], "empty holds no result folder; allowed"),
        (["--checkpoints", "nothing"], "cannot list nothing"),
    ):
        answer = deep5("clean", *arguments)
        assert answer.status == 2
        assert told in answer.err


def test_what_cannot_be_deleted_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OutputError, match=r"a\.includes cannot be deleted \(Permission denied\)"):
        cleaned(found_in_cache())
