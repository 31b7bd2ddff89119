"""`deep5 check optimizer`: a correct user-defined optimizer passes, and each wrong one is caught by its check."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from click.testing import CliRunner

from deep5.cli.check_optimizer import optimizer_command
from deep5.cli.errors import errors
from deep5.core.errors import UnknownName, UsageError
from deep5.core.plugins import registered
from deep5.run.check_optimizer import check_optimizer
from deep5.training.optimizer_report import OptimizerReport

HEAD = """
import numpy as np
import deep5 as d5
"""
RULE = """
class Own(d5.UpdateRule):
    hyper = ("lr", "decay")

    def __init__(self, lr=0.1, decay=0.9):
        self.lr, self.decay = lr, decay

    def init_state(self, param):
        return {"m": d5.array_namespace(param).zeros_like(param)}

    def update_rule(self, grad, param, state):
        m = self.decay * state["m"] + grad
        return param - self.lr * m, {"m": m}
"""
STEP = """
class Own:
    hyper = ("lr",)

    def __init__(self, lr=0.1, decay=0.9):
        self.lr, self.decay = lr, decay

    def set_hyper(self, name, value):
        self.lr = value

    def bind(self, executor):
        self.executor = executor
        self.m = {name: np.zeros(spec.shape, spec.dtype) for name, spec in executor.network.parameter_specs.items()}

    def step(self, inputs, info):
        outputs = self.executor.inference_and_backprop(inputs, info=info)
        for name, gradient in self.executor.gradients().items():
            self.m[name] = self.decay * self.m[name] + d5.to_numpy(gradient)
            now = np.empty(self.m[name].size, self.m[name].dtype)
            self.executor.read([name], now)
            self.executor.write([name], now - self.lr * self.m[name].reshape(-1))
        return outputs

    def state_dict(self):
        return {name: value.copy() for name, value in self.m.items()}

    def load_state_dict(self, state):
        if state.keys() != self.m.keys():
            raise d5.ShapeError(f"got {sorted(state)}, expected {sorted(self.m)}")
        self.m = {name: np.array(value) for name, value in state.items()}
"""


def written(folder: Path, *parts: str) -> str:
    file = folder / "own.py"
    file.write_text("\n".join([HEAD, *map(dedent, parts)]))
    return f"{file}:Own"


def changed(source: str, method: str, body: str) -> str:
    """The source of the class with another method."""
    own = f"class Own(Own):\n{indent(dedent(body), '    ')}"
    assert f"def {method}(" in own
    return source + "\n\n" + own


def checked(folder: Path, source: str, **options: Any) -> OptimizerReport:
    return check_optimizer(written(folder, source), framework_name="reference", **options)


def failed(report: OptimizerReport) -> dict[str, str]:
    return {row.check: row.note for row in report.failures}


@pytest.mark.parametrize(("source", "kind"), [(RULE, "update rule"), (STEP, "step optimizer")])
def test_an_optimizer_of_one_s_own_passes(source: str, kind: str, tmp_path: Path) -> None:
    report = check_optimizer(written(tmp_path, source), framework_name="pytorch", settings=["lr=0.2", "decay=0.5"])
    assert report, report.story()
    assert report.kind == kind
    done = {row.check for row in report.rows if row.verdict == "passed"}
    assert {"resumed on reference, the same bits", "resumed on pytorch, the same bits"} <= done
    assert "training on pytorch against reference, float64" in done
    assert "convex problem" in " ".join(done)
    if kind == "update rule":
        assert {"hyperparameter lr", "hyperparameter decay", "groups and gradient_modifier on pytorch"} <= done


@pytest.mark.slow
@pytest.mark.parametrize("source", [RULE, STEP])
def test_every_framework_is_tried(source: str, tmp_path: Path) -> None:
    report = check_optimizer(written(tmp_path, source))
    assert report, report.story()
    told = " ".join(row.check for row in report.rows if row.verdict == "passed")
    for name in ("jax", "onnxruntime", "pytorch", "tensorflow"):
        assert f"training on {name} against reference, float" in told
        assert f"resumed on {name}" in told


RULES = {
    "state kept in the object": (
        "update_rule",
        """
        kept = {}
        def update_rule(self, grad, param, state):
            self.kept["n"] = self.kept.get("n", 0) + 1
            return param - self.lr * self.kept["n"] * grad, state
        """,
        "traced",
        "two traces of Own differ: the new parameter has the constant 1.0 in one and 2.0 in the other",
    ),
    "hyperparameter baked in": (
        "__init__",
        """
        def __init__(self, lr=0.1, decay=0.9):
            self.lr, self.decay = lr, decay
            self.rate = lambda: lr
        def update_rule(self, grad, param, state):
            return param - self.rate() * grad * (1 + 0 * self.decay), state
        """,
        "hyperparameter lr",
        "a value computed from it was kept",
    ),
    "in-place mutation": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            m = state["m"]
            m *= self.decay
            m += grad
            return param - self.lr * m, {"m": m}
        """,
        "kernel against the rule under array_api_strict",
        "changed its argument 'state' in place",
    ),
    "wrong scope": (
        "update_rule",
        """
        scope = "tensor"
        def sums(self, grad, param, state):
            xp = d5.array_namespace(param)
            return {"count": xp.sum(xp.ones_like(grad)), "total": xp.sum(grad * grad)}
        def init_state(self, param):
            return {"seen": d5.array_namespace(param).zeros((), dtype=param.dtype)}
        steps = {"of": 0}
        def update_rule(self, grad, param, state):
            seen = state["seen"] + self.total
            return param - self.lr * self.decay * grad / (1 + seen), {"seen": seen * 1.5 - 0.5 * self.count}
        def new_input(self, info):
            return {}
        def prepare_param(self, param, state):
            self.steps["of"] += 1
            return param + 0.01 * (self.steps["of"] % 5)
        """,
        "traced",
        "two traces of Own differ: the gradient's point has the constant 0.01 in one and 0.02 in the other",
    ),
    "NaN where the gradient is zero": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            m = self.decay * state["m"] + grad
            return param - self.lr * m / abs(m), {"m": m}
        """,
        "gradients of zero",
        "nan where the gradient is zero from the first step on",
    ),
    "other numbers for NumPy": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            m = self.decay * state["m"] + grad
            scale = 2 if isinstance(param, np.ndarray) else 1
            return param - self.lr * scale * m, {"m": m}
        """,
        "traced",
        "an update rule decided by the type of an array or hyperparameter",
    ),
    "uphill": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            m = self.decay * state["m"] + grad
            return param + self.lr * m, {"m": m}
        """,
        "convex problem, 400 steps",
        "of its initial value; allowed: below 1",
    ),
    "a hyperparameter that does nothing": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            m = 0.9 * state["m"] + grad
            return param - self.lr * m, {"m": m}
        """,
        "hyperparameter decay",
        "Own.decay has no effect",
    ),
    "a state that is never kept": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            m = self.decay * state["m"] + grad
            return param - self.lr * m, {"m": state["m"]}
        """,
        "states",
        "the state 'm' of Own is never changed",
    ),
    "no trace": (
        "update_rule",
        """
        def update_rule(self, grad, param, state):
            return param - self.lr * np.clip(grad, -1, 1), state
        """,
        "traced",
        "an update rule used '.clip' of an array",
    ),
}


def test_a_state_that_stays_the_parameter_s_beginning_is_right(tmp_path: Path) -> None:
    body = """
    def init_state(self, param):
        return {"m": d5.array_namespace(param).zeros_like(param), "first": param}
    def update_rule(self, grad, param, state):
        m = self.decay * state["m"] + grad + 0.001 * (param - state["first"])
        return param - self.lr * m, {"m": m, "first": state["first"]}
    """
    report = checked(tmp_path, changed(RULE, "init_state", body))
    assert {row.check: row.verdict for row in report.rows}["states"] == "passed"


@pytest.mark.parametrize("name", RULES)
def test_a_wrong_rule_is_caught(name: str, tmp_path: Path) -> None:
    method, body, check, told = RULES[name]
    found = failed(checked(tmp_path, changed(RULE, method, body)))
    assert check in found, found
    assert told in found[check]


STEPS = {
    "state forgotten": (
        "state_dict",
        """
        def state_dict(self):
            return {}
        def load_state_dict(self, state):
            pass
        """,
        "resumed on reference, the same bits",
        "differs after a resume from a run that never stopped",
    ),
    "state not restored": (
        "load_state_dict",
        """
        def load_state_dict(self, state):
            pass
        """,
        "resumed on reference, the same bits",
        "load_state_dict() restores it",
    ),
    "state handed out itself": (
        "state_dict",
        """
        def state_dict(self):
            return self.m
        def step(self, inputs, info):
            before = {name: value.copy() for name, value in self.m.items()}
            held = self.m
            outputs = super().step(inputs, info)
            for name in held:
                held[name][...] = self.m[name]
            return outputs
        """,
        "resumed on reference, the same bits",
        "that later steps changed; allowed: copies",
    ),
    "state that no checkpoint holds": (
        "state_dict",
        """
        def state_dict(self):
            return {**super().state_dict(), "seen": {1, 2}}
        """,
        "resumed on reference, the same bits",
        "gave 'seen' as set; allowed: NumPy arrays and JSON types",
    ),
    "half a state taken": (
        "load_state_dict",
        """
        def load_state_dict(self, state):
            self.m.update({name: np.array(value) for name, value in state.items()})
        """,
        "resumed on reference, the same bits",
        "load_state_dict() took a state without 'fc1.weight'",
    ),
    "random": (
        "step",
        """
        def step(self, inputs, info):
            self.lr = 0.1 + 0.01 * np.random.rand()
            return super().step(inputs, info)
        """,
        "training on reference, the same twice",
        "two runs from one start differ",
    ),
    "no outputs": (
        "step",
        """
        def step(self, inputs, info):
            super().step(inputs, info)
        """,
        "training on reference",
        "step returned None; allowed: the network's outputs by name, 'loss' among them",
    ),
    "no step": (
        "step",
        """
        def step(self, inputs, info):
            return self.executor.inference(dict.fromkeys(inputs) | {k: v[:5] for k, v in BATCH.items()})
        """,
        "training on reference",
        "the loss is the same at every step",
    ),
    "an average that stays": (
        "averaged",
        """
        def averaged(self):
            from contextlib import contextmanager
            @contextmanager
            def held():
                name = "fc1.bias"
                self.executor.write([name], np.ones(6, self.m[name].dtype))
                yield
                self.executor.write([name], np.zeros(6, self.m[name].dtype))
            return held() if "fc1.bias" in self.m else __import__("contextlib").nullcontext()
        """,
        "training on reference",
        "averaged() does not give the parameter 'fc1.bias' back",
    ),
    "uphill": (
        "step",
        """
        def step(self, inputs, info):
            self.lr = -abs(self.lr)
            return super().step(inputs, info)
        """,
        "convex problem, 400 steps",
        "allowed: below 1; remedy: a step against the gradient",
    ),
    "full batches alone": (
        "step",
        """
        def step(self, inputs, info):
            if info.batch_size == 5:
                raise KeyError("a batch of 8")
            return super().step(inputs, info)
        """,
        "training on reference",
        "raised KeyError: 'a batch of 8'",
    ),
}
BATCH = """
BATCH = {"input": np.linspace(-1, 1, 60).reshape(5, 12), "label": np.array([0, 1, 2, 3, 0])}
"""


@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_step_optimizer_is_caught(name: str, tmp_path: Path) -> None:
    method, body, check, told = STEPS[name]
    found = failed(checked(tmp_path, BATCH + changed(STEP, method, body)))
    assert check in found, found
    assert told in found[check]


# The command


def command(*arguments: str) -> Any:
    return CliRunner().invoke(optimizer_command(errors), list(arguments))


def test_the_command_tells_by_its_status(tmp_path: Path) -> None:
    right, framework = written(tmp_path, STEP), ("--framework", "reference")
    done = command(right, *framework)
    assert done.exit_code == 0, done.output
    assert "Own, step optimizer: passed" in done.stdout
    assert "resumed on reference, the same bits" in done.stdout
    assert command(right, *framework, "--quiet").stdout == ""
    _, body, check, told = STEPS["state not restored"]
    wrong = written(tmp_path, changed(STEP, "load_state_dict", body))
    done = command(wrong, *framework, "--quiet")
    assert done.exit_code == 1
    assert check in done.stdout
    assert told in done.stdout
    document = json.loads(command(wrong, *framework, "--json").stdout)
    assert (document["optimizer"], document["kind"], document["passed"]) == ("Own", "step optimizer", False)
    assert [row["check"] for row in document["checks"] if row["verdict"] == "FAILED"] == [check]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("adamm",), "unknown optimizer 'adamm'"),
        (("adam", "--set", "gamma=1"), "Adam has no argument 'gamma'; allowed: lr, beta1"),
        (("adam", "--set", "lr=1", "--set", "lr=2"), "an argument is given twice by --set"),
        (("adam", "--framework", "torhc"), "unknown framework 'torhc'"),
        (("native:adam",), "native:adam is a framework's own optimizer; allowed: with --framework NAME"),
        (("native:adamm", "--framework", "pytorch"), "unknown native optimizer of pytorch 'adamm'"),
        (("nowhere.py:Own",), "the file nowhere.py cannot be read"),
        (("adam", "--set", "lr=abc"), "Adam: got lr='abc'; allowed: a finite number"),
        (("averaged_sgd", "--set", "start=-1"), "got start=-1; allowed: an integer of at least 0"),
    ],
)
def test_what_cannot_be_made_is_wrong_usage(arguments: tuple[str, ...], told: str) -> None:
    done = command(*arguments)
    assert done.exit_code == 2
    assert told in done.stderr


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        HEAD + "class Half:\n    def bind(self, executor): ...\n    def step(self, inputs, info): ...\n"
        "class Bad:\n    def __init__(self): raise ValueError('no')\n"
        "    bind = step = state_dict = load_state_dict = 1\n"
        "number = 3\nrule = d5.SGD(lr=0.5)\n"
    )
    with pytest.raises(UsageError, match=r"Half gives .*; it has no state_dict, load_state_dict"):
        check_optimizer(f"{tmp_path}/odd.py:Half")
    with pytest.raises(UsageError, match=r"Bad\(\) raised ValueError: no; remedy: other arguments"):
        check_optimizer(f"{tmp_path}/odd.py:Bad")
    with pytest.raises(UsageError, match=r"int gives 3; allowed: a d5.UpdateRule, or an object with bind"):
        check_optimizer(f"{tmp_path}/odd.py:number")
    with pytest.raises(UsageError, match="SGD is an object already; allowed: no --set"):
        check_optimizer(f"{tmp_path}/odd.py:rule", settings=["lr=1"])
    with pytest.raises(UsageError, match=r"has no 'Nothing'; allowed: .*Bad"):
        check_optimizer(f"{tmp_path}/odd.py:Nothing")
    with pytest.raises(UnknownName, match="did you mean 'adam'"):
        check_optimizer("adan")


def test_a_native_optimizer_runs_on_its_own_framework() -> None:
    report = check_optimizer("native:momentum", framework_name="pytorch", settings=["lr=0.125"])
    assert report, report.story()
    verdicts = {row.check: row.verdict for row in report.rows}
    assert verdicts["training on reference"] == "not evaluated"
    assert verdicts["training on pytorch, float64"] == "passed"


def test_a_rule_is_held_to_the_framework_s_own() -> None:
    report = check_optimizer("momentum", framework_name="pytorch")
    row = next(row for row in report.rows if row.check == "native momentum of pytorch")
    assert row.verdict == "passed"
    assert row.error is not None
    assert row.error < 1e-12
    other = check_optimizer("amsgrad", framework_name="pytorch")
    row = next(row for row in other.rows if row.check == "native amsgrad of pytorch")
    assert row.verdict == "not evaluated"
    assert "corrects the bias, like deep5's with `bias_correction=True`" in row.note
    assert other


@pytest.mark.slow
@pytest.mark.parametrize("name", registered("optimizers"))
def test_every_registered_optimizer_passes(name: str) -> None:
    report = check_optimizer(name)
    assert report, report.story()
