"""Stored runs, repeated by `deep5 run --like` and from archives: the same bits, and no code that is not trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command import Command
from deep5.audit.folders import audit
from deep5.results.origin import ORIGIN, read_origin
from deep5.results.result import load
from stored_runs import RECIPE, newest, write_own


@pytest.fixture
def ran(deep5: Command, tmp_path: Path) -> Path:
    """The result folder of a run of the user's recipe."""
    write_own(tmp_path / "mine")
    answer = deep5("run", "mine/own.py", "--set", "batch_size=16", "--quiet", "--out", "first")
    assert answer.status == 0, answer.err
    return next((tmp_path / "first").iterdir())


def test_own_recipe_repeats_bit_by_bit(deep5: Command, ran: Path) -> None:
    answer = deep5("run", "--like", str(ran), "--quiet", "--json", "--out", "again")
    found = json.loads(answer.out)
    assert answer.status == 0
    assert found["rerun"]["repeated"]
    assert {row["what"] for row in found["rerun"]["rows"]} >= {"trained weights", "training_loss", "order of batches"}
    assert found["rerun"]["measured"] == ["wall_clock_time"]
    assert found["result"]["recipe"]["mutable"]["batch_size"] == 16
    again = Path(found["result"]["folder"])
    assert again.parent.name == "again"
    assert not audit([ran, again]).findings


def test_registered_recipe_repeats_with_a_table(deep5: Command, tmp_path: Path) -> None:
    deep5("run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet", "--seed", "5")
    folder = next((tmp_path / "results").iterdir())
    answer = deep5("run", "--like", str(folder))
    assert answer.status == 0
    assert f"repeats {folder.name} bit by bit" in answer.out
    assert load(newest(tmp_path / "results")).document["seeds"]["run"] == 5


def test_a_difference_is_located_and_explained(deep5: Command, ran: Path) -> None:
    document = json.loads((ran / "result.json").read_text())
    document["software"]["packages"]["numpy"] = "1.0"
    document["provenance"]["trained_weights"] = "0" * 64
    (ran / "result.json").write_text(json.dumps(document))
    lines = (ran / "samples.csv").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("training_loss,2,"))
    cells = lines[at].split(",")
    cells[2] = "0.125"
    lines[at] = ",".join(cells)
    (ran / "samples.csv").write_text("\n".join(lines) + "\n")
    answer = deep5("run", "--like", str(ran), "--out", "again")
    assert answer.status == 1
    shown = " ".join(answer.out.split())
    assert f"since step {cells[4]}: 0.125, now" in shown
    assert "another numpy" in shown
    assert "does not repeat" in shown
    assert not any(line.endswith(" ") for line in answer.out.splitlines())
    quiet = deep5("run", "--like", str(ran), "--out", "again", "--quiet")
    assert (quiet.status, quiet.out, quiet.err.count("\n")) == (1, "", 1)
    assert f"does not repeat {ran.name} bit by bit: trained weights (" in quiet.err


def test_a_changed_recipe_is_not_executed(deep5: Command, ran: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "own.py"
    path.write_text(RECIPE + "\nraise RuntimeError('executed')\n")
    answer = deep5("run", "--like", str(ran), "--quiet")
    assert answer.status == 2
    assert "own.py changed since the run" in answer.err
    assert f"{ran / 'recipe.py'}" in answer.err
    assert "--trust" in answer.err
    assert "executed')" not in answer.err
    answer = deep5("run", "--like", str(ran), "--quiet", "--trust")
    assert answer.status == 0, answer.err
    assert load(newest(tmp_path / "results")).document["provenance"]["recipe_source"]


@pytest.mark.parametrize(("change", "said"), [("0.07", "rate.txt changed"), (None, "rate.txt is missing")])
def test_a_changed_own_file_is_named(deep5: Command, ran: Path, tmp_path: Path, change: str | None, said: str) -> None:
    file = tmp_path / "mine" / "data" / "rate.txt"
    file.unlink() if change is None else file.write_text(change)
    answer = deep5("run", "--like", str(ran), "--quiet")
    assert answer.status == 2
    assert said in answer.err
    assert not (tmp_path / "results").exists()


def test_a_forged_origin_executes_nothing(deep5: Command, ran: Path, tmp_path: Path) -> None:
    """A folder from elsewhere may name any file of this user's, with its right hash."""
    victim = tmp_path / "victim" / "own.py"
    shutil.copytree(tmp_path / "mine", victim.parent)
    origin = json.loads((ran / ORIGIN).read_text())
    assert read_origin(ran, load(ran).document).own_run
    origin["file"] = str(victim)
    (ran / ORIGIN).write_text(json.dumps(origin))
    assert not read_origin(ran, load(ran).document).own_run
    answer = deep5("run", "--like", str(ran), "--quiet")
    assert answer.status == 2
    assert "--trust" in answer.err


def test_settings_that_name_code_need_trust(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("raise RuntimeError('executed')\n")
    deep5("run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet")
    folder = newest(tmp_path / "results")
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    document["recipe"]["mutable"]["optimizer"] = "sizes.py:Own"
    (folder / "result.json").write_text(json.dumps(document))
    answer = deep5("run", "--like", str(folder), "--quiet")
    assert answer.status == 2
    assert "optimizer='sizes.py:Own'" in answer.err
    assert "executed')" not in answer.err


def test_weights_and_moved_folders(deep5: Command, ran: Path, tmp_path: Path) -> None:
    answer = deep5(
        "run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet", "--out", "init",
        "--init", str(ran / "weights.safetensors"), "--set", "optimizer_kwargs.lr=0.01",
    )  # fmt: skip
    assert answer.status == 0, answer.err
    first = newest(tmp_path / "init")
    answer = deep5("run", "--like", str(first), "--quiet", "--out", "init")
    assert answer.status == 0, answer.err
    (ran / "weights.safetensors").unlink()
    answer = deep5("run", "--like", str(first), "--quiet", "--out", "init")
    assert answer.status == 2
    assert "weights.safetensors is missing" in answer.err


def test_ranks_are_repeated(deep5: Command, tmp_path: Path) -> None:
    answer = deep5(
        "run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet", "--ranks", "2",
        "--launcher", "threads",
    )  # fmt: skip
    assert answer.status == 0, answer.err
    folder = newest(tmp_path / "results")
    answer = deep5("run", "--like", str(folder), "--json", "--quiet")
    found = json.loads(answer.out)
    assert answer.status == 0
    assert found["result"]["ranks"] == 2
    assert found["rerun"]["repeated"]


@pytest.mark.slow
def test_ranks_of_a_launcher_are_repeated(deep5: Command, tmp_path: Path) -> None:
    answer = deep5("run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet", "--ranks", "2")
    assert answer.status == 0, answer.err
    folder = newest(tmp_path / "results")
    assert deep5("run", "--like", f"results/{folder.name}", "--out", "again").status == 0
    document = json.loads((folder / "result.json").read_text())
    document["provenance"]["trained_weights"] = "0" * 64
    (folder / "result.json").write_text(json.dumps(document))
    assert deep5("run", "--like", str(folder), "--quiet", "--out", "again").status == 1
    assert len(list((tmp_path / "again").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--like", "absent"), "is not there"),
        (("--like", "."), "holds no result.json"),
        ((), "no RECIPE is given"),
        (("digits_lenet", "--like", "first"), "both given"),
        (("--like", "first", "--seed", "1"), "--seed"),
        (("--like", "first", "--size", "smoke"), "--size"),
        (("digits_lenet", "--trust"), "--trust"),
        (("absent.zip",), "is not there"),
    ],
)
def test_wrong_usage(deep5: Command, arguments: tuple[str, ...], said: str) -> None:
    answer = deep5("run", *arguments)
    assert answer.status == 2
    assert said in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_an_unfinished_run_is_refused(deep5: Command, ran: Path) -> None:
    document = json.loads((ran / "result.json").read_text())
    document |= {"status": "aborted", "accepted": None, "reasons": ["interrupted by the user"]}
    (ran / "result.json").write_text(json.dumps(document))
    for command in (("run", "--like", str(ran)), ("results", "pack", str(ran))):
        answer = deep5(*command)
        assert answer.status == 2
        assert "is aborted (interrupted by the user)" in answer.err
        assert "--resume" in answer.err


def test_results_of_older_versions_repeat(deep5: Command, tmp_path: Path) -> None:
    deep5("run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet")
    folder = newest(tmp_path / "results")
    (folder / ORIGIN).unlink()
    assert deep5("run", "--like", str(folder), "--quiet").status == 0


def test_a_changed_registered_recipe_is_reported(deep5: Command, tmp_path: Path) -> None:
    deep5("run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet")
    folder = newest(tmp_path / "results")
    document = json.loads((folder / "result.json").read_text())
    document["recipe"]["hash"], document["provenance"]["recipe_source"] = "1" * 64, "2" * 64
    (folder / "result.json").write_text(json.dumps(document))
    answer = deep5("run", "--like", str(folder), "--quiet")
    assert answer.status == 2
    assert "the installed recipe 'digits_lenet' changed since the run: its hash was 111111111111, now" in answer.err
    assert "recipe.py" in answer.err
