"""Messages suggest what was probably meant: commands, options, keys, frameworks, devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command import Command
from deep5.core.errors import suggestion
from deep5.core.synonyms import SYNONYMS, nearest

RECIPE = """\
FIXED = {"model": "lenet", "dataset": "digits", "epochs": 1}
MUTABLE = {"batch_size": 64, "framework": "reference", "optimizer": "adam"%s}
METRICS = [("test_accuracy", None)]
"""


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("trian", "digits_lenet"), "'run'"),
        (("train",), "'run'"),
        (("comapre",), "'compare'"),
        (("benchmark",), "'bench'"),
        (("bench", "operatr"), "'operator'"),
        (("check", "optimiser", "rules.py:Own"), "'optimizer'"),
        (("run", "digits_lenet", "--set", "lr=0.1"), "'optimizer_kwargs.lr'"),
        (("run", "digits_lenet", "--set", "learning_rate=0.1"), "'optimizer_kwargs.lr'"),
        (("run", "digits_lenet", "--set", "bteta1=0.1"), "'optimizer_kwargs.beta1'"),
        (("run", "digits_lenet", "--set", "optimizer_kwarg.lr=1"), "'optimizer_kwargs.lr'"),
        (("run", "digits_lenet", "--set", "batchsize=3"), "'batch_size'"),
        (("run", "digits_lenet", "--framework", "torch"), "'pytorch'"),
        (("run", "digits_lenet", "--framework", "tf"), "'tensorflow'"),
        (("run", "digits_lenet", "--framework", "ort"), "'onnxruntime'"),
        (("run", "digits_lenet", "--framework", "numpy"), "'reference'"),
        (("compare", "digits_lenet", "--frameworks", "torch,jax"), "'pytorch'"),
        (("run", "digits_lenet", "--device", "gpu"), "'cuda'"),
        (("run", "digits_lenet", "--device", "gpu:1"), "'cuda'"),
        (("run", "digits_lenet", "--sed", "3"), "'--seed'"),
        (("run", "digits_lenet", "--lr", "0.1"), "'--set optimizer_kwargs.lr=…'"),
        (("run", "digits_lenet", "--batch-size=32"), "'--set batch_size=…'"),
        (("run", "digits_lenet", "--gpu"), "'--device cuda'"),
        (("compare", "digits_lenet", "--framework", "jax"), "'--frameworks'"),
        (("audit", "results", "--jsn"), "'--json'"),
        (("results", "lst"), "'list'"),
        (("run", "digits_lenet", "--device", "gpuu"), "'cuda'"),
        (("run", "digits_lenet", "--set", "tf32=Ture"), "'True'"),
        (("run", "digits_lenet", "--set", "precision=bf16"), "'bfloat16'"),
        (("run", "digits_lenet", "--ranks", "2", "--launcher", "mpiexe"), "'mpiexec'"),
        (("run", "digits_lenet", "--set", "optimizer=Momentm"), "'momentum'"),
        (("run", "digits_lenet", "--framework", "pytorch:compild"), "'compiled'"),
        (("study", "digits_lenet", "--vary", "optimizer=adam,sgd", "--target", "acuracy=90"), "'accuracy'"),
        (("study", "optimizer_study", "--only", "adm"), "'Adam'"),
        (("bench", "operator", "MatMull"), "'MatMul'"),
        (("bench", "operator", "MatMul", "--shape", "4x4", "--shape", "4x4", "--dtype", "flaot32"), "'float32'"),
        (("bench", "collective", "--dtype", "fp32"), "'float32'"),
        (("bench", "collective", "--algorithms", "rign"), "'ring'"),
        (("bench", "collective", "--op", "summ"), "'sum'"),
        (("check", "operator", "Relu", "--dtype", "half"), "'float16'"),
        (("evaluate", "results", "--split", "tset"), "'test'"),
    ],
)
def test_command_line(deep5: Command, arguments: tuple[str, ...], meant: str) -> None:
    answer = deep5(*arguments)

    assert answer.status == 2
    assert f"did you mean {meant}?" in answer.err
    assert "Traceback" not in answer.err


def test_an_argument_too_many_names_the_commands(deep5: Command) -> None:
    answer = deep5("results", "show", "results")
    assert answer.status == 2
    assert "(results); allowed: one argument, or those of list or sign or verify or pack or unpack" in answer.err


@pytest.mark.parametrize(
    ("extra", "meant"),
    [
        (', "lr": 0.1', "'optimizer_kwargs': {'lr': 0.1}"),
        (', "model_kwarg": {"classes": 10}', "'model_kwargs'"),
        (', "optimizer_arg": (0.1,)', "'optimizer_args'"),
        (', "backend": "jax"', "'framework'"),
    ],
)
def test_key_of_a_recipe(deep5: Command, tmp_path: Path, extra: str, meant: str) -> None:
    Path(tmp_path, "own.py").write_text(RECIPE % extra)

    answer = deep5("check", "own.py")

    assert answer.status == 2
    assert "own.py:2: unknown key" in answer.err
    assert f"did you mean {meant}?" in answer.err


@pytest.mark.parametrize(
    ("extra", "said", "meant"),
    [
        ('SIZES = {"smoke": {"epocs": 1}}', "unknown key 'epocs' in the size 'smoke'; ", "'epochs'"),
        ('SIZES = {"smoke": {"metrcs": []}}', "unknown key 'metrcs' in the size 'smoke'; ", "'metrics'"),
        ('SIZES = {"smoke": {"lr": 0.1}}', "unknown key 'lr' in the size", "'optimizer_kwargs': {'lr': 0.1}"),
        ('SIZES = {"smoke": {"dataset_kwargs.limit": 3}}', "unknown key", "'dataset_kwargs': {'limit': 3}"),
        ('SIZES = {"smoke": {"dataset_kwargs": {"limt": 3}}}', "unexpected keyword argument 'limt'", "'limit'"),
        ('SIZES = {"smoke": {"optimizer": "adm"}}', "unknown optimizer 'adm'", "'adam'"),
        ('STUDY = {"a": {}, "b": {"optimizr": "sgd"}}', "the candidate 'b': unknown key 'optimizr'", "'optimizer'"),
        ('STUDY = {"b": {"lr": 0.1}}', "the candidate 'b': unknown key 'lr'", "'optimizer_kwargs.lr'"),
        ('STUDY = {"b": {"optimizer": "adm"}}', "the candidate 'b': unknown optimizer 'adm'", "'adam'"),
        ('STUDY = {"b": {"optimizer_kwargs": {"learning_rate": 1}}}', "the candidate 'b': the arguments", "'lr'"),
    ],
)
def test_key_of_a_size_or_a_candidate(deep5: Command, tmp_path: Path, extra: str, said: str, meant: str) -> None:
    Path(tmp_path, "own.py").write_text(f"{RECIPE % ''}{extra}\n")

    answer = deep5("check", "own.py")

    assert answer.status == 2
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("deep5: own.py:4: ")
    assert said in answer.err
    assert f"did you mean {meant}?" in answer.err


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ('STUDY = {"b": {"epochs": 2}}', "the candidate 'b': 'epochs' is fixed by the recipe"),
        ('STUDY = {"b": {"seed": 2}}', "the candidate 'b' sets 'seed'; allowed: --seeds"),
        ('STUDY = {"b": {3: 2}}', "the candidate 'b' sets 3; allowed: strings as keys"),
        ('STUDY = {"b": 2}', "STUDY is {'b': 2}; allowed: a dict such as"),
        ("STUDY = 3", "STUDY is 3; allowed: a dict such as"),
    ],
)
def test_a_study_that_is_none_is_refused_by_check(deep5: Command, tmp_path: Path, extra: str, said: str) -> None:
    Path(tmp_path, "own.py").write_text(f"{RECIPE % ''}{extra}\n")

    answer = deep5("check", "own.py")

    assert answer.status == 2
    assert answer.err.startswith("deep5: own.py:4: ")
    assert said in answer.err


def test_sizes_and_candidates_that_fit_are_accepted(deep5: Command, tmp_path: Path) -> None:
    sizes = 'SIZES = {"smoke": {"dataset_kwargs": {"limit": 99}, "metrics": [("test_loss", None)]}}'
    study = 'STUDY = {"a": {"optimizer": "momentum", "optimizer_kwargs.momentum": 0.5}, "b": {"threads": 1}}'
    Path(tmp_path, "own.py").write_text(f"{RECIPE % ''}{sizes}\n{study}\n")

    assert deep5("check", "own.py").status == 0
    assert deep5("check", "own.py", "--set", "optimizer=sgd").status == 0
    assert deep5("check", "own.py", "--size", "smoke").status == 0


TAKEN = "is an argument of the optimizers lars, momentum, muon, nesterov, not of"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("momentum=0.9",), f"'momentum' {TAKEN} 'adam'; remedy: "
         "--set optimizer=momentum --set optimizer_kwargs.momentum=0.9"),
        (("optimizer_kwargs.momentum=0.9",), f"allowed: lr, beta1, beta2, epsilon; 'momentum' {TAKEN} 'adam'; remedy: "
         "--set optimizer=momentum --set optimizer_kwargs.momentum=0.9"),
        (("optimizer=sgd", "mometum=0.9"), f"'momentum' {TAKEN} 'sgd'; remedy: --set optimizer=momentum"),
        (("optimizer=sgd", "eps=0.1"), "not of 'sgd'; remedy: --set optimizer=adadelta "
         "--set optimizer_kwargs.epsilon=0.1"),
        (("optimizer_kwargs.clip=1",), "'clip' is an argument of the optimizer adafactor, not of 'adam'; remedy"),
        (("optimizer=sgd", "nesterov=True"), "'nesterov' is an optimizer; remedy: --set optimizer=nesterov\n"),
        (("optimizer_kwargs.weight_decay=1",), "remedy: the key 'weight_decay' of the recipe, which is for every"),
        (("clip=1",), "did you mean 'clip_norm'?"),
        (("initial=1",), "'initial' is an argument of the optimizer adagrad, not of 'adam'"),
    ],
)  # fmt: skip
def test_argument_of_another_optimizer(deep5: Command, tmp_path: Path, settings: tuple[str, ...], said: str) -> None:
    Path(tmp_path, "own.py").write_text(RECIPE % "")

    answer = deep5("check", "own.py", *(word for setting in settings for word in ("--set", setting)))

    assert answer.status == 2
    assert len(answer.err.splitlines()) == 1
    assert said in answer.err


def test_argument_of_another_optimizer_in_a_recipe(deep5: Command, tmp_path: Path) -> None:
    for extra in (', "momentum": 0.9', ', "optimizer_kwargs": {"momentum": 0.9}'):
        Path(tmp_path, "own.py").write_text(RECIPE % extra)
        answer = deep5("check", "own.py")
        assert answer.status == 2
        remedy = "remedy: 'optimizer': 'momentum', 'optimizer_kwargs': {'momentum': 0.9}"
        assert "own.py:2: " in answer.err
        assert f"'momentum' {TAKEN} 'adam'; {remedy}" in answer.err
    fixed = (RECIPE % "").replace(', "optimizer": "adam"', "").replace('"epochs"', '"optimizer": "adam", "epochs"')
    Path(tmp_path, "own.py").write_text(fixed)
    answer = deep5("check", "own.py", "--set", "momentum=0.9")
    assert answer.err.endswith(f"'momentum' {TAKEN} 'adam', which the recipe fixes\n")


def test_a_part_of_a_recipe(deep5: Command, tmp_path: Path) -> None:
    Path(tmp_path, "own.py").write_text((RECIPE % "").replace("METRICS", "METRIC").replace("FIXED", "FIXD"))

    answer = deep5("check", "own.py")

    assert answer.status == 2
    assert "it has 'FIXD': did you mean 'FIXED'?; it has 'METRIC': did you mean 'METRICS'?" in answer.err


@pytest.mark.parametrize(
    ("fixed", "mutable", "meant"),
    [
        ('"model_kwargs": {"dtype": "flot32"}', "", "'float32'"),
        ('"model_kwargs": {"clases": 10}', "", "'classes'"),
        ("", '"optimizer_kwargs": {"learning_rate": 0.1}', "'lr'"),
        ("", '"scheme": "allreduc", "ranks": 2', "'all_reduce'"),
        ("", '"events": ["progres_bar"]', "'progress_bar'"),
        ('"loss": "crossentropy"', "", "'cross_entropy'"),
        ("", '"launcher": "mpiexc", "ranks": 2', "'mpiexec'"),
    ],
)
def test_nested_keys_and_values_of_a_recipe(
    deep5: Command, tmp_path: Path, fixed: str, mutable: str, meant: str
) -> None:
    text = (RECIPE % (f", {mutable}" if mutable else "")).replace('"epochs": 1', f'"epochs": 1, {fixed}')
    Path(tmp_path, "own.py").write_text(text)

    answer = deep5("check", "own.py")

    assert answer.status == 2
    assert len(answer.err.splitlines()) == 1
    assert f"did you mean {meant}?" in answer.err


@pytest.mark.parametrize(
    ("name", "meant"), [("Adm", "Adam"), ("Momentm", "Momentum"), ("test_accuracy", "TestAccuracy")]
)
def test_a_public_name_is_suggested_once(name: str, meant: str) -> None:
    source = f"import deep5\ndeep5.{name}\n"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)

    (last,) = done.stderr.splitlines()[-1:]
    assert last == f"AttributeError: module 'deep5' has no attribute '{name}'; did you mean '{meant}'?"


def test_an_argument_of_what_the_recipe_fixes_is_not_suggested(deep5: Command) -> None:
    answer = deep5("run", "digits_lenet", "--set", "classes=3")

    assert answer.status == 2
    assert "'classes' is an argument of 'model', which the recipe fixes" in answer.err
    assert "did you mean" not in answer.err


def test_a_name_in_another_case_is_preferred_to_a_synonym() -> None:
    assert nearest("Torch", ["pytorch", "torch"]) == "torch"
    assert nearest("NumPy", ["numpy", "reference"]) == "numpy"


@pytest.mark.parametrize(
    ("got", "name", "is_meant"),
    [
        ("nofile.py", "net.py", False),  # the ending is all they share
        ("runs/today/nofile.py", "runs/today/net.py", False),
        ("nets.py", "net.py", True),
        ("runs/nte.py", "runs/net.py", True),
        ("notes.py", "net.py", False),
        ("linear", "lars", False),
        ("fc1.wieght", "fc1.weight", True),
        ("optim", "optimizer", True),
        ("accuracy", "test_accuracy", True),
        ("clip_gradient_norm", "clip_norm", True),
    ],
)
def test_only_a_misspelling_is_suggested(got: str, name: str, is_meant: bool) -> None:
    assert nearest(got, [name]) == (name if is_meant else None)


def test_a_missing_recipe_file_suggests_no_other_file(
    deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("")
    assert "did you mean" not in deep5("run", "nofile.py").err
    assert "did you mean 'net.py'?" in deep5("run", "nte.py").err


def test_synonyms_apply_only_where_their_target_is_allowed() -> None:
    assert suggestion("gpu", ["alpha", "beta"]) == ""
    assert suggestion("gpu", ["cpu", "cuda"]) == "; did you mean 'cuda'?"


def test_synonyms_are_in_lower_case_and_lead_elsewhere() -> None:
    assert all(word == word.casefold() and word not in names for word, names in SYNONYMS.items())
