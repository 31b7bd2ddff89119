"""What is packaged, registered and pinned: a wheel that lacks nothing, and a recipe that runs from it elsewhere."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from built import copy_sources, run
from deep5.core.plugins import KINDS
from deep5.core.version import __version__
from staging import ROOMS

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FRAMEWORKS = {"torch", "tensorflow", "onnxruntime", "jax"}


def packed_as(path: Path) -> str:
    """The path in the wheel of a file of the repository: `metrics/time.py` -> `deep5/metrics/time.py`."""
    inside = path.relative_to(ROOT).as_posix()
    return inside if inside.startswith("deep5/") else f"deep5/{inside}"


def package_files() -> list[Path]:
    """Every file of the package and its rooms, including files that git ignores."""
    files = [path for room in ("deep5", *ROOMS) for path in sorted((ROOT / room).rglob("*")) if path.is_file()]
    return [path for path in files if "__pycache__" not in path.parts and not path.name.startswith(".")]


# The contents of pyproject.toml


def test_every_folder_with_modules_is_a_package() -> None:
    without = [packed_as(p) for p in package_files() if p.suffix == ".py" and not (p.parent / "__init__.py").exists()]
    assert without == [], "a folder with modules and no __init__.py"


def test_rooms_are_mapped() -> None:
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {f"deep5.{room}": room for room in ROOMS}


def test_the_configuration_stays_readable() -> None:
    assert len((ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()) <= 300


def test_the_version_is_written_once() -> None:
    setuptools = PROJECT["tool"]["setuptools"]["dynamic"]
    assert "version" in PROJECT["project"]["dynamic"]
    assert setuptools["version"] == {"attr": "deep5.core.version.__version__"}
    assert version("deep5") == __version__, "the version is read at installation: 'make venv' installs anew"


def entry_points_file() -> dict[str, dict[str, str]]:
    """The entry points of entry_points.txt: modules and objects by group and name."""
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read(ROOT / PROJECT["tool"]["setuptools"]["dynamic"]["entry-points"]["file"], encoding="utf-8")
    return {group: dict(parser[group]) for group in parser.sections()}


POINTS = [
    EntryPoint(name=name, value=value, group=group)
    for group, points in entry_points_file().items()
    for name, value in points.items()
] + [EntryPoint(name="deep5", value=PROJECT["project"]["scripts"]["deep5"], group="console_scripts")]


def test_every_kind_has_a_group_and_its_names_are_sorted() -> None:
    groups = entry_points_file()
    # The display functions of notebooks are found like components, but are none.
    assert set(groups) == {*(f"deep5.{kind}" for kind in KINDS), "deep5.notebooks", "pytest11"}
    assert all(list(points) == sorted(points) for points in groups.values())


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.group}:{point.name}")
def test_entry_point_leads_to_something(point: EntryPoint) -> None:
    room, *rest = point.module.removeprefix("deep5.").split(".")
    base = ROOT.joinpath(*([room] if room in ROOMS else ["deep5", room]), *rest)
    assert base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()
    try:
        assert point.load() is not None
    except ModuleNotFoundError as error:
        assert (error.name or "").partition(".")[0] in FRAMEWORKS, error  # noqa: PT017 - which one is missing decides


def test_installed_entry_points_are_those_of_the_file() -> None:
    groups = {point.group for point in POINTS} | {f"deep5.{kind}" for kind in KINDS}
    found = [point for group in sorted(groups) for point in entry_points(group=group)]
    installed = {(point.group, point.name, point.value) for point in found if point.value.startswith("deep5.")}
    declared = {(point.group, point.name, point.value) for point in POINTS}
    assert installed == declared, "entry points are registered at installation: 'make venv' installs anew"


def test_every_recipe_is_registered() -> None:
    """A module defines FIXED, or a family of recipes."""
    values = entry_points_file()["deep5.recipes"].values()
    registered = {value.removeprefix("deep5.recipes.") for value in values}
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "recipes").rglob("*.py")}
    modules = {path: ".".join(path.relative_to(ROOT / "recipes").with_suffix("").parts) for path in texts}
    recipes = {modules[path] for path, text in texts.items() if re.search(r"^FIXED\b.*=", text, re.MULTILINE)}
    families = {
        f"{modules[path]}:{name}"
        for path, text in texts.items()
        for name in re.findall(r"^(\w+) = RecipeFamily\(", text, re.MULTILINE)
    }
    assert registered == recipes | families
    assert len(families) >= 2


# The pins of constraints.txt


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("#")
    lines = [line.removesuffix(" \\") for line in lines if not line.startswith("    --hash=sha256:")]
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)( ; .+)?", line) for line in lines[1:]]
    assert None not in found, "only name==version and a marker, without addresses and local versions"
    return {canonicalize_name(pin[1]): pin[2] for pin in found if pin is not None}


def test_every_pin_has_hashes() -> None:
    """What `pip install --require-hashes` needs; and no package is pinned twice."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").partition("\n")[2]
    entries = text.replace(" \\\n", " ").splitlines()
    assert len(entries) == len(pins())
    for entry in entries:
        assert re.fullmatch(r"[^\\]+?( +--hash=sha256:[0-9a-f]{64})+", entry), entry[:100]


def test_what_the_project_needs_is_pinned_within_its_range() -> None:
    pinned, project = pins(), PROJECT["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    for needed in map(Requirement, lines + PROJECT["build-system"]["requires"]):
        if needed.name != "deep5":
            version = pinned.get(canonicalize_name(needed.name))
            assert version is not None, f"{needed.name} is not in constraints.txt: 'make constraints'"
            assert needed.specifier.contains(version), f"{needed} and {needed.name}=={version}"


def test_pytorch_is_pinned() -> None:
    assert pins()["torch"] == "2.13.0"


# The output of make and of the project's tools


def test_make_alone_lists_every_target() -> None:
    done = run("make", "--no-print-directory", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    targets = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0].split()
    assert re.findall(r"^  make ([a-z-]+)", done.stdout, re.MULTILINE) == targets


def test_make_without_a_python_says_what_to_do(tmp_path: Path) -> None:
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    # Like a version manager's stand-in for a version that is not selected.
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (programs / name).write_text("#!/bin/sh\necho 'Python 3.9.18'\nexit 1\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    done = run("make", "run", cwd=tmp_path, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 2
    assert re.search(r"deep5 needs Python 3\.11 or newer .*found: Python 3\.9\.18\.\nRemedy: ", done.stderr), (
        done.stderr
    )
    assert not (tmp_path / ".venv").exists()


def test_continuous_integration_runs_tests_and_lint() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.findall(r"^make .*", script.read_text(encoding="utf-8"), re.MULTILINE) == [
        "make test",
        "make lint",
        "make bench-smoke",
    ]


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the repository stays as it is."""
    source, out = copy_sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {packed_as(path) for path in package_files()}
    assert {"deep5/py.typed", "deep5/results/schema.json"} <= names
    assert any(name.startswith("deep5/training/datasets/") and name.endswith(".npz") for name in names)


def test_wheel_carries_the_license_and_the_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    held = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
    assert archive.read(held["licenses/LICENSE"]).startswith(b"BSD 3-Clause License")
    registered = archive.read(held["entry_points.txt"]).decode()
    assert all(f"{point.name} = {point.value}" in registered for point in POINTS)


@pytest.mark.daily
def test_recipe_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    room, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(room, with_pip=False)
    python = room / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    # pip requires hashes of everything, also of the wheel, where the constraints have some.
    versions = tmp_path / "versions.txt"
    versions.write_text("".join(f"{name}=={version}\n" for name, version in pins().items()))
    done = run(*pip, "install", "--quiet", "-c", versions, wheel, cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr

    found = "import deep5, importlib.util as u; print(deep5.__file__, *(n for n in {} if u.find_spec(n)))"
    done = run(python, "-c", found.format(sorted(FRAMEWORKS)), cwd=elsewhere)
    assert done.stdout.split() == [str(next(room.rglob("site-packages")) / "deep5" / "__init__.py")], done.stderr

    recipe = ("digits_lenet", "--framework", "reference", "--size", "smoke")
    done = run(room / "bin" / "deep5", "run", *recipe, cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    results = list(elsewhere.rglob("result.json"))
    assert len(results) == 1, sorted(elsewhere.rglob("*"))
    assert list(elsewhere.iterdir()) == [elsewhere / "results"]
