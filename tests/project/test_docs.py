"""Everything in the documents runs: every Python block, command and doctest; every link has a target."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5
import forked
from built import run
from comparison_cases import written_comparison
from extras import environment_of
from stored_runs import new_key

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
KINDS = {"python", "sh", "text", "toml", ""}


def blocks(kind: str) -> list[tuple[str, str]]:
    return [(page.name, body) for page in PAGES for found, body in BLOCK.findall(page.read_text()) if found == kind]


def test_every_kind_of_block_is_checked() -> None:
    kinds = {kind for page in PAGES for kind, _ in BLOCK.findall(page.read_text())}
    assert kinds <= KINDS
    assert blocks("python")


# What a new user reads first.
FIRST = ("README.md", "first_comparison.md", "install.md", "commands.md", "recipes.md")
# The shortest example of each kind, on a page that has more.
SHORTEST = (
    ("optimizers.md", "class SignMomentum"),
    ("operators.md", 'class IPow(d5.Operator):\n    """x to the power'),
)


def every_day(page: str, code: str = "") -> Any:
    """Marks what a new user reads first as daily."""
    short = any(page == where and words in code for where, words in SHORTEST)
    return pytest.mark.daily if page in FIRST or short else ()


def test_what_is_marked_daily_exists() -> None:
    found = blocks("python")
    assert [sum(page == where and words in code for page, code in found) for where, words in SHORTEST] == [1, 1]
    assert {page for page, _ in found} & {*FIRST} == {"first_comparison.md", "recipes.md"}


@pytest.mark.parametrize(
    ("page", "code"), [pytest.param(page, code, marks=every_day(page, code)) for page, code in blocks("python")]
)
def test_python_blocks_run(page: str, code: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    script = tmp_path / "snippet.py"
    # Lightning warns where Slurm is installed and did not start it.
    quiet = "import warnings\nwarnings.filterwarnings('ignore', 'The `srun` command')\n" if "lightning" in code else ""
    script.write_text(quiet + code)
    if '"results"' in code:
        shutil.copytree(request.getfixturevalue("finished").parent, tmp_path / "results")
    if '"points.csv"' in code:
        write_points(tmp_path)
    done = forked.run(["-W", "error", str(script)], cwd=tmp_path)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def first_lines() -> list[str]:
    """The commands of the page that a new user follows, in its order."""
    return [line for page, body in blocks("sh") for line in body.splitlines() if page == "first_comparison.md"]


def write_points(folder: Path) -> None:
    """The table of the first example, by its page's command."""
    (line,) = (line for line in first_lines() if "'points.csv'" in line)
    program, flag, code = shlex.split(line)
    assert (program, flag) == ("python", "-c")
    done = forked.run([flag, code], cwd=folder)
    assert done.returncode == 0, done.stderr


def extras_of(line: str) -> list[str]:
    """The extras of deep5 that a command of pip installs."""
    return re.findall(r"'\.\[(.*?)\]'", line)[0].split(",")


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what the first page installs."""
    (pip,) = (line for line in first_lines() if line.startswith("pip "))
    return environment_of(extras_of(pip), tmp_path_factory.mktemp("documented"))


def write_net(folder: Path) -> None:
    """Write the first page's example of a module."""
    (net,) = (body for page, body in blocks("python") if page == "first_comparison.md" and "class Net" in body)
    (folder / "my_net.py").write_text(net)


def own_net(folder: Path) -> list[list[str]]:
    """Write the first page's example of a module; returns the page's commands of deep5 on it and on its table."""
    write_net(folder)
    named = [line for page, line in commands() if page == "first_comparison.md"]
    lines = [line for line in named if "my_net.py" in line or "points.csv" in line]
    assert [line.split()[1] for line in lines] == ["show", "run", "compare"]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.daily
def test_a_module_and_a_table_reach_a_verdict_as_the_first_page_says(tmp_path: Path) -> None:
    write_points(tmp_path)
    for words in own_net(tmp_path)[:2]:
        done = forked.run(["-m", "deep5", *words], cwd=tmp_path)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    assert "accepted (closed; success)" in done.stdout


@pytest.mark.slow
def test_the_first_page_installs_what_its_module_and_table_need(documented: Path, tmp_path: Path) -> None:
    """Its commands run without the other packages of this environment; the comparison is planned, and exports made."""
    (table,) = (line for line in first_lines() if "'points.csv'" in line)
    shown, trained, compared = own_net(tmp_path)
    programs = [shlex.split(table)[1:], ["-m", "deep5", *shown], ["-m", "deep5", *trained], ["-c", PLANNED, *compared]]
    names = compared[compared.index("--frameworks") + 1].split(",")
    for words in [*programs, *(["-m", "deep5", "check", "my_net.py", "--framework", name] for name in names)]:
        done = run(documented, *words, cwd=tmp_path)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    assert run(documented, "-c", "import pandas", cwd=tmp_path).returncode == 1


def commands() -> list[tuple[str, str]]:
    lines = [(page, line.partition("#")[0].strip()) for page, body in blocks("sh") for line in body.splitlines()]
    return [(page, line) for page, line in lines if line.startswith("deep5 ")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, for the examples that need one."""
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    # One thread here and in the processes of commands, so that a repetition has the same bits.
    recipe = load_recipe("digits_lenet").at_size("smoke").with_settings({"threads": 1})
    return execute(recipe, out=tmp_path_factory.mktemp("results")).folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained a language model."""
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    return execute(load_recipe("text_gpt").at_size("smoke"), out=tmp_path_factory.mktemp("learned")).folder


# A comparison is only planned: other tests cover its processes.
PLANNED = """
import os
import deep5.compare.driver
from deep5.cli.main import main
from deep5.compare.options import given_options
from deep5.compare.plan import make_plan

def run_comparison(recipe, *, out, tell, resume=None, **options):
    os._exit(0 if make_plan(recipe, **given_options(options)) else 1)  # SystemExit of a recipe is an error

deep5.compare.driver.run_comparison = run_comparison
main()
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of two studies."""
    from deep5.results.time_to_target import parse_target
    from deep5.study.study import run_study

    folder = tmp_path_factory.mktemp("studies")
    settings = {"Adam": {"optimizer": "adam"}, "momentum": {"optimizer": "momentum"}}
    return [
        run_study(
            name,
            varied,
            size="smoke",
            only="Adam,momentum",
            seeds=(0,),
            common={"framework": "reference"},
            target=parse_target("accuracy=5"),
            out=folder,
        ).folder
        for name, varied in (("digits_lenet", settings), ("optimizer_study", None))
    ]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep."""
    from deep5.search.sweep import run_sweep

    space = {"batch_size": "choice(16, 32)"}
    out = tmp_path_factory.mktemp("swept")
    return run_sweep("digits_lenet", space, goal="test_accuracy", trials=1, size="smoke", out=out).folder


def _with_files(words: list[str], finished: Path, folder: Path, request: pytest.FixtureRequest) -> list[str]:
    """The command with real results, images or arrays."""
    if words[0] == "profile":
        return [words[0], *map(str, request.getfixturevalue("studies"))]
    if any("-compare-" in word for word in words):
        made = str(written_comparison(folder))
        return [made if "-compare-" in word else word for word in words]
    if "--key" in words or "--signer" in words:
        key, signed = new_key(folder, "ada"), shutil.copytree(finished, folder / "signed")
        if "--signer" in words:
            assert forked.run(["-m", "deep5", "results", "sign", str(signed), "--key", str(key)]).returncode == 0
        words, finished = [str(key) if word.startswith("~/.ssh/") else word for word in words], signed
    if words[0] == "leaderboard":
        return [words[0], str(request.getfixturevalue("studies")[0])]
    if any("-sweep-" in word for word in words):
        made = str(request.getfixturevalue("swept"))
        return [made if "-sweep-" in word else word for word in words]
    if words[0] == "generate":
        finished = request.getfixturevalue("learned")
    words = [re.sub("results/[^/]+", str(finished), word) if word.startswith("results/") else word for word in words]
    if words[0] == "predict":
        from PIL import Image

        Image.new("L", (28, 28)).save(folder / "photo.png")
        np.save(folder / "digits.npy", np.zeros((2, 1, 28, 28), np.float32))
    if "results" in words:
        shutil.copytree(finished.parent, folder / "results")
    return words


# Commands that take long and have other tests: daily, one of those with ranks; all of them in `make test-all`.
LONG = ("deep5 bench operator", "deep5 bench collective", "deep5 study", "deep5 calibrate", "deep5 check optimizer")


def marked() -> list[Any]:
    """All commands; the long ones do not run daily."""
    found, ranks = [], False
    for page, line in commands():
        again = ranks and line.startswith("deep5 run") and "--ranks" in line
        ranks = ranks or "--ranks" in line
        found.append(
            pytest.param(page, line, marks=pytest.mark.slow if again or line.startswith(LONG) else every_day(page))
        )
    return found


@pytest.mark.parametrize(("page", "line"), marked())
def test_commands_are_understood(
    page: str, line: str, tmp_path: Path, finished: Path, request: pytest.FixtureRequest
) -> None:
    """Runs use their smoke size, or are validated; comparisons are planned; all other commands run as written."""
    words = _with_files(shlex.split(line)[1:], finished, tmp_path, request)
    program = ["-c", PLANNED] if words[0] == "compare" else ["-m", "deep5"]
    if "my_recipe.py" in words:
        recipe = next(body for page, body in blocks("python") if page == "recipes.md" and "METRICS" in body)
        (tmp_path / "my_recipe.py").write_text(recipe)
    elif words[0] == "sweep":
        words += ["--size", "smoke", "--trials", "1"]
    elif words[0] == "study":
        # Two optimizers are enough.
        words += ["--seeds", "1", *(["--only", "Adam,momentum"] if "optimizer_study" in words else [])]
        words += ["--size", "smoke"] if "digits_lenet" in words and "--size" not in words else []
    elif words[0] == "run" and (words[1].startswith("overhead_") or {"--resume", "--checkpoint-every"} & {*words}):
        words += ["--size", "smoke"]
    elif words[0] == "run" and not {"--size", "--like"} & {*words}:
        words[0] = "check"
    if any(word.startswith("ops.py") for word in words):
        cube = "\n\ndef cube(x):\n    return x**3\n"
        operator = next(body for page, body in blocks("python") if page == "operators.md" and "class IPow" in body)
        (tmp_path / "ops.py").write_text(operator.partition("print(")[0] + cube)
    if any(word.startswith("my_net.py") for word in words) or "path=points.csv" in words:
        write_points(tmp_path)
        write_net(tmp_path)
    if any(word.startswith("my_model.py") for word in words):
        model = next(body for page, body in blocks("python") if page == "own_models.md" and "class Net" in body)
        (tmp_path / "my_model.py").write_text(model)
    if any(word.startswith("my_jax_model.py") for word in words):
        model = next(body for page, body in blocks("python") if page == "own_models.md" and "def init" in body)
        (tmp_path / "my_jax_model.py").write_text(model)
    if any("rules.py:" in word for word in words):
        rule = next(body for page, body in blocks("python") if page == "optimizers.md" and "class SignMomentum" in body)
        (tmp_path / "rules.py").write_text(rule)
    if any(word.startswith("engine.py") for word in words):
        engine = next(body for page, body in blocks("python") if page == "backends.md" and "class Sessions" in body)
        (tmp_path / "engine.py").write_text(engine)
    if "net.onnx" in words:
        deep5.networks.lenet().save(tmp_path / "net.onnx")
    if "weights.safetensors" in words:
        deep5.networks.lenet().save_weights(tmp_path / "weights.safetensors")
    if words[0] == "serve":
        _started_and_stopped(words, tmp_path)
        return
    done = forked.run([*program, *words], cwd=tmp_path)
    assert done.returncode == 0, f"{page}: {line}: {done.stdout[-3000:]}{done.stderr}"


def _started_and_stopped(words: list[str], folder: Path) -> None:
    """A server runs until it is stopped, and has then not failed."""
    command = [sys.executable, "-m", "deep5", *words, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert "by KServe's protocol" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def modules() -> list[str]:
    found = ["deep5"]
    for name in ("deep5", "deep5.frameworks", "deep5.metrics"):
        package = importlib.import_module(name)
        prefix = f"{name}."
        found += [info.name for info in pkgutil.walk_packages(package.__path__, prefix) if "__main__" not in info.name]
    return sorted(set(found))


@pytest.mark.daily
@pytest.mark.parametrize("name", modules())
def test_doctests(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_doctests() -> None:
    finder = doctest.DocTestFinder()
    assert sum(bool(test.examples) for name in modules() for test in finder.find(importlib.import_module(name))) >= 8


def test_the_version_of_the_package_is_in_the_changelog_and_the_citation() -> None:
    assert f"version: {deep5.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {deep5.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version = {{{deep5.__version__}}}" in (ROOT / "docs" / "project" / "cite.md").read_text()


def test_the_tree_in_contributing_has_every_package() -> None:
    (tree,) = (body for page, body in blocks("text") if page == "CONTRIBUTING.md")
    packages = {path.parent.name for path in (ROOT / "deep5").glob("*/__init__.py") if not path.parent.is_symlink()}
    assert {*re.findall(r"^  (\w+)/", tree, re.MULTILINE)} == packages
    assert all((ROOT / name).is_dir() for name in re.findall(r"^(\w+)/", tree, re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them; repeated headings are numbered."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        again = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in found)
        found.append(f"{slug}-{again}" if again else slug)
    return set(found)


# Pages that are made while the site is built, which checks links to their headings.
MADE = {
    ROOT / "docs" / path
    for path in re.findall(r"(?<=[ -])\S+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    if not (ROOT / "docs" / path).exists()
}


def broken(page: Path) -> list[str]:
    """The relative links of a page whose file or heading does not exist."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if ":" in path or Path(os.path.normpath(file)) in MADE:
            continue
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors(file))):
            wrong.append(target)
    return wrong


@pytest.mark.daily
@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    """Those of the pages in docs/ are checked where the site is built, which makes some of their targets."""
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# It's `one`, in C++\n\n## Two\n\n## Two\n\n```sh\n# no heading\n```\n")
    page = tmp_path / "page.md"
    good = "(other.md), (#here), (other.md#its-one-in-c), (other.md#two-1), (https://example.org#x)"
    bad = "(gone.md), (#gone), (other.md#three), (other.md#two-2), (other.md#no-heading)"
    page.write_text("# Here\n\n" + f"{good}, {bad}".replace("(", "[a](") + "\n")
    assert broken(page) == ["gone.md", "#gone", "other.md#three", "other.md#two-2", "other.md#no-heading"]
