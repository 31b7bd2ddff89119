"""Shell completion of names, through click's interface and in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from deep5.cli.main import _cli as cli
from deep5.core.plugins import framework


def completed(*words: str) -> list[str]:
    """What completes the last word."""
    *args, incomplete = words
    items = ShellComplete(cli, {}, "deep5", "_DEEP5_COMPLETE").get_completions(args, incomplete)
    return [item.value for item in items if item.type == "plain"]


@pytest.mark.parametrize(
    ("words", "found", "absent"),
    [
        (("r",), {"run", "report", "results"}, {"audit"}),
        (("run", "dig"), {"digits_lenet"}, {"cifar10_resnet44"}),
        (("run", "deepbench_"), {"deepbench_conv", "deepbench_gemm"}, set()),
        (("run", "digits_lenet", "--framework", ""), {"pytorch", "pytorch:compiled", "jax", "reference"}, {"torch"}),
        (("run", "digits_lenet", "--framework", "tensorflow:"), {"tensorflow:xla"}, {"tensorflow"}),
        (("run", "digits_lenet", "--size", ""), {"full", "smoke"}, set()),
        (("run", "digits_lenet", "--set", "b"), {"batch_size"}, {"epochs"}),
        (
            ("run", "digits_lenet", "--set", "optimizer_kwargs."),
            {"optimizer_kwargs.lr", "optimizer_kwargs.beta1"},
            set(),
        ),
        (("run", "digits_lenet", "--set", ""), {"framework", "optimizer"}, {"epochs", "model", "model_kwargs.classes"}),
        (("run", "deepbench_gemm", "--set", "r"), {"rounds", "rigorous"}, {"ranks"}),
        (("run", "digits_lenet", "--set", "optimizer=ada"), {"optimizer=adam", "optimizer=adagrad"}, {"optimizer=sgd"}),
        (("run", "digits_lenet", "--set", "tf32="), {"tf32=True", "tf32=False"}, set()),
        (("run", "digits_lenet", "--device", "c"), {"cpu", "cuda"}, set()),
        (("compare", "digits_lenet", "--frameworks", "jax,p"), {"jax,pytorch", "jax,pytorch:compiled"}, {"pytorch"}),
        (("compare", "digits_lenet", "--frameworks", "jax,"), {"jax,reference"}, {"jax,jax"}),
        (("compare", "digits_lenet", "--vary", "optimizer=adam,mom"), {"optimizer=adam,momentum"}, set()),
        (("check", "op"), {"operator", "optimizer", "optimizer_study"}, set()),
        (("check", "optimizer", "ad"), {"adam", "adamw"}, {"sgd"}),
        (("show", "network", "res"), {"resnet50"}, set()),
        (("list", "o"), {"operators", "optimizers"}, set()),
        (("list", "k"), {"keys"}, set()),
        (("bench", "o"), {"operator"}, {"collective"}),
        (("bench", "operator", "MatM"), {"MatMul"}, {"Relu"}),
        (("bench", "operator", "Conv", "--problems", "deepbench."), {"deepbench.conv"}, set()),
        (("bench", "operator", "Conv", "--use", ""), {"training", "inference_server"}, set()),
        (("bench", "operator", "Conv", "--dtype", "f"), {"float32", "float16"}, {"int32"}),
        (("bench", "operator", "Conv", "--frameworks", "jax,o"), {"jax,onnxruntime"}, set()),
        (("bench", "collective", "--algorithms", "ring,"), {"ring,library"}, {"ring,ring"}),
        (("bench", "collective", "--launcher", ""), {"mpiexec", "threads", "torchrun"}, set()),
        (("bench", "collective", "--op", "m"), {"max", "min"}, {"sum"}),
        (("check", "operator", "Rel"), {"Relu"}, set()),
        (("check", "operator", "Relu", "--against", "py"), {"pytorch"}, {"jax"}),
        (("check", "optimizer", "adam", "--set", "b"), {"beta1=", "beta2="}, {"lr="}),
        (("check", "framework", "tensorflow:"), {"tensorflow:xla"}, {"tensorflow"}),
        (("compare", "digits_lenet", "--vary", "optimizer=adam,"), {"optimizer=adam,sgd"}, {"optimizer=adam,adam"}),
        (("study", "optimizer_study", "--only", "Ada"), {"Adam", "AdaGrad"}, {"SGD"}),
        (("study", "digits_lenet", "--target", ""), {"accuracy=", "loss="}, set()),
        (("study", "digits_lenet", "--vary", "optimizer=adam,sg"), {"optimizer=adam,sgd"}, set()),
        (("results", ""), {"list", "pack", "unpack", "sign", "verify"}, set()),
        (("results", "list", "--sort", "re"), {"recipe"}, {"kind"}),
        (("results", "list", "--where", "kin"), {"kind="}, set()),
        (("results", "list", "--columns", "run_id,rec"), {"run_id,recipe"}, set()),
        (("export", "results", "--format", "c"), {"csv"}, {"parquet"}),
        (("show", "dataset", "cifar1"), {"cifar10", "cifar100"}, {"digits"}),
        (("show", "dataset", "digits", "--set", "te"), {"test_share="}, set()),
        (("show", "network", "lenet", "--set", "cl"), {"classes="}, set()),
        (("evaluate", "results", "--data", "dig"), {"digits"}, set()),
        (("audit", "--q"), {"--quiet"}, {"--json"}),
        (("new", "op"), {"operator", "optimizer"}, {"metric"}),
        (("run", "digits_lenet", "--thr"), {"--threads"}, set()),
    ],
)
def test_names(words: tuple[str, ...], found: set[str], absent: set[str]) -> None:
    got = completed(*words)

    assert found <= set(got)
    assert not absent & set(got)
    assert all(name.startswith(words[-1]) for name in got)


def test_result_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in {"one": "result.json", "two": "study.json", "three": "notes.txt"}.items():
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / file).write_text("{}")

    assert completed("audit", "") == ["results/one", "results/two"]
    assert completed("report", "results/t") == ["results/two"]
    assert completed("run", "digits_lenet", "--resume", f"{tmp_path}/results/o") == [f"{tmp_path}/results/one"]
    assert completed("evaluate", "nowhere/x") == []


def test_a_recipe_s_file_is_not_run_to_complete_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("from pathlib import Path\nPath('ran').touch()\nFIXED = {}\nMUTABLE = {}\nMETRICS = []\n")

    assert "batch_size" in completed("run", "own.py", "--set", "b")
    assert completed("run", "own.py", "--size", "s") == ["smoke"]
    assert not Path("ran").exists()


@pytest.fixture(scope="module")
def script() -> str:
    """The completion script of the command."""
    done = subprocess.run(
        [Path(sys.executable).with_name("deep5")],
        env={**os.environ, "_DEEP5_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (("deep5", "comp"), ["compare"]),
        (("deep5", "run", "digits_le"), ["digits_lenet"]),
        (("deep5", "run", "digits_lenet", "--framework", "onnx"), ["onnxruntime"]),
        (("deep5", "run", "digits_lenet", "--framework", "tensorflow", ":"), list(framework("tensorflow").modes)),
        (("deep5", "run", "digits_lenet", "--framework", "pytorch", ":", "co"), ["compiled"]),
        (("deep5", "run", "digits_lenet", "--set", "optimizer", "=", "nest"), ["nesterov"]),
        (("deep5", "run", "digits_lenet", "--set", "optimizer_kwargs.l"), ["optimizer_kwargs.lr"]),
        (("deep5", "run", "digits_lenet", "--size", ""), ["full", "smoke"]),
        (("deep5", "compare", "digits_lenet", "--vary", "optimizer", "=", "adam,sg"), ["adam,sgd"]),
        (("deep5", "study", "digits_lenet", "--target", "acc"), ["accuracy="]),
        (("deep5", "check", "framework", "openv"), ["openvino"]),
        (("deep5", "bench", "collective", "--algorithms", "ring,li"), ["ring,library"]),
        (("deep5", "results", "ver"), ["verify"]),
        (("deep5", "export", "x", "--format", "ml"), ["mllog"]),
        (("deep5", "show", "dataset", "digits", "--set", "split"), ["split_seed="]),
    ],
)
def test_bash(script: str, words: tuple[str, ...], replies: list[str], tmp_path: Path) -> None:
    given = " ".join(f"'{word}'" for word in words)
    program = f"{script}\nCOMP_WORDS=({given})\nCOMP_CWORD={len(words) - 1}\n_deep5_completion deep5\n"
    # Only a shell with a prompt has this command, which offers files where no name fits.
    program = f"compopt() {{ :; }}\n{program}"
    program += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == replies
    assert done.stderr == ""
