"""The command line: options, exit statuses, what goes to which output, speed, and interruption."""

from __future__ import annotations

import configparser
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import deep5 as d5
from command import Command
from deep5 import __version__
from deep5.core import plugins
from deep5.recipe.keys import RECIPES
from deep5.recipe.registered import recipe_names
from deep5.results.result import load
from deep5.results.schema import schema
from deep5.results.store import result_folders

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).parent / "deep5")
SMOKE = ("digits_lenet", "--size", "smoke", "--framework", "reference")
KINDS = tuple(plugins.KINDS)

RECIPE = """\
import deep5 as d5

class Own(d5.Event):
    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        {body}

FIXED = {{
    "model": "mlp",
    "model_kwargs": {{"features": 4, "hidden": 8, "classes": 3}},
    "dataset": "synthetic",
    "dataset_kwargs": {{"shape": (4,), "classes": 3, "train": 60, "test": 30}},
    "epochs": {epochs},
}}
MUTABLE = {{
    "batch_size": 16,
    "framework": "reference",
    "optimizer": "sgd",
    "optimizer_kwargs": {{"lr": 0.1}},
    "events": Own,
}}
METRICS = [("test_accuracy", {goal}), ("training_loss", None)]
"""


def write(folder: Path, *, body: str = "pass", epochs: int = 2, goal: str = "None") -> Path:
    file = folder / "own.py"
    file.write_text(RECIPE.format(body=body, epochs=epochs, goal=goal))
    return file


def process(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# -- exit statuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"goal": "0"}, 0, "accepted (closed; success)"),
        ({}, 0, "not evaluated (closed; success)"),
        ({"goal": "'> 100'"}, 1, "not accepted (closed; success)"),
        ({"epochs": 0}, 2, "own.py:12: 'epochs' is 0"),
        ({"body": "raise ValueError('boom')"}, 3, "the run failed: ValueError: boom; what it left is in "),
        ({"body": "raise KeyboardInterrupt"}, 130, "interrupted; what the run left is in "),
    ],
)
def test_exit_status(changes: dict[str, Any], status: int, says: str, deep5: Command, tmp_path: Path) -> None:
    write(tmp_path, **changes)
    answer = deep5("run", "own.py", "--out", "here")
    assert answer.status == status
    assert says in (answer.out if status < 2 else answer.err)
    assert "Traceback" not in answer.err
    if status != 2:
        (folder,) = result_folders(tmp_path / "here")
        assert str(folder) in (answer.out + answer.err).replace("\n", "")
        assert load(folder).status == {3: "failed", 130: "aborted"}.get(status, "success")


def test_the_table_names_metrics_goals_verdicts_and_the_folder(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path, goal="'>= 1 %'")
    answer = deep5("run", "own.py")
    for word in ("test_accuracy", ">= 1", "passed", "training_loss", "nat", "reported"):
        assert word in answer.out
    assert "epoch 2/2  step 8" in answer.err  # plain lines: not a terminal
    (folder,) = result_folders(tmp_path / "results")
    assert answer.out.splitlines()[-1].endswith(str(folder))


def test_quiet(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    assert deep5("run", "own.py", "--quiet") == (0, "", "")
    assert deep5("check", "own.py", "--quiet") == (0, "", "")
    assert len(result_folders(tmp_path / "results")) == 1


def test_options_change_the_run(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    answer = deep5(
        *("run", "own.py", "--json", "--quiet", "--seed", "7", "--framework", "pytorch", "--device", "cpu"),
        *("--set", "batch_size=30", "--set", "optimizer=momentum", "--set", "optimizer_kwargs.lr=0.5"),
    )
    found = json.loads(answer.out)
    assert found["seeds"]["run"] == 7
    assert found["framework"]["name"] == "pytorch"
    assert found["recipe"]["mutable"]["batch_size"] == 30
    assert found["recipe"]["mutable"]["optimizer"] == "momentum"
    assert found["recipe"]["mutable"]["optimizer_kwargs"] == {"lr": 0.5}
    assert found["recipe"]["division"] == "closed"
    assert found["recipe"]["hash"] == json.loads(deep5("check", "own.py", "--json").out)["hash"]


def test_init(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    first = json.loads(deep5("run", "own.py", "--json", "--quiet").out)
    weights = str(Path(first["folder"]) / "weights.safetensors")
    again = json.loads(deep5("run", "own.py", "--json", "--quiet", "--init", weights).out)
    assert again["provenance"]["initial_weights"] == first["provenance"]["trained_weights"]
    assert (first["recipe"]["division"], again["recipe"]["division"]) == ("closed", "open")
    assert deep5("check", "own.py", "--quiet", "--init", weights) == (0, "", "")
    for command in ("run", "check"):
        answer = deep5(command, "own.py", "--init", "none.onnx")
        assert answer.status == 2
        assert answer.err == (
            "deep5: the file of weights none.onnx is not there; allowed: a .safetensors or an .onnx file\n"
        )
        answer = deep5(command, "own.py", "--init", "own.py")
        assert (answer.status, answer.err.count("\n")) == (2, 1)
        assert "'init' is 'own.py'; allowed: a file of weights, NAME.safetensors or NAME.onnx" in answer.err
    Path("torn.onnx").write_bytes(b"torn")
    answer = deep5("run", "own.py", "--init", "torn.onnx")
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "'init': the file torn.onnx cannot be read as ONNX" in answer.err


def test_threads(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    found = json.loads(deep5("run", "own.py", "--json", "--quiet", "--threads", "1").out)
    assert found["recipe"]["mutable"]["threads"] == 1
    assert (found["threads"]["asked"], found["threads"]["framework"]) == (1, 1)
    assert found["recipe"]["division"] == "closed"
    answer = deep5("check", "own.py", "--threads", "2", "--set", "threads=1")
    assert answer == (2, "", "deep5: --threads and --set threads are both given; allowed: one of them\n")
    answer = deep5("run", "overhead_sgd_small", "--threads", "2")
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "'threads' is fixed by the recipe 'overhead_sgd_small'" in answer.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--threads", "0"), "'--threads': '0'; allowed: an integer of at least 1"),
        (("--threads", "two"), "'--threads': 'two'; allowed: an integer of at least 1"),
        (("--seed", "1.5"), "'--seed': '1.5'; allowed: an integer of at least 0"),
        (("--set", "threads=two"), "'threads' is 'two'; allowed: an integer of at least 1"),
        (("--set", "optimizer.lr=1"), "unknown key 'optimizer.lr'; allowed: .*; did you mean 'optimizer_kwargs.lr'?"),
        (
            ("--framework", "pytorch:fast"),
            "unknown pytorch mode 'fast'; allowed: compiled, exported; remedy: 'pytorch' or 'pytorch:compiled' or "
            "'pytorch:exported'",
        ),
        (
            ("--framework", "reference:fast"),
            "unknown reference mode 'fast'; allowed: none; remedy: 'reference'",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_what_cannot_be_is_told_before_anything_runs(
    command: str, arguments: tuple[str, ...], says: str, deep5: Command, tmp_path: Path
) -> None:
    write(tmp_path)
    answer = deep5(command, "own.py", *arguments)
    assert (answer.status, answer.out) == (2, "")
    *usage, told = answer.err.splitlines()
    assert not usage or usage[0].endswith((f"deep5 {command} [OPTIONS] RECIPE", f"deep5 {command} [OPTIONS] [RECIPE]"))
    assert re.search(re.escape(says).replace(r"\.\*", ".*"), told), told


def test_recipes_that_are_none(deep5: Command, tmp_path: Path) -> None:
    registered = configparser.ConfigParser(delimiters="=")
    registered.read(ROOT / "entry_points.txt")
    # Of a family, and of the schemes, there are too many to name.
    named = [
        name
        for name, module in registered["deep5.recipes"].items()
        if ":" not in module and not name.startswith("distributed_")
    ]
    allowed = f"allowed: {', '.join(sorted(named))}, more by 'deep5 list recipes', or the path of a Python file"
    Path("empty").mkdir()
    Path("full").mkdir()
    for name in "abcde":
        Path("full", f"{name}.py").touch()
    for recipe, says in {
        "empty": f"the recipe empty is a folder; {allowed}",
        "full": (
            f"the recipe full is a folder; {allowed}; remedy: name a file in it, such as full/a.py, full/b.py, "
            "full/c.py, … (5 in all)"
        ),
        "": f"unknown recipe ''; {allowed}",
        os.devnull: f"the recipe file {os.devnull} is not a file; {allowed}",
        "gone.py": f"the recipe file gone.py is not there; {allowed}",
    }.items():
        assert deep5("run", recipe) == (2, "", f"deep5: {says}\n")


def test_weights_of_another_network_are_told_in_a_few_words(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    d5.networks.resnet(depth=44).save_weights("resnet.safetensors")
    answer = deep5("run", "own.py", "--init", "resnet.safetensors")
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "missing fc1.weight, fc1.bias, fc2.weight, fc2.bias; unknown conv0.bias, " in answer.err
    assert re.search(r" and \d{3} more; allowed: fc1.weight, fc1.bias, fc2.weight, fc2.bias$", answer.err.rstrip())
    assert len(answer.err) < 400


# -- JSON -------------------------------------------------------------------------------------------------------------


def test_json_is_one_document_whatever_the_recipe_prints(deep5: Command, tmp_path: Path) -> None:
    file = write(tmp_path, body="print('noise')", goal="'> 100'")
    file.write_text("print('loud')\n" + file.read_text())
    answer = deep5("run", "own.py", "--json")
    assert answer.status == 1
    found = json.loads(answer.out)
    assert Path(found.pop("folder")).is_dir()
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert "noise" in answer.err
    assert "loud" in answer.err
    assert json.loads(deep5("check", "own.py", "--json").out)["recipe"] == "own"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("run", "gone.py", "--json"), 2, "the recipe file gone.py is not there"),
        (("run", "--json"), 2, "no RECIPE is given; allowed: a name or a file"),
        (("run", "own.py", "--json", "--sed", "3"), 2, "No such option"),
        (("run", "own.py", "--json"), 3, "the run failed: ValueError: boom"),
        (("check", "own.py", "--json", "--size", "tiny"), 2, "no size 'tiny'"),
        (("list", "modles", "--json"), 2, "unknown kind of component 'modles'"),
    ],
)
def test_json_of_an_error(arguments: tuple[str, ...], status: int, says: str, deep5: Command, tmp_path: Path) -> None:
    write(tmp_path, body="raise ValueError('boom')")
    answer = deep5(*arguments)
    found = json.loads(answer.out)
    assert (answer.status, found["exit_status"]) == (status, status)
    assert says in found["error"]
    assert found["error"] in answer.err


def test_debug_shows_the_traceback_and_keeps_the_status(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path, body="raise ValueError('boom')")
    answer = deep5("run", "own.py", "--debug", "--json")
    assert answer.status == 3
    assert "Traceback" in answer.err
    assert "raise ValueError('boom')" in answer.err
    assert json.loads(answer.out)["exit_status"] == 3
    assert "Traceback" in deep5("check", "gone.py", "--debug").err


def test_an_unforeseen_error_is_told_in_a_line(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("never seen")

    monkeypatch.setattr("deep5.run.check.check_recipe", broken)
    answer = deep5("check", str(write(tmp_path)))
    assert answer == (
        3,
        "",
        "deep5: unexpected RuntimeError: never seen; remedy: run again with --debug and report what it shows\n",
    )


# -- the other commands -----------------------------------------------------------------------------------------------


def test_help_names_commands_and_statuses(deep5: Command) -> None:
    answer = deep5("--help")
    assert answer.status == 0
    for word in ("run", "check", "list", "info", "clean", "130  interrupted"):
        assert word in answer.out
    assert deep5("--version").out == f"deep5 {__version__}\n"
    for option in (
        "--framework",
        "--set",
        "--seed",
        "--device",
        "--threads",
        "--init",
        "--size",
        "--out",
        "--json",
        "--quiet",
        "--debug",
    ):
        assert option in deep5("run", "--help").out


def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deep5", "check", "digits_lenet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].startswith("digits_lenet is a valid recipe (fixed part ")


def test_check_tells_what_it_found(deep5: Command, tmp_path: Path) -> None:
    answer = deep5("check", *SMOKE)
    assert answer.out.endswith("size smoke)\n")
    found = json.loads(deep5("check", "cifar10_resnet44", "--json").out)
    assert found["fixed"]["model_kwargs"] == {"depth": 44}
    assert (found["size"], found["division"]) == ("full", "closed")


def test_check_runs_a_recipes_own_rule_as_strictly_as_it_can(deep5: Command, tmp_path: Path) -> None:
    rule = """
class Own(d5.UpdateRule):
    hyper = ("lr",)
    def __init__(self, lr=0.1): self.lr = lr
    def update_rule(self, grad, param, state): return {update}, state

"""
    text = write(tmp_path).read_text().replace('"sgd"', "Own").replace('    "events": Own,\n', "")
    head, tail = text.split("class Own")[0], text[text.index("FIXED") :]
    file = tmp_path / "own.py"
    file.write_text(head + rule.format(update="param - self.lr * grad") + tail)
    answer = deep5("check", "own.py")
    assert answer.status == 0, answer.err
    assert "Own keeps the contract of an update rule (also under array_api_strict)" in answer.out
    assert deep5("run", "own.py", "--quiet").status == 0
    file.write_text(head + rule.format(update="param - self.lr * grad.clip(0, 1)") + tail)
    answer = deep5("check", "own.py")
    assert answer.status == 2
    assert "own.py:" in answer.err
    assert "clip" in answer.err


@pytest.mark.parametrize("kind", KINDS)
def test_list(kind: str, deep5: Command) -> None:
    rows = json.loads(deep5("list", kind, "--json").out)[kind]
    modes = {row["name"] for row in rows if ":" in row["name"]}  # for example pytorch:compiled
    named = recipe_names() if kind == "recipes" else plugins.registered(kind)
    assert {row["name"] for row in rows} - modes == set(named)
    assert not modes or kind == "frameworks"
    text, everything = deep5("list", kind).out, deep5("list", kind, "--all").out
    for row in rows:
        assert row["about"], row
        assert (f"{row['name']} " in text) is not row.get("internal", False)
        assert f"{row['name']} " in everything
    assert f"{kind}:\n" in deep5("list").out


def test_list_of_the_keys_of_recipes(deep5: Command) -> None:
    rows = json.loads(deep5("list", "keys", "--json").out)["keys"]
    assert [(row["recipe"], row["name"]) for row in rows] == [(kind.name, key) for kind in RECIPES for key in kind.keys]
    text = deep5("list", "keys").out
    assert max(map(len, text.splitlines())) <= 100
    for row in rows:
        assert row["about"], row
        assert row["component"] or row["allowed"], row
        assert f"  {row['name']} " in text
    assert "Number of batches to prepare in the background; 0: none [an integer of at\n" in text
    assert "\ncode:\n  candidate " in text
    assert "keys:" not in deep5("list").out


def test_list_fits_100_columns(deep5: Command) -> None:
    out = deep5("list", "recipes").out
    assert max(map(len, out.splitlines())) <= 100
    assert "".join(json.loads(deep5("list", "recipes", "--json").out)["recipes"][0]["about"].split()) in "".join(
        out.split()
    )


def test_list_leaves_out_what_measures_deep5_itself(deep5: Command) -> None:
    rows = json.loads(deep5("list", "recipes", "--json").out)["recipes"]
    assert {row["name"] for row in rows if row["internal"]} == {
        name for name in recipe_names() if name.startswith("overhead_")
    }
    assert deep5("list", "recipes", "--json", "--all").out == deep5("list", "recipes", "--json").out
    shown = deep5("list", "recipes").out
    assert "overhead" not in shown
    assert shown.endswith(f"({sum(row['internal'] for row in rows)} more measure deep5 itself: add --all)\n")
    assert "add --all" not in deep5("list", "recipes", "--all").out
    # A name that is not shown is still suggested.
    assert deep5("check", "overhead_trainr").err.endswith("did you mean 'overhead_trainer'?\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rnu",), r"unknown command 'rnu'; allowed: audit, .*, sweep; did you mean 'run'\?"),
        (
            ("bench", "operater"),
            r"'operater'; allowed: collective, operator; did you mean 'operator'\?",
        ),
        (("show", "net"), r"unknown command 'net'; allowed: dataset, network"),
    ],
)
def test_an_unknown_command_is_reported_with_the_allowed_ones(
    deep5: Command, words: tuple[str, ...], says: str
) -> None:
    answer = deep5(*words)
    assert (answer.status, answer.out) == (2, "")
    assert re.search(says, answer.err)


def test_a_family_is_no_recipe(deep5: Command) -> None:
    answer = deep5("check", "overhead")
    assert (answer.status, answer.out) == (2, "")
    count = sum(name.startswith("overhead_") for name in recipe_names())
    start = f"deep5: 'overhead' is a family of {count} recipes; allowed: one of them, such as overhead_"
    assert answer.err.startswith(start)


def test_info(deep5: Command) -> None:
    text = deep5("info").out
    for word in (__version__, "numpy", "python", "logical_cores"):
        assert word in text
    assert json.loads(deep5("info", "--json").out)["deep5"]["version"] == __version__


def test_clean(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    (tmp_path / "cache" / "kernels" / "old.so").write_bytes(bytes(2048))
    (tmp_path / "cache" / "other").write_text("kept")
    (tmp_path / "cache" / "torchinductor" / "ab").mkdir(parents=True)
    (tmp_path / "cache" / "torchinductor" / "ab" / "old.so").write_bytes(bytes(1024))
    assert deep5("clean").out == f"freed 3 KiB in {tmp_path / 'cache'}\n"
    assert not (tmp_path / "cache" / "kernels" / "old.so").exists()
    assert not (tmp_path / "cache" / "torchinductor").exists()
    assert (tmp_path / "cache" / "other").exists()


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{COMMAND} list metrics --json | true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- a framework that is not installed ---------------------------------------------------------------------------------

HIDE = """
import importlib.metadata, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Hidden())
found = importlib.metadata.version

def version(name):
    if name == "torch":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

importlib.metadata.version = version
"""


@pytest.fixture
def without_torch(tmp_path: Path) -> str:
    """A folder for `PYTHONPATH` that hides torch and its installation metadata."""
    folder = tmp_path / "hide"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE)
    return str(folder)


def test_a_missing_framework_is_listed_with_the_command_that_installs_it(tmp_path: Path, without_torch: str) -> None:
    done = process("list", "frameworks", cwd=tmp_path, PYTHONPATH=without_torch)
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if line.startswith("pytorch"))
    assert line.endswith("not installed; remedy: pip install 'deep5[pytorch]'")
    assert "not installed" not in next(line for line in done.stdout.splitlines() if line.startswith("reference"))
    rows = json.loads(process("list", "--json", cwd=tmp_path, PYTHONPATH=without_torch).stdout)["frameworks"]
    assert {row["name"]: row["installed"] for row in rows}["pytorch"] is False


@pytest.mark.parametrize("recipe", ["digits_lenet", "cifar10_resnet44"])
def test_running_without_the_framework(recipe: str, tmp_path: Path, without_torch: str) -> None:
    done = process("run", recipe, "--framework", "pytorch", cwd=tmp_path, PYTHONPATH=without_torch)
    assert done.returncode == 2
    assert "needs the package 'torch', which is not installed; remedy: pip install 'deep5[pytorch]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_the_other_framework_runs_without_it(tmp_path: Path, without_torch: str) -> None:
    assert process("run", *SMOKE, "--quiet", cwd=tmp_path, PYTHONPATH=without_torch).returncode == 0


# -- interruption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_in_good_order(which: signal.Signals, tmp_path: Path) -> None:
    # Steps of 10 ms, far more than the time allows.
    write(tmp_path, body="__import__('time').sleep(0.01)", epochs=100_0)
    with subprocess.Popen(
        [COMMAND, "run", "own.py", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        log = None
        for _ in range(600):
            log = next(tmp_path.glob("results/*/events.mllog"), None)
            if log is not None and "epoch" in log.read_text():
                break
            time.sleep(0.05)
        assert log is not None
        time.sleep(0.3)
        child.send_signal(which)
        out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err
    (folder,) = result_folders(tmp_path / "results")
    assert f"interrupted; what the run left is in {folder}" in err
    assert json.loads(out)["exit_status"] == 130
    result = load(folder)
    reason = "interrupted by the user" if which == signal.SIGINT else "ended by SIGTERM"
    assert (result.status, result.reasons) == ("aborted", (reason,))
    assert result.document["finished"] is not None
    assert len(result.samples()["training_loss"]) > 0


def test_a_signal_during_the_start_is_no_crash(tmp_path: Path) -> None:
    program = """
import sys
sys.argv = ["deep5", "check", "digits_lenet"]
from deep5.cli.main import main
print("ready", flush=True)
main()
"""
    rng = random.Random(3)  # noqa: S311 - moments, not secrets
    statuses = []
    for which in (signal.SIGINT, signal.SIGTERM) * 6:
        with subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.01 + rng.uniform(0.0, 0.12))
            child.send_signal(which)
            _, err = child.communicate(timeout=30)
        statuses.append(child.returncode)
        assert "Traceback" not in err
    # Before `main` and during interpreter shutdown the signal itself ends the process; a shell reports 130 or 143.
    assert set(statuses) <= {0, 130, -signal.SIGINT, -signal.SIGTERM}, statuses
    assert 130 in statuses


# -- speed ------------------------------------------------------------------------------------------------------------

HEAVY = {"torch", "tensorflow", "jax", "onnxruntime", "onnx", "onnx_ir", "rich", "scipy", "sklearn", "pandas"}


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("check", "digits_lenet"), ("list",), ("list", "recipes", "--all")]
)
def test_nothing_heavy_is_imported(arguments: tuple[str, ...], tmp_path: Path) -> None:
    program = f"""
import sys
sys.argv = ["deep5", *{arguments!r}]
from deep5.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(*sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split())
    assert "click" in loaded
    # `check` makes the network, to compare its shapes with the data's.
    used = {"list": {"scipy"}, "check": {"onnx", "onnx_ir"}}
    heavy = HEAVY - used.get(arguments[0], set())
    assert not loaded & heavy
    if arguments[0].startswith("--"):
        assert "numpy" not in loaded


# -- what newcomers tried ----------------------------------------------------------------------------------------------


def test_the_status_is_the_runs_even_where_nobody_reads_the_table(tmp_path: Path) -> None:
    write(tmp_path, goal="0")
    for target in ("| true", "> /dev/full"):
        done = subprocess.run(
            ["bash", "-c", f"'{COMMAND}' run own.py 2> errors {target}; echo ${{PIPESTATUS[0]}}"],  # noqa: S607
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == "0", target
        assert "Traceback" not in (tmp_path / "errors").read_text()


def test_the_hyperparameters_in_force_are_recorded(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    for settings, rate in (((), 0.1), (("--set", "optimizer=adam"), 0.001)):
        document = json.loads(deep5("run", "own.py", *settings, "--json").out)
        assert document["components"]["optimizer"]["lr"] == rate
        assert document["components"]["events"][0] == {"object": "Own"}
        log = (Path(document["folder"]) / "events.mllog").read_text()
        assert f'"key": "opt_base_learning_rate", "value": {rate}' in log


def test_the_log_says_whether_the_goal_was_reached_and_no_rate_that_was_not(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    text = (tmp_path / "own.py").read_text()
    for bound, status in ((">= 0", "success"), ("> 100", "aborted")):
        goal = f"\nMETRICS = [(d5.TestAccuracy(), {bound!r})]\nMUTABLE |= {{'schedules': {{'lr': d5.Constant(0.1)}}}}\n"
        (tmp_path / "own.py").write_text(text + goal)
        log = (Path(json.loads(deep5("run", "own.py", "--json").out)["folder"]) / "events.mllog").read_text()
        assert f'"status": "{status}"' in next(line for line in log.splitlines() if "run_stop" in line)
        assert "opt_base_learning_rate" not in log


@pytest.mark.parametrize("key", ["batch_size", "parameter_groups", "framework"])
def test_a_file_that_is_not_there_is_found_by_a_check(key: str, deep5: Command) -> None:
    answer = deep5("check", "digits_lenet", "--set", f"{key}=nofile.py:Name")
    assert answer.status == 2
    assert "the file nofile.py of the component 'nofile.py:Name' cannot be read" in answer.err


def test_a_setting_that_is_no_value_of_python_is_a_text(deep5: Command) -> None:
    answer = deep5("check", "digits_lenet", "--set", "optimizer_kwargs={[1]: 2}")
    assert answer.status == 2
    assert "unexpected" not in answer.err


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("'fast'", "the run failed: the metric 'odd' gave 'fast'; allowed: numbers, or None"),
        ("1 / 0", "the run failed: the metric 'odd' raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_metric_that_gives_no_number_is_named(value: str, says: str, deep5: Command, tmp_path: Path) -> None:
    file = write(tmp_path)
    odd = f"""
class Odd(d5.Metric):
    name, unit, direction = "odd", "s", "lower"

    def observer(self):
        return Watch()


class Watch(d5.Observer):
    def samples(self):
        return []

    def value(self):
        return {value}


METRICS.append((Odd(), None))
"""
    file.write_text(file.read_text() + odd)
    answer = deep5("run", "own.py")
    assert (answer.status, says in answer.err) == (3, True), answer.err
    (folder,) = result_folders(tmp_path / "results")
    assert load(folder).status == "failed"


def test_check_tells_the_goals_as_they_were_understood(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path, goal="0.8")
    assert deep5("check", "own.py").out.splitlines()[:2] == [
        "test_accuracy: >= 0.8 %",
        "training_loss: reported, no goal",
    ]


def test_a_missing_recipe_file_is_guessed(deep5: Command, tmp_path: Path) -> None:
    write(tmp_path)
    assert deep5("run", "onw.py").err.endswith("did you mean 'own.py'?\n")
