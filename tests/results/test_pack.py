"""Archives of runs: what they hold, and every archive that a stranger could have made."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import Command
from deep5.core.errors import OutputError, UsageError
from deep5.recipe.recipe import load_recipe
from deep5.results import pack as packing
from deep5.results.archive import MANIFEST, changed_files, pack_schema, read_manifest
from deep5.results.pack import pack, unpack
from deep5.results.signature import sign, verify
from deep5.run.execute import execute
from stored_runs import new_key, newest, write_own


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    return execute(
        load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": "reference"}), out=out
    ).folder


@pytest.fixture
def packed(finished: Path, tmp_path: Path) -> Path:
    return pack(finished, tmp_path / "run.zip")[0]


def test_the_same_bytes_every_time(finished: Path, packed: Path, tmp_path: Path) -> None:
    again, left_out = pack(finished, tmp_path / "again.zip")
    assert again.read_bytes() == packed.read_bytes()
    assert left_out == []


def test_unpacked_files_are_as_packed(finished: Path, packed: Path, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    folder, manifest = unpack(packed, tmp_path / "there")
    jsonschema.validate(manifest, pack_schema())
    for path in finished.iterdir():
        assert (folder / finished.name / path.name).read_bytes() == path.read_bytes()
    assert manifest["data"]["hash"]
    assert not changed_files(folder, manifest)
    assert unpack(packed, tmp_path / "there")[1] == manifest  # it is there already
    (folder / finished.name / "samples.csv").write_text("other")
    with pytest.raises(UsageError, match="is there already"):
        unpack(packed, tmp_path / "there")


def test_own_recipe_elsewhere(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recipe imports and opens is in the archive, and runs elsewhere only if it is trusted."""
    write_own(tmp_path / "mine")
    assert deep5("run", "mine/own.py", "--quiet", "--set", "batch_size=16").status == 0
    answer = deep5("results", "pack", str(newest(tmp_path / "results")), "-o", "run.zip")
    assert answer.status == 0, answer.err
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / "results")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = deep5("run", "../run.zip", "--quiet")
    assert answer.status == 2
    assert "files/mine/rates.py" in answer.err
    assert "files/mine/data/rate.txt" in answer.err
    answer = deep5("run", "../run.zip", "--quiet", "--trust", "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["rerun"]["repeated"]
    answer = deep5("run", "--like", "results/run", "--quiet", "--trust")
    assert answer.status == 0, answer.err
    (tmp_path / "elsewhere" / "results" / "run" / "files" / "mine" / "rates.py").write_text("RATE = 1.0")
    answer = deep5("run", "--like", "results/run", "--quiet", "--trust")
    assert answer.status == 2
    assert "rates.py is not as it was packed" in answer.err


def test_registered_recipe_needs_no_trust(deep5: Command, packed: Path) -> None:
    answer = deep5("run", str(packed))
    assert answer.status == 0, answer.err
    assert "bit by bit" in answer.out


def test_a_changed_own_file_is_not_packed(deep5: Command, tmp_path: Path) -> None:
    write_own(tmp_path / "mine")
    deep5("run", "mine/own.py", "--quiet")
    (tmp_path / "mine" / "rates.py").write_text("RATE = 1.0")
    answer = deep5("results", "pack", str(newest(tmp_path / "results")), "-o", "run.zip")
    assert answer.status == 2
    assert "rates.py changed" in answer.err
    assert not (tmp_path / "run.zip").exists()


def test_large_data_is_named(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_own(tmp_path / "mine")
    large = tmp_path / "mine" / "data" / "rate.txt"
    large.write_text("0.05" + " " * 400_000)
    deep5("run", "mine/own.py", "--quiet")
    folder = newest(tmp_path / "results")
    monkeypatch.setattr(packing, "FILE_BYTES", 300_000)
    answer = deep5("results", "pack", str(folder), "-o", "run.zip")
    assert answer.status == 0, answer.err
    sha = hashlib.sha256(large.read_bytes()).hexdigest()
    assert f"left out: {large}" in answer.err
    assert sha in answer.err
    answer = deep5("run", "run.zip", "--trust", "--quiet")
    assert answer.status == 2
    assert "rate.txt is missing" in answer.err
    assert sha in answer.err
    place = tmp_path / "results" / "run" / "files" / "mine" / "data" / "rate.txt"
    place.parent.mkdir(parents=True)
    place.write_text("0.07")
    assert "has another hash" in deep5("run", "run.zip", "--trust", "--quiet").err
    shutil.copy(large, place)
    assert deep5("run", "run.zip", "--trust", "--quiet").status == 0


def test_signed_results_stay_signed(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    key = new_key(tmp_path, "mine", "ada@example.org")
    sign(folder, key)
    pack(folder, tmp_path / "signed.zip")
    there, _ = unpack(tmp_path / "signed.zip", tmp_path / "there")
    assert verify(there / finished.name, f"{key}.pub")


def test_a_link_in_a_result_is_not_followed(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="is a link"):
        pack(folder, tmp_path / "run.zip")
    assert not (tmp_path / "run.zip").exists()


@pytest.mark.parametrize("name", ["run", "there/run.zip", "."])
def test_targets_that_cannot_be_written(finished: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises((UsageError, OutputError)):
        pack(finished, tmp_path / name)


def rewritten(source: Path, target: Path, change: Callable[[zipfile.ZipFile, dict[str, Any]], None]) -> Path:
    """A copy of an archive, with further entries by `change`, which may edit the manifest, too."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        manifest = json.loads(old.read(MANIFEST))
        for info in old.infolist():
            if info.filename != MANIFEST:
                new.writestr(info, old.read(info))
        change(new, manifest)
        new.writestr(MANIFEST, json.dumps(manifest))
    return target


def listed(new: zipfile.ZipFile, manifest: dict[str, Any], name: str, content: bytes = b"x", mode: int = 0) -> None:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    new.writestr(info, content)
    manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("/evil", 0, "absolute"),
        ("../evil", 0, "leads out"),
        ("files/../../evil", 0, "leads out"),
        ("files//evil", 0, "not a plain path"),
        ("files\\evil", 0, "not a plain path"),
        ("C:/evil", 0, "absolute"),
        ("files/e\x1bvil", 0, "not a plain path"),
        ("files/evil", stat.S_IFLNK | 0o777, "is a link"),
        ("files/evil", stat.S_IFCHR | 0o666, "is a device"),
        ("files/evil", stat.S_IFIFO | 0o666, "is a device"),
        ("FILES/twice", 0, "is there twice"),
    ],
)
def test_hostile_names(packed: Path, tmp_path: Path, name: str, mode: int, said: str) -> None:
    def change(new: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
        if said == "is there twice":
            listed(new, manifest, "files/twice")
        listed(new, manifest, name, mode=mode)

    bad = rewritten(packed, tmp_path / "bad.zip", change)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=said):
        unpack(bad, tmp_path / "there")
    assert sorted(tmp_path.iterdir()) == before


def stated(**values: Any) -> Callable[[zipfile.ZipFile, dict[str, Any]], None]:
    return lambda new, manifest: manifest.update(values)


def undeclared(new: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    new.writestr("files/undeclared", b"x")


def short(new: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    """A bomb: the manifest states less than the entry yields."""
    listed(new, manifest, "files/bomb", b"\0" * (20 << 20))
    manifest["files"]["files/bomb"]["bytes"] = 10


def large(new: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    for number in range(20):
        listed(new, manifest, f"files/{number}")
        manifest["files"][f"files/{number}"]["bytes"] = 60 << 20


def missing(new: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    manifest["files"]["files/missing"] = {"sha256": "0" * 64, "bytes": 1}


def other_hash(new: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    listed(new, manifest, "files/other")
    manifest["files"]["files/other"]["sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (undeclared, "is not in its manifest"),
        (short, "is not the file of its manifest"),
        (large, "more than"),
        (missing, "is missing"),
        (other_hash, "is not the file of its manifest"),
        (stated(schema_version="2"), "schema"),
        (stated(run_id="../x"), "leads out"),
        (stated(working_directory="/"), "absolute"),
        (stated(python_path=["../x"]), "leads out"),
        (stated(files=[]), "files"),
    ],
)
def test_hostile_manifests(
    packed: Path, tmp_path: Path, change: Callable[[zipfile.ZipFile, dict[str, Any]], None], said: str
) -> None:
    bad = rewritten(packed, tmp_path / "bad.zip", change)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=said):
        unpack(bad, tmp_path / "there")
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_archives(deep5: Command, packed: Path, tmp_path: Path) -> None:
    """Every truncation, and changes of single bytes, give one line, and leave nothing."""
    whole = packed.read_bytes()
    bad = tmp_path / "bad.zip"
    for length in [0, 1, 30, len(whole) // 2, len(whole) - 1]:
        bad.write_bytes(whole[:length])
        answer = deep5("run", "bad.zip", "--quiet")
        assert answer.status == 2
        assert "truncated or not a zip" in answer.err
        assert len(answer.err.strip().splitlines()) == 1
    for place in range(40, len(whole) - 40, len(whole) // 50):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        bad.write_bytes(changed)
        try:
            unpack(bad, tmp_path / "there")
        except UsageError:
            assert not (tmp_path / "there").exists()
        else:  # a byte that is not used, such as of a time
            assert not changed_files(tmp_path / "there", read_manifest(tmp_path / "there"))
            shutil.rmtree(tmp_path / "there")
    bad.write_text("not a zip")
    assert "truncated or not a zip" in deep5("results", "unpack", "bad.zip").err
    with zipfile.ZipFile(bad, "w") as empty:
        empty.writestr("readme", "x")
    assert f"holds no {MANIFEST}" in deep5("results", "unpack", "bad.zip").err
    assert deep5("results", "unpack", "absent.zip").status == 2


def test_folders_that_are_no_runs(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "absent"):
        answer = deep5("results", "pack", folder)
        assert answer.status == 2
        assert "is not a result folder" in answer.err
