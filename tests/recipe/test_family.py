"""Families of recipes: one entry point, a recipe for each case, and results that store the case that was run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deep5.audit.finding import Ledger
from deep5.audit.identity import check_recipe, own_recipe
from deep5.cli.list import listing
from deep5.compare.studied import load_study
from deep5.core import plugins
from deep5.core.errors import RecipeError, UsageError
from deep5.core.version import __version__
from deep5.recipe.recipe import load_recipe
from deep5.recipe.registered import recipe_names, registered_recipe
from deep5.run.execute import execute

FAMILY = '''
"""Recipes of a package that is not deep5's."""

import deep5 as d5
from deep5.recipe.family import RecipeFamily


def parts(case):
    fixed = {
        "model": "mlp",
        "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
        "dataset": "synthetic",
        "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
        "epochs": int(case.removeprefix("epochs_")),
    }
    if case == "epochs_3":
        raise ValueError("three is none of them")
    mutable = {"batch_size": 20, "framework": "reference", "optimizer": "sgd", "seed": 0}
    study = {"sgd": {"optimizer": "sgd"}, "adam": {"optimizer": "adam"}}
    return {"FIXED": fixed, "MUTABLE": mutable, "METRICS": [(d5.TrainingLoss(), None)], "STUDY": study}


OURS = RecipeFamily(cases={f"epochs_{count}": f"An MLP for {count} epochs. Quick." for count in (1, 2, 3)}, parts=parts)
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A distribution with modules and recipes, as pip installs it."""
    caches = (plugins._installed, plugins.registered, plugins.load)

    def clear() -> None:
        for cache in caches:
            cache.cache_clear()

    def make(entries: str, **modules: str) -> Path:
        package = tmp_path / "site" / "third_party_recipes"
        package.mkdir(parents=True)
        for name, text in {"__init__": "", **modules}.items():
            (package / f"{name}.py").write_text(text, encoding="utf-8")
        info = tmp_path / "site" / "third_party_recipes-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party-recipes\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[deep5.recipes]\n{entries}\n")
        monkeypatch.syspath_prepend(str(package.parent))
        clear()
        return package

    yield make
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.startswith("third_party_recipes")]:
        del sys.modules[name]
    clear()


def test_a_case_of_a_family_is_a_recipe(install: Callable[..., Path], tmp_path: Path) -> None:
    package = install("mlp = third_party_recipes.mlp:OURS", mlp=FAMILY)
    assert {"mlp_epochs_1", "mlp_epochs_2", "digits_lenet"} <= set(recipe_names())
    rows = {row["name"]: row for row in listing("recipes")}
    assert rows["mlp_epochs_2"] == {"name": "mlp_epochs_2", "about": "An MLP for 2 epochs", "internal": False}
    one, two = load_recipe("mlp_epochs_1"), load_recipe("mlp_epochs_2")
    assert (one.name, one.value("epochs"), two.value("epochs")) == ("mlp_epochs_1", 1, 2)
    assert one.path == package / "mlp.py"
    assert one.where("epochs") == f"{package / 'mlp.py'}: "
    assert one.folder_of("model") == package
    assert list(load_study("mlp_epochs_2")[1]) == ["sgd", "adam"]

    folder = execute(one, out=tmp_path / "out").folder
    assert (folder / "recipe.py").read_bytes() == one.source
    again = load_recipe(folder / "recipe.py")
    assert (again.fixed_hash(), again.source_hash()) == (one.fixed_hash(), one.source_hash())
    assert one.source_hash() != two.source_hash()


def test_a_module_goes_before_a_family_and_a_long_name_before_a_short_one(install: Callable[..., Path]) -> None:
    module = FAMILY.replace("OURS = ", "ANY = ") + 'FIXED, MUTABLE, METRICS = [*parts("epochs_1").values()][:3]\n'
    names = ("a = third_party_recipes.mlp:OURS", "a_epochs_2 = third_party_recipes.own")
    longer = FAMILY.replace('f"epochs_{count}": ', 'f"{count}": ').replace('removeprefix("epochs_")', "strip()")
    entries = "\n".join((*names, "a_epochs = third_party_recipes.longer:OURS"))
    install(entries, mlp=FAMILY, own=module, longer=longer)
    found = {name: registered_recipe(name) for name in ("a_epochs_1", "a_epochs_2", "a", "a_", "a_epochs", "b_1")}
    assert {name: recipe and recipe.point.value for name, recipe in found.items()} == {
        "a_epochs_1": "third_party_recipes.longer:OURS",
        "a_epochs_2": "third_party_recipes.own",
        "a": None,
        "a_": None,
        "a_epochs": None,
        "b_1": None,
    }
    assert load_recipe("a_epochs_2").value("epochs") == 1


def test_a_name_imports_its_own_family_only(install: Callable[..., Path]) -> None:
    install("mlp = third_party_recipes.mlp:OURS", mlp="raise RuntimeError('imported')")
    assert load_recipe("overhead_trainer").name == "overhead_trainer"
    assert load_recipe("digits_lenet").name == "digits_lenet"
    with pytest.raises(UsageError, match=r"'mlp' is registered as .* cannot be loaded \(RuntimeError: imported\)"):
        load_recipe("mlp_epochs_1")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("OURS = {}", "the recipes 'mlp' are registered as 'third_party_recipes.mlp:OURS', a dict; allowed: a Recipe"),
        ("import nothing_of_that_name", "recipe 'mlp' needs the module 'nothing_of_that_name', which is not found"),
        ("", "recipe 'mlp' is registered as 'third_party_recipes.mlp:OURS', which cannot be loaded"),
    ],
)
def test_a_family_that_is_none_is_listed_with_the_reason(module: str, says: str, install: Callable[..., Path]) -> None:
    install("mlp = third_party_recipes.mlp:OURS", mlp=module)
    (row,) = (row for row in listing("recipes") if row["name"] == "mlp")
    assert says in row["about"]
    assert row["installed"] is False
    assert "mlp" not in recipe_names()
    for name in ("mlp", "mlp_epochs_1"):
        with pytest.raises(UsageError, match=says[:20]):
            load_recipe(name)
    with pytest.raises(RecipeError, match=r"unknown recipe 'digits_lnet'.*did you mean 'digits_lenet'\?"):
        load_recipe("digits_lnet")


def test_what_a_case_raises_is_reported_with_its_line(install: Callable[..., Path]) -> None:
    package = install("mlp = third_party_recipes.mlp:OURS", mlp=FAMILY)
    with pytest.raises(RecipeError, match=rf"^{package}/mlp.py:17: the recipe raised ValueError: three is none"):
        load_recipe("mlp_epochs_3")
    with pytest.raises(RecipeError, match=r"unknown recipe 'mlp_epochs_4'.*did you mean 'mlp_epochs_"):
        load_recipe("mlp_epochs_4")


def test_the_audit_knows_deep5s_own_cases(install: Callable[..., Path]) -> None:
    install("mlp = third_party_recipes.mlp:OURS", mlp=FAMILY)
    for name in ("overhead_trainer", "microbatching_resnet_pytorch", "digits_lenet"):
        assert own_recipe(name, "smoke", load_recipe(name).at_size("smoke").fixed_hash()).name == name
    for name in ("overhead_none", "overhead", "mlp_epochs_1"):
        with pytest.raises(UsageError, match="the recipe is not one of deep5's"):
            own_recipe(name, "full", "")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", ""),
        ("parts('trainer')", "parts('trainer_logging')", "recipe.py is not the recipe 'overhead_trainer'"),
        ('goal="<= 5 us",', 'goal="<= 50 us",', "recipe.py is not the recipe 'overhead_trainer'"),
    ],
)
def test_the_audit_compares_the_stored_case_with_the_registered_one(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    recipe = load_recipe("overhead_trainer")
    assert recipe.source is not None
    assert old in recipe.source.decode()
    stored = recipe.source.decode().replace(old, new).encode()
    (tmp_path / "recipe.py").write_bytes(stored)
    ledger = Ledger("folder")
    document = {
        "recipe": recipe.document(),
        "provenance": {"recipe_source": hashlib.sha256(stored).hexdigest()},
        "software": {"deep5": __version__},
    }
    check_recipe(ledger, tmp_path, document)
    assert ledger.checks >= 3
    assert [says in finding.what for finding in ledger.findings] == [True] * bool(says)
