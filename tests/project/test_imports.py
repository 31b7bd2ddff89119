"""What an import costs and loads, and how every module is laid out."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import deep5
from staging import ROOMS, check_imports, check_types

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"torch", "tensorflow", "onnxruntime", "jax", "keras"}
HEAVY = FRAMEWORKS | {"onnx", "onnx_ir", "scipy", "pandas", "rich", "click"}
# The functions that `__init__.py` may call to assemble a list of names.
PURE = {"dict", "frozenset", "list", "sorted", "tuple"}


def module_name(path: Path) -> str:
    """`frameworks/pytorch/executor.py` -> `deep5.frameworks.pytorch.executor`."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ROOMS:
        parts.insert(0, "deep5")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = sorted(path for room in ("deep5", *ROOMS) for path in (ROOT / room).rglob("*.py"))
BY_NAME = {module_name(path): path for path in SOURCES}
each_module = pytest.mark.parametrize("name", BY_NAME)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def fresh(program: str, folder: Path) -> str:
    """What a new interpreter prints, started outside the repository."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs_its_framework(name: str) -> bool:
    """Whether a module is in a back-end's folder, or is hand-written for a framework.

    The reference needs only NumPy, and no `__init__` loads more.
    """
    if re.fullmatch(r"deep5\.recipes\.overhead\.workloads\.(pytorch|jax)_\w+", name):
        return True
    parts = name.split(".")
    inside = parts[1:2] == ["frameworks"] and len(parts) > 2 and parts[2] != "reference"
    return inside and BY_NAME[name].name != "__init__.py"


def test_importing_deep5_loads_numpy_at_most(tmp_path: Path) -> None:
    loaded = json.loads(fresh("import json, sys, deep5; print(json.dumps(sorted(sys.modules)))", tmp_path))
    assert "deep5" in loaded
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


def test_only_the_back_ends_own_modules_load_a_framework(tmp_path: Path) -> None:
    names = [name for name in BY_NAME if not needs_its_framework(name) and not name.endswith("__main__")]
    assert "deep5.frameworks.pytorch" in names
    program = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    found = {FRAMEWORKS!r} & set(sys.modules)
    if found:
        print(name, "loads", *found)
        break
"""
    assert fresh(program, tmp_path) == ""


@pytest.mark.parametrize("name", deep5.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(deep5, name) is not None
    assert name in dir(deep5)


def test_unknown_public_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"module 'deep5' has no attribute 'Trainr'.*'Trainer'"):
        _ = deep5.Trainr


def definitions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes at the top of a module, and public methods of such classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree(path).body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (inner for inner in node.body if isinstance(inner, kinds) and not inner.name.startswith("_"))


@each_module
def test_no_public_name_that_pytest_would_collect(name: str) -> None:
    assert [node.name for node in definitions(BY_NAME[name]) if node.name.startswith("test_")] == []


@each_module
def test_module_is_named_for_its_idea(name: str) -> None:
    assert not {"common", "helper", "helpers", "misc", "util", "utils"} & set(name.split("."))


def assigned(node: ast.stmt) -> list[str]:
    """The names that a statement binds at the top of a module."""
    if isinstance(node, ast.Assign):
        targets = [leaf for target in node.targets for leaf in ast.walk(target)]
        return [leaf.id for leaf in targets if isinstance(leaf, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    return [name for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt) for name in assigned(inner)]


def promises(path: Path) -> list[str] | None:
    """`__all__` where it is written out, None where there is none."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and assigned(node) == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


# Packages re-export and recipes are scripts: other rules apply to them.
@pytest.mark.parametrize("name", [n for n, path in BY_NAME.items() if path.name[0] != "_" and "recipes" not in n])
def test_module_says_what_is_public(name: str) -> None:
    path = BY_NAME[name]
    listed = promises(path)
    if listed is None:
        assert [node.name for node in definitions(path)] == []
    else:
        assert listed == sorted(set(listed), key=listed.index), "a name is listed twice"
        assert set(listed) <= {bound for node in tree(path).body for bound in assigned(node)}


def does_work(node: ast.stmt) -> bool:
    """Whether a statement of an `__init__.py` does more than re-export, now or (PEP 562) when a name is first used."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return False
    if isinstance(node, ast.Expr):
        # `deep5` lets its documented former paths be imported; nothing else is called.
        return not isinstance(node.value, ast.Constant) and ast.unparse(node.value) != "keep_importable()"
    if isinstance(node, ast.FunctionDef):
        return node.name not in {"__getattr__", "__dir__"}
    if isinstance(node, ast.If):
        names_types = ast.unparse(node.test) in {"TYPE_CHECKING", "not TYPE_CHECKING"}
        return not names_types or any(does_work(inner) for inner in node.body + node.orelse)
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        calls = [inner.func for inner in ast.walk(node.value) if isinstance(inner, ast.Call)]
        names = assigned(node)
        return not all(name.startswith("_") for name in names) or any(ast.unparse(call) not in PURE for call in calls)
    return True


@pytest.mark.parametrize("name", [n for n, path in BY_NAME.items() if path.name == "__init__.py"])
def test_package_only_re_exports(name: str) -> None:
    working = [ast.unparse(node) for node in tree(BY_NAME[name]).body if does_work(node)]
    assert working == []


@pytest.mark.parametrize(
    "source",
    [
        "print('hello')",
        "import os\nos.environ['A'] = 'B'",
        "x = 1",
        "_X = open('f')",
        "def f(): ...",
        "for _ in (): ...",
    ],
)
def test_a_package_that_works_at_import_is_caught(source: str) -> None:
    assert any(does_work(node) for node in ast.parse(source).body)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package and its settings in a folder where a violation can be planted."""
    for name in ("deep5", *ROOMS):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests/typed", tmp_path / "tests/typed", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_look_inward(copied: Path) -> None:
    result = check_imports(copied)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("planted", "line", "complaint"),
    [
        ("deep5/core/errors.py", "import deep5.frameworks.pytorch", r"core\.errors -> deep5\.frameworks\.pytorch"),
        (
            "deep5/operators/__init__.py",
            "def f():\n    import deep5.training.rule",
            r"deep5\.operators -> deep5\.training\.rule",
        ),
        ("metrics/__init__.py", "import deep5.recipes", r"deep5\.metrics -> deep5\.recipes"),
        (
            "frameworks/reference/__init__.py",
            "import deep5.frameworks.pytorch",
            r"reference -> deep5\.frameworks\.pytorch",
        ),
        (
            "frameworks/reference/__init__.py",
            "import deep5.networks.gradients.rules",
            r"reference -> deep5\.networks\.gradients\.rules",
        ),
        (
            "frameworks/reference/__init__.py",
            "def f():\n    import deep5.networks.kernels.table",
            r"reference -> deep5\.networks\.kernels\.table",
        ),
        ("deep5/stray.py", "", r"not listed as layers:\s[^(]*- deep5\.stray"),
    ],
)
def test_a_planted_outward_import_is_caught(copied: Path, planted: str, line: str, complaint: str) -> None:
    with (copied / planted).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = check_imports(copied)
    assert result.returncode == 1
    assert re.search(complaint, result.stdout), result.stdout


# A module that imports another, and the edit that makes that one import it back.
CYCLES = {
    "at the top": "import deep5.core.events",
    "inside a function": "def f():\n    from deep5.core.events import StepInfo\n    return StepInfo",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from deep5.core.events import StepInfo",
}


@pytest.mark.parametrize("source", CYCLES.values(), ids=CYCLES)
def test_a_planted_import_cycle_is_caught(copied: Path, source: str) -> None:
    with (copied / "deep5/core/tensors.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{source}\n")
    result = check_imports(copied)
    assert result.returncode == 1
    assert re.search(r"An import cycle:\s+deep5\.core\.\w+ -> deep5\.core\.\w+", result.stdout), result.stdout
    assert "deep5.core.tensors -> deep5.core.events" in result.stdout


def test_a_planted_cycle_by_way_of_a_package_is_caught(copied: Path) -> None:
    """Importing `results.report.theme` runs `results/report/__init__.py`, whose imports lead back to the importer."""
    with (copied / "deep5/results/standing.py").open("a", encoding="utf-8") as file:
        file.write("\nimport deep5.results.report.theme\n")
    result = check_imports(copied)
    assert result.returncode == 1
    assert "deep5.results.standing -> deep5.results.report" in result.stdout, result.stdout


def test_a_contract_against_cycles_counts_imports_for_types(copied: Path) -> None:
    settings = (copied / "pyproject.toml").read_text(encoding="utf-8")
    changed = settings.replace("exclude_type_checking_imports = false", "exclude_type_checking_imports = true")
    assert changed != settings
    (copied / "pyproject.toml").write_text(changed, encoding="utf-8")
    result = check_imports(copied)
    assert result.returncode == 1
    assert "needs exclude_type_checking_imports = false" in result.stdout + result.stderr


@pytest.mark.slow
def test_a_planted_type_error_in_a_room_is_caught(copied: Path) -> None:
    (copied / "metrics" / "planted.py").write_text("def number() -> int:\n    return 'one'\n", encoding="utf-8")
    result = check_types(copied)
    assert result.returncode == 1
    assert re.search(r"deep5/metrics/planted\.py:2: error: Incompatible return value type", result.stdout), (
        result.stdout
    )


@pytest.mark.slow
def test_an_edit_of_a_network_that_has_no_type_is_caught(copied: Path) -> None:
    module = copied / "deep5/networks/network.py"
    source = module.read_text(encoding="utf-8")
    changed = source.replace("def freeze(self, *patterns: str) -> Network:", "def freeze(self, *patterns: str) -> Any:")
    assert changed != source
    module.write_text(changed, encoding="utf-8")
    result = check_types(copied)
    assert result.returncode == 1
    assert re.search(r"network_methods\.py:\d+: error: Expression is of type \"Any\"", result.stdout), result.stdout


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse((ROOT / "deep5/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(deep5.__all__)


@pytest.mark.parametrize("package", ["deep5.networks", "deep5.training.datasets", "deep5.frameworks.pytorch"])
def test_no_public_name_is_shadowed_by_a_module(package: str) -> None:
    module = importlib.import_module(package)
    modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    # Importing a submodule sets an attribute of its name, which would hide a lazy name of the same name.
    assert not modules & set(module.__all__)


def test_no_public_name_of_deep5_is_shadowed_by_a_module() -> None:
    modules = {info.name for info in pkgutil.iter_modules(deep5.__path__)} - {"networks", "results"}
    assert not modules & set(deep5.__all__)


LAZY = sorted(
    str(path.parent.relative_to(ROOT)).replace("/", ".")
    for folder in ("deep5", "frameworks", "metrics", "recipes")
    for path in (ROOT / folder).rglob("__init__.py")
    if "def __getattr__" in path.read_text()
)


@pytest.mark.parametrize("name", LAZY)
def test_the_names_of_a_lazy_package_are_listed(name: str) -> None:
    package = importlib.import_module(name if name.startswith("deep5") else f"deep5.{name}")
    assert dir(package) == sorted(package.__all__)
