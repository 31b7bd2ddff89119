"""Hostile input to every command: the documented exit status, one message with its remedy, and no file lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command import Command
from deep5.cli.errors import reported
from deep5.core.compiler import CompilerWarning
from deep5.core.errors import ShapeError
from deep5.core.own_files import is_users
from deep5.results.result import load
from deep5.results.store import result_folders
from deep5.training.scores import confusion, top_k_hits

RECIPE = """\
import deep5 as d5

FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
    "epochs": 2,
}
MUTABLE = {"batch_size": 16, "framework": "reference", "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.1}}
METRICS = [("test_accuracy", None)]
"""

RAISED = {
    "exit 0": "raise SystemExit(0)",
    "exit": "import sys; sys.exit()",
    "exit text": "raise SystemExit('bye')",
    "GeneratorExit": "raise GeneratorExit",
    "own": "raise type('Own', (BaseException,), {})('mine')",
    "cancelled": "import asyncio; raise asyncio.CancelledError",
    "group": "raise BaseExceptionGroup('several', [SystemExit(0)])",
    "without a message": "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})",
    "exit in a message": "raise type('Mute', (Exception,), {'__str__': lambda self: exit(0)})",
    "recursion": "exec('def f(): f()\\nf()')",
    "argparse": "import argparse; argparse.ArgumentParser(prog='p').parse_args(['--help'])",
}
# Where a recipe's own code runs, whether `deep5 check` runs it too, and the status of a run.
PLACES = {
    "import": ("\ndef boom():\n    {}\nboom()\n", True, 2),
    "model": ("\ndef model(seed=0):\n    {}\nFIXED['model'] = model\ndel FIXED['model_kwargs']\n", True, 2),
    "data set": ("\ndef data():\n    {}\nFIXED['dataset'] = data\ndel FIXED['dataset_kwargs']\n", True, 2),
    "batch size": ("\ndef size(epoch):\n    {}\nMUTABLE['batch_size'] = size\n", True, 2),
    "rule": (
        "\nclass Rule(d5.UpdateRule):\n  def update_rule(self, grad, param, state):\n    {}\n"
        "MUTABLE['optimizer'] = Rule\ndel MUTABLE['optimizer_kwargs']\n",
        True,
        2,
    ),
    "describe": (
        "\nclass Own(d5.Event):\n  def describe(self):\n    {}\nMUTABLE['events'] = [Own()]\nFIXED['seed'] = 1\n"
        "FIXED['events'] = MUTABLE.pop('events')\n",
        True,
        2,
    ),
    "metric": (
        "\nclass Own(d5.Metric):\n  name, unit, direction = 'own', 's', 'lower'\n  def observer(self):\n    {}\n"
        "METRICS = [(Own(), None)]\n",
        True,
        2,
    ),
    "step": (
        "\nclass Own(d5.Event):\n  def after_step(self, trainer, info, outputs, begin_ns, end_ns):\n    {}\n"
        "MUTABLE['events'] = Own\n",
        False,
        3,
    ),
    "epoch": (
        "\nclass Own(d5.Event):\n  def after_epoch(self, trainer, epoch):\n    {}\nMUTABLE['events'] = Own\n",
        False,
        3,
    ),
}


def rejected(answer: tuple[int, str, str], status: int) -> None:
    assert answer[0] == status, answer
    assert answer[2].startswith(("deep5: ", "Usage: "))
    assert "Traceback" not in answer[1] + answer[2]
    assert "deep5: unexpected" not in answer[2]
    assert "allowed: " in answer[2] or "remedy: " in answer[2]


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("place", PLACES)
def test_whatever_a_recipes_code_raises_is_reported(place: str, raised: str, deep5: Command, tmp_path: Path) -> None:
    code, checked, status = PLACES[place]
    (tmp_path / "own.py").write_text(RECIPE + code.replace("{}", RAISED[raised]))
    rejected(deep5("run", "own.py", "--quiet"), status)
    for folder in result_folders(tmp_path / "results") if Path("results").exists() else ():
        assert load(folder).status == "failed"
    assert Path("results").exists() == (status == 3)
    if checked:
        rejected(deep5("check", "own.py"), 2)


# Code of a recipe's file, and what the command reports beside the result.
ASIDE = {
    "closes": ("import sys; sys.stdout.close(); sys.stderr.close()", ""),
    "detaches": ("import sys; sys.stdout.detach(); sys.stderr.detach()", ""),
    "thread": ("import threading; threading.Thread(target=lambda: 1 / 0, name='own').start()", "own raised ZeroDiv"),
    "end": (
        "import atexit\n@atexit.register\ndef last():\n    raise type('Own', (Exception,), "
        "{'__str__': lambda self: exit(0)})",
        "last raised Own: (its message raised SystemExit)",
    ),
    "nested": ("x = " + "-" * 100_000 + "1", "not valid Python: expressions nested too deeply"),
}


@pytest.mark.daily
@pytest.mark.parametrize("aside", ASIDE)
def test_what_a_recipe_does_aside_hides_no_answer(aside: str, tmp_path: Path) -> None:
    code, says = ASIDE[aside]
    (tmp_path / "own.py").write_text(f"{RECIPE}\n{code}\n")
    command = [sys.executable, "-m", "deep5", "check", "own.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert (ran.returncode, "is a valid recipe" in ran.stdout) == ((2, False) if aside == "nested" else (0, True))


@pytest.mark.parametrize("command", ["audit", "evaluate", "profile", "results", "run", "show network"])
def test_a_link_to_itself_is_a_path_that_cannot_be_used(command: str, deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    rejected(deep5(*command.split(), "loop"), 2)


def test_too_little_memory_is_not_unexpected() -> None:
    message, status = reported(MemoryError())
    assert (status, "unexpected" in message) == (3, False)


@pytest.mark.parametrize("command", ["study"])
def test_an_exit_in_a_process_of_a_candidate_is_a_failure(command: str, deep5: Command, tmp_path: Path) -> None:
    # os._exit cannot be caught within a process; from outside it is one that ended without an answer.
    for number, raised in enumerate(("raise SystemExit(0)", "import os; os._exit(0)")):
        (tmp_path / "own.py").write_text(RECIPE + PLACES["step"][0].replace("{}", raised))
        more = ("--vary", "batch_size=8", "--target", "accuracy=50", "--seeds", "1")
        answer = deep5(command, "own.py", *more, "--out", f"out{number}")
        assert answer.status == 3
        assert "Traceback" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("x = {}; x['x'] = x; MUTABLE['optimizer_kwargs'] = x", "MUTABLE holds a dict in more than 100 others, or"),
        ("FIXED['model_kwargs']['x'] = FIXED", "FIXED holds a "),
        ("METRICS.append((METRICS, None)); METRICS[0] = METRICS", "METRICS holds a "),
        ("SIZES = {}; SIZES['a'] = SIZES", "SIZES holds a dict"),
        ("x = 1\nfor _ in range(10_000): x = [x]\nMUTABLE['events'] = x", "MUTABLE holds a list in more than 100"),
        ("x = 1\nfor _ in range(10_000): x = {'a': x}\nFIXED['dataset_kwargs'] = x", "FIXED holds a dict"),
        ("x = 1\nfor _ in range(50): x = [x, x]\nMUTABLE['events'] = x", "MUTABLE holds more than 1,000,000 values"),
        ("MUTABLE['batch_size'] = 10**5000", "holds an integer of 16610 bits"),
        ("MUTABLE['init'] = 'x' * 5000 + '.safetensors'", "the file of weights xxx"),
        ("MUTABLE['init'] = 'a\\0.safetensors'", r"the file of weights a\x00.safetensors is not there"),
        ("MUTABLE['optimizer'] = 'x' * 5000 + '.py:X'", "cannot be read (File name too long)"),
        ("MUTABLE['optimizer'] = 'a\\0.py:X'", "cannot be read (embedded null byte)"),
        ("MUTABLE['optimizer'] = 'loop.py:X'", "cannot be read (Too many levels of symbolic links)"),
        ("MUTABLE['framework'] = 'x' * 5000", "unknown framework 'xxx"),
        ("MUTABLE['x' * 5000] = 1", "unknown key 'xxx"),
        ("FIXED = None", "FIXED is None"),
        # What only a run rejected.
        ("MUTABLE['optimizer_kwargs'] = {'lr': float('nan')}", "SGD.lr is nan; allowed: a finite number"),
        ("MUTABLE['optimizer_kwargs'] = {'lr': float('inf')}", "SGD.lr is inf; allowed: a finite number"),
        ("MUTABLE['optimizer_kwargs'] = {'lr': -0.1}", "SGD.lr is -0.1; allowed: a number of at least 0"),
        ("MUTABLE['optimizer_kwargs'] = {'lr': '0.003'}", "SGD.lr is '0.003'; allowed: a number"),
        ("MUTABLE['optimizer_kwargs'] = {'lr': None}", "SGD.lr is None; allowed: a number"),
        ("MUTABLE['optimizer_kwargs'] = {'rate': 0.1}", "the arguments of 'optimizer' do not fit"),
        ("MUTABLE |= {'optimizer': 'adam', 'optimizer_kwargs': {'beta1': 1}}", "Adam.beta1 is 1; allowed: a number"),
        ("MUTABLE |= {'optimizer': 'adam', 'optimizer_kwargs': {'beta2': 1.0}}", "at least 0 and below 1"),
        ("MUTABLE |= {'optimizer': 'momentum', 'optimizer_kwargs': {'momentum': 1.5}}", "Momentum.momentum is 1.5"),
        ("MUTABLE |= {'optimizer': 'momentum', 'optimizer_kwargs': {'momentum': -0.1}}", "Momentum.momentum is -0.1"),
        ("MUTABLE |= {'optimizer': 'rmsprop', 'optimizer_kwargs': {'epsilon': -1}}", "RMSProp.epsilon is -1"),
        ("MUTABLE |= {'optimizer': 'native:sgd', 'framework': 'pytorch', 'optimizer_kwargs': {'lr': -1}}", "got lr=-1"),
        ("MUTABLE |= {'optimizer': 'native:adam', 'framework': 'pytorch', 'optimizer_kwargs': {'beta1': 1}}", "=1"),
        ("MUTABLE['parameter_groups'] = [d5.ParameterGroup(lambda name: True, lr=-1.0)]", "Group: got lr=-1.0"),
        ("MUTABLE['schedules'] = {'lr': -0.1}", "the schedule of 'lr' is -0.1; allowed: a number of at least 0"),
        ("MUTABLE['schedules'] = {'rate': 0.1}", "unknown hyperparameter of SGD 'rate'"),
        ("FIXED['dataset_kwargs']['shape'] = (5,)", "'input' are float32[5] but the network takes float32[N, 4]"),
        ("FIXED['dataset_kwargs']['classes'] = 7", "the network has 3 outputs, the data set 7 classes"),
        ("FIXED['model_kwargs']['features'] = -4", "got features = -4"),
        ("MUTABLE['batch_size'] = 61", "'batch_size' is 61; allowed: at most 60"),
        ("MUTABLE['events'] = [object()]", "'events' gives a object"),
        ("FIXED['model'] = dict; del FIXED['model_kwargs']", "'model' gives a dict"),
        ("FIXED['dataset'] = dict; del FIXED['dataset_kwargs']", "'dataset' gives a dict"),
        ("FIXED['model'] = silent; del FIXED['model_kwargs']", "computes no loss: its outputs are logits"),
    ],
)  # fmt: skip
def test_check_refuses_what_a_run_refuses(change: str, says: str, deep5: Command, tmp_path: Path) -> None:
    silent = """
def silent(seed=0):
    from deep5.networks.edit.builder import NetworkBuilder
    build = NetworkBuilder("silent", seed=seed)
    x, _ = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    return build.network({"logits": build.op("MatMul", x, build.parameter("w", (4, 3)))})
"""
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "own.py").write_text(RECIPE + silent + change + "\n")
    for command in ("check", "run"):
        answer = deep5(command, "own.py", "--quiet")
        rejected(answer, 2)
        assert says in answer.err
        assert len(answer.err) < 2500
    assert not Path("results").exists()


def test_a_schedule_out_of_range_ends_the_run_at_its_step(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE + "MUTABLE['schedules'] = {'lr': d5.Cosine(0.1, end=-0.1)}\n")
    answer = deep5("run", "own.py", "--quiet")
    rejected(answer, 3)
    assert "schedule of 'lr' at step " in answer.err
    # One that ends at zero passes.
    (tmp_path / "own.py").write_text(RECIPE + "MUTABLE['schedules'] = {'lr': d5.Cosine(0.1)}\n")
    assert deep5("run", "own.py", "--quiet").status == 0


LONG = "x" * 5000
PATHS = {
    "a long name": LONG,
    "a long path": "/".join(["xyz"] * 1250),
    "a long ending": f"{LONG}.py",
    "a loop of links": "loop",
    "a file beyond a loop": "loop/own.py",
    "a file as a folder": "own.py/x",
    "control characters": "a\x1b[31m\nb.py",
    "undecodable": "a\udcff.py",
    "a device": "/dev/null",
    "memory": "/proc/self/mem",
    "a folder": ".",
    "nothing": "",
}
# What a command does with a path: P.
COMMANDS = (
    ("run", "P"), ("check", "P"), ("compare", "P"), ("study", "P"), ("run", "own.py", "--quiet", "--out", "P"),
    ("run", "own.py", "--resume", "P"), ("run", "own.py", "--init", "P"), ("compare", "own.py", "--resume", "P"),
    ("study", "own.py", "--resume", "P"), ("audit", "P"), ("report", "P", "-o", "page.html"),
    ("export", "P", "--format", "csv", "-o", "x"), ("results", "P"), ("evaluate", "P"), ("predict", "P", "x.npy"),
    ("generate", "P", "the"),
    ("profile", "P"), ("show", "network", "P"), ("clean", "--checkpoints", "P"), ("check", "operator", "P:X"),
    ("check", "optimizer", "P:X"),
)  # fmt: skip


def tree(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_paths(command: tuple[str, ...], path: str, deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE)
    (tmp_path / "loop").symlink_to("loop")
    before = tree(tmp_path)
    answer = deep5(*(word.replace("P", PATHS[path]) if word in ("P", "P:X") else word for word in command))
    after = tree(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert "Traceback" not in answer.out + answer.err
    assert "deep5: unexpected" not in answer.err
    assert answer.status in (0, 1, 2), answer
    if answer.status == 2:
        rejected(answer, 2)
    assert len(answer.err) < 6000
    assert "\x1b" not in answer.out + answer.err


# -- the streams of a command -----------------------------------------------------------------------------------------


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = line.replace("deep5", f"{sys.executable} -m deep5", 1)
    return subprocess.run(
        ["bash", "-c", f"{program}; echo ${{PIPESTATUS[0]}} > status"],  # noqa: S607
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("deep5 list >&-", 0),
        ("deep5 list 2>&-", 0),
        ("deep5 list <&-", 0),
        ("deep5 list --json >&- 2>&- <&-", 0),
        ("deep5 list | true", 141),
        ("deep5 list --all 2>&1 | head -1", 141),
        ("deep5 --help | true", 141),
        ("deep5 --version | true", 141),
        ("deep5 show network mlp | true", 141),
        ("deep5 check own.py --json | true", 141),
        ("deep5 list > /dev/full", 3),
        ("deep5 list --json > /dev/full", 3),
        ("deep5 --help > /dev/full", 3),
        ("deep5 check own.py --json > /dev/full", 3),
        ("deep5 list nothing 2> /dev/full", 2),
        ("deep5 list nothing 2>&-", 2),
        ("deep5 list nothing --json | true", 2),
        ("deep5 run own.py >&-", 0),
        ("deep5 run own.py >&- 2>&- <&-", 0),
        ("deep5 run own.py 2>&1 | head -1", 0),
        ("deep5 run own.py > /dev/full 2> /dev/full", 0),
        ("deep5 run own.py --json | true", 0),
        ("deep5 run own.py --set batch_size=0 | true", 2),
    ],
)
def test_the_status_without_readers(line: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE)
    done = shell(line, tmp_path)
    assert (tmp_path / "status").read_text() == f"{status}\n", done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    if status == 141:
        assert done.stderr == ""
    if " run " in line and status == 0:
        (folder,) = result_folders(tmp_path / "results")
        assert load(folder).status == "success"


def test_output_of_a_library_does_not_go_into_a_file_that_takes_the_place_of_standard_output(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE + PLACES["step"][0].replace("{}", "__import__('os').write(1, b'PRINTED')"))
    shell("deep5 run own.py >&-", tmp_path)
    assert (tmp_path / "status").read_text() == "0\n"
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file() and path.name != "recipe.py"]
    assert len(files) > 5
    assert not [path for path in files if b"PRINTED" in path.read_bytes()]


def test_signs_that_the_output_cannot_encode(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments in (["--help"], ["list"], ["run", "nothing"]):
        done = subprocess.run(
            [sys.executable, "-m", "deep5", *arguments], env=environment, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == (2 if arguments[0] == "run" else 0)
        assert b"Traceback" not in done.stderr


def test_nohup_keeps_a_command_alive(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE + PLACES["step"][0].replace("{}", "import os; os.kill(os.getpid(), 1)"))
    done = shell("trap '' HUP; deep5 run own.py --quiet", tmp_path)
    assert (tmp_path / "status").read_text() == "0\n", done.stderr
    # These tests may run below nohup, too.
    done = shell("env --default-signal=HUP deep5 run own.py --quiet", tmp_path)
    assert (tmp_path / "status").read_text() == "130\n", done.stderr
    assert "to resume, add --resume " in done.stderr
    assert signal.SIGHUP == 1


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", ["999999999G", "999999999999999999999999G", "1e400", "0", "-4", "nan", "4:999999999G"]
)
def test_sizes_beyond_any_memory(sizes: str, deep5: Command) -> None:
    answer = deep5("bench", "collective", f"--sizes={sizes}", "--launcher", "threads")
    rejected(answer, 2)
    assert "--sizes " in answer.err


def test_pictures_where_the_address_space_is_limited(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE)
    shell("deep5 run own.py --quiet", tmp_path)
    done = shell("ulimit -v 4000000; deep5 report results --format svg -o figures", tmp_path)
    assert (tmp_path / "status").read_text() == "2\n", done.stderr
    assert "address space limited to 4096000000 bytes; allowed: no limit" in done.stderr
    assert not (tmp_path / "figures").exists()


def test_scores_of_rank_one() -> None:
    with pytest.raises(
        ShapeError, match=r"got scores of shape \(3,\) and labels of shape \(3,\); allowed: \(rows, classes\)"
    ):
        top_k_hits(np.zeros(3), np.zeros(3, np.int64), 1)
    with pytest.raises(ShapeError, match=r"labels of shape \(3,\); allowed"):
        confusion(np.zeros((2, 3)), np.zeros(3, np.int64))


# -- other callers than the command ------------------------------------------------------------------------------------

CALL = """
import builtins
{first}
import deep5 as d5
from deep5.core.errors import RecipeError
try:
    d5.run_recipe({{"model": "mlp"}}, {{}}, [])
except SystemExit as end:
    print("ended", end.code)
except RecipeError as error:
    print("raised", error)
"""


@pytest.mark.parametrize(
    ("first", "says"),
    [("", "ended 2"), ("builtins.__IPYTHON__ = True", "raised "), ("import sys; sys.ps1 = '>'", "raised ")],
)
def test_an_invalid_recipe_raises_where_somebody_types(first: str, says: str, tmp_path: Path) -> None:
    program = CALL.format(first=first)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(says)


def test_a_program_that_runs_a_recipe_does_not_end_as_if_it_had_succeeded(tmp_path: Path) -> None:
    code = PLACES["model"][0].replace("{}", "raise SystemExit(0)")
    (tmp_path / "own.py").write_text(
        f"{RECIPE}{code}\nif __name__ == '__main__':\n    d5.run_recipe(FIXED, MUTABLE, METRICS)\n"
    )
    done = subprocess.run(
        [sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "exit(0) ends a program instead of reporting an error" in done.stderr


def test_names_that_are_not_utf_8_work_in_every_command(deep5: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(b"f\xff"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    recipe, own = os.fsdecode(b"r\xff.py"), os.fsdecode(b"o\xff.py")
    Path(own).write_text("def half(name, param, grad):\n    return grad * 0.5\n")
    Path(recipe).write_text(RECIPE + "MUTABLE['gradient_modifier'] = 'o\\udcff.py:half'\n")
    assert deep5("check", recipe, "--json").status == 0
    answer = deep5("run", recipe, "--json")
    assert answer.status == 0, answer.err
    (found,) = result_folders("results")
    for words in (
        ("run", recipe, "--quiet", "--ranks", "2"),
        ("results", "list", "."),
        ("audit", "results"),
        ("evaluate", str(found)),
        ("report", "results", "-o", os.fsdecode(b"p\xff.html")),
        ("export", str(found), "--format", "csv", "-o", os.fsdecode(b"s\xff.csv")),
        ("study", recipe, "--vary", "optimizer=sgd,momentum", "--seeds", "1", "--quiet"),
    ):
        answer = deep5(*words)
        assert answer.status == 0, (words, answer.err)


def test_a_user_without_a_home(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DEEP5_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    assert is_users(str(tmp_path / ".own.txt"), None)
    assert not is_users("/etc/passwd", None)
    (tmp_path / "own.py").write_text(RECIPE)
    with pytest.warns(CompilerWarning, match=r"the cache has no place .*; remedy: set DEEP5_CACHE"):
        answer = deep5("run", "own.py")
    assert answer.status == 0, answer.err
    answer = deep5("results", "list", ".")
    assert (answer.status, "remedy: set DEEP5_CACHE to a folder" in answer.err) == (2, True)


def test_a_working_directory_that_was_removed(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(RECIPE)
    (tmp_path / "removing.py").write_text(f"import os\n{RECIPE}\nos.rmdir(os.getcwd())\n")
    for recipe in ("own.py", "removing.py"):
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        if recipe == "own.py":
            (tmp_path / "gone").rmdir()
        answer = deep5("run", str(tmp_path / recipe), "--quiet")
        assert (answer.status, "the working directory was removed; allowed: " in answer.err) == (2, True), answer.err
    answer = deep5("run", str(tmp_path / "own.py"), "--quiet", "--out", str(tmp_path / "results"))
    assert answer.status == 0, answer.err
    monkeypatch.chdir(tmp_path)


HOOK = "\nclass Own(d5.Event):\n  def after_step(self, *given):\n    {}\nMUTABLE['events'] = [Own()]\n"
WRITER = "\nclass W:\n  def write(self, text):\n    raise OSError('no')\n  def flush(self):\n    raise OSError('no')\n"
REPLACED = {
    "exit": ("import sys\nsys.exit = lambda *given: None" + HOOK.format("raise ValueError('x')"), 3, "ValueError: x"),
    "writers": (f"import sys{WRITER}{HOOK.format('sys.stdout = sys.stderr = W()')}", 0, ""),
    "None": (f"import sys{HOOK.format('sys.stdout = sys.stderr = None')}", 0, ""),
    "writers, then an error": (
        f"import sys{WRITER}{HOOK.format('sys.stdout = sys.stderr = W(); 1 / 0')}",
        3,
        "ZeroDivisionError",
    ),
    "del": (
        "class D:\n  def __del__(self):\n    raise SystemExit(0)\nD()\nkept = D()\n",
        0,
        "deep5: warning: D.__del__ raised SystemExit: 0, which Python ignores; remedy: --debug shows where\n",
    ),
}


@pytest.mark.parametrize("case", REPLACED)
def test_what_a_recipe_replaces_in_the_interpreter_changes_no_status(tmp_path: Path, case: str) -> None:
    code, status, said = REPLACED[case]
    (tmp_path / "own.py").write_text(f"{RECIPE}{code}")
    command = [sys.executable, "-m", "deep5", "run", "own.py", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (status, True, False), done.stderr
    if case == "del":
        assert done.stderr == said * 2
