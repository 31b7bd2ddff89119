"""`deep5 new`: each start works as it is written, bad names write nothing, and the plug-in installs."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deep5.cli.starts import kinds_of_starts, write_start
from deep5.core.errors import OutputError, UnknownName, UsageError
from deep5.core.plugins import KINDS

STARTS = [kind for kind in kinds_of_starts() if kind != "plugin"]
LINT = ("check", "--isolated", "--no-cache", "--select", "B,C4,E,F,N,PIE,RET,SIM,UP,W", "--line-length", "120")


def run(*words: str | Path, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [environment.get("PYTHONPATH")])])
    command = list(map(str, words))
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)


def pytest_in(folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:benchmark")
    return run(*words, folder, cwd=folder, path=path)


@pytest.mark.parametrize("kind", STARTS)
def test_the_test_of_a_start_passes(kind: str, tmp_path: Path) -> None:
    written = write_start(kind, f"own_{kind}", tmp_path)
    assert {path.suffix for path in written.files} <= {".py", ".cpp"}
    found = pytest_in(tmp_path)
    assert found.returncode == 0, found.stdout
    assert " passed" in found.stdout


@pytest.mark.parametrize("kind", STARTS)
def test_the_next_command_of_a_start_succeeds(kind: str, tmp_path: Path) -> None:
    written = write_start(kind, f"own_{kind}", tmp_path)
    for command in written.commands:
        program, *words = shlex.split(command)
        if program == "deep5":
            found = run(sys.executable, "-m", "deep5", *words, cwd=tmp_path)
            assert found.returncode == 0, found.stderr
        else:
            assert (program, words[:2]) == ("python", ["-m", "pytest"])
            assert Path(words[2]) in written.files


def test_starts_are_well_formed(tmp_path: Path) -> None:
    """By the linter, and in the layout of the formatter."""
    for kind in STARTS:
        write_start(kind, f"own_{kind}", tmp_path)
    write_start("plugin", "own_parts", tmp_path)
    for words in (LINT, ("format", "--check", "--isolated", "--no-cache", "--line-length", "120")):
        found = run(sys.executable, "-m", "ruff", *words, tmp_path, cwd=tmp_path)
        assert found.returncode == 0, found.stdout
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            assert not {"my_name", "myname", "my-name"} & set(re.findall(r"my.?name", path.read_text().lower()))


@pytest.mark.parametrize(
    ("name", "file", "made"),
    [
        ("fused_gelu", "fused_gelu.py", "FusedGelu"),
        ("fused-gelu", "fused_gelu.py", "FusedGelu"),
        ("FusedGelu", "fused_gelu.py", "FusedGelu"),
        ("fusedGelu", "fused_gelu.py", "FusedGelu"),
        ("ABCNorm2", "abc_norm2.py", "AbcNorm2"),
        ("x2y", "x2y.py", "X2y"),
    ],
)
def test_a_name_has_one_form_for_files_and_one_for_classes(name: str, file: str, made: str, tmp_path: Path) -> None:
    written = write_start("optimizer", name, tmp_path / "new" / "folder")
    assert [path.name for path in written.files] == [file, f"test_{file}"]
    tree = ast.parse(written.files[0].read_text())
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [made]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("optimizer", "class", "a word of Python; allowed: any other; remedy: my_class"),
        ("optimizer", "None", "a word of Python"),
        ("optimizer", "match", "a word of Python"),
        ("operator", "operator", "a module operator is installed, which the new file would hide"),
        ("framework", "Numpy", "a module numpy is installed"),
        ("framework", "torch", "a module torch is installed"),
        ("optimizer", "adam", "deep5 has the optimizer 'adam' already; allowed: a name that 'deep5 list optimizers'"),
        ("plugin", "lenet", "deep5 has the network 'lenet' already"),
        ("metric", "test_mine", "which pytest takes for tests"),
        *[
            ("metric", name, "allowed: at most 60 letters and digits, a letter first")
            for name in ("", "3x", "a b", "x__y", "_x", "x_", "a/b", "../x", "a.b", "é", "x" * 61, "a\n")
        ],
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(kind: str, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        write_start(kind, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .optimizer.*remedy: deep5 new KIND NAME"):
        write_start("optimzer", "mine")


@pytest.mark.parametrize("existing", ["mine.py", "test_mine.py"])
def test_no_existing_file_is_touched(existing: str, tmp_path: Path) -> None:
    (tmp_path / existing).write_text("kept")
    with pytest.raises(OutputError, match=rf"{existing} exists already; allowed: new files only; remedy: another name"):
        write_start("metric", "mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "kept"


def test_a_link_to_nowhere_counts_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(OutputError, match="exists already"):
        write_start("metric", "mine", tmp_path)
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot be written .*remedy: --out DIR"):
        write_start("metric", "mine", tmp_path / "file" / "inside")
    real = Path.open

    def full(self: Path, *words: str, **options: str) -> object:
        if self.name == "test_mine.py":
            raise OSError(28, "No space left on device", str(self))
        return real(self, *words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OutputError, match=r"test_mine.py cannot be written .No space left on device."):
        write_start("metric", "mine", tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


def test_the_command_reports_files_and_the_next_commands(tmp_path: Path) -> None:
    found = run(sys.executable, "-m", "deep5", "new", "optimizer", "Mine", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {
        "files": ["mine.py", "test_mine.py"],
        "next": ["deep5 check optimizer mine.py:Mine", "python -m pytest test_mine.py"],
    }
    again = run(sys.executable, "-m", "deep5", "new", "optimizer", "Mine", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.startswith("deep5: mine.py exists already")


def test_a_plugin_registers_one_component_of_every_kind(tmp_path: Path) -> None:
    write_start("plugin", "acme-parts", tmp_path)
    project = tomllib.loads((tmp_path / "acme_parts/pyproject.toml").read_text())["project"]
    assert set(project["entry-points"]) == {f"deep5.{kind}" for kind in KINDS}
    assert project["name"] == "acme-parts"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a plug-in, and the folder that it is installed in, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    write_start("plugin", "acme_parts", folder)
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir", "-q", "--target", folder / "site")
    found = run(sys.executable, "-m", "pip", "install", *offline, folder / "acme_parts", cwd=folder)
    assert found.returncode == 0, found.stderr
    return folder / "acme_parts", folder / "site"


def test_an_installed_plugin_is_listed_and_used(installed: tuple[Path, Path], tmp_path: Path) -> None:
    _, site = installed
    assert (site / "acme_parts" / "cpp_operator.cpp").is_file()
    found = run(sys.executable, "-m", "deep5", "list", "--json", cwd=tmp_path, path=site)
    listed = json.loads(found.stdout)
    for kind in KINDS:
        own = [row for row in listed[kind] if row["name"].startswith("acme_parts")]
        assert len(own) == (2 if kind == "operators" else 1), kind
        assert all(row["about"] and "cannot be loaded" not in row["about"] for row in own)
    words = ("check", "operator", "acme_parts.AcmePartsCppOperator", "--quiet")
    assert run(sys.executable, "-m", "deep5", *words, cwd=tmp_path, path=site).returncode == 0
    ran = run(sys.executable, "-m", "deep5", "run", "acme_parts", "--size", "smoke", "--quiet", cwd=tmp_path, path=site)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("kind", "name"), [("optimizers", "acme_parts"), ("recipes", "acme_parts"), ("events", "csv_logger")]
)
def test_a_name_of_two_packages_is_refused(installed: tuple[Path, Path], tmp_path: Path, kind: str, name: str) -> None:
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[deep5.{kind}]\n{name} = other.part\n")
    packages = os.pathsep.join((str(installed[1]), str(tmp_path)))
    said = f"{name!r} is registered by several packages: "
    listed = run(sys.executable, "-m", "deep5", "list", kind, cwd=tmp_path, path=packages)
    assert said in " ".join(listed.stdout.split())
    set_ = {"optimizers": ("digits_lenet", "--set", f"optimizer={name}"), "recipes": (name,)}.get(kind)
    if set_ is not None:
        found = run(sys.executable, "-m", "deep5", "check", *set_, cwd=tmp_path, path=packages)
        assert found.returncode == 2
        assert said + "acme-parts (acme_parts." in found.stderr
        assert "other (other.part); allowed: one package for a name; remedy: pip uninstall other, or" in found.stderr


@pytest.mark.slow
def test_the_tests_of_an_installed_plugin_pass(installed: tuple[Path, Path]) -> None:
    folder, site = installed
    found = pytest_in(folder, site)
    assert found.returncode == 0, found.stdout
    assert "19 passed" in found.stdout
