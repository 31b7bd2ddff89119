"""Networks that PyTorch compiles: one graph for all sizes, statistics, labels, and what cannot be compiled."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import conformance
import deep5 as d5
from backends import BACKENDS
from deep5.core import compiler
from deep5.core.compiler import cache_folder
from deep5.core.errors import Deep5Error, NetworkError, UnknownName, Unsupported
from deep5.core.executors import GraphExecutor
from deep5.frameworks.pytorch.executor import _class_check
from deep5.frameworks.pytorch.framework import PyTorch
from deep5.frameworks.pytorch.operators import OPERATORS, supports
from deep5.frameworks.pytorch.table import EAGER, SETTINGS, key
from deep5.networks import Network, NetworkBuilder, lstm, mlp, ones
from deep5.networks.labels import Labels
from deep5.networks.onnx_operator import ONNXOperator
from executor_cases import SMALL, batch, normalised
from executor_cases import executor as shared_executor
from operator_cases import cases, named, normal, single

TORCH = PyTorch()
executor = functools.partial(shared_executor, BACKENDS["pytorch"])
CASES = cases("pytorch")


def compiled(network: Network) -> Any:
    return d5.framework("pytorch:compiled").executor(network)


def test_the_compiled_mode_is_a_mode_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = d5.framework("pytorch:compiled")
    assert framework.name == "pytorch:compiled"
    run = framework.executor(mlp(**SMALL))
    assert isinstance(run, GraphExecutor)
    assert run.capabilities == {"float64"}
    assert executor().compilations == 0
    with pytest.raises(UnknownName, match=r"unknown pytorch mode 'complied'.*did you mean 'compiled'"):
        d5.framework("pytorch:complied")
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == cache_folder()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        Unsupported, match=r"needs a C.. compiler, and 'no-such-compiler' is not there; remedy: install"
    ):
        compiled(mlp(**SMALL))


@pytest.mark.parametrize("script", ["exit 1", "sleep 60"])
def test_a_compiler_that_torch_would_wait_for_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    command = tmp_path / "g++"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    monkeypatch.setattr(compiler, "_COMPILE_TIMEOUT_S", 1)
    with pytest.raises(
        Unsupported, match=r"needs a C\+\+ compiler: the compiler .* does not work: it .*, or run on 'pytor"
    ):
        compiled(mlp(**SMALL))


def test_a_cache_of_torch_that_others_can_write_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torchinductor").mkdir()
    (tmp_path / "torchinductor").chmod(0o777)
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with pytest.raises(Unsupported, match="torchinductor has mode 0777, so that another user could replace its files"):
        compiled(mlp(**SMALL))


def traced(made: Any) -> Any:
    """torch's tracer and its rules, but the traced graph runs uncompiled."""
    made._compiler._inductor = lambda graph, inputs: graph.forward
    return made


def test_any_number_of_sets_of_leaves_is_compiled() -> None:
    network = mlp(**SMALL, seed=3)
    run, plain, feed = traced(compiled(network)), executor(network), batch()
    names = [*network.parameter_specs, "input"]
    chosen = [names[first:last] for first in range(5) for last in range(first + 1, 6)]
    assert len(chosen) > 8  # torch's limit is eight compilations of a function
    for wrt in (*chosen, *chosen[:3]):
        for each in (run, plain):
            each.inference_and_backprop(feed, wrt=wrt)
        assert run.gradients().keys() == set(wrt)
        for name, value in run.gradients().items():
            torch.testing.assert_close(value, plain.gradients()[name])
    assert run.compilations == len(chosen)  # each once
    run.inference(feed)


def test_a_compiled_function_that_met_too_many_kinds_of_inputs_begins_anew() -> None:
    build = NetworkBuilder("backwards")
    arguments = [
        build.constant(name, np.array([number])) for name, number in (("a", -1), ("b", -9), ("c", 0), ("d", -1))
    ]
    run = traced(compiled(build.network({"y": build.op("Slice", build.input("x", ("N", 3)), *arguments)})))
    for count in range(2, 13):  # torch compiles a function for each size here
        x = normal(count, 3)
        np.testing.assert_array_equal(run.inference({"x": x})["y"], x[-1:-9:-1])
    assert run.compilations > 8
    operator = traced(d5.framework("pytorch:compiled").operator_executor(ONNXOperator("Relu")))
    for order in itertools.permutations(range(4)):
        value = torch.randn(2, 3, 4, 5).permute(order).contiguous().permute(*np.argsort(order).tolist())
        assert torch.equal(operator.inference(value)[0], value.relu())


def test_compiled_statistics_are_left_by_a_pass_that_fails() -> None:
    network, good = normalised(count=3), batch()
    run, plain = traced(compiled(network)), executor(network)
    before = run.state_dict()
    with pytest.raises(NetworkError, match="got the label 99"):
        run.inference_and_backprop({**good, "label": np.array([0, 1, 99, 0, 1])})
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for each in (run, plain):
        each.inference_and_backprop(good)
    for name, value in run.buffers().items():
        torch.testing.assert_close(value, plain.buffers()[name])
        assert not value.requires_grad


@pytest.mark.parametrize("ignored", [None, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_labels_are_looked_at_before_what_is_compiled(dtype: str, ignored: int | None) -> None:
    labels = Labels(
        position=0, name="label", classes=3, unsigned=np.dtype(f"u{np.dtype(dtype).itemsize}"), ignored=ignored
    )
    check, kind = _class_check(labels, dtype), getattr(torch, dtype)
    for right in ([2], [0, 1, 2, 2], [[0, 1], [2, 0]], []):
        check(torch.tensor(right, dtype=kind))
    wrongs: list[Any] = [[3], [0, 1, 99], [[0, 1], [5, 0]]]
    if dtype != "uint8":
        wrongs += [[-2], [1, 0, -2]]
        for held in ([-1], [0, -1, 2]):
            if ignored is None:
                wrongs.append(held)
            else:
                check(torch.tensor(held, dtype=kind))
    for wrong in wrongs:
        with pytest.raises(NetworkError, match=r"input 'label': got the label (3|99|5|-1|-2); allowed: 0 to 2"):
            check(torch.tensor(wrong, dtype=kind))


@pytest.mark.slow
class Enough(Exception):
    """Nothing needs to be compiled again."""


def test_compiled_steps_wait_for_what_is_changed_in_place_before_them() -> None:
    def gradients(x: Any, index: Any, gate: Any, images: Any, weight: Any) -> Any:
        # Max pooling's gradient, ReLU's and a convolution's.
        added = torch.zeros(256, 4).scatter_add(1, index, x).view(8, 32, 2, 2)
        how = [32], (1, 1), (1, 1), (1, 1), False, (0, 0), 1, [True, True, True]
        return torch.ops.aten.convolution_backward(torch.where(gate, 0.0, added), images, weight, *how)

    behind: list[tuple[Any, Any]] = []

    def look(steps: list[Any]) -> Any:
        for step in (each for fused in steps for each in fused.get_nodes()):
            # The names before the mutation, for which the step must not wait, and those for which it waits.
            behind.append((set(step.mutation_renames), {read.name for read in step.read_writes.reads}))
        raise Enough

    run = d5.framework("pytorch:compiled").operator_executor(ONNXOperator("Relu"))._compiler.of_operator(gradients)
    index, gate = torch.zeros(256, 1, dtype=torch.int64), torch.ones(8, 32, 2, 2) > 0
    last = [
        torch.ones(shape).contiguous(memory_format=torch.channels_last) for shape in ((8, 32, 2, 2), (32, 32, 3, 3))
    ]
    given = torch.ones(256, 1), index, gate, *last
    with torch._inductor.config.patch(_post_fusion_custom_pass=look), pytest.raises(Unsupported, match="Enough"):
        run(*given)
    assert any(before for before, _ in behind)
    assert not [names for before, names in behind if before & names]


def test_batches_of_any_size_run_what_was_compiled_once() -> None:
    network = mlp(**SMALL, seed=3)
    run, plain = compiled(network), executor(network)
    assert run.compilations == 0  # nothing is compiled before it is called
    rule = d5.Adam(lr=0.05)
    step, other = run.train_step(rule), plain.train_step(rule)
    for number, count in enumerate((8, 5, 8, 3, 2, 9)):
        rule.lr = 0.05 / (number + 1)
        feed, info = batch(count), d5.StepInfo(step=number, batch_size=count)
        # Float32, sums in another order; six steps.
        assert step(feed, info)["loss"].item() == pytest.approx(other(feed, info)["loss"].item(), rel=1e-4)
        assert run.compilations == 1
    native = torch.from_numpy(normal(7, 4))
    run.inference({**batch(7), "input": native})
    assert not hasattr(native, "_dynamo_weak_dynamic_indices")  # the caller's tensor is not marked
    assert run.compilations == 2  # evaluation keeps nothing for a gradient
    for count in (4, 6):
        feed = batch(count)
        torch.testing.assert_close(run.inference(feed)["logits"], plain.inference(feed)["logits"], rtol=1e-3, atol=1e-4)
    assert run.compilations == 2
    run.inference(batch(1))
    assert run.compilations == 3  # torch has separate batches of one
    for _ in range(2):
        run.inference_and_backprop(batch(5), wrt=["fc2.bias"])
        assert run.gradients().keys() == {"fc2.bias"}
    assert run.compilations == 4


@pytest.mark.slow
def test_a_compiled_recurrent_layer_is_its_cells() -> None:
    network = lstm(features=3, hidden=4, length=6, classes=2)  # below four steps, the plain executor uses cells, too
    run, plain = compiled(network), executor(network)
    assert "f_long_short" in plain.source
    assert "f_long_short" not in run.source
    feed = {"input": normal(5, 6, 3), "label": np.arange(5) % 2}
    for each in (run, plain):
        each.inference_and_backprop(feed)
    for name, value in run.gradients().items():
        # Float32, six cells, sums in another order.
        torch.testing.assert_close(value, plain.gradients()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_compiled_statistics_and_masks() -> None:
    build = NetworkBuilder("both", dtype="float64", seed=2)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("MatMul", x, build.parameter("w", (4, 3)))
    names = [build.parameter(name, (3,), ones) for name in ("scale", "shift", "mean", "variance")]
    x = build.op("Dropout", build.op("BatchNormalization", x, *names), build.scalar(0.5, "float32"))
    network = build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})
    runs = [compiled(network), executor(network)]
    for number in range(3):
        feed, info = batch(6 + number, "float64"), d5.StepInfo(step=number, seed=9)
        for run in runs:
            run.inference_and_backprop(feed, info=info)
        for name, value in runs[0].gradients().items():
            torch.testing.assert_close(value, runs[1].gradients()[name])
        for name, value in runs[0].buffers().items():
            torch.testing.assert_close(value, runs[1].buffers()[name])
    assert runs[0].compilations == 1
    assert not torch.equal(runs[0].buffers()["mean"], torch.ones(3, dtype=torch.float64))


@functools.cache
def onnx_cases() -> dict[str, tuple[Network, list[Any]]]:
    """By operator, the first of ONNX's cases of one node whose inputs are arrays."""
    found: dict[str, tuple[Network, list[Any]]] = {}
    for case in conformance.cases("node").values():
        model = conformance.model_of(case)
        operator = key(ir.from_proto(model).graph[0]) if len(model.graph.node) == 1 else ""
        inputs, _ = next(conformance.samples(case, model), ([], []))
        if operator not in OPERATORS or operator in found or not all(isinstance(x, np.ndarray) for x in inputs):
            continue
        try:
            found[operator] = Network.from_onnx(model), inputs
        except Deep5Error:
            continue  # of an element type that deep5 does not have
    return found


def case_of(op: str) -> tuple[Network, list[Any]] | None:
    """A network of one operator, with constant settings, and its inputs."""
    for name, values, options in (*CASES, ("GlobalLpPool", (normal(2, 3, 4, 5),), {"p": 3})):
        first = min(SETTINGS.get(op, ()), default=len(values))
        if name == op and not (first < len(values) and "constants" in options):
            settings = {"constants": values[first:]} if first < len(values) else {}
            return single(op, named(values[:first]), **settings, **options), list(values[:first])
    return onnx_cases().get(op)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OPERATORS.keys() - {"Constant"}))
def test_every_operator_is_one_graph_or_refused(op: str) -> None:
    """What torch.compile requires of Python code; correct compilation is torch's task, and is tested above."""
    case = case_of(op)
    if case is None:
        assert op in EAGER or "Sequence" in op or op == "Optional"  # refused by kind, as the others of this kind
        return
    network, values = case
    run = executor(network)
    want = run.inference(dict(zip(network.inputs, values, strict=True)))
    if not all(supports(node, compiled=True).yes for node in network.nodes):
        with contextlib.suppress(Unsupported):  # or in other operators, such as an unrolled loop
            assert not any(node.op_type == op for node in compiled(network)._forms.evaluation.nodes)
        return
    torch.compiler.reset()  # torch 2.11 counts all functions of generated source as one, and compiles it eight times
    whole = torch.compile(run._evaluation.call, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        got = whole(*(torch.from_numpy(np.array(value)) for value in values))
    for one, other in zip(got, want.values(), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_an_operator_whose_body_is_not_valid_is_refused() -> None:
    """The body of AffineGrid for a computed size has loops whose ranks differ, which ONNX's inference rejects."""
    build = NetworkBuilder("grid")
    theta, size = build.input("theta", (2, 2, 3)), build.input("size", (4,), "int64")
    network = build.network({"y": build.op("AffineGrid", theta, size)})
    with pytest.raises(Unsupported, match=r"has no valid form .*AffineGrid.*remedy: another back-end"):
        compiled(network)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = compiled(mlp(**SMALL, seed=11))
    monkeypatch.setattr(run._compiler, "_inductor", lambda graph, inputs: 1 / 0)
    with pytest.raises(Unsupported, match=r"torch cannot compile this network: .*ZeroDivisionError.*remedy: run it on"):
        run.inference(batch())
