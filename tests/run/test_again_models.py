"""Stored runs of models in place of recipes, repeated and packed: the same bits, and no code that is not trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

import deep5 as d5
from command import Command
from deep5.audit.folders import audit
from deep5.results.archive import MANIFEST
from deep5.results.origin import ORIGIN, read_origin
from deep5.results.result import load
from stored_runs import newest

MODEL = """
import deep5 as d5
from widths import WIDTH

def net(hidden=WIDTH, seed=0):
    return d5.networks.mlp(features=4, classes=3, hidden=hidden, seed=seed)
"""
WIDTHS = """
from pathlib import Path

WIDTH = int((Path(__file__).parent / "width.txt").read_text())
"""
CHOSEN = ("--framework", "reference", "--set", "dataset_kwargs.train=64", "--set", "dataset_kwargs.test=16", "--quiet")


@pytest.fixture
def model(deep5: Command, tmp_path: Path) -> Path:
    """A model of the user's, with a module, and a file that the module opens."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "width.txt").write_text("5")
    (folder / "widths.py").write_text(WIDTHS)
    (folder / "nets.py").write_text(MODEL)
    return folder / "nets.py"


@pytest.fixture
def ran(deep5: Command, model: Path, tmp_path: Path) -> Path:
    """The result folder of a run of it, with another argument and another seed."""
    chosen = ("--set", "model_kwargs.hidden=7", "--seed", "3", "--out", "first")
    answer = deep5("run", "mine/nets.py:net", *CHOSEN, *chosen)
    assert answer.status == 0, answer.err
    return newest(tmp_path / "first")


def saved(path: Path, *, external: bool = False) -> Path:
    """An ONNX file without a loss, whose weights may be in a file beside it."""
    build = d5.NetworkBuilder("net", seed=0)
    x = build.input("x", ("N", 4))
    w = build.parameter("w", (4, 3000))
    scores = build.op("Gemm", x, w, build.parameter("b", (3000,), d5.networks.zeros))
    build.network({"scores": scores}).save(path)
    if external:
        proto = onnx.load(path)
        onnx.save_model(proto, path, save_as_external_data=True, location="net.weights", size_threshold=0)
    return path


def test_a_model_of_code_repeats_bit_by_bit(deep5: Command, ran: Path, model: Path) -> None:
    assert (ran / "model.py").read_text() == MODEL
    assert not (ran / "recipe.py").exists()
    answer = deep5("run", "--like", str(ran), "--quiet", "--json", "--out", "again")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert found["rerun"]["repeated"]
    assert {row["what"] for row in found["rerun"]["rows"]} >= {"trained weights", "training_loss", "network"}
    assert found["result"]["recipe"]["fixed"]["model_kwargs"] == {"hidden": 7}
    assert found["result"]["seeds"]["run"] == 3
    again = Path(found["result"]["folder"])
    assert load(again).document["recipe"]["hash"] == load(ran).document["recipe"]["hash"]
    assert not audit([ran, again]).findings
    assert deep5("run", "--like", str(again), "--quiet").status == 0


def test_a_model_runs_again_from_another_working_directory(
    deep5: Command, ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = deep5("run", "--like", str(ran), "--quiet")
    assert answer.status == 0, answer.err
    assert (tmp_path / "elsewhere" / "results").is_dir()


@pytest.mark.parametrize("external", [False, True])
def test_an_onnx_file_repeats_and_moves(
    deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    saved(tmp_path / "net.onnx", external=external)
    assert deep5("run", "net.onnx", *CHOSEN).status == 0
    folder = newest(tmp_path / "results")
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "net.onnx").read_bytes()
    answer = deep5("run", "--like", str(folder), "--quiet")
    assert answer.status == 0, answer.err
    assert not audit([folder]).findings
    assert deep5("results", "pack", str(folder), "-o", "run.zip").status == 0
    for name in ("net.onnx", "net.weights") if external else ("net.onnx",):
        (tmp_path / name).unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = deep5("run", "../run.zip", "--quiet", "--trust", "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["rerun"]["repeated"]


def test_a_packed_model_runs_elsewhere_once_it_is_trusted(
    deep5: Command, ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = deep5("results", "pack", str(ran), "-o", "run.zip")
    assert answer.status == 0, answer.err
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = deep5("run", "../run.zip", "--quiet")
    assert answer.status == 2
    assert all(f"files/mine/{name}" in answer.err for name in ("nets.py", "widths.py", "width.txt"))
    assert "--trust" in answer.err
    answer = deep5("run", "../run.zip", "--quiet", "--trust", "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["rerun"]["repeated"]
    folder, _ = d5_unpacked(deep5, tmp_path)
    assert deep5("run", "--like", str(folder), "--quiet", "--trust").status == 0


def d5_unpacked(deep5: Command, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The archive, unpacked by its command, and the manifest."""
    folder = tmp_path / "unpacked"
    answer = deep5("results", "unpack", str(tmp_path / "run.zip"), "-o", str(folder))
    assert answer.status == 0, answer.err
    return folder, json.loads((folder / MANIFEST).read_text())


def test_settings_that_name_code_move_with_the_model(
    deep5: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "own_data.py").write_text(
        "import numpy as np\nimport deep5 as d5\n\ndef data():\n"
        "    x = np.arange(192, dtype=np.float32).reshape(48, 4) / 192\n"
        "    arrays = d5.ArrayDataset({'input': x, 'label': np.arange(48) % 3})\n"
        "    return d5.Splits(train=arrays, test=arrays)\n"
    )
    chosen = ("--framework", "reference", "--quiet", "--set", "dataset=mine/own_data.py:data")
    answer = deep5("run", "mine/nets.py:net", *chosen)
    assert answer.status == 0, answer.err
    folder = newest(tmp_path / "results")
    assert not audit([folder]).findings
    assert deep5("run", "--like", str(folder), "--quiet").status == 0
    assert deep5("results", "pack", str(folder), "-o", "run.zip").status == 0
    shutil.rmtree(tmp_path / "mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = deep5("run", "../run.zip", "--quiet", "--trust")
    assert answer.status == 0, answer.err


def test_a_changed_model_is_not_executed(deep5: Command, ran: Path, model: Path, tmp_path: Path) -> None:
    model.write_text(MODEL + "\nraise RuntimeError('executed')\n")
    answer = deep5("run", "--like", str(ran), "--quiet")
    assert answer.status == 2
    assert "nets.py changed since the run" in answer.err
    assert f"{ran / 'model.py'}" in answer.err
    assert "the model of" in answer.err
    assert "--trust" in answer.err
    assert "executed')" not in answer.err
    answer = deep5("run", "--like", str(ran), "--quiet", "--trust")
    assert answer.status == 0, answer.err
    assert (
        load(newest(tmp_path / "results")).document["provenance"]["trained_weights"]
        == (load(ran).document["provenance"]["trained_weights"])
    )
    (ran / "model.py").write_text(MODEL + "\n")
    answer = deep5("run", "--like", str(ran), "--quiet", "--trust")
    assert answer.status == 2
    assert "model.py of" in answer.err
    assert any("the hash of model.py" in str(finding) for finding in audit([ran]).findings)


def test_a_changed_module_of_a_model_is_named(deep5: Command, ran: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "width.txt").write_text("6")
    for command in (("run", "--like", str(ran)), ("results", "pack", str(ran))):
        answer = deep5(*command)
        assert answer.status == 2
        assert "width.txt changed" in answer.err


def test_a_difference_of_a_model_s_run_is_located_and_explained(deep5: Command, ran: Path) -> None:
    document = json.loads((ran / "result.json").read_text())
    document["software"]["packages"]["numpy"] = "1.0"
    document["provenance"]["trained_weights"] = "0" * 64
    (ran / "result.json").write_text(json.dumps(document))
    answer = deep5("run", "--like", str(ran), "--out", "again")
    assert answer.status == 1
    assert "another numpy" in answer.out
    assert "does not repeat" in answer.out


@pytest.mark.parametrize("change", ["file", "model"])
def test_a_forged_origin_of_a_model_executes_nothing(deep5: Command, ran: Path, tmp_path: Path, change: str) -> None:
    victim = tmp_path / "victim" / "nets.py"
    shutil.copytree(tmp_path / "mine", victim.parent)
    victim.write_text(MODEL + "\ndef other(): raise RuntimeError('executed')\n")
    origin = json.loads((ran / ORIGIN).read_text())
    assert read_origin(ran, load(ran).document).own_run
    origin[change] = str(victim) if change == "file" else "mine/nets.py:other"
    (ran / ORIGIN).write_text(json.dumps(origin))
    assert not read_origin(ran, load(ran).document).own_run
    answer = deep5("run", "--like", str(ran), "--quiet")
    assert answer.status == 2
    assert "--trust" in answer.err
    assert "executed')" not in answer.err


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"model": "net.onnx"}, "the model net.onnx is in"),
        ({"model": "nets.py:../x"}, "recipe.model"),
        ({"model": "nets.py:no name"}, "is in"),
        ({"model": 3}, "recipe.model"),
        ({"model": "nets.py:absent"}, "has no 'absent'"),
        ({"file": "files/mine/widths.py"}, "is not the file that ran"),
    ],
)
def test_manifests_that_state_another_model(
    deep5: Command, ran: Path, tmp_path: Path, stated: dict[str, Any], said: str
) -> None:
    deep5("results", "pack", str(ran), "-o", "run.zip")
    folder, manifest = d5_unpacked(deep5, tmp_path)
    manifest["recipe"] |= stated
    (folder / MANIFEST).write_text(json.dumps(manifest))
    answer = deep5("run", "--like", str(folder), "--quiet", "--trust")
    assert answer.status == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_a_large_model_is_left_out_and_named(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.results import pack as packing

    saved(tmp_path / "net.onnx")
    assert deep5("run", "net.onnx", *CHOSEN).status == 0
    folder = newest(tmp_path / "results")
    monkeypatch.setattr(packing, "FILE_BYTES", (tmp_path / "net.onnx").stat().st_size - 1)
    answer = deep5("results", "pack", str(folder), "-o", "run.zip")
    assert answer.status == 0, answer.err
    assert f"left out: {tmp_path / 'net.onnx'}" in answer.err
    answer = deep5("run", "run.zip", "--trust", "--quiet")
    assert answer.status == 2
    assert "net.onnx is missing" in answer.err
    place = tmp_path / "results" / "run" / "files" / "net.onnx"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tmp_path / "net.onnx", place)
    answer = deep5("run", "run.zip", "--trust", "--quiet")
    assert answer.status == 0, answer.err


def test_a_result_of_an_older_version_says_why_it_does_not_repeat(deep5: Command, ran: Path) -> None:
    document, origin = (json.loads((ran / name).read_text()) for name in ("result.json", ORIGIN))
    document["provenance"]["recipe_source"], origin["file"] = None, None
    del origin["model"]
    (ran / "result.json").write_text(json.dumps(document))
    (ran / ORIGIN).write_text(json.dumps(origin))
    (ran / "model.py").unlink()
    for command in (("run", "--like", str(ran)), ("results", "pack", str(ran))):
        answer = deep5(*command)
        assert answer.status == 2
        assert "stores no file of what it ran" in answer.err


def test_a_comparison_of_a_model_stores_it(deep5: Command, model: Path, tmp_path: Path) -> None:
    from deep5.compare.plan import make_plan
    from deep5.recipe.recipe import load_recipe

    plan, recipes = make_plan("mine/nets.py:net", frameworks=["reference", "onnxruntime"], seed=0)
    assert {recipe.stored_source() for recipe in recipes.values()} == {MODEL.encode()}
    made = load_recipe(plan.recipe)
    model.write_text(MODEL + "\n")
    with pytest.raises(d5.Deep5Error, match="changed since the start"):
        made.stored_source()
