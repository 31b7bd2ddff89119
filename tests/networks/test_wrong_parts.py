"""The shipped conformance suites reject wrong parts, drawn by a seed, and accept the same parts without a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.distributed.check_scheme import check_scheme
from deep5.frameworks.reference.executor import ReferenceExecutor
from deep5.frameworks.reference.framework import Reference
from deep5.networks.judge import ConformanceError
from wrong_parts import REJECTIONS, TARGETS, Mutant, check_right, drawn

# Every day ten mutants of the first seed, two of each target; `make test-all` runs all of three seeds.
SEEDS, COUNT, DAILY = (11, 12, 13), 60, 10


def mutants() -> Iterator[Any]:
    for seed in SEEDS:
        for number, mutant in enumerate(drawn(seed, COUNT)):
            daily = seed == SEEDS[0] and number < DAILY
            marks = pytest.mark.daily if daily else pytest.mark.slow
            yield pytest.param(mutant, id=f"{seed}-{mutant}", marks=marks)


@pytest.mark.parametrize("mutant", list(mutants()))
def test_a_wrong_part_is_rejected(mutant: Mutant) -> None:
    with pytest.raises(REJECTIONS):
        mutant.check()


# Drawn by other seeds, and once missed.
FOUND_LATER = (
    ("communicator", "receive", "exception", "scaled"),
    ("communicator", "receive", "dtype int64", "stale"),
    ("communicator", "reduce_scatter", "exception", "zero"),
    ("communicator", "broadcast", "size 64", "stale"),
    ("communicator", "reduce", "multiple 8", "stale"),
    ("communicator", "reduce", "size 64", "stale"),
    ("communicator", "reduce", "root+op 2 max", "zero"),
    ("communicator", "all_reduce", "part", "scaled"),
    ("communicator", "all_reduce", "nan", "zero"),
    ("executor", "gradients", "options wrt scale", "scaled"),
    ("executor", "gradients", "options wrt scale", "stale"),
    ("executor", "step", "options groups modifier pipeline", "one element"),
    ("executor", "inference", "options late", "stale"),
    ("executor", "backprop", "nan", "zero"),
    ("scheme", "mean", "ranks 4", "scaled"),
    ("scheme", "mean", "epoch 1", "zero"),
    ("communicator", "scatter", "dtype float16", "stale"),
    ("executor", "apply", "later", "one element"),
    ("executor", "apply", "thread", "stale"),
    ("executor", "backprop", "zeros", "stale"),
    ("executor", "parameters", "dtype float32", "dtype"),
    ("operator", "forward", "call", "zero"),
    ("operator", "forward", "call", "stale"),
    ("operator", "backward", "call", "stale"),
    ("operator", "forward", "zeros", "input"),
    ("operator", "backward", "sorted", "input"),
    ("operator", "forward", "multiple 8", "scaled"),
    ("operator", "backward", "multiple 8", "zero"),
    ("scheme", "outputs", "rank 0", "stale"),
)


@pytest.mark.parametrize("parts", FOUND_LATER, ids="-".join)
def test_what_was_missed_once_is_rejected(parts: tuple[str, str, str, str]) -> None:
    target, method, trigger, fault = parts
    with pytest.raises(REJECTIONS):
        Mutant(target=target, method=method, trigger=trigger, fault=fault, seed=0).check()


def rights() -> Iterator[Any]:
    for target, known in TARGETS.items():
        for number, method in enumerate(known.methods):
            yield pytest.param(target, method, marks=[] if number else pytest.mark.daily)


@pytest.mark.parametrize(("target", "method"), list(rights()))
def test_a_part_whose_trigger_never_fires_is_accepted(target: str, method: str) -> None:
    """The rejections above are of the fault, not of what carries it."""
    check_right(target, method)


def test_another_seed_draws_other_mutants() -> None:
    first, second = ({str(mutant) for mutant in drawn(seed, COUNT)} for seed in SEEDS[:2])
    assert len(first) == len(second) == COUNT
    assert len(first & second) < COUNT / 2
    assert {mutant.target for mutant in drawn(SEEDS[0], 5)} == set(TARGETS)
    assert [str(mutant) for mutant in drawn(5, 20)] == [str(mutant) for mutant in drawn(5, 20)]


class _Executor(ReferenceExecutor):
    def inference(self, inputs: Any, **keywords: Any) -> Any:
        outputs = dict(super().inference(inputs, **keywords))
        size, kind = len(inputs["label"]) if "label" in inputs else 0, type(self)._wrong  # type: ignore[attr-defined]
        if (kind == "batch1" and size == 1) or (kind == "batch16" and size >= 16):
            outputs["logits"] = np.array(outputs["logits"]) * 1.1
        return outputs


@pytest.mark.parametrize(("wrong", "size"), [("batch1", "1"), ("batch16", "64")])
def test_a_back_end_that_is_wrong_at_one_size_is_rejected(wrong: str, size: str) -> None:
    kind = type("Executor", (_Executor,), {"_wrong": wrong})

    class Wrong(Reference):
        name = "wrong"

        def executor(self, network: Any, *, device: Any = "cpu", seed: int = 0) -> Any:
            return kind(network, self, device=d5.CPUDevice(), seed=seed)

    with pytest.raises(ConformanceError, match=f"inference of a batch of {size}: the output 'logits' differs"):
        d5.check_executor(Wrong())


class _RowSum(d5.Operator):
    def specs(self, x: d5.TensorSpec) -> Any:
        if len(x.shape) != 2:
            raise d5.ShapeError(f"got {x}; allowed: two dimensions")
        return (d5.TensorSpec(shape=x.shape[:1], dtype=x.dtype),)

    def forward(self, x: Any) -> Any:
        return d5.array_namespace(x).sum(x, axis=1)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp = d5.array_namespace(inputs[0])
        return (xp.zeros_like(inputs[0]) + xp.reshape(output_grads[0], (inputs[0].shape[0], 1)),)


class _SpecsAtOne(_RowSum):
    def specs(self, x: d5.TensorSpec) -> Any:
        return (d5.TensorSpec(shape=() if x.shape[0] == 1 else x.shape[:1], dtype=x.dtype),)


class _GradientAtOne(_RowSum):
    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (grad,) = super().backward(output_grads, inputs, outputs, needs)
        return (grad * (3 if inputs[0].shape[0] == 1 else 1),)


def test_an_operator_that_is_wrong_at_one_size_is_rejected() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert d5.check_forward(_RowSum(), [x])
    assert d5.check_gradient(_RowSum(), [x])
    with pytest.raises(d5.OperatorError, match=r"forward, dimension 3 = 1: .*got shape \(1,\), expected"):
        d5.check_forward(_SpecsAtOne(), [x])
    with pytest.raises(d5.OperatorError, match="backward, dimension 3 = 1: gradient by input 0"):
        d5.check_gradient(_GradientAtOne(), [x])


SCHEMES = {
    "all_reduce": d5.AllReduce,
    "parameter_server": d5.ParameterServer,
    "local_sgd": lambda: d5.LocalSGD(every=2),
    "gossip": d5.Gossip,
    "neighbourhood": d5.Neighbourhood,
    "elastic_averaging": lambda: d5.ElasticAveraging(every=2),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_our_schemes_pass(name: str) -> None:
    check_scheme(SCHEMES[name](), ranks=(1, 3, 4))


class _Mean(d5.DistributedOptimizer):
    """The mean of all gradients; each wrong scheme changes it, or the step, somewhere."""

    consistent = True

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs, own = self.backprop(inputs, info), self.gradients()
        self.apply(self.changed(dict(own), dict(self.mean(own, info)), info), info)
        return outputs

    def changed(self, own: dict[str, Any], mean: dict[str, Any], info: d5.StepInfo) -> dict[str, Any]:
        return mean


class _IgnoresTheRate(_Mean):
    def changed(self, own: dict[str, Any], mean: dict[str, Any], info: d5.StepInfo) -> dict[str, Any]:
        optimizer: Any = self.optimizer
        rule = optimizer.rule
        first = vars(self).setdefault("_first", rule.lr)
        return {name: value * (first / rule.lr) for name, value in mean.items()}


Change = Callable[[Any, dict[str, Any], dict[str, Any], d5.StepInfo], dict[str, Any]]
CHANGES: dict[str, Change] = {
    "from step 12 on": lambda scheme, own, mean, info: own if info.step >= 12 else mean,
    "from epoch 1 on": lambda scheme, own, mean, info: own if info.epoch else mean,
    "of 20 samples": lambda scheme, own, mean, info: own if info.global_batch_size == 20 else mean,
    "on 4 ranks": lambda scheme, own, mean, info: own if scheme.communicator.size == 4 else mean,
    "the last of six": lambda scheme, own, mean, info: (
        mean if len(mean) < 5 else {**mean, list(mean)[-1]: own[list(mean)[-1]]}
    ),
    "large parameters": lambda scheme, own, mean, info: {
        name: own[name] if np.size(value) > 20_000 else value for name, value in mean.items()
    },
    "NaN": lambda scheme, own, mean, info: {name: np.nan_to_num(value) for name, value in mean.items()},
}


@pytest.mark.parametrize("name", [*CHANGES, "rates"])
def test_a_scheme_that_is_wrong_somewhere_is_rejected(name: str) -> None:
    kind = type("Wrong", (_Mean,), {"changed": CHANGES[name]}) if name in CHANGES else _IgnoresTheRate
    with pytest.raises(ConformanceError, match="the parameters after step"):
        check_scheme(kind(), ranks=(4,) if "ranks" in name else (2,))
    if "ranks" in name:
        assert 4 in check_scheme.__kwdefaults__["ranks"]


def test_the_scheme_without_a_change_is_accepted() -> None:
    check_scheme(_Mean(), ranks=(2, 4))


def test_a_scheme_is_compared_with_its_algorithm() -> None:
    def local(step: int, rows: np.ndarray, updates: np.ndarray, shares: np.ndarray) -> np.ndarray:
        after = rows + updates
        return np.tile(after.mean(axis=0), (len(rows), 1)) if step % 2 else after

    check_scheme(d5.LocalSGD(every=2), ranks=(2,), algorithm=local)
    with pytest.raises(ConformanceError, match="the parameters after step 1 of 8 samples on rank 0 differs in"):
        check_scheme(d5.LocalSGD(every=3), ranks=(2,), algorithm=local)
