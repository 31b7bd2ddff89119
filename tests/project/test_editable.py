"""An editable installation: its types, names and files are those of a wheel, and the repository's."""

from __future__ import annotations

import csv
import re
import shutil
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from built import copy_sources, run
from staging import ROOMS, stage

USER = """\
import deep5 as d5
from deep5.frameworks.reference.framework import Reference
from deep5.metrics.time import Throughput
from deep5.recipes import digits_lenet

reveal_type(d5.Adam(0.1))
reveal_type(d5.networks.lenet())
reveal_type(d5.Throughput())
reveal_type(Throughput())
reveal_type(Reference())
reveal_type(digits_lenet.FIXED)
d5.Adam(rate=0.1)
d5.Adm(0.1)
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A copy of the repository, the interpreter it is installed for, and a folder elsewhere."""

    source: Path
    python: Path
    elsewhere: Path

    def says(self, program: str, cwd: Path | None = None, **environment: str) -> list[str]:
        """The lines that a new interpreter prints."""
        done = run(self.python, "-W", "error", "-c", program, cwd=cwd or self.elsewhere, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def make_venv(folder: Path) -> Path:
    """The interpreter of an environment that has the packages of this one, without its editable installations."""
    venv.create(folder, with_pip=False)
    site = next(folder.rglob("site-packages"))
    shared = [place for place in sys.path if Path(place).name == "site-packages"]
    (site / "shared.pth").write_text("\n".join([*shared, ""]), encoding="utf-8")
    return folder / "bin" / "python"


def install(python: Path, source: Path) -> None:
    # The shared packages have a deep5 too, which pip must not replace.
    options = ("--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--ignore-installed")
    done = run(python, "-m", "pip", "install", *options, "--editable", source, cwd=source.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    # The clone is named like the package.
    source = tmp_path_factory.mktemp("above") / "deep5"
    source.mkdir()
    copy_sources(source)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    python = make_venv(tmp_path_factory.mktemp("venv"))
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("PYTHONPATH", raising=False)
        install(python, source)
        yield Installed(source=source, python=python, elsewhere=elsewhere)


@pytest.mark.slow
def test_mypy_sees_the_types(installed: Installed) -> None:
    (installed.elsewhere / "user.py").write_text(USER, encoding="utf-8")
    done = run(installed.python, "-m", "mypy", "--strict", "user.py", cwd=installed.elsewhere)
    assert re.findall(r'Revealed type is "(.*)"', done.stdout) == [
        "deep5.training.rules.adam.Adam",
        "deep5.networks.network.Network",
        "deep5.metrics.time.Throughput",
        "deep5.metrics.time.Throughput",
        "deep5.frameworks.reference.framework.Reference",
        "dict[str, object]",
    ], done.stdout
    assert re.findall(r"^user.py:(\d+): error: (.*?)  ", done.stdout, re.MULTILINE) == [
        ("12", 'Unexpected keyword argument "rate" for "Adam"'),
        ("13", 'Module has no attribute "Adm"'),
    ]


@pytest.mark.parametrize("place", ["elsewhere", "in the repository", "above the repository"])
def test_the_repository_s_files_are_imported(installed: Installed, place: str) -> None:
    folders = {"elsewhere": installed.elsewhere, "in the repository": installed.source}
    program = """
import deep5, sys
from deep5.frameworks.reference import framework
from deep5.metrics import time
assert deep5.Throughput is time.Throughput
print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'deep5'), sep='\\n')
"""
    files = {Path(line) for line in installed.says(program, folders.get(place, installed.source.parent))}
    for file in ("deep5/__init__.py", "frameworks/reference/framework.py", "metrics/time.py"):
        assert installed.source / file in files
    assert [path for path in files if ".staging" in path.parts] == []


def test_the_names_are_listed(installed: Installed) -> None:
    program = """
import deep5, pkgutil
print(*dir(deep5))
print(*dir(deep5.networks))
print(*(module.name for module in pkgutil.iter_modules(deep5.__path__)))
"""
    public, networks, modules = map(str.split, installed.says(program))
    assert {"Adam", "Throughput", "run_recipe"} <= set(public)
    assert "lenet" in networks
    assert {"core", "training", *ROOMS} <= set(modules)
    assert len(modules) == len(set(modules))


def test_another_deep5_that_is_first_stays_first(installed: Installed, tmp_path: Path) -> None:
    package = tmp_path / "deep5"
    for name in ("deep5", "deep5/frameworks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    found = installed.says("import deep5.frameworks as f; print(f.__file__, *f.__path__)", PYTHONPATH=str(tmp_path))
    assert found == [f"{package}/frameworks/__init__.py {package}/frameworks"]


def test_what_is_installed_is_recorded(installed: Installed) -> None:
    (record,) = next(installed.python.parents[1].rglob("site-packages")).glob("deep5-*.dist-info/RECORD")
    hashes = {name: digest for name, digest, _ in csv.reader(record.read_text("utf-8").splitlines())}
    added = [name for name in hashes if "deep5_links" in name and "__pycache__" not in name]
    assert len(added) == 2
    assert all(hashes[name].startswith("sha256=") for name in added)


def test_without_the_links_everything_but_the_types_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `git clean`, or where the file system has no symbolic links."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    source = tmp_path / "source"
    source.mkdir()
    copy_sources(source)
    (source / ".staging").touch()  # no folder can be made here
    python = make_venv(tmp_path / "venv")
    install(python, source)
    done = run(python, "-W", "error", "-c", "import deep5; print(deep5.Throughput.__module__)", cwd=tmp_path)
    assert done.stdout.split() == ["deep5.metrics.time"], done.stderr


def test_links_follow_the_folders(tmp_path: Path) -> None:
    for name in ("deep5/core", "deep5/gone", *ROOMS):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "deep5" / "__init__.py").touch()
    staging = stage(tmp_path)
    kept = (staging / "deep5" / "core").lstat().st_ino

    shutil.rmtree(tmp_path / "deep5" / "gone")
    (tmp_path / "deep5" / "new").mkdir()
    (staging / "deep5" / "stray").mkdir()

    assert stage(tmp_path) == staging == tmp_path / ".staging"
    held = {link.name: link.readlink() for link in (staging / "deep5").iterdir()}
    above = Path("..", "..")
    assert held == {name: above / "deep5" / name for name in ("__init__.py", "core", "new")} | {
        room: above / room for room in ROOMS
    }
    assert all((staging / "deep5" / name).exists() for name in held)
    assert (staging / "deep5" / "core").lstat().st_ino == kept
    assert not any(Path(link).is_absolute() for link in held.values())
