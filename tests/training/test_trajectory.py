"""Every pair of back-ends trains every network alike: the proof in four parts, and tests that it can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import deep5 as d5
from deep5.core import plugins
from deep5.core.errors import UsageError
from deep5.networks.gradients.rules import RULES as GRADIENT_RULES
from deep5.recipes import digits_lenet
from deep5.training.datasets.uci_digits import digits
from deep5.training.trajectory import Comparison, Proof, prove_same_trajectory
from trajectory_cases import FRAMEWORKS, NETWORKS, STEPS, batches

RULES: dict[str, Callable[[], d5.UpdateRule]] = {
    "adam": lambda: d5.Adam(lr=0.002),
    "momentum": lambda: d5.Momentum(lr=0.01, momentum=0.9),
}
LOSSES = ("cross_entropy", "mse")
# The daily sample: a network of each kind once, rules and losses in turn; the rest is in `make test-all`.
SAMPLE = {
    (name, list(RULES)[index % 2], LOSSES[index // 2 % 2])
    for index, name in enumerate(NETWORKS)
    # Those of many layers take longest, by far.
    if name not in ("resnet18_small", "resnet", "inception", "transformer_causal")
}
CASES = [
    pytest.param(name, rule, loss, marks=() if (name, rule, loss) in SAMPLE else pytest.mark.slow)
    for name in NETWORKS
    for rule in RULES
    for loss in LOSSES
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread each, restored at the end: other processes share the two cores."""
    frameworks = [d5.framework(name) for name in ("pytorch", "reference")]
    network = d5.networks.mlp(features=2, hidden=2, classes=2)
    before = [framework.executor(network).settings()["threads"] for framework in frameworks]
    for framework in frameworks:
        framework.set_threads(1)
    yield
    for framework, threads in zip(frameworks, before, strict=True):
        framework.set_threads(threads)


def prove(name: str, rule: str, loss: str, frameworks: Any = FRAMEWORKS, steps: int = STEPS) -> Proof:
    make, smooth = NETWORKS[name]
    return prove_same_trajectory(
        lambda dtype: make(dtype=dtype, loss=loss),
        RULES[rule],
        lambda network: batches(network, steps),
        frameworks,
        smooth=smooth,
    )


@pytest.mark.parametrize(("name", "rule", "loss"), CASES)
def test_all_pairs_train_alike(name: str, rule: str, loss: str) -> None:
    proof = prove(name, rule, loss)
    assert proof.passed, "\n".join(proof.failures())
    # Only ONNX Runtime in float64 is excluded.
    assert all(line.startswith("onnxruntime in float64: ") for line in proof.left_out), proof.left_out
    curve = proof.losses["reference", "float64"]
    assert len(curve) == STEPS
    assert curve[-10:].mean() < 0.9 * curve[0]  # it learns: two constants would agree as well
    # Pairs of all participants, in every part.
    doubles, singles = (sum(kind == dtype for _, kind in proof.losses) for dtype in ("float64", "float32"))
    assert singles == len(FRAMEWORKS)
    pairs = {
        "a": doubles * (doubles - 1) // 2,
        "b": 30 + 2 * len(FRAMEWORKS),
        "c": 15 + doubles * (doubles + 1) // 2,
        "d": 10 if NETWORKS[name][1] else 0,
    }
    assert {part: sum(c.part == part for c in proof.comparisons) for part in "abcd"} == pairs


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pytorch:compiled", "tensorflow:xla"])
@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_modes_train_as_the_plain_ones(name: str, mode: str) -> None:
    proof = prove(name, "adam", "cross_entropy", ("reference", mode), steps=30)
    assert proof.passed, "\n".join(proof.failures())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "loss"),
    # Each network once, with a rule and a loss that the daily sample does not combine with it.
    [(name, list(RULES)[(index + 1) % 2], LOSSES[index // 2 % 2]) for index, name in enumerate(NETWORKS)],
)
def test_openvino_trains_as_the_reference(name: str, rule: str, loss: str) -> None:
    proof = prove(name, rule, loss, ("reference", "openvino"))
    assert proof.passed, "\n".join(proof.failures())
    assert all(line.startswith("openvino in float64: ") for line in proof.left_out), proof.left_out
    assert ("openvino", "float32") in proof.losses


class Wrong:
    """The reference with one error."""

    def __init__(self, framework: d5.Framework, spoil: Callable[[Any], None]) -> None:
        self._framework, self._spoil, self.name = framework, spoil, "wrong"

    def executor(self, network: d5.Network, **kwargs: Any) -> Any:
        executor = self._framework.executor(network, **kwargs)
        self._spoil(executor)
        return executor


def _output_off(executor: Any) -> None:
    """An executor whose network computes something else: one weight is off by 0.1 %."""
    name = next(iter(executor.network.parameter_specs))
    executor.load_state_dict({**executor.state_dict(), name: executor.state_dict()[name] * 1.001})


def _baked_in(executor: Any) -> None:
    """A step size that is read once and never again."""
    made = executor.train_step

    def train_step(rule: Any, *args: Any, **kwargs: Any) -> Any:
        step = made(rule, *args, **kwargs)
        lr = rule.lr

        class Step:
            state_dict, load_state_dict = step.state_dict, step.load_state_dict
            backprop, apply = step.backprop, step.apply

            def __call__(self, inputs: Any, info: Any) -> Any:
                kept, rule.lr = rule.lr, lr
                try:
                    return step(inputs, info)
                finally:
                    rule.lr = kept

        return Step()

    executor.train_step = train_step


class _LongStep:
    """A step whose rule has a step size that is 1 % off, in float32 only."""

    def __init__(self, step: Any, rule: Any) -> None:
        self._step, self._rule = step, rule
        self.state_dict, self.load_state_dict, self.backprop = step.state_dict, step.load_state_dict, step.backprop

    def _long(self, call: Callable[..., Any], *args: Any) -> Any:
        kept, self._rule.lr = self._rule.lr, 1.01 * self._rule.lr
        try:
            return call(*args)
        finally:
            self._rule.lr = kept

    def __call__(self, inputs: Any, info: Any) -> Any:
        return self._long(self._step, inputs, info)

    def apply(self, gradients: Any, info: Any) -> None:
        self._long(self._step.apply, gradients, info)


class _WholeOnly(_LongStep):
    """The same, only in the whole step."""

    def apply(self, gradients: Any, info: Any) -> None:
        self._step.apply(gradients, info)


def _off_in_single(made: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    def spoil(executor: Any) -> None:
        if executor.network.inputs["input"].dtype == "float32":
            train_step = executor.train_step
            executor.train_step = lambda rule, *args, **options: made(train_step(rule, *args, **options), rule)

    return spoil


class Scheduled(d5.Adam):
    """Adam whose step size is halved during training; `new_input` is called once per step."""

    def new_input(self, info: d5.StepInfo) -> Any:
        if info.step == 10:
            self.lr = 0.001
        return super().new_input(info)


def _parts(proof: Proof) -> set[str]:
    return {comparison.part for comparison in proof.comparisons if not comparison.passed}


def test_a_wrong_executor_is_caught() -> None:
    reference = d5.framework("reference")
    wrong: Any = Wrong(reference, _output_off)
    plugins_framework: Any = [reference, wrong]
    proof = prove("mlp", "adam", "cross_entropy", plugins_framework, steps=20)
    assert _parts(proof) >= {"a", "d"}
    assert "wrong" in proof.failures()[0]


@pytest.mark.parametrize("name", ["lenet_relu", pytest.param("inception", marks=pytest.mark.slow)])
def test_a_wrong_executor_is_caught_behind_kinks(name: str) -> None:
    frameworks: Any = [d5.framework("reference"), Wrong(d5.framework("reference"), _output_off)]
    proof = prove(name, "momentum", "cross_entropy", frameworks, steps=6)
    assert "a" in _parts(proof)
    assert "wrong" in proof.failures()[0]


@pytest.mark.parametrize(("made", "seen"), [(_LongStep, 2), (_WholeOnly, 1)])
@pytest.mark.parametrize("rule", RULES)
def test_a_wrong_update_in_float32_is_caught_behind_kinks(rule: str, made: Any, seen: int) -> None:
    """Like ONNX Runtime, which is excluded in float64: 1 % is within the effect of kinks on a loss."""
    frameworks: Any = [d5.framework("reference"), Wrong(d5.framework("reference"), _off_in_single(made))]
    proof = prove("lenet_relu", rule, "cross_entropy", frameworks, steps=6)
    assert [c.what for c in proof.comparisons if not c.passed][-seen:] == [
        "update on its own gradient",
        "update of a whole step",
    ][-seen:]
    assert {c.first for c in proof.comparisons if not c.passed} == {"wrong"}


def test_a_baked_in_hyperparameter_is_caught() -> None:
    reference = d5.framework("reference")
    frameworks: Any = [reference, Wrong(reference, _baked_in)]
    make = NETWORKS["lstm"][0]
    proof = prove_same_trajectory(
        lambda dtype: make(dtype=dtype), lambda: Scheduled(lr=0.002), lambda net: batches(net, 30), frameworks
    )
    assert _parts(proof) >= {"a", "d"}
    constant = prove("lstm", "adam", "cross_entropy", frameworks, steps=30)
    assert constant.passed, constant.failures()  # only a schedule shows it


def test_a_wrong_gradient_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """tanh' = 1 - y instead of 1 - y^2: the loss is right, the gradient is not."""

    def wrong(b: Any, node: Any, grads: Any) -> Any:
        y = node.outputs[0]
        return [b.op("Mul", grads[0], b.op("Sub", b.like(1.0, y), y))]

    monkeypatch.setitem(GRADIENT_RULES, "Tanh", wrong)
    proof = prove("mlp", "momentum", "cross_entropy", ("reference", "pytorch"), steps=10)
    assert _parts(proof) == {"a", "b", "c", "d"}


def test_a_proof_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two different"):
        prove("mlp", "adam", "cross_entropy", ("reference", "reference"))
    with pytest.raises(UsageError, match="at least two, as many"):
        prove("mlp", "adam", "cross_entropy", ("reference", "pytorch"), steps=1)
    assert not Proof(comparisons=()).passed
    assert not Comparison("a", "", "x", "y", float("nan"), 1.0, 0.0).passed


@pytest.mark.daily
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    "framework", ["pytorch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("reference", *FRAMEWORKS[2:]))]
)
def test_digits_lenet_reaches_its_goal_for_three_seeds(framework: str, seed: int) -> None:
    splits = digits(**digits_lenet.FIXED["dataset_kwargs"])  # type: ignore[arg-type]
    network: Any = d5.networks.lenet(**digits_lenet.FIXED["model_kwargs"], seed=seed)  # type: ignore[arg-type]
    executor = d5.framework(framework).executor(network)
    batch_size: Any = digits_lenet.MUTABLE["batch_size"]
    rule = plugins.load("optimizers", "adam")(**digits_lenet.MUTABLE["optimizer_kwargs"])  # type: ignore[arg-type]
    trainer = d5.Trainer(
        executor,
        rule,
        d5.ShuffleSampler(splits.train, batch_size, seed=seed),
        d5.OrderedSampler(splits.test, 256),
    )
    trainer.train(digits_lenet.FIXED["epochs"])  # type: ignore[arg-type]
    assert trainer.scores["accuracy"] >= 97
    assert trainer.scores["samples"] == len(splits.test)
