"""Bad input: a clear message (what, got, allowed or remedy), the right status, and no leftovers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from command import Answer, Command
from deep5.core.errors import NetworkError
from deep5.networks import Network, lenet, lstm, mlp, resnet18_small, transformer

pytestmark = pytest.mark.usefixtures("warm")

RECIPE = """\
import deep5 as d5

FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
    "epochs": 1,
}
MUTABLE = {
    "batch_size": 16,
    "framework": "reference",
    "optimizer": "sgd",
    "optimizer_kwargs": {"lr": 0.1},
}
METRICS = [("test_accuracy", None)]
"""


@dataclass(frozen=True)
class Case:
    """A recipe with one change, or a command line; and the message that deep5 must print.

    Attributes:
        what: Name of the case.
        says: Patterns that standard error matches.
        old: Text of `RECIPE` to replace.
        new: Its replacement.
        line: Line of the file that the message names, or None.
        command: Arguments after `deep5 run`.
        status: Exit status.
        checked: Whether `deep5 check` finds it, too.
        files: Other files, by name.
    """

    what: str
    says: tuple[str, ...]
    old: str = ""
    new: str = ""
    line: int | None = None
    command: tuple[str, ...] = ("own.py",)
    status: int = 2
    checked: bool = True
    files: dict[str, str] = field(default_factory=dict)


def changed(what: str, old: str, new: str, line: int | None, *says: str, status: int = 2, checked: bool = True) -> Case:
    return Case(what, says, old, new, line, status=status, checked=checked)


def called(what: str, command: tuple[str, ...], *says: str, checked: bool = True, status: int = 2) -> Case:
    return Case(what, says, command=command, checked=checked, status=status)


EPOCHS, BATCH, RATE = '"epochs": 1', '"batch_size": 16', '"optimizer_kwargs": {"lr": 0.1}'
OPTIMIZER, FRAMEWORK, METRIC = '"optimizer": "sgd"', '"framework": "reference"', '("test_accuracy", None)'
NUMBER = "allowed: an integer of at least 1"
PAIRS = r"allowed: a list of pairs \(metric, goal\)"

IN_THE_RECIPE = [
    changed("key in both parts", BATCH, f"{BATCH}, {EPOCHS}", 11, "'epochs' is in both FIXED and MUTABLE", "allowed:"),
    changed("unknown key", EPOCHS, f'{EPOCHS}, "colour": 1', 8, "unknown key 'colour' in FIXED", "allowed: model"),
    changed("misspelt key", EPOCHS, '"epocs": 1', 8, "unknown key 'epocs'", "did you mean 'epochs'"),
    changed("misspelt argument key", "model_kwargs", "model_kwarg", 5, "'model_kwarg'", "did you mean 'model_kwargs'"),
    changed(
        "missing key", f"    {EPOCHS},\n", "", None, "the key 'epochs' is missing", "allowed: in FIXED or in MUTABLE"
    ),
    changed(
        "no framework", f"    {FRAMEWORK},\n", "", None, "names none", "allowed: one of 'framework' and 'executor'"
    ),
    changed("two", FRAMEWORK, f'{FRAMEWORK}, "executor": "reference"', 12, "names both", "allowed: one of"),
    changed("key is no text", EPOCHS, "1: 1", 3, "FIXED is {", "allowed: a dict with strings as keys"),
    changed("misspelt model", '"mlp"', '"mlq"', 4, "unknown network 'mlq'; allowed: .*lenet", "did you mean 'mlp'"),
    changed("misspelt data set", '"synthetic"', '"syntetic"', 6, "unknown data set", "did you mean 'synthetic'"),
    changed("misspelt optimizer", '"sgd"', '"sdg"', 13, "unknown optimizer 'sdg'", "did you mean 'sgd'"),
    changed("misspelt framework", '"reference"', '"referense"', 12, "unknown framework", "did you mean 'reference'"),
    changed("misspelt sampler", EPOCHS, f'{EPOCHS}, "train_sampler": "shufle"', 8, "sampler", "did you mean 'shuffle'"),
    changed("misspelt event", BATCH, f'{BATCH}, "events": ["progresbar"]', 11, "event", "did you mean 'progress_bar'"),
    changed(
        "misspelt metric", '"test_accuracy"', '"test_acuracy"', 16, "unknown metric", "did you mean 'test_accuracy'"
    ),
    changed("misspelt argument", '"lr": 0.1', '"rl": 0.1', 14, "unexpected keyword argument 'rl'", r"allowed: lr\b"),
    changed(
        "misspelt model argument",
        '"hidden"',
        '"hiden"',
        5,
        "'hiden'",
        r"allowed: features, hidden",
        "did you mean 'hidden'",
    ),
    changed("too many arguments", RATE, '"optimizer_args": (1, 2, 3)', 14, "too many positional", r"allowed: lr\b"),
    changed(
        "goal is no goal", METRIC, '("test_accuracy", "good")', 16, "goal 'good'.*cannot be read", "allowed: a number"
    ),
    changed("goal wrong way", METRIC, '("test_accuracy", "< 97")', 16, "points the wrong way", "use '>' or '>='"),
    changed("goal in another unit", METRIC, '("test_accuracy", "> 97 s")', 16, "is in 's'; allowed: '%'"),
    changed("goal is infinite", METRIC, '("test_accuracy", float("inf"))', 16, "goal inf .*is not finite", "allowed:"),
    changed("goal is huge", METRIC, '("test_accuracy", 10**400)', 16, "goal 10+.* is not finite", "allowed:"),
    changed("goal is a truth", METRIC, '("test_accuracy", True)', 16, "goal True .*of type bool", "allowed: a number"),
    changed("metrics no list", f"[{METRIC}]", '"test_accuracy"', 16, "METRICS is 'test_accuracy'", PAIRS),
    changed("metric no pair", METRIC, '"test_accuracy"', 16, "METRICS holds 'test_accuracy'", PAIRS),
    changed("metric no metric", METRIC, "(3, None)", 16, "METRICS holds 3 as a metric", "allowed: a metric's name"),
    changed(
        "metric needs more", METRIC, '("time_to_accuracy", None)', 16, "cannot be created.*target", "remedy: give it as"
    ),
    changed("metric refuses", METRIC, "(d5.TimeToAccuracy(0), 1)", 16, "target 0; allowed: a number above 0"),
    changed("metric twice", METRIC, f"{METRIC}, {METRIC}", 16, "METRICS holds TestAccuracy.* twice; allowed: once"),
    changed("epochs in words", EPOCHS, '"epochs": "ten"', 8, "'epochs' is 'ten'", NUMBER),
    changed("no epochs", EPOCHS, '"epochs": 0', 8, "'epochs' is 0", NUMBER),
    changed("epochs without end", EPOCHS, '"epochs": 10**100', 8, "'epochs' is 1000000000", NUMBER),
    changed("half an epoch", EPOCHS, '"epochs": 0.5', 8, "'epochs' is 0.5", NUMBER),
    changed("batch size a truth", BATCH, '"batch_size": True', 11, "'batch_size' is True", NUMBER),
    changed("batch too large", BATCH, '"batch_size": 61', 11, "'batch_size' is 61; allowed: at most 60", checked=False),
    changed("seed below zero", BATCH, f'{BATCH}, "seed": -1', 11, "'seed' is -1; allowed: an integer of at least 0"),
    changed("no such device", BATCH, f'{BATCH}, "device": "tpu"', 11, "unknown device 'tpu'; allowed: cpu, cuda"),
    changed("device a number", BATCH, f'{BATCH}, "device": 1', 11, "unknown device 1; allowed: cpu, cuda"),
    changed("model a number", '"mlp"', "3", 4, "'model' is 3; allowed: the name of a component"),
    changed("model nothing", '"mlp"', "None", 4, "'model' is None; allowed: the name of a component"),
    changed(
        "arguments no tuple", RATE, '"optimizer_args": 0.1', 14, "'optimizer_args' is 0.1; allowed: a tuple or list"
    ),
    changed("keywords no dict", RATE, '"optimizer_kwargs": [1]', 14, r"'optimizer_kwargs' is \[1\]; allowed: a dict"),
    changed(
        "keyword no text", RATE, '"optimizer_kwargs": {1: 1}', 14, r"'optimizer_kwargs' is \{1: 1\}; allowed: a dict"
    ),
    changed("fixed no dict", "FIXED = {", "FIXED = 3\nOTHER = {", 3, "FIXED is 3; allowed: a dict"),
    changed("no FIXED", "FIXED", "FIX", None, "no FIXED; allowed: a file that defines FIXED, MUTABLE, METRICS"),
    changed("nothing", RECIPE, "", None, "no FIXED and no MUTABLE and no METRICS; allowed: a file that defines"),
    changed("sizes no dict", "METRICS", "SIZES = 3\nMETRICS", 16, "SIZES is 3; allowed: a dict"),
    changed("size no dict", "METRICS", "SIZES = {'s': 3}\nMETRICS", 16, "the size 's' is 3; allowed: a dict"),
    changed(
        "size full", "METRICS", "SIZES = {'full': {}}\nMETRICS", 16, "names the size 'full'; allowed: a string other"
    ),
    changed(
        "size key", "METRICS", "SIZES = {'s':\n {'epocs': 1}}\nMETRICS", 17, "unknown key 'epocs'", "mean 'epochs'"
    ),
    changed("not Python", "FIXED = {", "FIXED = = {", 3, "not valid Python: invalid syntax", "allowed: a Python file"),
    changed("binary", "FIXED", "\0", None, "not valid Python", "allowed: a Python file"),
    changed(
        "raises", "FIXED =", "1 / 0\nFIXED =", 3, "the recipe raised ZeroDivisionError: division by zero", "remedy:"
    ),
    changed("exits", "FIXED =", "exit(1)\nFIXED =", 3, r"called exit\(1\) while it was read; .*remedy: put"),
    changed(
        "imports what is missing",
        "FIXED =",
        "import sklearm\nFIXED =",
        3,
        "'sklearm'.*remedy: check the spelling, put sklearm.py beside",
    ),
    changed("misspelt d5 name", "FIXED =", "d5.Trainr\nFIXED =", 3, "no attribute 'Trainr'", "did you mean 'Trainer'"),
    changed("lambda in FIXED", '"mlp"', "lambda: 1", 4, "'model' holds a lambda", "remedy: define a function"),
    changed(
        "undescribed", EPOCHS, f'{EPOCHS}, "events": [object()]', 8, "holds a object.*no canonical form", "remedy:"
    ),
    changed("object with arguments", '"sgd"', "d5.Adam()", 13, "is an object already; allowed: no optimizer_args"),
    changed(
        "no optimizer", OPTIMIZER, '"optimizer": dict', 13, "gives a dict; allowed: a d5.UpdateRule", checked=False
    ),
    changed("no network", '"mlp"', "dict", 4, "'model' gives a dict; allowed: a d5.Network", checked=False),
    changed(
        "no event", BATCH, f'{BATCH}, "events": dict', 11, "'events' gives a dict; allowed: d5.Event", checked=False
    ),
    changed("misspelt native", '"sgd"', '"native:sgd"', 13, "unknown native optimizer of reference", checked=False),
    changed(
        "data of another shape", '"shape": (4,)', '"shape": (5,)', 6, "do not fit.*the network takes", checked=False
    ),
    changed("bad value", '"train": 60', '"train": -3', 6, "'dataset': ", "allowed: ", checked=False),
    changed("optimizer file missing", '"sgd"', '"gone.py:Foo"', 13, "gone.py.*cannot be read", "allowed: FILE.py:NAME"),
]

ON_THE_COMMAND_LINE = [
    called("no recipe", (), "(no RECIPE is given; allowed|Missing argument 'RECIPE')"),
    called("misspelt recipe", ("digits_lennet",), "unknown recipe 'digits_lennet'", "did you mean 'digits_lenet'"),
    called("missing file", ("gone.py",), "the recipe file gone.py is not there; allowed: .*digits_lenet"),
    called("folder", (".",), "the recipe . is a folder; allowed: .*the path of a Python file"),
    called("misspelt size", ("digits_lenet", "--size", "smok"), "no size 'smok'; allowed: full, smoke", "mean 'smoke'"),
    called(
        "no equals sign", ("own.py", "--set", "batch_size"), "cannot read the setting 'batch_size'; allowed: KEY=VALUE"
    ),
    called("unknown setting", ("own.py", "--set", "batch=3"), "unknown key 'batch'; allowed: .*batch_size"),
    called("fixed setting", ("own.py", "--set", "epochs=3"), "'epochs' is fixed by the recipe 'own'", "remedy: copy"),
    called("fixed entry", ("own.py", "--set", "model_kwargs.hidden=3"), "'model_kwargs' is fixed", "remedy: copy"),
    called("set twice", ("own.py", "--set", "seed=1", "--set", "seed=2"), "--set seed is given twice; allowed: once"),
    called("set two ways", ("own.py", "--seed", "1", "--set", "seed=2"), "both given; allowed: one of them"),
    called("wrong type", ("own.py", "--set", "batch_size=ten"), "'batch_size' is 'ten'", NUMBER),
    called("seed below zero", ("own.py", "--seed", "-1"), "Invalid value for '--seed'"),
    called("unknown option", ("own.py", "--sed", "1"), "No such option.*--seed"),
    called("no such device", ("own.py", "--device", "tpu"), "unknown device 'tpu'; allowed: cpu, cuda"),
    called("misspelt framework", ("own.py", "--framework", "torhc"), "unknown framework 'torhc'; allowed: .*pytorch"),
    called("misspelt argument", ("own.py", "--set", "optimizer_kwargs.rl=1"), "argument 'rl'", r"allowed: lr\b"),
    called(
        "no such file", ("own.py", "--set", "optimizer=gone.py:Foo"), "gone.py.*cannot be read", "allowed: FILE.py:NAME"
    ),
    called(
        "device not there",
        ("own.py", "--device", "cuda"),
        "does not run on device 'cuda:0'; allowed: cpu",
        checked=False,
    ),
    called(
        "no cuda",
        ("own.py", "--framework", "pytorch", "--device", "cuda:99"),
        "no device cuda:99 for pytorch here; allowed: cpu",
        checked=False,
    ),
]

RULE = """\
import deep5 as d5

class Nothing(d5.UpdateRule):
    pass

class Raising(d5.UpdateRule):
    def update_rule(self, grad, param, state):
        return param - {}["lr"], state

class Other:
    pass

def odd(seed=0):
    build = d5.NetworkBuilder("odd", seed=seed)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("LpNormalization", x, axis=1, p=3)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})
"""

WITH_FILES = [
    Case(
        "rule without update_rule",
        ("own.py:13: .optimizer.: Nothing has no update_rule; remedy: define update_rule",),
        *('"sgd"', '"rule.py:Nothing"'),
    ),
    Case("rule that raises", ("own.py:13: .*KeyError: 'lr'",), '"sgd"', '"rule.py:Raising"'),
    Case(
        "name not in the file",
        ("rule.py has no 'Nothin'; allowed: Nothing, Raising, Other, odd; did you mean 'Nothing'",),
        *('"sgd"', '"rule.py:Nothin"'),
    ),
    Case(
        "no rule at all",
        ("own.py:13: 'optimizer' gives a Other; allowed: a d5.UpdateRule",),
        *('"sgd"', '"rule.py:Other"'),
        checked=False,
    ),
]


def check(case: Case, answer: Answer, folder: Path) -> None:
    assert answer.status == case.status, answer
    for pattern in case.says:
        assert re.search(pattern, answer.err, re.DOTALL), answer.err
    if case.line is not None:
        assert f"own.py:{case.line}: " in answer.err
    assert "Traceback" not in answer.err
    assert len(answer.err.splitlines()) <= 3
    assert answer.out == ""
    assert not (folder / "results").exists()


def run_case(case: Case, deep5: Command, folder: Path) -> None:
    assert case.old in RECIPE, "the case changes nothing"
    text = RECIPE.replace(case.old, case.new, 1) if case.old else RECIPE
    (folder / "own.py").write_text(text, encoding="utf-8")
    if case.checked:
        check(case, deep5("check", *case.command), folder)
    check(case, deep5("run", *case.command), folder)


@pytest.mark.parametrize("case", IN_THE_RECIPE, ids=lambda case: case.what)
def test_recipe(case: Case, deep5: Command, tmp_path: Path) -> None:
    run_case(case, deep5, tmp_path)


@pytest.mark.parametrize("case", ON_THE_COMMAND_LINE, ids=lambda case: case.what)
def test_command_line(case: Case, deep5: Command, tmp_path: Path) -> None:
    run_case(case, deep5, tmp_path)


@pytest.mark.parametrize("case", WITH_FILES, ids=lambda case: case.what)
def test_component_files(case: Case, deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    # Read without arguments: none of these components takes any.
    text = RECIPE.replace('    "optimizer_kwargs": {"lr": 0.1},\n', "")
    assert case.old in text
    (tmp_path / "own.py").write_text(text.replace(case.old, case.new, 1))
    for command in ("check", "run") if case.checked else ("run",):
        check(case, deep5(command, "own.py"), tmp_path)


def test_the_case_that_is_not_bad(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE)
    assert deep5("check", "own.py").status == 0
    answer = deep5("run", "own.py", "--quiet")
    assert (answer.status, answer.out, answer.err) == (0, "", "")
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_operator_that_the_framework_lacks(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    text = RECIPE.replace('"mlp"', '"rule.py:odd"').replace(
        '    "model_kwargs": {"features": 4, "hidden": 8, "classes": 3},\n', ""
    )
    (tmp_path / "own.py").write_text(text)
    answer = deep5("run", "own.py")
    check(
        Case("", (r"own.py:11: 'framework': reference cannot run .*LpNormalization.*got p=3; allowed: 1, 2",)),
        answer,
        tmp_path,
    )


@pytest.mark.parametrize("out", ["file/results", "file"])
def test_out_folder_below_a_file(out: str, deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE)
    (tmp_path / "file").write_text("kept")
    case = Case("", ("cannot write results to .*file.*; allowed: a writable folder; .*--out",))
    check(case, deep5("run", "own.py", "--out", out), tmp_path)
    assert (tmp_path / "file").read_text() == "kept"


def test_out_folder_without_permission(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(RECIPE)

    def refuse(self: Path, *arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")  # simulated: the superuser may write everywhere

    monkeypatch.setattr(Path, "mkdir", refuse)
    case = Case(
        "", ("cannot write results to .*results: Permission denied; allowed: .*; remedy: grant yourself write",)
    )
    check(case, deep5("run", "own.py"), tmp_path)


def test_a_file_that_cannot_be_read(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(RECIPE)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    case = Case("", (r"own.py cannot be read \(Permission denied\); allowed: a Python file that you may read",))
    check(case, deep5("check", "own.py"), tmp_path)


# Models


def model(*nodes: Any, opset: int = 20, ir_version: int = 10, **initial: np.ndarray) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=f"{op_type}_{outputs}", **attributes)


def product() -> Any:
    return model(node("MatMul", "x w", "y"), w=np.ones((3, 3), np.float32))


def with_tensor(change: Callable[[Any], object]) -> Any:
    proto = product()
    change(proto.graph.initializer[0])
    return proto


def with_graph(change: Callable[[Any], object]) -> Any:
    proto = product()
    change(proto.graph)
    return proto


def recursive() -> Any:
    proto = model(node("F", "x", "y", domain="my"))
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    proto.functions.append(helper.make_function("my", "F", ["a"], ["b"], [node("F", "a", "b", domain="my")], imports))
    return proto


def sparse(graph: Any) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([9]), "s_indices"), [9])
    )


def nameless(*nodes: tuple[str, str, str]) -> Any:
    proto = model(*(node(*given) for given in nodes))
    for own in proto.graph.node:
        own.ClearField("name")
    return proto


def set_type(value: Any, kind: int) -> None:
    value.type.tensor_type.elem_type = kind


NEWEST, NEWEST_IR = onnx.defs.onnx_opset_version(), onnx.IR_VERSION


def sequence_of(kind: onnx.TypeProto) -> onnx.TypeProto:
    return helper.make_sequence_type_proto(kind)


BAD_MODELS: dict[str, tuple[Any, str]] = {
    "cycle": (
        model(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")),
        r"nodes feed themselves: 'Add_a' \(Add\) <- 'Relu_b' \(Relu\) <- 'Add_a' \(Add\); allowed: a graph without",
    ),
    "unsorted": (
        model(node("Relu", "a", "y"), node("Tanh", "x", "a")),
        r"the node 'Relu_y' \(Relu\) reads 'a', which nothing before it computes; allowed: inputs, .*; "
        r"remedy: put the node 'Tanh_a' \(Tanh\) before it",
    ),
    "undefined": (
        with_graph(lambda graph: graph.initializer.pop()),
        r"the node 'MatMul_y' \(MatMul\) reads 'w', which nothing",
    ),
    "opset from the future": (
        model(node("Relu", "x", "y"), opset=NEWEST + 1),
        f"is written in opset {NEWEST + 1}; allowed: up to {NEWEST}, .*; remedy: a newer onnx",
    ),
    "IR from the future": (
        model(node("Relu", "x", "y"), ir_version=NEWEST_IR + 1),
        f"has IR version {NEWEST_IR + 1}; allowed: up to {NEWEST_IR}, .*; remedy: a newer onnx",
    ),
    "Scan with a batch": (
        model(node("Scan", " x", "y", num_scan_inputs=1, body=model(node("Relu", "x", "y")).graph), opset=8),
        "Scan|input size",
    ),
    "nothing": (onnx.ModelProto(), "is not valid ONNX: it holds no graph with an output"),
    "unknown operator": (model(node("Rellu", "x", "y")), "No Op registered for Rellu"),
    "recursive function": (recursive(), "the function 'my.F' calls itself"),
    "name computed twice": (model(node("Relu", "x", "y"), node("Tanh", "x", "y")), "'y' has been used as output names"),
    "input twice": (with_graph(lambda graph: graph.input.append(graph.input[0])), "'x' has been used as graph input"),
    "initial value twice": (
        with_graph(lambda graph: graph.initializer.append(graph.initializer[0])),
        "2 initial values are named 'w'; allowed: one",
    ),
    "initial value without a name": (
        with_tensor(lambda tensor: tensor.ClearField("name")),
        "has an initial value without a name; remedy: name every",
    ),
    "no data": (with_tensor(lambda tensor: tensor.ClearField("raw_data")), "'w'.*one and only one value field"),
    "too few bytes": (with_tensor(lambda tensor: setattr(tensor, "raw_data", b"1234")), r"'w'.*4 bytes.* is too small"),
    "too many bytes": (
        with_tensor(lambda tensor: setattr(tensor, "raw_data", bytes(40))),
        r"the initial value 'w' has 40 bytes; allowed: 36, as its shape \[3, 3\] says",
    ),
    "negative extent": (with_tensor(lambda tensor: tensor.dims.__setitem__(0, -3)), "the initial value 'w'"),
    "unknown element type": (with_tensor(lambda tensor: setattr(tensor, "data_type", 77)), "the initial value 'w'"),
    "sparse": (with_graph(sparse), "the value 's' is sparse and not valid ONNX: .*index"),
    "input without a shape": (
        with_graph(lambda graph: graph.input[0].type.tensor_type.ClearField("shape")),
        "the input 'x' has no shape; remedy: declare it",
    ),
    "external in memory": (
        with_tensor(lambda tensor: onnx.external_data_helper.set_external_data(tensor, "w.bin")),
        r"'w' lies in the file 'w\.bin', but a model in memory has no folder; remedy: give the path",
    ),
    "nodes without names": (
        nameless(("Relu", "a", "y"), ("Tanh", "x", "a")),
        r"the node that computes 'y' \(Relu\) reads 'a', .*; remedy: put the node that computes 'a' \(Tanh\) before it",
    ),
    "cycle without names": (
        nameless(("Add", "x b", "a"), ("Relu", "a", "b"), ("Relu", "b", "y")),
        r"nodes feed themselves: 'a' \(Add\) <- 'b' \(Relu\) <- 'a' \(Add\); allowed",
    ),
    "complex input": (
        with_graph(lambda graph: set_type(graph.input[0], TensorProto.COMPLEX64)),
        "the input 'x' holds COMPLEX64; allowed: BOOL, FLOAT16",
    ),
    "sequence of sequences": (
        with_graph(lambda graph: graph.input[0].type.CopyFrom(sequence_of(sequence_of(graph.input[0].type)))),
        "the input 'x' is a sequence; allowed: an array, a sequence of arrays, or one of them optionally",
    ),
    "map": (
        with_graph(lambda graph: graph.input[0].type.map_type.SetInParent()),
        "the input 'x' is a map; allowed: an array",
    ),
    "sequence of complex numbers": (
        with_graph(lambda graph: graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", 14, ["N", 3]))),
        "the input 'x' holds COMPLEX64; allowed: BOOL, FLOAT16",
    ),
    "shapes that do not fit": (with_tensor(lambda tensor: tensor.dims.__setitem__(slice(None), [9, 1])), "MatMul"),
}


def test_an_empty_model_file(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    remedy = "remedy: export it, or download it, again"
    with pytest.raises(
        NetworkError, match=rf"^the file .*net\.onnx is empty; allowed: a complete ONNX file; {remedy}$"
    ):
        Network.from_onnx(tmp_path / "net.onnx")


@pytest.mark.parametrize("what", BAD_MODELS)
def test_model(what: str) -> None:
    proto, message = BAD_MODELS[what]
    with pytest.raises(NetworkError, match=message) as caught:
        Network.from_onnx(proto)
    assert str(caught.value).startswith("the model")
    assert "\n" not in str(caught.value)


def outside(folder: Path, location: str, **where: int) -> Path:
    """A model in `folder/inside` whose weight claims to be at `location`; `folder/secret.bin` holds one."""
    (folder / "inside").mkdir()
    (folder / "secret.bin").write_bytes(np.ones(9, np.float32).tobytes())
    proto = product()
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], location, **where)
    proto.graph.initializer[0].ClearField("raw_data")
    path = folder / "inside" / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../secret.bin", "{}/secret.bin", "sub/../../secret.bin"])
def test_external_weights_outside_the_folder(location: str, tmp_path: Path) -> None:
    path = outside(tmp_path, location.format(tmp_path))
    with pytest.raises(
        NetworkError, match=r"m\.onnx: the initial value 'w' lies in .*secret\.bin'; allowed: a file in"
    ):
        Network.from_onnx(path)


def test_external_weights_behind_a_link(tmp_path: Path) -> None:
    path = outside(tmp_path, "link.bin")
    link = path.parent / "link.bin"
    link.symlink_to(tmp_path / "secret.bin")
    with pytest.raises(
        NetworkError, match=r"'w' lies in .*link\.bin, which leads to .*secret\.bin; allowed: a file in"
    ):
        Network.from_onnx(path)
    link.unlink()
    os.link(tmp_path / "secret.bin", link)
    with pytest.raises(NetworkError, match=r"'w' lies in .*link\.bin, a file with 2 names; allowed: one; remedy: copy"):
        Network.from_onnx(path)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"offset": 4}, r"at offset 4 of .*own\.bin, length None; allowed: 36 bytes, .* within the file's 36"),
        ({"length": 20}, r"at offset 0 of .*own\.bin, length 20; allowed: 36 bytes"),
        ({"offset": 1 << 62}, r"at offset 4611686018427387904 of"),
    ],
)
def test_external_weights_that_are_too_short(where: dict[str, int], message: str, tmp_path: Path) -> None:
    path = outside(tmp_path, "own.bin", **where)
    with pytest.raises(NetworkError, match=r"'w' lies in .*own\.bin, which is not there; remedy: put the file beside"):
        Network.from_onnx(path)
    (tmp_path / "secret.bin").rename(path.parent / "own.bin")
    with pytest.raises(NetworkError, match=message):
        Network.from_onnx(path)


def test_external_weights_at_no_place(tmp_path: Path) -> None:
    path = outside(tmp_path, "own.bin", offset=-4)
    with pytest.raises(
        NetworkError, match=r"'w' lies at location 'own\.bin', offset '-4'; allowed: a location, and integers"
    ):
        Network.from_onnx(path)


def small_networks() -> list[bytes]:
    networks = (
        mlp(features=3, hidden=2, classes=2, dropout=0.1),
        lstm(features=2, hidden=2, length=3, classes=2),
        transformer(vocabulary=5, length=4, width=4, heads=2, layers=1, classes=2),
        resnet18_small(width=1, image=8, classes=2),
    )
    return [network.to_onnx().SerializeToString() for network in networks]


@pytest.mark.parametrize("name", ["mlp", "lenet", "transformer"])
def test_files_cut_short(name: str, tmp_path: Path) -> None:
    network = {
        "mlp": lambda: mlp(features=3, hidden=2, classes=2, dropout=0.1),
        "lenet": lambda: lenet(classes=2),
        "transformer": lambda: transformer(vocabulary=5, length=4, width=4, heads=2, layers=1, classes=2),
    }[name]()
    path, data = tmp_path / "short.onnx", network.to_onnx().SerializeToString()
    for length in range(0, len(data), max(7, len(data) // 60)):
        path.write_bytes(data[:length])
        with pytest.raises(NetworkError, match=r"short\.onnx (is empty|cannot be read as ONNX|is not valid)") as caught:
            Network.from_onnx(path)
        assert "\n" not in str(caught.value)


def test_files_with_wrong_bits_are_refused_or_read(tmp_path: Path) -> None:
    """Any file is either a network or refused; no other exception is raised, and the process survives."""
    draw, path, messages = np.random.default_rng(0), tmp_path / "flipped.onnx", []
    files = small_networks()
    for turn in range(240):
        data = bytearray(files[turn % len(files)])
        for _ in range(draw.integers(1, 4)):
            data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        path.write_bytes(data)
        try:
            network = Network.from_onnx(path)
            messages.append("")
        except NetworkError as error:
            messages.append(str(error))
            continue
        network.structure_hash()
        network.weights_hash()
    assert not any("\n" in message for message in messages)
    # Most bits belong to weights and names, where a flip is no error, or to the structure: both must occur.
    assert 10 < messages.count("") < 230


RUN = """
import sys, traceback
from pathlib import Path
import numpy as np
import deep5 as d5
from deep5.core.errors import Deep5Error

framework = d5.framework(sys.argv[1])
framework.executor(d5.networks.mlp(features=2, hidden=2)).inference(
    {"input": np.ones((1, 2), np.float32), "label": np.zeros(1, np.int64)}
)
for path in sorted(Path(sys.argv[2]).iterdir()):
    print(path.name, end=" ", flush=True)
    try:
        network = d5.Network.from_onnx(path)
        shapes = {key: [2 if isinstance(e, str) else e for e in spec.shape] for key, spec in network.inputs.items()}
        if max(np.prod(shape, dtype=float) for shape in shapes.values()) > 1e6:
            print("large")
            continue
        given = {key: np.ones(shape, network.inputs[key].dtype) for key, shape in shapes.items()}
        outputs = framework.executor(network).inference(given)
        [d5.to_numpy(value) for value in outputs.values()]
        print("result")
    except Deep5Error as error:
        print("refused")
    except BaseException as error:
        print("raw", repr(error)[:300].replace("\\n", " "), traceback.extract_tb(error.__traceback__)[-1])
"""


@pytest.mark.daily
@pytest.mark.parametrize(
    ("engine", "turns"),
    [
        *((engine, 40) for engine in ("reference", "pytorch", "onnxruntime")),
        *(pytest.param(engine, 240, marks=pytest.mark.slow) for engine in ("reference", "pytorch", "onnxruntime")),
    ],
)
def test_files_with_wrong_bits_that_are_read_run_or_are_refused(engine: str, turns: int, tmp_path: Path) -> None:
    """An accepted file gives a result or a deep5 error; the interpreter survives all of them."""
    draw, files = np.random.default_rng(0), small_networks()
    for turn in range(turns):
        data = bytearray(files[turn % len(files)])
        for _ in range(draw.integers(1, 4)):
            data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        (tmp_path / f"{turn:03}.onnx").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", RUN, engine, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    answers = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    assert (done.returncode, len(answers)) == (0, turns), done.stdout[-300:] + done.stderr[-2000:]
    assert not [answer for answer in answers if answer not in {"result", "refused", "large"}]
    assert answers.count("result") > turns / 10
    assert answers.count("refused") > turns / 10
