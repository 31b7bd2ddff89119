"""Runs with one hash and other inputs: neither the table, nor the report, nor the audit takes them for comparable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.recipe.recipe import load_recipe
from deep5.results.index import list_results
from deep5.results.inputs import data_of, disputes, drawn_of
from deep5.run.execute import execute

RECIPE = """
import os
from pathlib import Path

import numpy as np

import deep5 as d5

def samples():
    read = np.load(Path(__file__).parent / "samples.npz")
    parts = {"input": read["input"], "label": read["label"]}
    data = d5.ArrayDataset(parts)
    return d5.Splits(train=data, test=data, split_hash=None, description={"source": "samples.npz"})

def own(seed=0):
    net = d5.networks.mlp(features=4, hidden=8, classes=3, seed=seed)
    if WEIGHTS:
        # Weights that no seed determines.
        draw = np.random.default_rng()
        return net.with_values({name: draw.standard_normal(value.shape).astype("float32")
                                for name, value in net.parameters().items()})
    return net

WEIGHTS = False
FIXED = {"model": own, "dataset": samples, "epochs": 1}
MUTABLE = {"batch_size": 16, "framework": "reference", "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.1}}
METRICS = [("training_loss", None)]
"""


def run(folder: Path, out: Path, *, data_seed: int = 0, text: str = RECIPE, seed: int = 0) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(data_seed)
    np.savez(folder / "samples.npz", input=draw.standard_normal((32, 4), np.float32), label=np.arange(32) % 3)
    (folder / "own.py").write_text(text)
    recipe = load_recipe(folder / "own.py").with_settings({"seed": seed})
    document: dict[str, Any] = execute(recipe, out=out, quiet=True).document
    return document


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs with one hash: on the same data with two seeds; on two data; of two networks at one seed."""
    root = tmp_path_factory.mktemp("inputs")
    outs = {name: root / name for name in ("same", "data", "weights")}
    for seed in (0, 1):
        run(root / "recipe", outs["same"], seed=seed)
    for data_seed in (0, 1):
        run(root / "recipe", outs["data"], data_seed=data_seed)
    for _ in range(2):
        run(root / "recipe", outs["weights"], text=RECIPE.replace("WEIGHTS = False", "WEIGHTS = True"))
    return outs


@pytest.fixture
def outs(made: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {name: Path(shutil.copytree(path, tmp_path / "made" / name)) for name, path in made.items()}


def documents(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))]


def test_each_pair_has_one_hash(made: dict[str, Path]) -> None:
    for out in made.values():
        assert len({own["recipe"]["hash"] for own in documents(out)}) == 1
    data = [data_of(own) for own in documents(made["data"])]
    assert len({*data}) == 2
    assert all(len(own) == 64 for own in data)
    assert len({data_of(own) for own in documents(made["same"])}) == 1


def test_the_table_states_what_may_be_compared(made: dict[str, Path]) -> None:
    same, data, weights = ([row.comparable for row in list_results(made[name]).results] for name in made)
    assert same[0] == same[1] is not None
    assert None not in data
    assert data[0] != data[1]
    assert weights == [None, None]
    [note] = list_results(made["weights"]).notes
    assert "another network or other initial weights at one seed: no run with this hash is comparable" in note
    assert d5.results.load(made["weights"])["comparable"].isna().all()
    assert d5.results.load(made["same"])["comparable"].nunique() == 1


def test_a_listing_of_the_index_states_it_too(made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.results.index._SETTLED_NS", -1)
    first, again = (list_results(made["weights"], rebuild=rebuild) for rebuild in (True, False))
    assert (first.read, again.read) == (2, 0)
    assert first.results == again.results


@pytest.mark.parametrize(("name", "sections"), [("same", 1), ("data", 2), ("weights", 2)])
def test_the_report_keeps_them_apart(name: str, sections: int, deep5: Command, outs: dict[str, Path]) -> None:
    answer = deep5("report", str(outs[name]), "-o", "page.html")
    assert answer.status == 0, answer.err
    page = Path("page.html").read_text("utf-8")
    assert page.count('id="runs-') == sections
    said = {"data": "and different data", "weights": "and different networks or initial weights at one seed"}
    assert ("not comparable: own-" in page) is (sections > 1)
    assert said.get(name, "own-") in page


@pytest.mark.parametrize(("name", "finding"), [("same", None), ("data", "different data"), ("weights", None)])
def test_the_audit_refuses_them(name: str, finding: str | None, deep5: Command, outs: dict[str, Path]) -> None:
    """A run that reports that its network is another one each time is honest, and not comparable."""
    answer = deep5("audit", str(outs[name]), "--json")
    findings = [row["what"] for row in json.loads(answer.out)["findings"]]
    assert bool(findings) is (finding is not None), findings
    assert finding is None or any(finding in text for text in findings)


def without_warnings(document: dict[str, Any]) -> None:
    document["warnings"] = []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (without_warnings, "have one hash and seed and another initial weights"),
        (lambda own: own["recipe"].update(content=None), "the version of the recipe's hash"),
        (lambda own: own["recipe"].update(content=None, hash_version=1), "the recipe's hash"),
        (lambda own: own["recipe"]["content"].update(files=["0" * 64]), "the recipe's hash"),
        (lambda own: own["recipe"]["content"]["network"].update(structure="0" * 64), "the recipe's hash"),
        (lambda own: own["recipe"]["content"]["modules"].update(helpers="0" * 64), "the recipe's hash"),
        (lambda own: own["recipe"].update(hash_version=1), "the version of the recipe's hash"),
    ],
)
def test_a_changed_identity_is_found(change: Any, finding: str, deep5: Command, outs: dict[str, Path]) -> None:
    for path in outs["weights"].glob("*/result.json"):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
    answer = deep5("audit", str(outs["weights"]), "--json")
    assert any(finding in row["what"] for row in json.loads(answer.out)["findings"]), answer.out


def test_weights_other_than_those_in_the_hash_are_found(deep5: Command, outs: dict[str, Path]) -> None:
    """Of a run with seed 0; the hash itself is made to agree."""
    from deep5.core.canonical import canonical_hash

    for path in outs["same"].glob("*/result.json"):
        document = json.loads(path.read_text())
        recipe = document["recipe"]
        recipe["content"]["network"]["weights"] = "0" * 64
        recipe["hash"] = canonical_hash({"content": recipe["content"], "fixed": recipe["fixed"]})
        path.write_text(json.dumps(document))
    answer = deep5("audit", str(outs["same"]), "--json")
    findings = [row["what"] for row in json.loads(answer.out)["findings"]]
    assert any("the initial weights, by the recipe's hash" in text for text in findings), findings


def test_what_determines_the_weights_is_compared_only_where_it_is_the_same() -> None:
    def document(**changes: Any) -> dict[str, Any]:
        return {
            "recipe": {
                "hash": "a",
                "size": "full",
                "fixed": {"model": "mlp"},
                "mutable": {"optimizer": changes.get("optimizer", "sgd"), **changes.get("mutable", {})},
            },
            "seeds": {"weights": changes.get("seed", 1)},
            "provenance": {"network": "n", "initial_weights": changes.get("weights", "w"), "init": changes.get("init")},
        }

    def disputed(**changes: Any) -> bool:
        return bool(disputes([drawn_of(document()), drawn_of(document(weights="x", **changes))]))

    assert disputed()
    assert disputed(optimizer="adam")
    assert not disputed(seed=2)
    assert not disputed(init="f")
    assert not disputed(mutable={"precision": "float16"})
    assert not disputed(mutable={"model_kwargs": {"hidden": 2}})
    assert drawn_of({**document(), "provenance": {}}) is None
